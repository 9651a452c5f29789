// A backend that is memory alone: what the rooms below the engine need of one.
#pragma once

#include <cstring>
#include <vector>

#include "runtime/backend/backend.h"
#include "tests/support/kv_tokens.h"

namespace orrery::kv {

// Device memory is this machine's; nothing but copies, and the formats' own conversions, is asked of it.
class MemoryBackend : public Backend, public KvMoves, public KeyOperations, public KvSummaries, public LowRankOperations {
 public:
  BackendInfo info() const override {
    BackendInfo info;
    info.name = "memory", info.n_threads = 1, info.computes_on_host = info.reads_host_memory = true;
    return info;
  }
  StepCost step_cost() const override { return {}; }
  KvMoves* kv_moves() override { return this; }
  KeyOperations* keys() override { return this; }
  KvSummaries* summaries() override { return this; }
  LowRankOperations* low_rank() override { return this; }
  Status reserve_arena(uint64_t bytes) override {
    memory_.assign(bytes, std::byte{0xEE});
    return ok_status();
  }
  Ptr<std::byte> arena() const override { return {reinterpret_cast<uintptr_t>(memory_.data())}; }
  void upload(Ptr<std::byte> to, const void* from, uint64_t bytes) override { std::memcpy(at(to), from, bytes); }
  void download(void* to, Ptr<const std::byte> from, uint64_t bytes) override { std::memcpy(to, at(from), bytes); }
  void copy(Ptr<std::byte> to, Ptr<const std::byte> from, uint64_t bytes) override {
    std::memcpy(at(to), at(from), bytes);
    ++n_copies;
  }
  void move_kv(Span<const KvMove> moves, KvType to_type, KvType from_type, uint64_t token_values) override {
    for (const KvMove& move : moves) {
      const uint64_t dim = token_values / 2;
      if (to_type == from_type) {
        copy({move.to}, {move.from}, move.n_tokens * (key_bytes(to_type, dim) + value_bytes(to_type, dim)));
        continue;
      }
      const std::vector<std::byte> tokens =
          testing::converted_tokens(at(Ptr<const std::byte>{move.from}), from_type, to_type, dim, move.n_tokens);
      std::memcpy(at(Ptr<std::byte>{move.to}), tokens.data(), tokens.size());
    }
  }
  // As late as it may.
  uint64_t move_kv_ahead(Span<const KvMove> moves, KvType to_type, KvType from_type, uint64_t token_values) override {
    ahead_.push_back({{moves.begin(), moves.end()}, to_type, from_type, token_values});
    return ahead_.size();
  }
  void join_moves(uint64_t n) override {
    for (; n_joined_ < n; ++n_joined_) {
      const Ahead& a = ahead_[n_joined_];
      move_kv(a.moves, a.to_type, a.from_type, a.token_values);
    }
    ++n_joins;
  }
  void discard(Ptr<std::byte> at_, uint64_t bytes) override { std::memset(at(at_), 0xDD, bytes); }
  Status synchronize() override {
    ++n_synchronized;
    return ok_status();
  }
  Status copy_in(Ptr<std::byte> to, Span<const HostPiece> pieces) override {
    for (const HostPiece& piece : pieces) {
      std::memcpy(at(to), piece.data, piece.bytes);
      to = to + piece.bytes;
    }
    return ok_status();
  }
  uint64_t weight_bytes(TensorType, int64_t, int64_t) const override { return 0; }
  Status place_weight(TensorType, int64_t, int64_t, const std::byte*, Ptr<std::byte>, Weight*) override { return ok_status(); }
  uint64_t scratch_bytes(const StepLimits&) const override { return 0; }
  Status set_scratch(Ptr<std::byte>, const StepLimits&) override { return ok_status(); }
  void begin_steps(Span<const Step>) override {}
  void end_step() override {}
  void embed(const Weight&, float, Ptr<float>) override {}
  void rms_norm(Ptr<const float>, int64_t, Ptr<const float>, Ptr<float>, int64_t, int32_t, int64_t, float) override {}
  void matmul(Span<const Product>, Ptr<const float>, int64_t, int32_t) override {}
  void prepare_ropes(Span<const RopeSpec>) override {}
  void rope(Ptr<float>, int64_t, int32_t, int32_t, int32_t) override {}
  void transform_rows(Ptr<float>, int64_t, int32_t, int32_t, Span<const HeadTransform>) override {}
  void append_kv(KvLayer, Ptr<const float>, Ptr<const float>, int64_t) override {}
  void attend(KvLayer, Ptr<const float>, Ptr<float>, const AttendShape&) override {}
  void digest(Span<const DigestJob>, const DigestShape&) override {}
  void add_to_compensation_tokens(Span<const CompensationJob>, const KvFormat&) override {}
  void top_keys(Span<const TopKeysJob>, const TopKeysShape&) override {}
  void key_weights(Span<const KeyWeightsJob>, const KeysShape&) override {}
  void key_products(const LowRankKeys&, int32_t, float*, float*) override {}
  void low_rank_rows(const LowRankKeys&, int32_t, int32_t) override {}
  void low_rank_queries(const LowRankKeys&, uint64_t, int32_t, Ptr<const float>, Ptr<float>) override {}
  // V alone, of the pages' type.
  void rebuild_keys(const LowRankKeys& keys, KvType, Span<const RebuiltRun> runs) override {
    rebuilt.emplace_back(runs.begin(), runs.end());
    for (const RebuiltRun& r : runs)
      for (uint64_t i = 0; i < static_cast<uint64_t>(r.count); ++i)
        std::memcpy(at(r.to + i * keys.kv.token_bytes() + keys.kv.key_bytes()),
                    at(r.values + i * (keys.kv.value_bytes() + static_cast<uint64_t>(r.values_gap))), keys.kv.value_bytes());
  }
  void activate(Activation, Ptr<const float>, Ptr<const float>, int64_t, Ptr<float>, int64_t, int64_t) override {}
  void soft_cap(Ptr<float>, int32_t, int64_t, float, float) override {}
  void read_rows(RowReader, const void*, int64_t, Ptr<float>) override {}
  void add(Ptr<float>, Ptr<const float>, int64_t) override {}

  static std::byte* at(Ptr<const std::byte> p) { return reinterpret_cast<std::byte*>(p.address); }
  int n_copies = 0, n_synchronized = 0, n_joins = 0;
  std::vector<std::vector<RebuiltRun>> rebuilt;  // call by call

 private:
  struct Ahead {
    std::vector<KvMove> moves;
    KvType to_type, from_type;
    uint64_t token_values;
  };
  std::vector<Ahead> ahead_;
  uint64_t n_joined_ = 0;
  std::vector<std::byte> memory_;
};

}  // namespace orrery::kv
