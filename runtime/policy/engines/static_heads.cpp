// Methods whose heads are of two kinds for good: a few retrieve, and keep everything; the others stream.  DuoAttention
// (arXiv:2410.10819) and RazorAttention (arXiv:2407.15891) differ in how many retrieve, and in what the others have (kMethods):
//   score     none while a conversation lasts; heads are ranked once, by a head profile
//   allocate  DuoAttention: as many heads keep everything as the budget holds, beside what the others need; RazorAttention: a fixed share of
//             the heads, and the others what that leaves
//   keep      those others their first tokens and the most recent; the oldest recent one makes room. With compensation (RazorAttention) what
//             they let go stays as one token: the mean of its K and of its V, which weighs as much as so many alike
//   refresh   never
//
// Who retrieves. DuoAttention learns a gate for every head and takes a quantile of the gates; RazorAttention takes the heads that look most
// at what followed an earlier occurrence of a token (14%), or at that occurrence (1%), in random tokens said several times. A head
// profile stands for both here: DuoAttention's own gates, where it holds them (gates.h), else volatile and pivot heads retrieve before the
// others, then the less stable ones (of imported profiles: those with the larger allocation). Without a profile the session ranks its heads when it settles, by what the gates learn: how much of their
// attention the prompt's last queries give to keys that are neither sinks nor recent, where a streaming head would not see them. A head is
// a KV head, with all of its query heads.
//
// How many, and what the others hold. In both papers these are constants, and the budget follows; here the budget is fixed.
//   - DuoAttention: half of the heads (under GQA), and 128 sinks and 256 recent tokens (the published patterns' configuration; the README
//     says 64 and 256). Here streaming heads hold those 384 tokens or, where that is less, a quarter of the budget; retrieving heads take the
//     rest, unless `full_share` says how many there are. With gates there are as many as their quantile says, or as that leaves room for.
//   - RazorAttention: 15% of the heads, and 4 sinks and the last max(4000, N / 5) of N tokens. Here 15%, or what takes half of the budget where
//     that is less; streaming heads share the rest.
// What a streaming head has beyond its sinks is recent: sinks are a third of its slots, `sinks` at most.
// Heads are trimmed once, behind the whole prompt: how it is cut into chunks does not show (DuoAttention's code trims after each).
//
// A token that makes room in the middle of an answer is in the mean from that step on (RazorAttention's paper compresses the prompt alone),
// so that a head with compensation always attends to everything, if to some of it as one.
#include <algorithm>
#include <numeric>

#include "runtime/policy/engines/tailed.h"
#include "runtime/policy/methods/methods.h"
#include "runtime/policy/options.h"

namespace orrery::policy {

namespace {

constexpr uint32_t kStreaming = 384;   // tokens of a streaming head
constexpr double kStreamingShare = .25;

struct Settings {
  uint32_t sinks = 128;
  bool compensation = false;
  double most_full = 1;     // of all heads, where nobody says how many; below 1: of the budget half at most
  double full_share = -1;   // of all heads; below 0: as the budget has it
  uint32_t window = 32, tail = 0;
};

struct Method {
  const char* name;
  Settings settings;
};
constexpr Method kMethods[] = {{"duoattention", {128, false, 1}}, {"razorattention", {4, true, .15}}};

class StaticHeads final : public TailedPolicy {
 public:
  StaticHeads(const char* name, const Shape& shape, const Budget& budget, const Settings& settings, SharedProfile profile)
      : TailedPolicy(shape, budget, {settings.tail}, {}, std::move(profile),
                     settings.compensation ? Ratio{shape.compensation_token_bytes, shape.slot_bytes} : Ratio{}),
        name_(name),
        settings_(settings),
        heads_(size_t{shape.n_layers} * shape.n_kv_heads) {
    const double n = rings_.n_other_heads(), all = n * n_context_;
    const double share = std::min(budget.share.of_tokens(), all > 0 ? static_cast<double>(max_slots(budget)) / all : 1.0);
    // Of the context, what a streaming head has; full + (1 - full) streaming = share.
    const double streaming = std::min(static_cast<double>(kStreaming) / n_context_,
                                      kStreamingShare * share / (1 - (1 - kStreamingShare) * share + 1e-12));
    double full = settings_.full_share;
    if (full < 0 && share >= 1) full = 1;
    if (full < 0) full = settings_.most_full < 1 ? std::min(settings_.most_full, share / 2) : std::max(0.0, (share - streaming) / (1 - streaming));
    n_full_ = static_cast<uint32_t>(full * n + 1e-6);
    if (settings_.full_share < 0 && settings_.most_full == 1 && full < 1 && profile_ && profile_->has_gates())
      n_full_ = std::min(n_full_, n_above_quantile());
    // The plan's last slots, and those of the shortest contexts.
    while (settings_.full_share < 0 && n_full_ > 0 && !budget_.fits(n_full_)) --n_full_;
    rank(std::vector<double>(heads_.size()));
    if (profile_) rank_by_profile();
  }

  const char* name() const override { return name_; }
  uint32_t n_full_heads() const override { return n_full_; }
  uint32_t max_compensation_tokens() const override { return settings_.compensation ? rings_.n_other_heads() - n_full_ : 0; }
  bool has_compensation_token(uint32_t head) const override { return settings_.compensation && !rings_.has(head) && !heads_[head].full; }
  uint32_t queries_wanted() const override { return profile_ ? 0 : settings_.window; }

  Status settle(Heads* heads, uint32_t n_tokens, Span<uint32_t> capacity) override {
    begin_settling(n_tokens, capacity);
    const uint32_t n = rings_.n_other_heads(), n_streaming = n - n_full_;
    if (n == 0) return ok_status();
    const TailedBudget::Division division = budget_.divide(n_tokens, n_full_);
    if (n_streaming > 0 && division.selected == 0)
      return error(Code::internal, "%u streaming heads have no room at %u tokens", n_streaming, n_tokens);
    const uint32_t each = n_streaming > 0 ? static_cast<uint32_t>(division.selected / n_streaming) : 0;
    if (!profile_ && n_streaming > 0 && n_full_ > 0) ORRERY_TRY(rank_by_attention(heads, n_tokens, each));
    ORRERY_ASSIGN(const std::vector<uint64_t> shares,
                  apportion_evenly(std::max(n_streaming, 1u), n_streaming > 0 ? division.selected : 0, n_tokens));
    size_t at = 0;
    for (uint32_t head = 0; head < heads_.size(); ++head) {
      if (rings_.has(head)) continue;
      Head& h = heads_[head];
      h.next = 0;
      capacity[head] = division.tail + (h.full ? n_tokens : static_cast<uint32_t>(shares[at++]));
    }
    return ok_status();
  }

  void select(uint32_t head, uint32_t n_tokens, uint32_t capacity, std::vector<uint32_t>* out) override {
    if (rings_.has(head)) return rings_.select(head, n_tokens, out);
    const uint32_t s = sinks(capacity);
    sinks_and_recent(n_tokens, s, capacity - s, out);   // of a full head, all
  }

  uint32_t slot_for(uint32_t head, uint32_t length, uint32_t capacity) override {
    Head& h = heads_[head];
    if (rings_.has(head) || h.full || length < capacity) return TailedPolicy::slot_for(head, length, capacity);
    const uint32_t s = sinks(capacity), slot = s + h.next;   // behind the sinks is a ring, oldest first
    h.next = (h.next + 1) % (capacity - s);
    return slot;
  }

  uint64_t host_bytes(const HostShape&) const override {   // weights of a head, where heads are ranked by them
    return bytes_of<Head>(heads_.size()) + (profile_ || n_full_ == 0 ? 0 : bytes_of<float>(n_context_)) +
           heads_.size() * (2 * sizeof(double) + 2 * sizeof(uint32_t));
  }

  std::unique_ptr<Policy> clone() const override { return clone_of(*this); }

 private:
  struct Head {
    bool full = false;
    uint32_t next = 0;   // of a streaming one: how far its ring has come
  };
  uint32_t sinks(uint32_t capacity) const { return std::min(settings_.sinks, capacity / 3); }

  // The n_full_ heads with the largest worth; ties: the lower head.
  void rank(const std::vector<double>& worth) {
    std::vector<uint32_t> order;
    for (uint32_t head = 0; head < heads_.size(); ++head)
      if (!rings_.has(head)) order.push_back(head);
    std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return worth[a] > worth[b]; });
    for (size_t i = 0; i < order.size(); ++i) heads_[order[i]].full = i < n_full_;
  }

  // Of the profile's gates, without layers that are rings.
  uint32_t n_above_quantile() const {
    uint32_t n = 0;
    for (uint32_t head = 0; head < heads_.size(); ++head)
      n += !rings_.has(head) && is_full(profile_->layers[head / n_kv_heads_].roles.roles[head % n_kv_heads_]);
    return n;
  }

  void rank_by_profile() {
    std::vector<double> worth(heads_.size());
    for (uint32_t head = 0; head < heads_.size(); ++head) {
      const ProfileLayer& layer = profile_->layers[head / n_kv_heads_];
      const uint32_t h = head % n_kv_heads_;
      const double unstable = !layer.gates.empty() ? layer.gates[h] : !layer.stability.empty() ? 1 - layer.stability[h] : layer.allocation[h];
      worth[head] = unstable + (is_full(layer.roles.roles[h]) ? 1e6 : 0);   // more than any allocation
    }
    rank(worth);
  }

  Status rank_by_attention(Heads* heads, uint32_t n_tokens, uint32_t each) {
    const uint32_t n_queries = std::min({settings_.window, heads->n_queries(), n_tokens});
    const uint32_t s = sinks(each), seen = each - s;   // recent ones
    std::vector<double> worth(heads_.size());
    std::vector<float> weights(n_tokens);
    for (uint32_t head = 0; head < heads_.size(); ++head) {
      if (rings_.has(head)) continue;
      const WeightsQuery query{head, n_tokens - n_queries, n_queries, n_tokens, true, weights.data()};
      ORRERY_TRY(heads->key_weights({&query, 1}));
      for (uint32_t p = s; p + seen < n_tokens; ++p) worth[head] += static_cast<double>(weights[p]);
    }
    rank(worth);
    return ok_status();
  }

  const char* const name_;
  const Settings settings_;
  uint32_t n_full_ = 0;
  std::vector<Head> heads_;
};

}  // namespace

Result<std::unique_ptr<Policy>> make_static_heads(const char* name, const Shape& shape, const Budget& budget, const Options& options,
                                                  const SharedProfile& profile) {
  const Method* method = kMethods;
  while (std::string(method->name) != name) ++method;
  Settings s = method->settings;
  OptionReader reader(name, options);
  ORRERY_TRY(reader.fraction("full_share", &s.full_share));
  ORRERY_TRY(reader.count("sinks", 0, 1u << 20, &s.sinks));
  ORRERY_TRY(reader.flag("compensation", &s.compensation));
  ORRERY_TRY(reader.count("window", 1, kMostWindow, &s.window));
  ORRERY_TRY(reader.count("tail", 0, 1u << 20, &s.tail));
  ORRERY_TRY(reader.finish());
  auto policy = std::make_unique<StaticHeads>(method->name, shape, budget, s, profile);
  ORRERY_TRY(policy->check_room(budget, "retrieve and keep their whole KV"));
  return std::unique_ptr<Policy>(std::move(policy));
}

}  // namespace orrery::policy
