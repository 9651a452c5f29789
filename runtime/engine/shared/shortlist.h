// A shortlist: the sampler's request for sampling candidates, and the step's result. It is a few kilobytes instead of half a megabyte of
// logits.
//
// The sampler asks before the step, when it knows the tokens with a bias or a penalty. The session passes the request to a backend that has
// shortlists. The sampler then chooses, if the result decides the token (sampler.h). If every token may be drawn, the result has sums of
// blocks, and the sampler asks for the logits of one block, while the row is on the device. If top-p reaches beyond the best, it asks for
// sums of bands, and then for the logits of two bands.
//
// (A kernel could choose by itself if it knew the draw. But it would need bias and penalties, and the host's rounding, to save a kilobyte.)
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/backend/shortlist.h"
#include "runtime/base/span.h"

namespace orrery::engine {

class Shortlist {
 public:
  static constexpr size_t kMostBest = ShortlistRequest::kMostBest, kMostTokens = ShortlistRequest::kMostTokens;
  static constexpr size_t kMostSums = ShortlistRequest::kMostSums, kSumLogits = ShortlistRequest::kSumLogits;
  static constexpr size_t kMostWords = ShortlistRequest::kMostWords;
  static constexpr size_t kMostBytes =
      sizeof(ShortlistHead) + kMostSums * sizeof(double) + kMostBest * sizeof(ShortlistEntry) + kMostTokens * sizeof(float);
  static constexpr size_t kHostBytes = 2 * kMostBytes + kMostTokens * sizeof(int32_t) + kMostWords * sizeof(uint32_t) +
                                       kSumLogits * sizeof(float) + ShortlistTail::kBands * sizeof(uint64_t) + sizeof(ShortlistTailEntries);

  Shortlist() {
    tokens_.reserve(kMostTokens);
    mask_.reserve(kMostWords);
    entries_.reserve(kMostBest);
    logits_.reserve(kMostTokens);
    sums_.reserve(kMostSums);
    block_.reserve(kSumLogits);
    bands_.resize(ShortlistTail::kBands);
    tail_entries_ = std::make_unique<ShortlistTailEntries>();
    result_.resize(kMostBytes);
  }

  // A new request: the sampler fills in the tokens, and calls set_best(). The old result is dropped.
  std::vector<int32_t>& ask(double inverse_temperature, int32_t n_sums) {
    forget();
    n_best_ = 0, n_sums_ = n_sums, inverse_temperature_ = inverse_temperature;
    tokens_.clear();
    mask_.clear();
    return tokens_;
  }
  void set_best(int32_t n) { n_best_ = n; }
  // Keeps a copy for a row of n logits (at most 32 kMostWords): the caller's words may change before the step reads them. Tokens behind the
  // last word are banned.
  void set_mask(Span<const uint32_t> words, size_t n) {
    mask_.assign((n + 31) / 32, 0);
    std::copy_n(words.begin(), std::min(words.size(), mask_.size()), mask_.begin());
    if (n % 32 != 0) mask_.back() &= (1u << (n % 32)) - 1;
  }
  Span<const uint32_t> mask() const { return mask_; }
  ShortlistRequest request() const { return {n_best_, tokens_, inverse_temperature_, n_sums_, mask_}; }

  // The result: the step writes shortlist_result_bytes(request()) bytes here and then calls arrived().
  std::byte* result() { return result_.data(); }
  void arrived() {
    stage_ = Stage::list;
    std::memcpy(&head_, result_.data(), sizeof head_);
    entries_.resize(static_cast<size_t>(head_.n_best));
    logits_.resize(tokens_.size());
    sums_.resize(static_cast<size_t>(n_sums_));
    const std::byte* sums = result_.data() + sizeof head_;
    const std::byte* entries = sums + sums_.size() * sizeof(double);
    if (!sums_.empty()) std::memcpy(sums_.data(), sums, sums_.size() * sizeof(double));
    if (!entries_.empty()) std::memcpy(entries_.data(), entries, entries_.size() * sizeof(ShortlistEntry));
    if (!logits_.empty())
      std::memcpy(logits_.data(), entries + static_cast<size_t>(n_best_) * sizeof(ShortlistEntry), logits_.size() * sizeof(float));
  }
  enum class Stage : uint8_t {
    nothing,
    list,     // the result of the step
    block,    // the logits of a block of tokens
    bands,    // the sums of the tail's bands (ShortlistTail)
    entries,  // the logits of two bands
  };
  // The data that has arrived since the last call.
  Stage take() { return std::exchange(stage_, Stage::nothing); }
  void forget() { stage_ = Stage::nothing, block_.clear(); }

  // Requests about the row of logits that the step has exported. The session writes the data to its place and calls more_arrived().
  Stage wanted() const { return wanted_; }
  void more_arrived() { stage_ = wanted_; }
  void ask_block(size_t first, size_t n) { wanted_ = Stage::block, first_ = first, block_.resize(n); }
  size_t first_of_block() const { return first_; }
  Span<float> block() { return {block_.data(), block_.size()}; }
  void ask_bands(const ShortlistTail& tail) { wanted_ = Stage::bands, tail_ = tail; }
  const ShortlistTail& tail() const { return tail_; }
  Span<uint64_t> bands() { return {bands_.data(), bands_.size()}; }  // (ShortlistTail::kBands)
  void ask_entries(int32_t band, int32_t other_band) { wanted_ = Stage::entries, band_ = band, other_band_ = other_band; }
  int32_t band() const { return band_; }
  int32_t other_band() const { return other_band_; }
  ShortlistTailEntries* tail_entries() { return tail_entries_.get(); }

  const ShortlistHead& head() const { return head_; }
  Span<const double> sums() const { return sums_; }  // of blocks of kSumLogits tokens
  Span<const ShortlistEntry> best() const { return entries_; }
  Span<const int32_t> tokens() const { return tokens_; }  // with a bias or a penalty, each once
  Span<const float> logits() const { return logits_; }    // of tokens()

 private:
  Stage stage_ = Stage::nothing, wanted_ = Stage::nothing;
  int32_t n_best_ = 0, n_sums_ = 0;
  double inverse_temperature_ = 0.0;
  std::vector<int32_t> tokens_;
  std::vector<uint32_t> mask_;
  std::vector<std::byte> result_;
  ShortlistHead head_;
  std::vector<ShortlistEntry> entries_;
  std::vector<float> logits_;
  std::vector<double> sums_;
  size_t first_ = 0;
  std::vector<float> block_;
  ShortlistTail tail_;
  std::vector<uint64_t> bands_;
  int32_t band_ = 0, other_band_ = 0;
  std::unique_ptr<ShortlistTailEntries> tail_entries_;
};

}  // namespace orrery::engine
