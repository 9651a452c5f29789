// A session without a model: made-up attention, and slots that hold token positions only. It calls a policy as the engine does, in the same
// order, and checks every question of the policy.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include "runtime/policy/policy.h"
#include "runtime/policy/score/score.h"
#include "runtime/policy/select/top_k.h"
#include "tests/unit/policy/fixture.h"
#include "tests/unit/policy/papers.h"

namespace orrery::policy {

// Scaled logits of a KV head's queries at a position: (group, n_keys).
using Attention = std::function<std::vector<float>(uint32_t head, uint32_t position, uint32_t n_keys)>;

class FakeSession final : public Heads {
 public:
  FakeSession(std::unique_ptr<Policy> policy, uint32_t n_heads, uint32_t group, uint32_t n_context, Attention attention)
      : policy_(std::move(policy)), attention_(std::move(attention)), group_(group), n_context_(n_context),
        n_kept_queries_(std::max(policy_needs(policy_->name(), {}).kept_queries, policy_->queries_wanted())), capacity_(n_heads),
        selected_(n_heads), held_(n_heads), slots_(n_heads), pending_(n_heads), hidden_(n_heads) {}

  // A fork whose later attention differs.
  FakeSession fork(Attention attention) const {
    FakeSession other(policy_->clone(), n_heads(), group_, n_context_, std::move(attention));
    other.n_tokens_ = n_tokens_, other.n_prompt_ = n_prompt_, other.step_ = step_;
    other.similarity = similarity;
    other.capacity_ = capacity_, other.selected_ = selected_, other.held_ = held_, other.pending_ = pending_;
    other.sums_ = sums_, other.n_summed_ = n_summed_;
    other.hidden_ = hidden_, other.n_found_ = n_found_, other.page_cosine = page_cosine;
    other.root_dim = root_dim;
    return other;
  }

  // The policy's questions since forget(), in order.
  struct Asked {
    KeyQuery query;
    Tokens best;                     // (n_positions, k)
    std::vector<uint32_t> refilled;  // heads that got refills before the next question
    ScoreRule rule;
    Tokens at(uint32_t i) const { return Tokens(best.begin() + i * query.k, best.begin() + (i + 1) * query.k); }
  };
  struct AskedPages {
    PageQuery query;    // k is 0 for scores()
    uint32_t n_tokens;  // that the session held
  };
  const std::vector<Asked>& asked() const { return asked_; }
  const std::vector<AskedPages>& asked_pages() const { return asked_pages_; }
  void forget() { asked_.clear(), asked_pages_.clear(); }

  Policy& policy() { return *policy_; }
  uint32_t n_heads() const { return static_cast<uint32_t>(held_.size()); }
  uint32_t n_tokens() const { return n_tokens_; }
  uint32_t n_prompt() const { return n_prompt_; }  // at the last settlement
  uint32_t capacity(uint32_t head) const { return capacity_[head]; }
  uint32_t page_tokens() const { return policy_->digests().page_tokens; }
  uint32_t n_selected(uint32_t head) const { return selected_[head]; }  // prompt tokens of a head, in its first slots
  const std::vector<Tokens>& held() const { return held_; }
  uint64_t n_refills() const { return n_refills_; }
  Tokens selected(uint32_t head) const { return Tokens(held_[head].begin(), held_[head].begin() + selected_[head]); }
  // Heads with a compensation token.
  uint32_t n_compensation_tokens() const {
    uint32_t n = 0;
    for (uint32_t head = 0; head < n_heads(); ++head) n += policy_->has_compensation_token(head);
    return n;
  }
  const std::vector<float>& mean_shares(uint32_t head) const { return mean_shares_.at(head); }  // of the last settlement
  uint64_t total_capacity() const { return std::accumulate(capacity_.begin(), capacity_.end(), uint64_t{0}); }

  void settle(uint32_t n_tokens) {
    n_tokens_ = n_prompt_ = n_tokens;
    if (policy_->sums_attention()) sum_prompt();
    for (auto& pending : pending_) pending.what.clear();
    for (auto& hidden : hidden_) hidden.clear();
    settling_ = true;
    const Status status = policy_->settle(this, n_tokens, capacity_);
    settling_ = false;
    if (!status.ok()) throw std::runtime_error(status.message());
    for (uint32_t head = 0; head < n_heads(); ++head) {
      policy_->select(head, n_tokens, capacity_[head], &held_[head]);
      selected_[head] = static_cast<uint32_t>(held_[head].size());
      EXPECT_LE(held_[head].size(), capacity_[head]) << head;
      EXPECT_LE(capacity_[head], n_context_) << head;
      EXPECT_TRUE(!policy_->has_compensation_token(head) || std::is_sorted(held_[head].begin(), held_[head].end())) << head;
      check_unique(head);
    }
    EXPECT_LE(n_compensation_tokens(), policy_->max_compensation_tokens());
  }

  // Before a token is computed. Returns whether the session settled again.
  bool prepare() {
    asked_within_.clear();
    for (uint32_t head = 0; head < n_heads(); ++head) place(head);
    bool again = false;
    for (uint32_t head = 0; head < n_heads();) {
      const auto length = static_cast<uint32_t>(held_[head].size());
      slots_[head] = policy_->slot_for(head, length, capacity_[head]);
      if (slots_[head] == kSettleAgain) {
        if (again) throw std::runtime_error("no room after settling again");
        again = settles_again_ = true;
        settle(n_tokens_);
        settles_again_ = false;
        head = 0;
        continue;
      }
      EXPECT_LT(slots_[head], capacity_[head]);
      EXPECT_LE(slots_[head], length);
      ++head;
    }
    return again;
  }
  // Within the step: layers ask, and their refills for this step arrive at once.
  void ask_layers(uint32_t n_layers) {
    asking_ = true;
    const bool ahead = policy_->asks_a_layer_ahead();  // then a layer's refills arrive before the next layer asks
    const auto place_up_to = [&](uint32_t layer) {
      for (uint32_t head = 0; head < n_heads() / n_layers * (layer + 1); ++head) place(head);
    };
    for (layer_ = 0; layer_ < n_layers && policy_->asks_before_attend(); ++layer_) {
      if (ahead) place_up_to(layer_);
      within_ = true;
      const Status status = policy_->before_attend(this, layer_, step_ + 1, n_tokens_);
      within_ = false;
      if (!status.ok()) throw std::runtime_error(status.message());
      if (!ahead) place_up_to(layer_);
    }
    if (ahead && n_layers > 0) place_up_to(n_layers - 1);
    asking_ = false;
    for (const Pending& pending : pending_)
      EXPECT_TRUE(pending.what.empty() || pending.visible_at > step_ + 1) << "no layer has waited for this step's refills";
  }
  // The cosines of query_similarity(), by layer, KV head and position.
  std::function<float(uint32_t layer, uint32_t head, uint32_t position)> similarity = [](uint32_t, uint32_t, uint32_t) { return 1.0f; };
  // The cosines of page_cosines().
  std::function<float(uint32_t head, uint32_t page)> page_cosine = [](uint32_t, uint32_t) { return 1.0f; };
  // The factor of products with keys that are not scaled.
  float root_dim = 1;
  const std::set<uint32_t>& hidden(uint32_t head) const { return hidden_[head]; }
  // After the token is computed.
  void commit() {
    ++step_;
    for (uint32_t head = 0; head < n_heads(); ++head) {
      if (slots_[head] == held_[head].size()) held_[head].push_back(n_tokens_);
      else held_[head].at(slots_[head]) = n_tokens_;
    }
    // The step, or after_step(), asks about the scored heads by the step's query, or sums them, and about no others.
    std::vector<uint32_t> scored;
    policy_->scored_heads(&scored);
    EXPECT_LE(scored.size(), policy_->max_scored_heads());
    for (const uint32_t head : scored) EXPECT_LE(held_[head].size(), policy_->max_scored_keys(n_context_));
    ++n_tokens_;
    if (policy_->sums_attention()) {
      for (const uint32_t head : scored) add_row(head, n_tokens_ - 1, held_[head]);
      n_summed_ = n_tokens_;
      scored.clear();
    }
    const size_t before = asked_.size();
    const Status status = policy_->after_step(this, step_, n_tokens_ - 1);
    if (!status.ok()) throw std::runtime_error(status.message());
    std::set<uint32_t> asked = asked_within_;
    for (size_t i = before; i < asked_.size(); ++i)
      if (asked_[i].query.first_position + asked_[i].query.n_positions == n_tokens_) asked.insert(asked_[i].query.head);
    EXPECT_EQ(asked, std::set<uint32_t>(scored.begin(), scored.end()));
  }
  bool step(uint32_t n_layers = 0) {
    const bool again = prepare();
    ask_layers(n_layers);
    commit();
    return again;
  }

  uint32_t n_queries() const override { return std::min(n_kept_queries_, n_tokens_); }
  bool settles_again() const override { return settles_again_; }

  Status top_keys(Span<const KeyQuery> queries, const ScoreRule& rule) override {
    EXPECT_TRUE(rule.pool_first);
    for (const KeyQuery& query : queries) {
      EXPECT_LE(query.first_position + query.n_positions, n_tokens_ + within_) << "queries that there are not yet";
      EXPECT_GE(query.first_position + n_queries(), n_tokens_) << "queries that are gone";
      EXPECT_LE(query.n_keys, query.first_position + 1) << "keys that the query cannot see";
      EXPECT_LE(query.k, query.n_keys);
      for (uint32_t i = 0; !settling_ && i < query.n_keys; ++i)
        if (held_[query.head].at(i) != i) throw std::runtime_error("the head does not hold these keys in order");
      Asked asked{query, {}, {}, rule};
      std::vector<float> scores(query.n_keys);
      ScoreScratch scratch;
      for (uint32_t i = 0; i < query.n_positions; ++i) {
        const std::vector<float> logits = attention_(query.head, query.first_position + i, query.n_keys);
        ORRERY_TRY(head_scores(logits, group_, rule, &scratch, scores));
        Tokens best;
        top_k(scores, query.k, &best);
        if (!query.by_score) std::sort(best.begin(), best.end());
        if (query.n_common == nullptr) {
          std::copy(best.begin(), best.end(), query.out + size_t{i} * query.k);
        } else {
          EXPECT_TRUE(query.n_positions == 1 && std::is_sorted(query.among.begin(), query.among.end()));
          *query.n_common = 0;
          for (const uint32_t key : query.among) *query.n_common += static_cast<uint32_t>(std::count(best.begin(), best.end(), key));
        }
        asked.best.insert(asked.best.end(), best.begin(), best.end());
      }
      asked_.push_back(std::move(asked));
      if (within_) asked_within_.insert(query.head);
    }
    return ok_status();
  }

  Status key_weights(Span<const WeightsQuery> queries) override {
    for (const WeightsQuery& query : queries) {
      EXPECT_LE(query.first_position + query.n_positions, n_tokens_) << "queries that there are not yet";
      EXPECT_GE(query.first_position + n_queries(), n_tokens_) << "queries that are gone";
      EXPECT_TRUE(settling_ && query.n_positions > 0 && query.n_keys <= n_tokens_);
      std::vector<double> mean(query.n_keys);
      for (uint32_t i = 0; i < query.n_positions; ++i) {
        const uint32_t position = query.first_position + i, n_seen = std::min(query.n_keys, position + 1);
        const std::vector<float> logits = attention_(query.head, position, n_seen);
        for (uint32_t g = 0; g < group_; ++g) {
          std::vector<float> row(query.n_keys);
          softmax(Span<const float>(logits).subspan(size_t{g} * n_seen, n_seen), Span<float>(row).first(n_seen));
          if (!query.mean) std::copy(row.begin(), row.end(), query.out + (size_t{i} * group_ + g) * query.n_keys);
          for (uint32_t key = 0; key < query.n_keys; ++key) mean[key] += static_cast<double>(row[key]);
        }
      }
      for (uint32_t key = 0; query.mean && key < query.n_keys; ++key)
        query.out[key] = static_cast<float>(mean[key] / (query.n_positions * group_));
    }
    return ok_status();
  }

  // A page's logit is that of its best key.
  Status top_pages(Span<const PageQuery> queries, const ScoreRule& rule) override {
    const PageDigests digests = policy_->digests();
    for (const PageQuery& query : queries) {
      EXPECT_TRUE(std::count(digests.heads.begin(), digests.heads.end(), query.head) == 1) << "a head without digests";
      EXPECT_LT(query.position, n_tokens_ + within_) << "a query that there is not yet";
      EXPECT_GE(query.position + n_queries(), n_tokens_) << "a query that is gone";
      EXPECT_LE((query.first_page + query.n_pages) * digests.page_tokens, digests.kind >= PageDigest::low_rank ? n_found_ : n_tokens_)
          << "pages that are not whole, or tokens without low-rank keys or codes";
      EXPECT_LE(query.k, query.n_pages);
      const std::vector<float> logits = attention_(query.head, query.position, query.position + 1);
      std::vector<float> pages(size_t{group_} * query.n_pages, -INFINITY), scores(query.n_pages);
      for (uint32_t g = 0; g < group_; ++g)
        for (uint32_t i = 0; i < query.n_pages * digests.page_tokens; ++i) {
          float& page = pages[size_t{g} * query.n_pages + i / digests.page_tokens];
          page = std::max(page, logits[size_t{g} * (query.position + 1) + query.first_page * digests.page_tokens + i]);
        }
      for (const uint32_t page : hidden_[query.head])
        for (uint32_t g = 0; g < group_ && page - query.first_page < query.n_pages; ++g)
          pages[size_t{g} * query.n_pages + page - query.first_page] = -INFINITY;
      ScoreScratch scratch;
      ORRERY_TRY(head_scores(pages, group_, rule, &scratch, scores));
      for (const uint32_t page : query.held) scores.at(page - query.first_page) *= query.stay;
      Tokens best;
      top_k(scores, query.k, &best);
      if (query.n_found) {
        while (best.size() > 1 && scores[best.back()] < query.least) best.pop_back();
        *query.n_found = static_cast<uint32_t>(best.size());
      }
      std::sort(best.begin(), best.end());
      for (uint32_t i = 0; i < best.size(); ++i) query.out[i] = best[i] + query.first_page;
      asked_pages_.push_back({query, n_tokens_});
    }
    return ok_status();
  }

  Status scores(Span<const ScoresQuery> queries) override {
    const PageDigests digests = policy_->digests();
    for (const ScoresQuery& query : queries) {
      EXPECT_LT(query.position, n_tokens_ + within_) << "a query that there is not yet";
      EXPECT_GE(query.position + n_queries(), n_tokens_) << "a query that is gone";
      if (query.pages) {
        EXPECT_TRUE(std::count(digests.heads.begin(), digests.heads.end(), query.head) == 1) << "a head without digests";
        EXPECT_LE((query.first + query.n) * digests.page_tokens, n_tokens_) << "pages that are not whole";
        asked_pages_.push_back({{query.head, query.position, query.first, query.n, 0, nullptr}, n_tokens_});
      } else {
        EXPECT_TRUE(query.first == 0 && query.n <= query.position + 1) << "keys that the query cannot see";
        for (uint32_t i = 0; !settling_ && i < query.n; ++i)
          if (held_[query.head].at(i) != i) throw std::runtime_error("the head does not hold these keys in order");
      }
      const std::vector<float> logits = attention_(query.head, query.position, query.position + 1);
      const uint32_t page = query.pages ? digests.page_tokens : 1;
      for (uint32_t g = 0; g < group_; ++g) {
        const float* first = &logits[size_t{g} * (query.position + 1) + query.first * page];
        float* row = query.out + size_t{g} * query.n;
        for (uint32_t i = 0; i < query.n; ++i) row[i] = *std::max_element(first + i * page, first + (i + 1) * page);
        for (uint32_t i = 0; i < query.n && !query.pages && !query.scaled; ++i) row[i] *= root_dim;
      }
    }
    return ok_status();
  }

  Status query_similarity(Span<float> out) override {
    EXPECT_TRUE(within_);
    for (uint32_t head = 0; head < out.size(); ++head) out[head] = similarity(layer_, head, n_tokens_);
    return ok_status();
  }

  void move_last(uint32_t head, uint32_t n, uint32_t slot) override {
    Tokens& held = held_[head];
    ASSERT_LE(slot + 2 * n, held.size());
    std::copy(held.end() - n, held.end(), held.begin() + slot);
    held.resize(held.size() - n);
    selected_[head] = std::min(selected_[head], static_cast<uint32_t>(held.size()));
  }

  Span<const float> page_cosines(uint32_t head) const override {
    cosines_.clear();
    for (uint32_t page = 0; page < n_tokens_ / page_tokens(); ++page) cosines_.push_back(page_cosine(head, page));
    return cosines_;
  }
  void hide_page(uint32_t head, uint32_t page, bool hidden) override {
    EXPECT_LT(page, n_tokens_ / page_tokens());
    EXPECT_EQ(hidden_[head].count(page), hidden ? 0u : 1u);
    hidden ? void(hidden_[head].insert(page)) : void(hidden_[head].erase(page));
  }
  Status make_low_rank(uint32_t n_tokens, bool with_basis) override {
    EXPECT_GT(policy_->digests().rank, 0u);
    EXPECT_TRUE(with_basis == settling_ && n_tokens == n_tokens_);
    n_found_ = n_tokens;
    return ok_status();
  }
  Status set_mean_values(Span<const float> shares) override {
    const std::vector<uint32_t> heads = policy_->digests().heads;
    EXPECT_TRUE(settling_ && policy_->digests().values && shares.size() == heads.size() * n_tokens_ && n_found_ == n_tokens_);
    for (size_t i = 0; i < heads.size(); ++i)
      mean_shares_[heads[i]].assign(shares.begin() + i * n_tokens_, shares.begin() + (i + 1) * n_tokens_);
    return ok_status();
  }
  Status page_weights(Span<const PageWeightsQuery> queries) override {
    EXPECT_EQ(policy_->digests().kind, PageDigest::codes);
    std::vector<WeightsQuery> weights;
    for (const PageWeightsQuery& query : queries) {
      EXPECT_TRUE(query.n_pages <= n_found_ && query.n_pages == query.position + 1) << "tokens without codes, or that the query cannot see";
      weights.push_back({query.head, query.position, 1, query.n_pages, true, query.out});
    }
    return key_weights(weights);
  }
  Status make_codes(uint32_t n_tokens) override {
    EXPECT_GT(policy_->digests().bits, 0u);
    EXPECT_EQ(n_tokens, n_tokens_);
    n_found_ = n_tokens;
    return ok_status();
  }

  Span<const float> attention_sums(uint32_t head) const override {
    EXPECT_TRUE(policy_->sums_attention());
    EXPECT_EQ(n_summed_, n_tokens_);
    return sums_.at(head);
  }

  uint32_t group() const override { return group_; }

  Span<const uint32_t> positions(uint32_t head) const override { return held_[head]; }

  void hold(uint32_t head, uint32_t n_first, Span<const uint32_t> found, uint32_t n_last, uint32_t end) override {
    EXPECT_TRUE(within_ && policy_->slots_in_place() > 0 && end == n_tokens_);
    Tokens& held = held_[head];
    held.resize(n_first);
    std::iota(held.begin(), held.end(), 0u);
    held.insert(held.end(), found.begin(), found.end());
    for (uint32_t p = end - n_last; p < end; ++p) held.push_back(p);
    EXPECT_TRUE(std::is_sorted(held.begin(), held.end())) << "head " << head;
    slots_[head] = static_cast<uint32_t>(held.size());  // of the step's token
    EXPECT_LT(slots_[head], capacity_[head]);
    check_unique(head);
  }

  Status refill(uint32_t head, Span<const Replacement> what, uint64_t visible_at) override {
    EXPECT_FALSE(settling_);
    EXPECT_GT(visible_at, step_) << "a step that has passed";
    EXPECT_TRUE(pending_[head].what.empty()) << "a second refill of head " << head;
    EXPECT_GT(what.size(), 0u);
    const bool paged = !policy_->digests().heads.empty();
    for (size_t i = 0; i < what.size(); ++i) {
      // Generated tokens are fetched in whole pages only: the page that is being written keeps its slots.
      EXPECT_TRUE(paged || what[i].slot < selected_[head]) << "a generated token's slot";
      EXPECT_LE(what[i].position + what[i].count, paged ? n_tokens_ : n_prompt_);
      EXPECT_LE(what[i].slot + what[i].count, held_[head].size());
      if (policy_->digests().rank > 0 && !is_low_rank(policy_->digests().kind)) {
        EXPECT_LE(what[i].slot + what[i].count, policy_->rebuilt_slots(head));
        EXPECT_LE(what[i].position + what[i].count, n_found_);
      }
      EXPECT_NE(held_[head].at(what[i].slot), what[i].position) << "fetched, though it is there";
    }
    pending_[head].what.assign(what.begin(), what.end());
    pending_[head].visible_at = visible_at;
    if (!asked_.empty()) asked_.back().refilled.push_back(head);
    ++n_refills_;
    return ok_status();
  }

 private:
  struct Pending {
    std::vector<Replacement> what;
    uint64_t visible_at = 0;
  };
  void place(uint32_t head) {
    Pending& p = pending_[head];
    if (p.what.empty() || p.visible_at > step_ + 1) return;
    for (const Replacement& r : p.what)
      for (uint32_t i = 0; i < r.count; ++i) held_[head].at(r.slot + i) = r.position + i;
    p.what.clear();
    check_unique(head);
  }
  // Adds the weights of a position's query over `tokens`, the mean of the group.
  void add_row(uint32_t head, uint32_t position, const Tokens& tokens) {
    const std::vector<float> logits = attention_(head, position, position + 1);
    std::vector<float> row(tokens.size());
    for (uint32_t g = 0; g < group_; ++g) {
      for (size_t i = 0; i < tokens.size(); ++i) row[i] = logits[size_t{g} * (position + 1) + tokens[i]];
      softmax(row, row);
      for (size_t i = 0; i < tokens.size(); ++i) sums_[head][tokens[i]] += row[i] / static_cast<float>(group_);
    }
  }
  // Sums the prompt's queries that are not summed yet; after a rewind, all.
  void sum_prompt() {
    if (n_summed_ > n_tokens_ || sums_.empty()) sums_.assign(n_heads(), std::vector<float>(n_context_)), n_summed_ = 0;
    for (; n_summed_ < n_tokens_; ++n_summed_) {
      Tokens seen(n_summed_ + 1);
      std::iota(seen.begin(), seen.end(), 0u);
      for (uint32_t head = 0; head < n_heads(); ++head) add_row(head, n_summed_, seen);
    }
  }
  void check_unique(uint32_t head) const {
    std::vector<bool> seen(n_tokens_);
    for (size_t slot = 0; slot < held_[head].size(); ++slot) {
      if (asking_ && slot == slots_[head]) continue;  // holds the step's own token already
      const uint32_t p = held_[head][slot];
      ASSERT_LT(p, n_tokens_) << "head " << head;
      ASSERT_FALSE(seen[p]) << "head " << head << " holds token " << p << " twice";
      seen[p] = true;
    }
  }

  std::unique_ptr<Policy> policy_;
  Attention attention_;
  uint32_t group_, n_context_, n_kept_queries_;
  uint32_t n_tokens_ = 0, n_prompt_ = 0;
  uint64_t step_ = 0, n_refills_ = 0;
  bool settling_ = false, settles_again_ = false, within_ = false, asking_ = false;
  std::set<uint32_t> asked_within_;  // heads that before_attend() has asked top_keys() about in this step
  uint32_t layer_ = 0;
  std::vector<uint32_t> capacity_, selected_;
  std::vector<Tokens> held_;  // the position in each slot
  std::vector<uint32_t> slots_;
  std::vector<Pending> pending_;
  std::vector<std::set<uint32_t>> hidden_;  // pages, by head
  mutable std::vector<float> cosines_;
  std::vector<std::vector<float>> sums_;                // (n_heads, n_context), if the policy sums attention
  uint32_t n_summed_ = 0;                               // positions whose queries are in the sums
  uint32_t n_found_ = 0;                                // tokens that have low-rank keys or codes
  std::map<uint32_t, std::vector<float>> mean_shares_;  // given to set_mean_value(), by head
  std::vector<Asked> asked_;
  std::vector<AskedPages> asked_pages_;
};

inline Tokens sorted(Tokens tokens) {
  std::sort(tokens.begin(), tokens.end());
  return tokens;
}

}  // namespace orrery::policy
