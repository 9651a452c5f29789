// auto: the default under a KV budget. Two ways, by `by`:
// codes: keycodes with its defaults. Each step finds its tokens by codes of all keys, with its own query, and reads them in place. Engine:
// engines/codes.
// window: CAKE's scores and Ada-KV's selection over heads, and five things of our own: layers compete like heads, a wide max pooling, a
// short tail, a compensation token, settling in parts. Engine: engines/window.
//   score     mean + 200 variance, over the last 32 queries, of each query head's softmax weights; max pooling over 15 keys; mean over the
//             group
//   allocate  over layers by the best scores of all layers, each times the root of its layer's preference; over a layer's heads by the
//             layer's best scores, with kvpress's safeguard
//   select    each head keeps its best tokens before the window, the window, and every generated token; evicted tokens become one compensation
//             token
//   refresh   never; a full tail, or a new prompt, selects again from the reservoir, in parts beside the next 8 steps. With slots in Q4_0 and
//             a near reservoir tails are a third as long, and renew scores by the queries since
// tests/bench has the results.
#include "runtime/policy/engines/codes.h"
#include "runtime/policy/engines/window.h"

namespace orrery::policy {

namespace auto_method {

constexpr WindowSettings kDefaults = {WindowScore::variance,
                                      Pooling::max,
                                      15,
                                      LayerBudgets::adaptive,
                                      HeadBudgets::adaptive,
                                      32,
                                      Safeguard::protect,
                                      .2,
                                      20,
                                      2,
                                      2,
                                      200,
                                      0,
                                      0,
                                      16,
                                      8,
                                      1,
                                      8};
// With slots in Q4_0 and a near reservoir: the shortest tail, and scores that are renewed behind each.
constexpr WindowSettings kSmallDefaults = [] {
  WindowSettings s = kDefaults;
  s.tail_part = 48, s.tail_least = 4, s.renew = 3;
  return s;
}();
constexpr int32_t kLeastBlock = 64;  // of the Hadamard transform, for by=codes without being asked
// Below 28.1% of F16's bytes Q4_0 does not hold all tokens, below 40.6% K8V4 does not: more tokens are worth more than their last bits.
// K8V4 that holds all is level with Q8_0 that lacks some. tests/bench/results/real-models.md has the measurements.
constexpr TypeBelow kWindowTypes[] = {{.28, KvType::q4_0}, {.5, KvType::k8v4}};
// Of F16's bytes: from here on auto goes by codes (codes_fit()). Copied tokens need codes of 2 bits in three quarters of the budget, 18 of
// 256 bytes of heads of 64. In place codes of 1 bit take 10 of 256.
constexpr double kCodesShare = .094, kInPlaceShare = .05;
constexpr auto kWindowOptions = window_options(kDefaults);

// `by`, the window's options, and those of the codes that the window has not.
constexpr auto kOptions = [] {
  constexpr OptionRow kBy = {
      "by", "(codes, where the backend has them)",
      "codes: keycodes, with its options; window: tokens that a window of queries chooses, with the options below. An "
      "option without `by` is one of the window's"};
  std::array<OptionRow, kWindowOptions.size() + 1> all = {kBy};
  for (size_t i = 0; i < kWindowOptions.size(); ++i) all[i + 1] = kWindowOptions[i];
  return all;
}();
constexpr char kPage[] =
    "The policy of a KV budget without a named policy. It has two ways to choose the resident tokens, by=codes and by=window.\n"
    "- codes: each step finds its tokens by codes of all keys (policy keycodes). It is the default on the CPU, and takes keycodes'\n"
    "  options, if by=codes is given. On the CPU steps read the tokens in the reservoir: on published models KL from full\n"
    "  attention at 10 and 20% is about that of full attention in Q8_0, a tenth or less of the window's. A step scores all tokens\n"
    "  and reads up to a quarter of them anywhere in memory, so it takes 0.8 to 1.4 times one of full attention (4K and 16K\n"
    "  tokens, two threads), where the window's takes 0.4 to 1.1 times. On a GPU found tokens are copied to the device within the\n"
    "  step, and the device selects them: at 20% KL is about that of Q8_0, at 10% less than a third of the window's. No GPU has\n"
    "  measured its speed. By a model of one the link makes such a step longer than one of full attention, and several sessions\n"
    "  share no pass.\n"
    "- window: a window of queries chooses the tokens once for each turn. It is the default with speculate=policy, on a GPU, where\n"
    "  the reservoir lies behind a link, where an option of the window is given, below 5% of F16's bytes, where codes do not fit,\n"
    "  and where tokens must be copied (device_kv_type, KV in F32) and codes of 2 bits would take more than three quarters of the\n"
    "  budget (below 9.4%, with heads of 64). And where the Hadamard transform has blocks of less than 64, as in heads of 32 (the\n"
    "  demo model): it spreads a key over too few dimensions.\n"
    "The window's way: short answers over several turns. At 10% of the KV no other measured policy that chooses once comes near\n"
    "it, up to 4,096 tokens. It moves half of what quest moves, and no step waits for the link. It repeats long lists as well as\n"
    "quest at half of the KV, and better with less.\n"
    "- A layer's heads compete as Ada-KV's do, with kvpress's safeguard. Layers compete too: a score counts times the root of\n"
    "  its layer's entropy and variance (CAKE's preference). With CAKE's division by preference alone, from 30% of the KV on,\n"
    "  one layer holds all its tokens, though it hardly attends to most of them, and the others lack tokens that they attend\n"
    "  to. Whether a list goes on is said by many keys of all layers, each a little; it was answered worse at 30 and 40% than\n"
    "  at 20%.\n"
    "- A wide maximum, 15 keys: a token that is attended to stays with the sentence around it, which an answer reads next,\n"
    "  token by token. With 5 or 7 keys the middle of a passage is kept and its end is lost.\n"
    "- A short tail, a sixteenth of what a head may hold: at 10% of 1,024 tokens a tail of n / 32 would take a third. A full\n"
    "  tail selects again by the answer's own last queries, so tokens that the answer has come to need come back.\n"
    "- The evicted tokens of a head become one compensation token: their mean by the last query's weights p. It weighs as many\n"
    "  tokens as p is spread out over, e^entropy, times the share of kept tokens. RazorAttention's plain mean of all evicted\n"
    "  tokens weighs too much. The token takes 8 head_dim bytes a head, two tokens of F16. It removes a fifth to more than half\n"
    "  of the divergence from full attention at 20 to 50%.\n"
    "- With slots in Q4_0 (below), on the CPU without a link, the tail is a forty-eighth of what a head may hold, at least 4 slots.\n"
    "  A full tail then scores by its own queries alone, and mixes these scores with the last ones (renew). So the answer's\n"
    "  queries weigh more than the question's, and scoring costs a query a token, however short the tail is. Selections move 2.7\n"
    "  times the bytes.\n"
    "- Behind a long prompt, and when a tail is full, the first 8 steps attend to everything. Beside each runs a part of the\n"
    "  selection. So no step waits for all of it. Where a tail has less than 16 slots (below about 1,400 tokens at 10%, 700 at\n"
    "  20%), the selection is short, and runs at once. It also runs at once on a GPU, and in models with sliding windows.\n"
    "- Its KV on the device is Q8_0, K8V4 (K in Q8_0, V in Q4_0) or Q4_0, unless device_kv_type says otherwise: where KV is kept\n"
    "  in F16 the same bytes hold 1.88, 2.46 or 3.56 times the tokens. A head's second-best keys are worth more than the last bits\n"
    "  of its best keys. By window it is Q4_0 below 28% of F16's bytes, where Q4_0 does not hold all tokens, K8V4 below a half, and\n"
    "  Q8_0 above. By codes it is K8V4 below an eighth, else Q8_0. With 4 bits the session rotates and centres its KV. Heads whose\n"
    "  dimension is no multiple of 64 stay in Q8_0, and so does speculate=policy. A budget in bytes counts as a share only where\n"
    "  n_context is given. From 40.6 to 50% of the KV all of it fits in K8V4, from 53.2% in Q8_0: then nothing is evicted.\n"
    "- KV that is kept in the type or a coarser one, and heads whose dimension is no multiple of 32, keep their type.\n";

MadePolicy make(const Shape& shape, const Budget& budget, const Options& options, const SharedProfile&) {
  static constexpr const char* kBy[] = {"codes", "window"};
  const bool rotates = hadamard_block(static_cast<int32_t>(shape.head_dim)) >= kLeastBlock;
  const bool holds_all = budget.share.of_tokens() >= 1 && budget.max_slots >= uint64_t{shape.n_layers} * shape.n_kv_heads * shape.n_context;
  const bool fit = codes_fit(shape.in_place ? 1 : 2, 0, shape, budget, true, shape.in_place);
  uint32_t by = shape.finds_by_codes && options.empty() && rotates && !holds_all && fit ? 0 : 1;
  OptionReader reader("auto", options);
  ORRERY_TRY(reader.choice("by", kBy, &by));
  for (const OptionRow& row : kOptions) reader.allow(row.name);
  for (const OptionRow& row : kCodeOptions) reader.allow(row.name);
  ORRERY_TRY(reader.finish());
  Options others;
  for (const auto& option : options)
    if (option.first != "by") others.push_back(option);
  if (by == 0) return make_codes("auto", shape, budget, others);
  const bool small =
      shape.finds_by_codes && shape.slot_bytes == KvFormat{KvType::q4_0, 1, 1, static_cast<int32_t>(shape.head_dim)}.token_bytes();
  return make_window("auto", small ? kSmallDefaults : kDefaults, shape, budget, others);
}

}  // namespace auto_method

constexpr Method kAuto = {
    {"auto", "by codes: keycodes; by window: CAKE's scores, Ada-KV's selection over layers and heads", "",
     /* score    */ "codes: as keycodes; window: mean + 200 variance of the last 32 queries, max pool 15, mean of the group",
     /* allocate */ "layers by the best scores of all, weighted by entropy and variance; heads of a layer by the layer's best scores",
     /* keep     */ "best tokens, the window, all generated tokens, a compensation token",
     /* refresh  */
     "codes: every step; window: when as many tokens have been generated as a sixteenth of what a head may hold, in Q4_0 "
     "without a link a forty-eighth",
     /* device   */
     "in Q8_0, at smaller budgets K8V4 or Q4_0, where KV is kept in more; the last 64 positions' queries; codes of all keys, or a token of "
     "floats a head",
     /* link     */ kSelectionAndMissesOnLink, all(auto_method::kOptions), auto_method::kPage},
    {kMaxWindow,
     KvType::q8_0,
     false,
     {auto_method::kWindowTypes, std::size(auto_method::kWindowTypes)},
     {kCodesTypes, std::size(kCodesTypes)},
     auto_method::kCodesShare,
     auto_method::kInPlaceShare},
    auto_method::make};

}  // namespace orrery::policy
