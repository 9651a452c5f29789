#include "runtime/model/blocks/latent_attention.h"

#include <algorithm>
#include <cmath>

#include "runtime/model/blocks/attention.h"

namespace orrery::model::latent_attention {

namespace {

constexpr uint64_t kMostRank = 512, kMostRope = 64;  // of the attention kernels
constexpr int32_t kStep = 8;

// A key that must repeat a sum or a rank of other keys.
Status repeats(Keys& keys, const char* key, int32_t value, const char* what) {
  int32_t found = 0;
  ORRERY_TRY(keys.integer(key, 1, kMaxWidth, &found));
  if (found == value) return ok_status();
  return error(Code::bad_model, "%s: key '%s' is %d, expected %d, %s", keys.file().path().c_str(), keys.name(key).c_str(), found, value,
               what);
}

// Files of an older form have the heads' keys and values in one tensor, attn_kv_b, whose keys would have to be turned over.
Status refuse_older_form(Reading& in) {
  const gguf::File& file = in.keys.file();
  if (!file.find_tensor("blk.0.attn_kv_b.weight") && in.keys.has("attention.key_length_mla")) return ok_status();
  return error(Code::unsupported_architecture,
               "%s: the file has %s, as files of before 2025: architecture '%s' is run with 'attn_k_b', 'attn_v_b' and key '%s'. Convert "
               "the model again",
               file.path().c_str(),
               file.find_tensor("blk.0.attn_kv_b.weight") ? "tensor 'blk.0.attn_kv_b.weight'" : "no sizes of a head's keys", in.d.family,
               in.keys.name("attention.key_length_mla").c_str());
}

// YaRN. Its magnitude does not multiply cos and sin, and its square multiplies the scores. The file has the multiplier times 0.1.
Status read_yarn(Reading& in, float* scale) {
  RopeParameters& rope = in.d.ropes[0];
  float multiplier = 0.0f;
  ORRERY_TRY(in.keys.number_or("rope.scaling.yarn_log_multiplier", 0.0, 0.0, 1e3, &multiplier));
  if (rope.scaling != RopeScaling::yarn) return ok_status();
  rope.log_multiplier = 1.0f;  // a magnitude of 1
  if (rope.factor > 1.0f) {
    const float magnitude = 1.0f + multiplier * std::log(rope.factor);
    *scale *= magnitude * magnitude;
  }
  return ok_status();
}

}  // namespace

Status read(Reading& in) {
  Keys& keys = in.keys;
  const char* const path = keys.file().path().c_str();
  AttentionShape a;
  LatentShape latent;
  ORRERY_TRY(refuse_older_form(in));
  ORRERY_TRY(attention::refuse_windows(in));
  ORRERY_TRY(attention::read_equal_heads(in, "attention.head_count", &a.n_heads));
  ORRERY_TRY(keys.integer("attention.head_count_kv", 1, 1, &a.n_kv_heads));
  ORRERY_TRY(keys.integer_or("attention.q_lora_rank", 0, 0, kMaxWidth, &latent.q_rank));
  ORRERY_TRY(keys.integer("attention.kv_lora_rank", kStep, kMostRank, &latent.rank));
  ORRERY_TRY(keys.integer("rope.dimension_count", 2, kMostRope, &latent.rope));
  int32_t query_dim = 0;
  ORRERY_TRY(keys.integer("attention.key_length_mla", static_cast<uint64_t>(latent.rope) + 1, kMaxWidth, &query_dim));
  ORRERY_TRY(keys.integer("attention.value_length_mla", kStep, kMaxWidth, &latent.value_dim));
  latent.nope = query_dim - latent.rope;
  a.head_dim = latent.rank + latent.rope, a.shared_values = latent.rank;
  for (const auto& [n, key] : {std::pair<int32_t, const char*>{latent.rank, "attention.kv_lora_rank"},
                               {latent.rope, "rope.dimension_count"},
                               {latent.value_dim, "attention.value_length_mla"}})
    if (n % kStep != 0)
      return error(Code::unsupported_architecture, "%s: key '%s' is %d; multiples of %d are run", path, keys.name(key).c_str(), n, kStep);
  ORRERY_TRY(repeats(keys, "attention.key_length", a.head_dim, "the ranks of keys and RoPE"));
  ORRERY_TRY(repeats(keys, "attention.value_length", latent.rank, "the rank of values"));
  for (const int64_t width : {int64_t{a.head_dim}, int64_t{query_dim}, int64_t{latent.value_dim}})
    if (width * a.n_heads > static_cast<int64_t>(kMaxWidth))
      return error(Code::bad_model, "%s: %d heads of %lld are wider than any model we know", path, a.n_heads,
                   static_cast<long long>(width));

  attention::Parts rope;
  rope.rope_interleaved = true;
  ORRERY_TRY(attention::read_rope(in, rope));
  in.d.ropes[0].n_rot = latent.rope;
  a.scale = 1.0f / std::sqrt(static_cast<float>(query_dim));
  ORRERY_TRY(read_yarn(in, &a.scale));
  for (LayerShape& layer : in.d.layers) layer.attention = a, layer.latent = latent;
  return ok_status();
}

Status find(Tensors* tensors, const Description& d, const LayerShape& layer, const std::string& prefix, Weights* out) {
  const LatentShape& s = layer.latent;
  const int64_t n = d.n_embd, n_heads = layer.attention.n_heads, queries = n_heads * s.query_dim();
  if (s.q_rank > 0) {
    ORRERY_TRY(tensors->matrix(prefix + "attn_q_a.weight", s.q_rank, n, true, &out->q_a));
    ORRERY_TRY(tensors->vector(prefix + "attn_q_a_norm.weight", s.q_rank, true, &out->q_norm));
    ORRERY_TRY(tensors->matrix(prefix + "attn_q_b.weight", queries, s.q_rank, true, &out->q_b));
  } else {
    ORRERY_TRY(tensors->matrix(prefix + "attn_q.weight", queries, n, true, &out->q));
  }
  ORRERY_TRY(tensors->matrix(prefix + "attn_kv_a_mqa.weight", s.rank + s.rope, n, true, &out->kv_a));
  ORRERY_TRY(tensors->vector(prefix + "attn_kv_a_norm.weight", s.rank, true, &out->kv_norm));
  ORRERY_TRY(tensors->heads(prefix + "attn_k_b.weight", n_heads, s.rank, s.nope, &out->k_b));
  ORRERY_TRY(tensors->heads(prefix + "attn_v_b.weight", n_heads, s.value_dim, s.rank, &out->v_b));
  return tensors->matrix(prefix + "attn_output.weight", n, n_heads * s.value_dim, true, &out->out);
}

bool run(Pass& pass, int32_t layer, const Weights& w) {
  const LayerShape& shape = pass.d.layer(layer);
  const AttentionShape& a = shape.attention;
  const LatentShape& s = shape.latent;
  const Workspace& work = pass.work;
  Backend& b = pass.backend;
  const auto n_rows = static_cast<uint64_t>(pass.n_rows);
  const int64_t q_stride = int64_t{a.n_heads} * s.query_dim(), out_stride = int64_t{a.n_heads} * s.value_dim;
  const Ptr<float> q = work.mixer, low = q + n_rows * static_cast<uint64_t>(std::max(
                                                          q_stride, out_stride));  // (n_rows, n_heads, query_dim), (n_rows, q_rank)
  const Ptr<float> wide = work.qkv,
                   row = wide + n_rows * static_cast<uint64_t>(a.q_dim());  // (n_rows, n_heads, head_dim), (n_rows, head_dim)

  const Product first[] = {{w.q_a ? &w.q_a : &w.q, {}, w.q_a ? low : q, w.q_a ? s.q_rank : q_stride, false},
                           {&w.kv_a, {}, row, a.head_dim, false}};
  pass.project({first, 2});
  if (w.q_a) {
    b.rms_norm(low, s.q_rank, w.q_norm, low, s.q_rank, 1, s.q_rank, pass.d.norm_eps);
    const Product second{&w.q_b, {}, q, q_stride, false};
    pass.matmul({&second, 1}, low, s.q_rank);
  }
  b.rms_norm(row, a.head_dim, w.kv_norm, row, a.head_dim, 1, s.rank, pass.d.norm_eps);
  b.rope(row + static_cast<uint64_t>(s.rank), a.head_dim, 1, s.rope, a.rope);
  const KvLayer kv_layer = pass.d.kv_layers[static_cast<size_t>(layer)];
  b.append_kv(kv_layer, row, {}, a.head_dim);
  b.rope(q + static_cast<uint64_t>(s.nope), q_stride, a.n_heads, s.query_dim(), a.query_rope);
  b.head_products()->multiply_heads(w.k_b, a.n_heads, q, s.query_dim(), wide, a.head_dim);
  if (pass.hooks.at_attention && !pass.hooks.before_attend(kv_layer, wide, a.q_dim())) return false;

  AttendShape attend;
  attend.n_heads = a.n_heads;
  attend.q_stride = a.q_dim();
  attend.out_stride = int64_t{a.n_heads} * s.rank;
  attend.scale = a.scale;
  b.attend(kv_layer, wide, work.attn, attend);
  b.head_products()->multiply_heads(w.v_b, a.n_heads, work.attn, s.rank, q, s.value_dim);
  pass.add_branch(w.out, {}, {}, q, out_stride);
  return true;
}

}  // namespace orrery::model::latent_attention
