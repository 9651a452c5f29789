// Answers the policy's questions (policy::Heads) by the backend's operations on the parts and the reservoir.
//
// The Moment of a question says which keys and queries it is about. While settling: the reservoir's keys, of any head. Between steps: keys
// of heads that hold the whole context. Within a step, before a layer attends: the queries of that layer alone. resident.h sets the moment.
// After make() only make_low_rank() takes memory.
//
// fetch_pages() leaves the choice to the device (FetchOperations). The device has a table of the pages that a head's places hold. The host
// sends it behind a settlement, and a completed page's place when it moves. From then on the device's table is the one that is right.
// finish_fetches() reads two numbers of each head, which are enough for statistics. HeadStore's positions follow in read_positions(), for
// whoever asks. A fork copies the tables on the device. What fetch_changed() has fetched for the next step is in the slots when the step
// ends, and in the books (Refills, read_positions()) when the next step begins.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "runtime/backend/backend.h"
#include "runtime/base/cancel.h"
#include "runtime/base/span.h"
#include "runtime/base/status.h"
#include "runtime/engine/resident/parts.h"
#include "runtime/kv/memory/page_table.h"
#include "runtime/policy/policy.h"

namespace orrery::engine {

// The state of the session when its policy asks.
struct Moment {
  static constexpr uint32_t kNone = UINT32_MAX;  // position
  Backend* backend = nullptr;                    // within a turn
  Cancel cancel;                                 // within a turn
  bool settling = false;
  bool settles_again = false;        // while settling: Heads::settles_again()
  uint32_t n_tokens = 0;             // of the session; within a step, without the step's own token
  int32_t layer = 0;                 // within before_attend(): the layer of q
  Ptr<const float> q;                // within before_attend(): (q_dim), at position n_tokens; else null
  uint32_t scored_position = kNone;  // the position whose query made the exported weights of the views

  // cancelled if settling is cancelled, else ok.
  Status go_on() const {
    return settling && cancel.asked() ? error(Code::cancelled, "cancelled while choosing what is resident") : ok_status();
  }
};

class Answers final : public policy::Heads {
 public:
  static kv::Region layout(const ResidentShape& shape);
  // Takes the layout's region. parts, pages, views and now outlive the object. views: (n_heads) of the step.
  Status make(const ResidentShape& shape, kv::Arena* arena, Parts* parts, const kv::PageTable* pages, Span<const HeadView> views,
              const Moment* now);

  // Bytes that the questions of steps have read, without settling.
  uint64_t searched_bytes() const { return searched_; }
  // Adds the attention weights of the step's query at `position` to the sums of the tokens in the slots.
  Status sum_step(uint32_t position);

  // Before a layer attends, within a step: waits on the device for what fetch_near_best() fetches for layers up to `layer`.
  void join_fetches(int32_t layer);
  // Behind a step: counts what the step has fetched.
  Status finish_fetches();
  // Before a step: counts what the last one has fetched ahead.
  void begin_step();
  // `other` has just been copied, with its slots.
  void go_on_from(const Answers& other);
  // Drops what the last step has fetched, and all tables: the slots are about to change.
  void forget_fetches();
  // Reads what the device has chosen, and waits for it: HeadStore's positions become those of the last step. 4 bytes for each page on the
  // device.
  Status read_positions();
  // Before the session is saved: what the slots hold indeed. Of heads whose next pages have come already, read_positions() says what they
  // held in the last step.
  Status read_held(kv::SlotTable* table);
  // For tests: the host selects, as without FetchOperations.
  void select_on_host() { fetches_ = false; }

  uint32_t n_queries() const override { return known_queries(now_->n_tokens); }
  uint32_t known_queries(uint32_t n_tokens) const { return parts_->queries ? parts_->queries->known(n_tokens) : 0; }
  bool settles_again() const override { return now_->settles_again; }
  Status top_keys(Span<const policy::KeyQuery> queries, const policy::ScoreRule& rule) override;
  Status key_weights(Span<const policy::WeightsQuery> queries) override;
  Status key_moments(Span<const policy::MomentsQuery> queries, std::vector<float>* rows) override;
  Status top_pages(Span<const policy::PageQuery> queries, const policy::ScoreRule& rule) override;
  Status page_weights(Span<const policy::PageWeightsQuery> queries) override;
  Status scores(Span<const policy::ScoresQuery> queries) override;
  uint32_t group() const override { return static_cast<uint32_t>(description_->kv().n_heads / description_->kv().n_kv_heads); }
  Span<const float> attention_sums(uint32_t head) const override { return parts_->sums->of(head); }
  Span<const uint32_t> positions(uint32_t head) const override { return parts_->slots->positions(head); }
  bool fetches_pages() const override { return fetches_; }
  Status fetch_pages(Span<const policy::PageQuery> queries, const policy::ScoreRule& rule, const policy::PagePlaces& places) override;
  Status fetch_changed(Span<const policy::PageQuery> queries, Span<const policy::PageQuery> next, const policy::ScoreRule& rule,
                       const policy::PagePlaces& places, double tau) override;
  Status fetch_followers(Span<const policy::FollowerQuery> queries, const policy::ScoreRule& rule, double tau) override;
  Status fetch_near_best(Span<const policy::PageQuery> queries, const policy::PagePlaces& places, float alpha) override;
  uint64_t take_wanted_tokens() override { return std::exchange(wanted_tokens_, 0); }
  uint32_t take_changes(uint32_t head) override { return std::exchange(changes_[head], 0); }
  uint64_t take_fetched_tokens() override {
    searched_ += std::exchange(ahead_searched_, 0);
    return std::exchange(fetched_tokens_, 0) + std::exchange(ahead_tokens_, 0);
  }
  uint32_t next_place(uint32_t head) const override { return next_places_[head]; }
  Status refill(uint32_t head, Span<const policy::Replacement> what, uint64_t visible_at) override {
    ORRERY_TRY(take_back_table(head));
    return parts_->refills->add(now_->backend, *pages_, head, what, visible_at);
  }
  void hold(uint32_t head, uint32_t n_first, Span<const uint32_t> found, uint32_t n_last, uint32_t end) override {
    parts_->slots->hold(head, n_first, found, n_last, end);
  }
  Status query_similarity(Span<float> out) override;
  void move_last(uint32_t head, uint32_t n, uint32_t slot) override;
  Span<const float> page_cosines(uint32_t head) const override { return parts_->digests->cosines(head); }
  void hide_page(uint32_t head, uint32_t page, bool hidden) override { parts_->digests->hide(now_->backend, *pages_, head, page, hidden); }
  Status make_low_rank(uint32_t n_tokens, bool with_basis) override;
  Status make_codes(uint32_t n_tokens) override;
  Status set_mean_values(Span<const float> shares) override;
  // Within a step, once the head's layer has asked for its best tokens: log2 of the evicted tokens' weights, (group).
  Ptr<const float> evicted_logs(uint32_t head) const { return logs_of(head % static_cast<uint32_t>(description_->kv().n_kv_heads)); }
  // And the means of their values, (group, head_dim); null without codes of values.
  Ptr<const float> evicted_values(uint32_t head) const {
    if (parts_->codes->format().value_bits == 0) return {};
    return values_of(head % static_cast<uint32_t>(description_->kv().n_kv_heads));
  }
  void run(size_t n, void (*call)(const void* fn, int64_t i), const void* fn) override {
    now_->backend->for_each(static_cast<int64_t>(n), call, fn);
  }

 private:
  uint32_t layer_of(uint32_t head) const { return head / static_cast<uint32_t>(description_->kv().n_kv_heads); }
  template <class Query>
  void set_keys(const Query& query, KeysJob* job) const;
  KeysShape keys_shape() const;
  template <class Job>
  void count_searched(const std::vector<Job>& jobs, uint64_t key_bytes);
  template <class Job>
  void set_pages(uint32_t head, uint32_t position, uint32_t first_page, uint32_t n_pages, Job* job) const;
  void set_pages(uint32_t head, uint32_t position, KeysShape* shape);
  Status find_pages(Span<const policy::PageQuery> queries, const policy::ScoreRule& rule);
  static uint64_t digest_bytes(const KeysShape& shape);
  TopKeysShape pages_shape(const policy::PageQuery& query, const policy::ScoreRule& rule);
  template <class Job>
  void count_pages_searched(const std::vector<Job>& jobs, const KeysShape& shape);
  void add_fetch_job(const policy::PageQuery& query, const policy::PagePlaces& places, std::vector<FetchJob>* jobs) const;
  void set_places(uint32_t head, uint32_t first_slot, FetchJob* job) const;
  FetchShape fetch_shape(const policy::PagePlaces& places) const;
  QueryChange query_change(double tau) const;
  // A head's table begins at the index of its first slot, divided by page_tokens_.
  uint64_t table_of(uint32_t head) const { return parts_->slots->first_slot(head) / page_tokens_; }
  Ptr<uint32_t> table_there(uint64_t at) const { return Ptr<uint32_t>{region_.data().address + told_bytes_ + projected_bytes_} + at; }
  // The host is about to choose tokens for the head.
  Status take_back_table(uint32_t head);
  bool fetched_ahead(uint32_t head) const;
  // TopKeysJob::log_evicted within a step; else null.
  Ptr<float> logs_of_evicted(int32_t kv_head) const {
    return now_->q && parts_->codes && parts_->codes->format().values ? logs_of(static_cast<uint32_t>(kv_head)) : Ptr<float>{};
  }
  Ptr<float> values_of_evicted(int32_t kv_head) const {  // TopKeysJob::value_evicted
    return logs_of_evicted(kv_head) && parts_->codes->format().value_bits > 0 ? values_of(static_cast<uint32_t>(kv_head)) : Ptr<float>{};
  }
  Ptr<float> projected() const { return {region_.data().address + told_bytes_}; }
  Ptr<float> logs_of(uint32_t kv_head) const { return projected() + uint64_t{kv_head} * group(); }
  Ptr<float> values_of(uint32_t kv_head) const {
    const auto n_kv_heads = static_cast<uint64_t>(description_->kv().n_kv_heads), dim = static_cast<uint64_t>(description_->kv().head_dim);
    return logs_of(static_cast<uint32_t>(n_kv_heads)) + uint64_t{kv_head} * group() * dim;
  }

  const model::Description* description_ = nullptr;
  KvFormat format_;  // of the slots; pages_ has its own
  Parts* parts_ = nullptr;
  const kv::PageTable* pages_ = nullptr;
  uint32_t queries_wanted_ = 0;  // Policy::queries_wanted()
  Span<const HeadView> views_;
  const Moment* now_ = nullptr;
  // What jobs tell, (n_heads) FetchTold; projected queries, or evicted_logs(); tables of held pages, and as many FetchJob::before.
  kv::ArenaRegion region_;
  uint64_t told_bytes_ = 0;
  // (n_heads, rank) projected queries of a layer, if low-rank keys find tokens; or its (n_heads) evicted_logs(), if codes compensate.
  uint64_t projected_bytes_ = 0;
  std::vector<float> q_now_, q_before_;  // (q_dim), if the policy asks before layers attend
  std::vector<TopKeysJob> jobs_;
  std::vector<KeyWeightsJob> weights_jobs_;
  std::vector<KeyMomentsJob> moments_jobs_;
  // What the entry behind a head's table tells: next_place(); of fetch_changed() also whether the query has changed; of fetch_near_best()
  // the number of wanted tokens.
  enum class Entry : uint8_t { none, next_place, changed, n_wanted };
  struct Fetched {
    uint32_t head = 0, leader = 0, first_slot = 0, n_held = 0;  // leader: a head's leader; else the call's first head
    Entry entry = Entry::none;
    uint64_t searched = 0, searched_ahead = 0;  // bytes, if a head of its leader selects for this step, or all for the next one alone
  };
  void begin_fetches(Span<const policy::PageQuery> queries, const policy::PagePlaces& places, Entry entry);
  void upload_tables(const policy::PagePlaces& places);
  Download told() { return {told_.data(), {region_.data().address}, told_.size() * sizeof(FetchTold)}; }
  void count_fetched(uint64_t n_tokens);
  bool fetches_ = false;
  uint32_t page_tokens_ = 1;
  std::vector<uint32_t> tables_;  // on their way to the device, or from there
  // Of each head: whether the device has its table, whose places begin at first_slot; and whether HeadStore's positions are still the
  // table's.
  struct Table {
    uint32_t first_slot = 0, n_held = 0;
    bool on_device = false, known = true;
  };
  std::vector<Table> held_;            // (n_heads)
  std::vector<FetchTold> told_;        // (n_heads)
  std::vector<uint32_t> next_places_;  // (n_heads)
  std::vector<FetchJob> fetch_jobs_, next_jobs_;
  std::vector<Upload> uploads_;
  std::vector<Fetched> fetched_;                      // in this step
  std::vector<std::pair<uint32_t, uint64_t>> ahead_;  // in the last step, for the next one: the head, and the number of tokens
  std::vector<uint32_t> changes_;                     // (n_heads) of take_changes()
  std::vector<std::pair<int32_t, uint64_t>> calls_;   // of fetch_near_best(), not joined: the layer, and a number for join_moves()
  uint64_t wanted_tokens_ = 0;                        // since take_wanted_tokens()
  std::vector<Download> downloads_;
  uint64_t before_bytes_ = 0;                       // behind the tables: room for FetchJob::before
  uint64_t ahead_tokens_ = 0, ahead_searched_ = 0;  // since take_fetched_tokens()
  uint64_t fetched_tokens_ = 0;                     // since take_fetched_tokens()
  uint64_t searched_ = 0;
};

}  // namespace orrery::engine
