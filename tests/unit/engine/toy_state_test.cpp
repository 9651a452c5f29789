// The recipe of a kind of state (runtime/engine/state/add_a_kind_of_state.md), followed: two toy kinds, in this file alone. One is changed
// in place by each token, as a recurrent layer's; one is a ring, which holds some earlier states. Prompts, rewinds, forks, failed steps and
// parking leave the state that the session's tokens say, to the byte.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <vector>

#include "runtime/cpu/cpu_backend.h"
#include "runtime/engine/state/checkpointed_state.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/random_blocks.h"

namespace orrery::toy_state_test {
namespace {

using namespace orrery::testing;
using engine::CheckpointedState;
using engine::StateKind;
using Tokens = std::vector<int32_t>;
using Bytes = std::vector<std::byte>;

// What a layer would do with a token: here, a kind takes it.
class ToyKind : public StateKind {
 public:
  virtual void append(Backend* backend, uint32_t position, int32_t token) = 0;
  virtual Bytes of(const Tokens& tokens) const = 0;  // the definition: the copy of the state of these tokens
};

template <class T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

// The hash of all tokens.
class RunningHash final : public ToyKind {
 public:
  explicit RunningHash(Ptr<std::byte> at) : at_(at) {}
  uint64_t bytes() const override { return sizeof(uint64_t); }
  bool changed_in_place() const override { return true; }
  bool holds(uint32_t) const override { return false; }
  Status read(Backend* backend, uint32_t, std::byte* to) const override {
    backend->download(to, at_, bytes());
    return ok_status();
  }
  Status write(Backend* backend, uint32_t, const std::byte* from) override {
    backend->upload(at_, from, bytes());
    return ok_status();
  }
  Status clear(Backend* backend) override {
    const uint64_t zero = 0;
    backend->upload(at_, &zero, bytes());
    return ok_status();
  }
  void copy_from(Backend* backend, const StateKind& other) override {
    backend->copy(at_, static_cast<const RunningHash&>(other).at_, bytes());
  }
  void append(Backend* backend, uint32_t, int32_t token) override {
    uint64_t hash;
    backend->download(&hash, at_, sizeof hash);
    hash = mixed(hash, token);
    backend->upload(at_, &hash, sizeof hash);
  }
  Bytes of(const Tokens& tokens) const override {
    return bytes_of(std::vector<uint64_t>{std::accumulate(tokens.begin(), tokens.end(), uint64_t{0}, mixed)});
  }

 private:
  static uint64_t mixed(uint64_t hash, int32_t token) { return (hash ^ static_cast<uint64_t>(token + 1)) * 1099511628211u; }
  const Ptr<std::byte> at_;
};

// The last kWindow tokens, in a ring that also has room for a chunk.
class LastTokens final : public ToyKind {
 public:
  static constexpr uint32_t kWindow = 20, kRing = 64;
  explicit LastTokens(Ptr<std::byte> at) : at_(at) {}
  uint64_t bytes() const override { return kWindow * sizeof(int32_t); }
  bool changed_in_place() const override { return false; }
  bool holds(uint32_t n_tokens) const override { return (n_tokens < kWindow ? 0 : n_tokens - kWindow) >= oldest_; }
  Status read(Backend* backend, uint32_t n_tokens, std::byte* to) const override {
    Tokens window(kWindow, -1);
    for (uint32_t i = 0; i < std::min(kWindow, n_tokens); ++i)
      backend->download(&window[kWindow - 1 - i], slot(n_tokens - 1 - i), sizeof(int32_t));
    std::memcpy(to, window.data(), bytes());
    return ok_status();
  }
  Status write(Backend* backend, uint32_t n_tokens, const std::byte* from) override {
    for (uint32_t i = 0; i < std::min(kWindow, n_tokens); ++i)
      backend->upload(slot(n_tokens - 1 - i), from + (kWindow - 1 - i) * sizeof(int32_t), sizeof(int32_t));
    oldest_ = n_tokens < kWindow ? 0 : n_tokens - kWindow;
    return ok_status();
  }
  Status clear(Backend*) override {
    oldest_ = 0;
    return ok_status();
  }
  void copy_from(Backend* backend, const StateKind& other) override {
    const auto& its = static_cast<const LastTokens&>(other);
    backend->copy(at_, its.at_, kRing * sizeof(int32_t));
    oldest_ = its.oldest_;
  }
  void append(Backend* backend, uint32_t position, int32_t token) override {
    backend->upload(slot(position), &token, sizeof token);
    if (position >= kRing) oldest_ = std::max(oldest_, position + 1 - kRing);
  }
  Bytes of(const Tokens& tokens) const override {
    Tokens window(kWindow, -1);
    const size_t n = std::min<size_t>(kWindow, tokens.size());
    std::copy(tokens.end() - static_cast<ptrdiff_t>(n), tokens.end(), window.end() - static_cast<ptrdiff_t>(n));
    return bytes_of(window);
  }

 private:
  Ptr<std::byte> slot(uint32_t position) const { return at_ + position % kRing * sizeof(int32_t); }
  const Ptr<std::byte> at_;
  uint32_t oldest_ = 0;  // of the tokens in the ring
};

constexpr uint32_t kChunk = LastTokens::kRing - LastTokens::kWindow;
constexpr uint64_t kPlace = 1024;

// A session reduced to its rule: tokens are the truth, the state is a cache of a prefix of them.
class ToySession {
 public:
  ToySession(Backend* backend, Ptr<std::byte> place, bool hash, bool last) : backend_(backend) {
    if (hash) kinds_.push_back(std::make_unique<RunningHash>(place));
    if (last) kinds_.push_back(std::make_unique<LastTokens>(place + 512));
    std::vector<StateKind*> kinds;
    for (const auto& kind : kinds_) kinds.push_back(kind.get());
    state_ = std::make_unique<CheckpointedState>(kinds);
    unwrap(state_->restore(backend_, 0));
  }
  void append(const Tokens& more) { tokens_.insert(tokens_.end(), more.begin(), more.end()); }
  void rewind(size_t n) {
    tokens_.resize(n);
    state_->truncate(static_cast<uint32_t>(n));
  }
  // Computes the tokens that the state lacks, and returns how many.
  uint32_t catch_up() {
    const auto end = static_cast<uint32_t>(tokens_.size());
    unwrap(state_->restore(backend_, end));
    const uint32_t from = state_->position();
    for (uint32_t at = from; at < end;) {
      const uint32_t to = state_->end_of_chunk(at, kChunk, end);
      state_->begin_step(at);
      take(at, to);
      state_->end_step(to);
      if (state_->due()) unwrap(state_->checkpoint(backend_));
      at = to;
    }
    return end - from;
  }
  // A step over the next tokens that ends in the middle.
  void fail_step(const Tokens& next) {
    const size_t n = tokens_.size();
    state_->begin_step(static_cast<uint32_t>(n));
    append(next);
    take(static_cast<uint32_t>(n), static_cast<uint32_t>(tokens_.size()));
    tokens_.resize(n);
    state_->undo_step(static_cast<uint32_t>(n));
  }
  void fork_from(const ToySession& other) {
    tokens_ = other.tokens_;
    state_->copy_from(backend_, *other.state_);
  }
  void lose_place() { state_->forget(); }  // as parking does
  void expect_state() const {
    ASSERT_EQ(state_->position(), tokens_.size());
    Bytes expected;
    for (const auto& kind : kinds_) {
      const Bytes part = kind->of(tokens_);
      expected.insert(expected.end(), part.begin(), part.end());
    }
    EXPECT_EQ(*unwrap(state_->read(backend_)), expected) << tokens_.size() << " tokens";
  }
  size_t n_tokens() const { return tokens_.size(); }
  const CheckpointedState& state() const { return *state_; }

 private:
  void take(uint32_t from, uint32_t to) {
    for (uint32_t i = from; i < to; ++i)
      for (const auto& kind : kinds_) kind->append(backend_, i, tokens_[i]);
  }

  Backend* const backend_;
  std::vector<std::unique_ptr<ToyKind>> kinds_;
  std::unique_ptr<CheckpointedState> state_;
  Tokens tokens_;
};

Tokens random_tokens(Random* random, size_t n) {
  Tokens tokens(n);
  for (int32_t& t : tokens) t = static_cast<int32_t>(random->below(1000));
  return tokens;
}

class ToyState : public ::testing::TestWithParam<int> {
 protected:
  ToyState() : backend_(unwrap(cpu::make_backend({1, "plain"}))) { unwrap(backend_->reserve_arena(2 * kPlace)); }
  std::unique_ptr<ToySession> session(uint64_t place = 0) const {
    return std::make_unique<ToySession>(backend_.get(), backend_->arena() + place * kPlace, (GetParam() & 1) != 0, (GetParam() & 2) != 0);
  }
  bool in_place() const { return (GetParam() & 1) != 0; }
  std::unique_ptr<Backend> backend_;
};

TEST_P(ToyState, EveryWayLeavesTheStateOfTheTokens) {
  Random random(static_cast<uint64_t>(GetParam()));
  std::unique_ptr<ToySession> s = session();
  uint64_t place = 0;
  for (int i = 0; i < 400; ++i) {
    SCOPED_TRACE(i);
    switch (random.below(6)) {
      case 0: s->append(random_tokens(&random, 1 + random.below(3000))); break;
      case 1: s->append(random_tokens(&random, 1)); break;
      case 2: s->rewind(random.below(s->n_tokens() + 1)); break;
      case 3: s->rewind(s->n_tokens() - random.below(std::min<size_t>(s->n_tokens(), 60) + 1)); break;
      case 4: s->fail_step(random_tokens(&random, 1 + random.below(kChunk))); break;
      default: {
        std::unique_ptr<ToySession> fork = session(place = 1 - place);
        fork->fork_from(*s);
        fork->expect_state();
        s = std::move(fork);
      }
    }
    if (random.below(8) == 0) s->lose_place();
    s->catch_up();
    s->expect_state();
    if (HasFailure()) return;
  }
}

TEST_P(ToyState, CheckpointsBoundWhatIsComputedAgain) {
  Random random(9);
  const auto s = session();
  s->append(random_tokens(&random, 6500));
  EXPECT_EQ(s->catch_up(), 6500u);
  EXPECT_GE(s->state().checkpoints().size(), 4u);
  // A ring holds the states of a few fewer tokens; a state that is changed in place holds none.
  s->rewind(6500 - 10);
  EXPECT_EQ(s->catch_up(), in_place() ? 6490u - 6464u : 0u);
  s->rewind(6000);
  EXPECT_LE(s->catch_up(), CheckpointedState::kEvery);
  s->expect_state();
}

INSTANTIATE_TEST_SUITE_P(Kinds, ToyState, ::testing::Values(1, 2, 3), [](const auto& tested) {
  return std::string(tested.param == 1 ? "InPlace" : tested.param == 2 ? "Ring" : "Both");
});

}  // namespace
}  // namespace orrery::toy_state_test
