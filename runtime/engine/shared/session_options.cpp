#include "runtime/engine/shared/session_options.h"

#include <algorithm>

#include "runtime/base/checked.h"
#include "runtime/kv/memory/arena.h"
#include "runtime/kv/memory/page_table.h"
#include "runtime/kv/memory/plan.h"
#include "runtime/kv/resident/compensation_tokens.h"
#include "runtime/kv/resident/digests.h"

namespace orrery::engine {

namespace {

constexpr uint32_t kDefaultChunk = 256, kMaxChunk = 4096;

// Whether the heads of all groups are whole blocks of the type.
bool has_blocks(const model::Description& h, KvType type) {
  return std::all_of(h.groups.begin(), h.groups.end(), [type](const model::KvGroup& group) {
    return static_cast<uint32_t>(group.head_dim) % type_traits(key_tensor_type(type))->block_elements == 0;
  });
}

// The budget as a share of full KV's bytes in F16. Budgets in bytes need the caller's context; without it the share is 1.
double share_of_f16(const model::Description& h, const SessionOptions& options) {
  const auto token = static_cast<double>(kv_format(h, KvType::f16).token_bytes());
  if (options.kv_budget_bytes == 0) return options.kv_share * static_cast<double>(kv_format(h, options.kv_type).token_bytes()) / token;
  if (options.n_context == 0) return 1;
  const double full = token * static_cast<double>(h.kv().n_layers() * h.kv().n_kv_heads) * static_cast<double>(options.n_context);
  return static_cast<double>(options.kv_budget_bytes) / full;
}

Status check_profile_shape(const model::Description& h, const policy::HeadProfile& profile) {
  bool fits = profile.layers.size() == static_cast<size_t>(h.kv().n_layers());
  for (const policy::ProfileLayer& layer : profile.layers) fits = fits && layer.n_kv_heads() == static_cast<uint32_t>(h.kv().n_kv_heads);
  if (fits) return ok_status();
  return option_error(Code::invalid_argument, "head_profile",
                      "the head profile is for %zu layers with %u KV heads, the model has %d with %d", profile.layers.size(),
                      profile.layers.empty() ? 0 : profile.layers[0].n_kv_heads(), h.kv().n_layers(), h.kv().n_kv_heads);
}

}  // namespace

uint32_t SessionOptions::chunk() const { return chunk_tokens ? chunk_tokens : kDefaultChunk; }

bool SessionOptions::in_place(const model::Description& h) const {
  if (!finds_by_codes || device_kv_type || kv_type == KvType::f32) return false;
  const double from = policy::policy_needs(policy, policy_options).in_place_share;
  // Codes are chosen by themselves where the Hadamard transform has blocks of 64 or more.
  return from == 0 || (hadamard_block(h.kv().head_dim) >= 64 && share_of_f16(h, *this) >= from);
}

CodeTurns SessionOptions::code_turns(const model::Description& h) const {
  CodeTurns turns;
  if (!codes_values || rotated(h)) return turns;
  for (const int32_t layer : h.kv().layers)  // a layer without RoPE has nothing that turns
    if (turns.rope < 0) turns.rope = h.layer(layer).attention.rope;
  if (turns.rope < 0) return turns;
  const model::RopeParameters& rope = h.ropes[static_cast<size_t>(turns.rope)];
  turns.n_pairs = static_cast<uint32_t>(rope.n_rot) / 2, turns.interleaved = rope.interleaved;
  turns.n_turns = std::min(turns.n_pairs, static_cast<uint32_t>(kMostTurns));
  return turns;
}

KvType SessionOptions::resident_type(const model::Description& h) const {
  if (device_kv_type) return *device_kv_type;
  if (in_place(h)) return kv_type;
  const policy::Needs needs = policy::policy_needs(policy, policy_options);
  const double share = share_of_f16(h, *this);
  const Span<const policy::TypeBelow> coarser = finds_by_codes && share >= needs.codes_share ? needs.coarser_by_codes : needs.coarser;
  const auto low = std::find_if(coarser.begin(), coarser.end(), [&](const policy::TypeBelow& below) { return share < below.share; });
  // Drafts of speculate policy read plain KV (form_type()), of which Q4_0 keeps too little.
  const bool takes_four_bits = h.kv().head_dim % 64 == 0 && speculate != Speculate::policy;
  const std::optional<KvType> own = takes_four_bits && low != coarser.end() ? std::optional(low->type) : needs.device_type;
  return own && finer(kv_type, *own) && has_blocks(h, *own) ? *own : kv_type;
}

Status SessionOptions::validate(const model::Description& h) const {
  if (n_context > kMaxContext)
    return option_error(Code::invalid_argument, "n_context", "n_context is %u, expected at most %u", n_context, kMaxContext);
  if (chunk_tokens > kMaxChunk)
    return option_error(Code::invalid_argument, "chunk_tokens", "chunk_tokens is %u, expected at most %u", chunk_tokens, kMaxChunk);
  if (speculate_tokens > kMostGuesses)
    return option_error(Code::invalid_argument, "speculate_tokens", "speculate_tokens is %u, expected at most %u", speculate_tokens,
                        kMostGuesses);
  if (speculate == Speculate::draft && !draft_source && !draft_model)
    return option_error(Code::invalid_argument, "draft_model", "speculate draft needs a draft model");
  if (draft_source && draft_model)
    return option_error(Code::invalid_argument, "draft_source", "a draft model is given open and as a source; expected one of the two");
  if (speculate != Speculate::draft && (draft_source || (draft_model && speculate != Speculate::mtp)))
    return option_error(Code::invalid_argument, draft_source ? "draft_source" : "draft_model", "a draft model needs speculate draft");
  if (speculate == Speculate::mtp && h.n_skipped_blocks == 0)
    return option_error(Code::unsupported, "speculate",
                        "speculate mtp needs a file with blocks that guess tokens (key '%.64s.nextn_predict_layers'); this one has none",
                        h.family);
  if (speculate == Speculate::mtp && h.guessing_layer.attention.n_heads == 0)
    return option_error(Code::unsupported, "speculate",
                        "speculate mtp: the blocks that guess tokens of architecture '%.64s' are not run; expected off, ngram or draft",
                        h.family);
  const KvType resident = resident_type(h);
  if (!has_blocks(h, kv_type) || !has_blocks(h, resident))
    return option_error(Code::unsupported, "kv_type",
                        "a quantized KV cache needs a head dimension that is a multiple of 32; this model has %d", h.kv().head_dim);
  if (h.shares_values() && mixed(kv_type))
    return option_error(
        Code::unsupported, "kv_type",
        "KV in %s has keys and values of two types; in this model (latent attention) values are a part of the keys: expected F32, F16, "
        "Q8_0 or Q4_0",
        kv_type_name(kv_type));
  const char* type_name = kv_type_name(kv_type);
  const char* device_name = kv_type_name(resident);
  if (finer(resident, kv_type))
    return option_error(Code::invalid_argument, "device_kv_type",
                        "the device's KV type %s is finer than %s, of which its values would be made: expected the same or coarser",
                        device_name, type_name);
  if (!compressed() && !automatic && resident != kv_type)
    return option_error(Code::invalid_argument, "device_kv_type",
                        "policy full keeps its only copy of the KV on the device: the device's KV type is %s, expected %s", device_name,
                        type_name);
  if (!(kv_share > 0.0 && kv_share <= 1.0))
    return option_error(Code::invalid_argument, "kv_budget_share", "the KV budget is a share of %g, expected more than 0, at most 1",
                        kv_share);
  if (!compressed() && (kv_share != 1.0 || kv_budget_bytes != 0))
    return option_error(Code::invalid_argument, "policy", "policy full keeps all of the KV: a KV budget needs another policy");
  if (!compressed() && !policy_options.empty())
    return option_error(Code::invalid_argument, "policy_options", "policy full has no options; '%.40s' was given",
                        policy_options[0].first.c_str());
  if (h.recurrent() && speculate == Speculate::policy)
    return option_error(
        Code::unsupported, "speculate",
        "speculate policy drafts with steps of the model itself, which cannot be taken out of a recurrent layer's state; expected "
        "off, or ngram, "
        "draft or mtp under policy full");
  if (compressed()) ORRERY_TRY(check_policy_fits(h));
  if (head_profile) ORRERY_TRY(check_profile_shape(h, *head_profile));
  return ok_status();
}

// A policy divides the KV of group 0. The layers of the other groups see a window of it.
Status SessionOptions::check_policy_fits(const model::Description& h) const {
  for (size_t g = 1; g < h.groups.size(); ++g)
    if (h.groups[g].window == 0)
      return option_error(
          Code::unsupported, "policy",
          "policy %.40s chooses tokens for KV heads of one shape; the model's layers without a window have heads of %d and of "
          "%d dimensions: expected policy full",
          policy.c_str(), h.kv().head_dim, h.groups[g].head_dim);
  if (h.shares_values())
    return option_error(
        Code::unsupported, "policy",
        "policy %.40s chooses keys and values of KV heads; in this model (latent attention) one row of %d values is both, for all "
        "query heads: expected policy full",
        policy.c_str(), h.kv().head_dim);
  if (h.shares_kv())
    return option_error(
        Code::unsupported, "policy",
        "policy %.40s chooses tokens by the queries of the layer that keeps them; in this model later layers read the KV of "
        "earlier ones: expected policy full",
        policy.c_str());
  return ok_status();
}

Status SessionOptions::check_device(const Device& on, const model::Description& h) const {
  for (const model::KvGroup& group : h.groups)
    for (const KvType type : {kv_type, resident_type(h)}) ORRERY_TRY(on.check_heads(group.head_dim, type, group.shared_values));
  const BackendInfo device = on.info();
  if (adapters) ORRERY_TRY(on.check_adapters());
  if (speculate == Speculate::off) return ok_status();
  const char* mode = speculate == Speculate::ngram    ? "ngram"
                     : speculate == Speculate::policy ? "policy"
                     : speculate == Speculate::draft  ? "draft"
                                                      : "mtp";
  if (speculate != Speculate::policy && compressed())
    return option_error(
        Code::unsupported, "speculate",
        "speculate %s needs full KV on the device: policy %.40s chooses the resident KV between tokens, so several tokens of "
        "one step would attend to other KV; expected speculate off or policy, or policy full",
        mode, policy.c_str());
  if (speculate == Speculate::policy && !compressed())
    return error(Code::unsupported, "speculate policy needs a KV policy, whose resident KV drafts; policy full keeps all KV on the device");
  if (!device.decodes_rows)
    return error(Code::unsupported, "speculate %s needs decode steps of several tokens, which the %s backend lacks; expected off", mode,
                 device.name);
  if (speculate == Speculate::policy && !device.attends_pages)
    return error(Code::unsupported,
                 "speculate policy verifies with the KV in the reservoir, which the %s backend does not read as fast as the device's "
                 "memory; expected off, or ngram, draft or mtp under policy full",
                 device.name);
  return ok_status();
}

SessionOptions SessionOptions::of_draft(uint32_t context) const {
  SessionOptions out;
  out.n_context = context;
  out.chunk_tokens = speculate == Speculate::mtp ? std::min(chunk(), kHeadChunk) : chunk_tokens;
  out.drafts = true;
  return out;
}

Status SessionOptions::check_drafts(const policy::Policy& made) const {
  if (speculate != Speculate::policy || made.only_appends()) return ok_status();
  return error(
      Code::unsupported,
      "speculate policy needs a policy that only appends generated tokens, as auto and the policies that select by a window do, and "
      "a model without sliding windows; policy %.40s replaces resident tokens here",
      policy.c_str());
}

namespace {

policy::Shape policy_shape(const model::Description& h, KvType device, uint32_t n_context) {
  policy::Shape shape;
  shape.n_layers = static_cast<uint32_t>(h.kv().n_layers());
  shape.n_kv_heads = static_cast<uint32_t>(h.kv().n_kv_heads);
  shape.n_context = n_context;
  shape.window = h.kv().windows;
  shape.slot_bytes = kv_format(h, device).token_bytes();
  shape.digest_bytes = kv::Digests::digest_bytes(h.kv().head_dim);
  shape.head_dim = static_cast<uint32_t>(h.kv().head_dim);
  shape.compensation_token_bytes = kv::CompensationTokens::bytes_of(1, h.kv().head_dim);
  return shape;
}

// Slots of layers with a sliding window: they keep their whole window under every policy.
uint64_t window_slots(const model::Description& h, uint32_t n_context) {
  const uint64_t of_head = std::min(static_cast<uint64_t>(h.kv().window), uint64_t{n_context});
  return of_head * static_cast<uint64_t>(h.kv().n_layers() * h.kv().n_kv_heads);
}

policy::KvShare share_of(const model::Description& h, const SessionOptions& options) {
  return {options.kv_share, kv_format(h, options.kv_type).token_bytes(), kv_format(h, options.resident_type(h)).token_bytes()};
}

}  // namespace

KvType SessionOptions::form_type(const model::Description& h) const {
  const KvType resident = resident_type(h);
  return speculate != Speculate::policy && kv_type_row(resident).rotated ? resident : kv_type;
}

bool SessionOptions::centred(const model::Description& h) const {
  if (h.shares_values()) return false;  // values would be centred, too
  const KvType type = form_type(h);
  if (!finer(KvType::f16, type) || !has_blocks(h, type)) return false;
  // With room for all tokens every policy computes what full attention computes.
  const bool whole = kv_budget_bytes == 0 && share_of(h, *this).of_tokens() >= 1;
  return whole || !policy::policy_needs(policy, policy_options).plain_keys;
}

bool SessionOptions::rotated(const model::Description& h) const { return centred(h) && kv_type_row(form_type(h)).rotated; }

Result<std::unique_ptr<policy::Policy>> make_policy(const model::Description& h, const SessionOptions& options, uint32_t n_context) {
  policy::Budget budget;
  const KvType device = options.resident_type(h);
  if (options.kv_budget_bytes) budget.slot_bytes = kv_format(h, device).token_bytes();
  else budget.share = share_of(h, options);
  budget.max_slots = resident_slots(h, options, n_context);
  // A share always has room for the windows. A budget in bytes may be too small.
  if (const uint64_t windows = window_slots(h, n_context); windows > budget.max_slots)
    return option_error(
        Code::invalid_argument, "kv_budget_bytes",
        "policy %.40s: layers with a sliding window keep all of it, which a KV budget of %llu bytes does not hold at a context "
        "of %u; it must be at least %llu bytes",
        options.policy.c_str(), static_cast<unsigned long long>(options.kv_budget_bytes), n_context,
        static_cast<unsigned long long>(align_up(windows * budget.slot_bytes, kv::kArenaAlignment)));
  if (options.head_profile) ORRERY_TRY(check_profile_shape(h, *options.head_profile));
  policy::Shape shape = policy_shape(h, device, n_context);
  shape.finds_by_codes = options.finds_by_codes;
  shape.codes_values = options.codes_values, shape.code_turns = options.code_turns(h).n_turns;
  shape.in_place = options.in_place(h);
  // Policies know slots: what else they refuse is the budget that gave them.
  auto made = policy::make_policy(options.policy, shape, budget, options.policy_options, options.head_profile);
  ORRERY_ASSIGN(auto policy, about_option(options.kv_budget_bytes ? "kv_budget_bytes" : "kv_budget_share", std::move(made)));
  if (h.kv().n_layers() < h.n_layers && policy->asks_a_layer_ahead())
    return option_error(
        Code::unsupported, "policy",
        "policy %.40s asks for a layer's queries one layer ahead; %d of the model's %d layers have none that it could ask for",
        options.policy.c_str(), h.n_layers - h.kv().n_layers(), h.n_layers);
  return policy;
}

uint64_t resident_slots(const model::Description& h, const SessionOptions& options, uint32_t n_context) {
  const KvType device = options.resident_type(h);
  const policy::Shape shape = policy_shape(h, device, n_context);
  const uint64_t all = policy::slots_for_share(shape, 1.0);
  if (options.kv_budget_bytes == 0) return policy::slots_for_share(shape, share_of(h, options));
  // Whole units of the arena: a part of a unit would take more bytes than the budget has.
  const uint64_t bytes = options.kv_budget_bytes / kv::kArenaAlignment * kv::kArenaAlignment;
  return std::min(all, bytes / kv_format(h, device).token_bytes());
}

KvFormat kv_format(const model::Description& h, KvType type, size_t group) {
  const model::KvGroup& of = h.groups[group];
  KvFormat format;
  format.type = type;
  format.n_layers = of.n_layers();
  format.n_kv_heads = of.n_kv_heads;
  format.head_dim = of.head_dim;
  format.shared_values = of.shared_values;
  return format;
}

bool in_ring(const model::Description& h, size_t group) { return group > 0 && h.groups[group].window > 0; }

uint32_t group_pages(const model::Description& h, const SessionOptions& options, uint32_t n_context, size_t group) {
  constexpr auto kTokens = static_cast<uint64_t>(kPageTokens), kTogether = static_cast<uint64_t>(kPagesTogether);
  const uint32_t all = kv::pages_to_reserve(n_context);
  if (!in_ring(h, group)) return all;
  const auto window = static_cast<uint64_t>(h.groups[group].window);
  // The rows of a step and the window ahead of them begin and end anywhere in a page.
  const uint64_t needed =
      div_up(div_up(window + std::max(options.chunk_of(h, n_context), kMostGuesses + 1), kTokens) + 1, kTogether) * kTogether;
  const uint64_t wanted = (window + (options.window_slack ? options.window_slack : kWindowSlack)) / kTokens / kTogether * kTogether;
  return static_cast<uint32_t>(std::min<uint64_t>(std::max(needed, wanted), all));
}

uint64_t page_bytes(const model::Description& h, KvType type) {
  uint64_t bytes = 0;
  for (size_t g = 0; g < h.groups.size(); ++g) bytes += in_ring(h, g) ? 0 : kv_format(h, type, g).page_bytes();
  return bytes;
}

uint64_t windows_bytes(const model::Description& h, KvType type) {
  uint64_t bytes = 0;
  for (size_t g = 0; g < h.groups.size(); ++g)
    if (in_ring(h, g)) bytes += kv::window_pages(static_cast<uint32_t>(h.groups[g].window)) * kv_format(h, type, g).page_bytes();
  return bytes;
}

}  // namespace orrery::engine
