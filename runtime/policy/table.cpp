// The table of policies: the one place that knows their names, how they are made and what they need of the engine, and
// what people are told of them (`orrery policies`).
#include <array>
#include <iterator>

#include "runtime/policy/methods/methods.h"
#include "runtime/policy/options.h"

namespace orrery::policy {

namespace {

// Of several policies.
constexpr OptionRow kTail = {"tail", "0", "slots for generated tokens until all is chosen anew; 0: by the prompt's length"};
constexpr OptionRow kCalibration = {"calibration", "16", "queries that a session without a profile calibrates with"};
constexpr OptionRow kTopK = {"top_k", "1024", "keys in a set of the calibration, at most a quarter of the prompt"};
constexpr OptionRow kRefresh = {"refresh", "1", "0: what was chosen first stays"};

constexpr OptionRow kStreamingOptions[] = {{"sinks", "4", "first tokens that always stay"}};

constexpr OptionRow kH2oOptions[] = {{"recent", ".5", "share of a head's slots that are the most recent tokens'"}};

constexpr OptionRow kHeteroOptions[] = {
    {"tau_sim", ".5", "heads that overlap so much are of one cluster"},
    {"tau_stable", ".5", "heads outside clusters that overlap with themselves so much are anchors, the others volatile"},
    {"tau_drift", "(tau_stable)", "a pivot that overlaps less with what it looked at moves its satellites"},
    {"full_share", "(.2, or half the budget)", "heads that may be whole without a head profile"},
    {"surplus", "demote", "more of them than that: demote volatile heads, or search thresholds"},
    {"block", "5", "steps between a pivot's checks"},
    {"visible", "1", "steps from a check to its refill, at most a block"},
    {"stagger", "0", "1: pivots take turns within a block"},
    {"satellites", "triggered", "or speculative: every step, by the pivot's query of the step before (FreeKV), without tau_drift, block, visible and stagger"},
    {"tau", ".8", "speculative: satellites whose query turns by less than this cosine wait for the step's own; 0: none"},
    kRefresh,
    {"window", "1", "last queries whose mean weights choose when it settles (SnapKV)"},
    {"heads", "stability", "how the others share: by 1 / stability, or adaptive: where the best scores are (Ada-KV)"},
    {"floor", ".2", "adaptive: the part that is shared evenly"},
    {"reduce", "mean", "of a group's scores, or max"},
    {"pool", "5", "neighbouring keys whose scores are averaged; odd"},
    kCalibration,
    kTopK,
    kTail,
};

constexpr OptionRow kSyncOptions[] = {
    {"representatives", "(2 of 8 heads and more, else 1)", "of a layer"},
    {"rho", ".5", "share of a selection that stays for good"},
    {"steps", "5", "between a representative's looks"},
    {"visible", "1", "steps from a look to its refill"},
    kRefresh,
    kCalibration,
    kTopK,
    kTail,
};

// Of the methods of static_heads.cpp.
constexpr std::array<OptionRow, 5> static_options(const char* full_share, const char* sinks, const char* compensation) {
  return {{{"full_share", full_share, "heads that keep everything"},
           {"sinks", sinks, "first tokens that streaming heads keep, at most a third of their slots"},
           {"compensation", compensation, "1: what a streaming head lets go stays as one token, its mean"},
           {"window", "32", "last queries that rank heads without a head profile"},
           kTail}};
}
constexpr auto kDuoOptions = static_options("(by gates, or what the budget leaves)", "128", "0");
constexpr auto kRazorOptions = static_options("(.15, or half the budget)", "4", "1");

// Of the methods of window.cpp: their own choices, and what they have in common.
constexpr std::array<OptionRow, 15> window_options(const char* score, const char* pool, const char* width, const char* layers,
                                                   const char* heads, const char* safeguard = "floor", OptionRow tail = kTail,
                                                   const char* tau = "1", const char* compensation = "0") {
  return {{{"score", score, "of the window's weights: mean, CAKE's mean + gamma variance (variance), or Ada-KV's algorithm 2 (each)"},
           {"pool", pool, "over neighbouring keys: none, avg or max"},
           {"width", width, "of the pooling; odd"},
           {"layers", layers, "the budget over layers: uniform, pyramid, preference (CAKE), or by the best scores times preference (adaptive)"},
           {"heads", heads, "a layer's part over its heads: uniform or adaptive (Ada-KV)"},
           {"window", "32", "last queries that choose, and stay"},
           {"safeguard", safeguard, "of adaptive heads: floor (Ada-KV's code), or protect (kvpress)"},
           {"alpha", ".2", "the safeguard's part of an even share"},
           {"beta", "20", "the pyramid's last layer: mean / beta"},
           {"tau_1", tau, "preference: entropy^(1/tau_1)"},
           {"tau_2", tau, "preference: variance^(1/tau_2)"},
           {"gamma", "200", "weight of the variance in a score"},
           {"first_layers", "0", "layers, from the first, that keep everything"},
           tail,
           {"compensation", compensation, "weight of the token that stands for what a head lets go, times the share of tokens that are kept; 0: it is lost"}}};
}
constexpr auto kSnapOptions = window_options("mean", "avg", "5", "uniform", "uniform");
constexpr auto kPyramidOptions = window_options("mean", "avg", "5", "pyramid", "uniform");
constexpr auto kAdaOptions = window_options("mean", "max", "7", "uniform", "adaptive");
constexpr auto kAdaPyramidOptions = window_options("mean", "max", "7", "pyramid", "adaptive");
constexpr auto kCakeOptions = window_options("variance", "avg", "5", "preference", "uniform");
constexpr OptionRow kShortTail = {"tail", "0", "slots for generated tokens until all is chosen anew; 0: a sixteenth of what a head may hold, or less"};
constexpr auto kAutoOptions = window_options("variance", "max", "15", "adaptive", "adaptive", "protect", kShortTail, "2", "1");

// Of policies whose heads hold whole pages, and of the methods of pages.cpp: their own choices, and what they have in common.
constexpr OptionRow kPage = {"page", "auto", "tokens: 4, 8, 16, 32 or 64; auto: 32, or less where the budget holds few of them"};
constexpr OptionRow kDigest = {"digest", "range", "what stands for a page: its keys' range, or their middle and mean deviation (deviation)"};
constexpr OptionRow kSinks = {"sinks", "512", "first tokens that always stay, at most a quarter"};
constexpr OptionRow kWindow = {"window", "512", "most recent tokens that always stay, at most a quarter, two pages at least"};
constexpr OptionRow kFirstLayers = {"first_layers", "(1, where the budget holds twice as much)", "layers, from the first, that keep everything"};
constexpr OptionRow with(OptionRow row, const char* value) {
  row.value = value;
  return row;
}
constexpr OptionRow kTwoLayers = with(kFirstLayers, "(2, where the budget holds twice as much)");
constexpr OptionRow kTau = {"tau", ".8", "a step whose query has a smaller cosine with the last one's chooses by its own; 0: none, 2: every one"};
constexpr OptionRow kPageScore = {"score", "softmax", "of a page: the mean of its query heads' softmaxes, or of the bounds themselves (raw)"};
constexpr OptionRow kPageSet = {"set", "head", "pages are chosen by each head for itself, or by all of the layer (layer)"};
constexpr OptionRow kAsked = {"asked", "1", "share of a head's pages that a step asks for; missing ones take the place of the lowest scores"};
constexpr OptionRow kPageHeads = {"heads", "uniform", "room for pages: the same for all heads, or by what their last 16 queries look at (adaptive)"};
constexpr OptionRow kPageFloor = {"floor", ".2", "of adaptive heads: at least so much of the average"};
constexpr OptionRow kFreeOptions[] = {kPage, kDigest, kSinks, kWindow, kFirstLayers, kRefresh, kTau, kPageScore, kPageSet, kAsked,
                                      kPageHeads, kPageFloor};
constexpr OptionRow kQuestOptions[] = {with(kPage, "16"), kDigest, with(kSinks, "0"), with(kWindow, "32"), kTwoLayers, kRefresh,
                                       with(kTau, "2"), kPageScore, kPageSet, kAsked, kPageHeads, kPageFloor};
constexpr OptionRow kArkOptions[] = {kPage, with(kDigest, "deviation"), with(kSinks, "64"), with(kWindow, "64"), kTwoLayers, kRefresh,
                                     with(kTau, "2"), with(kPageScore, "raw"), with(kPageSet, "layer"), with(kAsked, ".5"), kPageHeads,
                                     kPageFloor};

constexpr OptionRow kRaasOptions[] = {
    with(kPage, "16"),
    kDigest,
    kSinks,
    kWindow,
    kFirstLayers,
    {"stamp", "threshold", "pages that a step has looked at: those whose weight exceeds the threshold, or each query head's best (top)"},
    {"threshold", ".0001", "weight of a page, the mean of its query heads' softmaxes over the pages that are there"},
    {"top", ".5", "share of a head's pages that each query head looks at, where it is its best"},
    {"prompt", "compete", "keep: pages of the prompt stay, where the budget holds them and more"},
};
constexpr OptionRow kLokiOptions[] = {
    {"rank", "(a quarter of a key, or less)", "dimensions of a turned key that find it, in fours; as many as it has: exact"},
    {"reduce", "mean", "of a group's softmaxes, or max"},
    with(kSinks, "0"),
    {"window", "32", "most recent tokens that always stay, at most a quarter, two at least"},
    with(kFirstLayers, "0"),
};
constexpr OptionRow kInfiniOptions[] = {
    {"ratio", ".2", "dimensions of a turned key that find it, of all, rounded up to fours; less where the budget is small"},
    {"alpha", "4", "a step asks for as many tokens as score less than that below the best"},
    {"most", ".2", "of all tokens, that a step asks for in a head"},
    with(kSinks, "0"),
    {"window", "32", "most recent tokens that always stay, at most a quarter, two at least"},
    kTwoLayers,
};
constexpr OptionRow kOmniOptions[] = {
    {"filters", "(2+8+18 of 32, as the budget has it)", "layers that look for tokens, among those without window, joined by +"},
    {"behind", "(1, where the budget holds it)", "the layer behind a filter keeps everything, while others' tokens are fetched"},
    kRefresh,
    kTail,
};

constexpr std::array<OptionRow, 5> shadow_options() {
  return {{
    {"chunk", "8", "tokens: 4, 8, 16, 32 or 64"},
    {"rank", "(160, or less)", "values of a key's low-rank form, all KV heads together; as many as dimensions, or more: keys as they are"},
    {"outliers", "48", "chunks that always stay, at most a sixth"},
    {"local", "32", "most recent tokens that always stay, at most a quarter"},
    kTail,
  }};
}
constexpr auto kShadowOptions = shadow_options();

constexpr char kOnce[] = "never; a full tail or a new prompt chooses anew";
constexpr char kWindowQueries[] = "the last 64 positions' queries";
constexpr char kSelection[] = "what is kept, when it is chosen";
constexpr char kBestAndWindow[] = "best tokens, the window, all generated ones";

template <class Rows>
constexpr Span<const OptionRow> all(const Rows& rows) {
  return {std::data(rows), std::size(rows)};
}

const PolicyRow kRows[] = {
    {"adakv", "Ada-KV (Ada-SnapKV)", "arXiv:2407.11550", "mean of the last 32 queries and the group, max pool 7",
     "layers evenly; heads of a layer by the best scores of all", kBestAndWindow, kOnce, kWindowQueries, kSelection, all(kAdaOptions),
     "As snapkv, but the heads of a layer compete: of the layer's best scores each head has so many, and gets so many tokens,\n"
     "softened by a safeguard so that no head starves.\n"
     "- Algorithm 2, line 8 prints the two parts of the safeguard the wrong way round: alpha, .2, is the floor. safeguard=protect is\n"
     "  kvpress's instead: each head's best int(alpha n) tokens come first, n counting the window, and so often protecting nothing.\n"
     "- The code's rounding misses the total; here it is exact, by largest remainder.\n"
     "- Scores are the code's (scaled, the window inside the softmax, pooled behind the means). Those of algorithm 2 are score=each: unscaled\n"
     "  products with the keys before the window, softmax and maximum query by query, then the mean.\n"},
    {"adapyramid", "Ada-KV (Ada-Pyramid)", "arXiv:2407.11550", "mean of the last 32 queries and the group, max pool 7",
     "layers on a falling line; heads of a layer by the best scores of all", kBestAndWindow, kOnce, kWindowQueries, kSelection,
     all(kAdaPyramidOptions), "As adakv, with the layers' parts of pyramidkv.\n"},
    {"arkvale", "ArkVale", "NeurIPS 2024", "estimates by page digests, mean of all query heads of the layer", "evenly",
     "first pages, recent ones, the best of the others, one set for the layer", "every step, by its own query, before it attends: the better half",
     "digests of all pages, the last query, a staging ring", "what is kept, when it is chosen, and misses of every step, which waits for them",
     all(kArkOptions),
     "Pages that are given up are not lost: every step estimates from digests what its query would find in each page, and asks for\n"
     "the best. These are half of what is there, first and recent pages included; what is missing takes the place of what scores lowest,\n"
     "so that pages which are looked at now and then stay. Attention takes in all that is there.\n"
     "- Digests are the middle of a page's keys by dimension, and what they are off it on average: an estimate, no bound.\n"
     "- All heads of a layer hold the same pages, by the mean over all query heads, as in the code.\n"
     "- The first two layers are whole where the budget allows it. 64 first and 64 recent tokens are two pages each, as in the code.\n"
     "- The prompt's last query makes the first selection, behind the whole prompt.\n"},
    {"auto", "CAKE's scores, Ada-KV's selection over layers and heads, a token for the rest", "", "mean + 200 variance of the last 32 queries, max pool 15, mean of the group",
     "layers by the best scores of all, weighted by entropy and variance; their heads likewise", "best tokens, the window, all generated ones, the mean of the rest",
     "when as many tokens have been generated as a sixteenth of what a head may hold", "in Q8_0, where KV is kept in more; the last 64 positions' queries, a token of floats a head",
     kSelection, all(kAutoOptions),
     "For those who want to think of none of this, and what a KV budget without a policy means. Short answers over several turns: at 10%\n"
     "of the KV nothing measured here comes near it up to 4,096 tokens, and at 20% and more nothing keeps more than an answer of thirty\n"
     "beyond it; it moves half of what quest does, and no step waits for the link. Long lists it repeats as well as quest at half of the\n"
     "KV, and better with less.\n"
     "- A layer's heads compete as Ada-KV's do (with kvpress's safeguard), and so do layers: a score counts times the root of its layer's\n"
     "  entropy and variance (CAKE's preference). Dealt by preference alone, from 30% of the KV on, one layer holds all that it hardly looks\n"
     "  at, and the others lack what they do look at: whether a list goes on, which many keys of all layers say, each a little, is lost.\n"
     "- A wide maximum, 15 keys: a token that is looked at stays with the sentence around it, which an answer reads next. With 5 or 7\n"
     "  the middle of a passage is kept and its end is lost.\n"
     "- A short tail: when it is full, everything is chosen anew by the answer's own last queries, and what it has come to need comes back.\n"
     "- What a head lets go stays as one token (compensation): its mean by the last query's weights, which weighs as many tokens as these are\n"
     "  spread out over, e^entropy, times the share of tokens that is kept. RazorAttention's, the plain mean of all, weighs too much.\n"
     "  It takes 8 head_dim bytes a head, two tokens of F16; a fifth to more than half of the divergence from full attention goes at 20 to 50%.\n"
     "- On the device KV is Q8_0, unless device_kv_type says otherwise: where it is kept in F16 the same bytes hold 1.88 times the tokens. A\n"
     "  head's second-best keys are worth more than the last bits of its best; from 53.2% of the KV on all of it is there, and nothing is\n"
     "  chosen. KV that is kept in Q8_0 or Q4_0, and heads that are no multiple of 32, stay as they are.\n"},
    {"cake", "CAKE", "arXiv:2503.12491", "mean + 200 variance of the last 32 queries, avg pool 5, mean of the group",
     "layers by entropy and variance of their attention; their heads evenly", kBestAndWindow, kOnce, kWindowQueries, kSelection,
     all(kCakeOptions),
     "Layers whose attention is spread out, or moves from query to query, get more: in proportion to entropy^(1/tau_1)\n"
     "variance^(1/tau_2) over the window's queries and the keys before it, at most everything; what is beyond is dealt evenly.\n"
     "Tokens whose weight varies from query to query score higher.\n"
     "- tau_1 and tau_2 are the code's fallback, 1; its own for Llama 3.1 8B at 1,024 tokens are 1.6 and .4.\n"
     "- Layers' parts are settled after the whole prompt, not layer by layer while it is read: the cascade gives the same in the end.\n"
     "- A prompt is kept whole where the budget holds it; the code keeps a window more.\n"},
    {"duoattention", "DuoAttention", "arXiv:2410.10819", "a head profile ranks heads, or the last 32 queries",
     "retrieving heads everything; the others 384 tokens, a quarter of the budget, or what is left", "retrieving heads all; the others sinks and recent", "never",
     kWindowQueries, kSelection, all(kDuoOptions),
     "Retrieving heads keep everything, streaming heads their first and most recent tokens. The paper learns a gate for each head\n"
     "and fixes how many retrieve (half of them, a quarter where every query head has KV of its own); here the budget is fixed, and as\n"
     "many heads retrieve as it holds beside streaming heads of 384 tokens, or of a quarter of the budget where that is less.\n"
     "- 128 first and 256 recent tokens are those of the published patterns; the README says 64 and 256.\n"
     "- The code's gates become a head profile by `orrery profile --import-gates`: then the heads above their quantile retrieve, or as many\n"
     "  of the largest as the budget holds, and all others share the rest. Profiles of other methods have no gates: volatile and pivot\n"
     "  heads retrieve first, then the less stable ones. Without a profile heads are ranked by the attention that the prompt's last\n"
     "  queries give to what a streaming head would not hold.\n"
     "- The code trims streaming heads after each forward pass, so that chunks show; here once, behind the prompt.\n"},
    {"freekv", "FreeKV", "arXiv:2505.13109", "bounds by page digests, softmax, mean of the group", "evenly",
     "first pages, recent ones, the best of the others", "every step, by its query for the next one",
     "digests of all pages, the last query, a staging ring", "what is kept, when it is chosen, and misses of every step", all(kFreeOptions),
     "Nothing is given up: what a head holds are pages that come and go. A digest of every page, the largest and the smallest key\n"
     "value of each dimension, stays on the device and bounds what a query can find there; the best pages by this step's query are\n"
     "fetched behind it, for the next step, whose query is much like it. Each layer waits for its own pages, which come while those before\n"
     "it are computed. Where the query of a head has turned (tau), the whole layer chooses again with this step's: that head waits for\n"
     "its pages, the others have theirs in the next step.\n"
     "- Digests are the paper's; the published fast path has middle and mean deviation, and means of bounds (digest=deviation, score=raw).\n"
     "- Bounds are not divided by sqrt(head_dim): so the code; the paper is silent.\n"
     "- The prompt's last query makes the first selection; in the paper the first step waits for its own.\n"
     "- 512 first and 512 recent tokens of 2,048 become a quarter of what a head has, each; the budget counts the digests.\n"
     "- The first layer is whole where the budget allows it.\n"},
    {"full", "full attention", "", "none", "everything", "everything", "never", "all KV", "nothing", {},
     "All KV lies on the device; there is no copy in host memory. What every policy is compared with.\n"},
    {"h2o", "H2O", "arXiv:2306.14048", "the sum of all queries' weights so far, mean of the group", "evenly",
     "the largest sums, and the most recent tokens", "every step the newest replaces the least sum that is not recent",
     "the last query; on the CPU a step's weights, a float a slot and query head", kSelection, all(kH2oOptions),
     "Tokens that all queries together have attended to most, the heavy hitters, and the most recent ones; each step the newest token\n"
     "takes the place of the one that has been attended to least, outside the recent ones. Sums are not divided by how many queries\n"
     "have seen a key, as in paper and code: early tokens have the advantage.\n"
     "- A prompt's sums are made tile by tile while it is read, without a matrix of all weights; that takes about as long again as its\n"
     "  attention. They are floats in host memory, one for each token and head, added in the order of positions.\n"
     "- The code keeps a tenth of the prompt as heavy hitters and a tenth as recent tokens, here half of the budget each. It sums for each\n"
     "  query head; here a KV head's sum is its group's mean.\n"
     "- The code forgets the sum of what it evicts; here a later prompt's queries add to all, and may bring tokens back. A generated token's\n"
     "  query adds to what is resident.\n"
     "- Queries are not kept, so that sums cannot be taken back: behind a rewind, or in a session that was loaded, the next answer begins by\n"
     "  computing all tokens once more for their queries. A fork takes the sums with it.\n"},
    {"heterocache", "HeteroCache", "sections 3 and 4, algorithm 1", "the last query, avg pool 5, mean of the group",
     "volatile and pivot heads everything; the others by 1 / stability", "best tokens and all generated ones",
     "every 5 steps, where a pivot has drifted", "the last 64 positions' queries, its watching heads' scores, a staging ring", "what is kept, when it is chosen, and misses of refills",
     all(kHeteroOptions),
     "Few heads wander over the whole context (volatile), or watch for a cluster of heads (pivots): these are whole. The others keep\n"
     "their best tokens; when a pivot's attention moves away from where it was, its satellites fetch what it looks at now. Anchors,\n"
     "heads of no cluster that keep to the prompt's keys, are never refreshed. Candidates are the prompt's tokens; generated ones are in\n"
     "every head.\n"
     "- Budgets are eq. 8's (algorithm 1, line 14 lacks N_comp), with exact totals: what the cap at the prompt's length cuts off is dealt\n"
     "  to the others.\n"
     "- Satellites get their pivot's first tokens in score order; the code sorts by position before it cuts, a bug.\n"
     "- K_base belongs to its head (the code reads it in another order than it writes).\n"
     "- Group reduction is one parameter, mean (code: mean in calibration, max at run time). Blocks of queries, not a sliding median.\n"
     "- Where full heads exceed the budget: an error with a head profile, else volatile heads are demoted, most stable first.\n"
     "- Other methods' parts, ours: heads=adaptive (Ada-KV's), window=W (SnapKV's), satellites=speculative (FreeKV's: pivots' keys are what\n"
     "  digests are there).\n"},
    {"infinigen", "InfiniGen (prefetch)", "arXiv:2406.19707", "the next layer's queries, made of this one's input; products with a fifth of turned keys",
     "the first layers everything; the others evenly", "the last tokens, others by score", "every step, a layer ahead",
     "a fifth of the dimensions of all turned keys, a basis for each head, the last 64 positions' queries, a staging ring",
     "what is kept, when it is chosen, and misses of every step, while the layer before is computed", all(kInfiniOptions),
     "What a layer's attention takes in is nearly what the next layer's does. So while a layer is computed, the next one's weights make\n"
     "queries of its input, these find tokens by a few dimensions of their keys, and what is missing is fetched meanwhile. Keys are\n"
     "turned so that few dimensions are enough: along the directions that the prompt's last queries have.\n"
     "- The paper turns weights, and needs a fifth of the query projection. Behind RoPE there is no such part: as in the code for Llama\n"
     "  the whole projection is computed, a step's second one, and the query turned behind it.\n"
     "- Dimensions are those with the largest mean squares of queries and keys, for sums of absolute values; the paper's directions are of\n"
     "  another text.\n"
     "- As many tokens are asked for as score less than alpha below the best, in the mean over a layer's query heads; the best go by the\n"
     "  distance from a query head's own best, the smallest of the group. The paper's alpha is 4 for OPT and 5 for Llama.\n"
     "- What was not asked for stays until something better needs its place, and is attended to. Nothing is lost: where the paper's pool\n"
     "  in host memory is full it gives tokens up.\n"
     "- The first two layers are whole where the budget allows it.\n"},
    {"loki", "Loki", "arXiv:2406.02542", "products with the first dimensions of turned keys, softmax, mean of the group", "evenly",
     "the last tokens, the best of the others", "every step, by its own query, before it attends",
     "the first dimensions of all turned keys, a basis for each head, the last query, a staging ring",
     "what is kept, when it is chosen, and misses of every step, which waits for them", all(kLokiOptions),
     "A head's keys differ along few directions. Turned so that these come first, a quarter of a key tells nearly what the whole one would:\n"
     "so much of every token stays on the device, every step finds its tokens by that, and attends to them as they are.\n"
     "- Directions are the principal components of keys behind RoPE. The mean is taken off to find them, not when keys are turned, as in\n"
     "  the code: it adds the same to all of a query's products.\n"
     "- The code finds them on another text, once for a model; here on the keys that are there when all is chosen, for each KV head.\n"
     "- Each query head chooses for itself in the code, on repeated KV; here the mean of its group's softmaxes chooses for its KV head.\n"
     "- It keeps all KV on the device and reads less of it, also for the prompt, which is exact here; what is not chosen stays in host\n"
     "  memory. The budget counts what finds it: rank / (2 head_dim) of full KV in F16.\n"
     "- The last tokens stay whatever they score. Nothing is chosen anew however long the answer gets.\n"},
    {"omnikv", "OmniKV", "ICLR 2025", "this step's query in a filter layer, maximum over all its query heads",
     "filter layers, the first ones and those behind filters everything; the others evenly",
     "best tokens, one set up to the next filter; all generated ones", "every step, by its own query, before it attends",
     "dense layers, the last query, a staging ring", "what is kept, when it is chosen, and misses of every step", all(kOmniOptions),
     "Layers that stand near each other look at the same tokens. A few layers, the filters, hold everything and find the tokens that\n"
     "all heads of the layers behind them attend to, up to the next filter: by their own query, in the same step. The layer behind a\n"
     "filter is whole too, so that what is missing can be fetched meanwhile; each of the others waits for its own part of it.\n"
     "- Filters are 2, 8 and 18 of 32 layers, scaled to the model, and three layers apart; fewer where dense layers would take more\n"
     "  than half of the budget. The last resort is the first layer alone, and nothing behind it (behind=0).\n"
     "- Scores are scaled products, not a softmax; the maximum runs over all query heads of the filter. Generated tokens are no\n"
     "  candidates: they stay, and count. A full tail makes them candidates, too.\n"
     "- The paper selects .067 of the tokens; here as many as the budget leaves.\n"},
    {"pyramidkv", "PyramidKV", "arXiv:2406.02069", "mean of the last 32 queries and the group, avg pool 5",
     "layers on a falling line down to mean / 20; their heads evenly", kBestAndWindow, kOnce, kWindowQueries, kSelection,
     all(kPyramidOptions),
     "As snapkv, but the first layers get more and the last ones less, on a straight line around the same mean.\n"
     "- The code's whole step from layer to layer misses the total (40 tokens, 4 layers: 132 of 128); here it is exact.\n"
     "- A line that asks for more than there is becomes one that ends there; prompts below twice the mean are dealt evenly.\n"},
    {"quest", "Quest", "arXiv:2406.10774", "bounds by page digests, softmax, mean of the group", "evenly",
     "the last pages, the best of the others", "every step, by its own query, before it attends", "digests of all pages, the last query, a staging ring",
     "what is kept, when it is chosen, and misses of every step, which waits for them", all(kQuestOptions),
     "As freekv, but every step chooses for itself and waits: what a query looks for is there when it looks.\n"
     "- Published for heads without groups; the mean of a group's softmaxes orders the pages as one head's bounds do.\n"
     "- It keeps all KV on the device and reads less of it; here what is not selected stays in host memory.\n"
     "- The first two layers are whole where the budget allows it; the last whole page stays beside the one that is being written.\n"},
    {"raas", "RaaS", "arXiv:2502.11147", "bounds by page digests, softmax over the pages that are there, mean of the group", "evenly",
     "first pages, recent ones, those that were looked at latest", "never; the page that was not looked at for the longest time makes room",
     "digests of all pages, the last query", kSelection, all(kRaasOptions),
     "What an answer has looked at lately it may need again; what it has not looked at for long is done with. Each page has the time of\n"
     "the last step that looked at it, and when a page of the answer is complete the oldest one is given up.\n"
     "- A step looks at pages whose weight exceeds .0001 (the paper's alpha), or at each query head's better half (stamp=top, the\n"
     "  authors' code).\n"
     "- The paper keeps the prompt whole and spends the budget on the answer (prompt=keep, where it fits). A share of the prompt has all\n"
     "  pages compete; its last query chooses those that are there at first.\n"
     "- Digests of pages that are gone stay, and count.\n"},
    {"razorattention", "RazorAttention", "arXiv:2407.15891", "a head profile ranks heads, or the last 32 queries",
     "15% of the heads everything; the others what that leaves", "retrieving heads all; the others sinks, recent, and the mean of the rest", "never",
     "the last 64 positions' queries, a token of floats a head", kSelection, all(kRazorOptions),
     "As duoattention, but what a streaming head lets go is not lost altogether: it stays as one compensation token, the mean of its keys and\n"
     "of its values, which weighs as much in the softmax as so many tokens alike. Where the dropped keys are alike nothing changes.\n"
     "- Retrieving are the paper's induction and echo heads, 14% and 1% of the query heads, which it finds in random tokens said several times.\n"
     "  Here heads are ranked as for duoattention, and 15% of the KV heads retrieve, or what takes half of the budget.\n"
     "- The others' buffer, max(4000, N / 5) tokens in the paper, is what the budget leaves. There is no published code.\n"
     "- The paper compresses the prompt. Here tokens that an answer pushes out of the buffer join the mean in the step that does so; a later\n"
     "  prompt, or a retrieving head's full tail, makes buffers and means anew from all that there is.\n"
     "- Means are in floats, whatever the KV type, and count: 8 head_dim bytes a head are no slots.\n"},
    {"shadowkv", "ShadowKV", "arXiv:2410.21465", "products with chunks' mean keys, softmax, max of the group", "evenly",
     "outlying chunks, the last ones, all generated tokens; the best of the others, K rebuilt", "every step, by its own query, before it attends",
     "mean keys of all chunks, low-rank keys of all tokens, a staging ring", "what is kept, when it is chosen, and V of every step's misses, which it waits for",
     all(kShadowOptions),
     "Every step, each layer chooses chunks by its own query, and waits for their V alone: keys, before RoPE, of all KV heads of a layer\n"
     "together are nearly products of few values a token with a basis of the layer's, which stay on the device, and K is rebuilt from them.\n"
     "Chunks whose keys are unlike their mean are neither found well nor many: they stay as they are.\n"
     "- The basis is that of the keys that are there when all is chosen: the eigenvectors of their products' sums, in place of a singular\n"
     "  value decomposition.\n"
     "- What is selected is always rebuilt; the code keeps keys as they were while they hit, so that its output depends on what came before.\n"
     "- Scores are divided by sqrt(head_dim); the code has sqrt(128).\n"
     "- The budget counts landmarks, low-rank keys and generated tokens; in the paper it is 2,048 selected tokens, and the last are free.\n"},
    {"shadowkv+", "ShadowKV+", "arXiv:2410.21465, A.1", "products with chunks' mean keys, softmax, max of the group", "evenly",
     "outlying chunks, the last ones; the best of the others, K rebuilt", "every step, by its own query, before it attends",
     "mean keys of all chunks, low-rank keys of all tokens, a staging ring", "what is kept, when it is chosen, and V of every step's misses, which it waits for",
     {std::data(kShadowOptions), std::size(kShadowOptions) - 1},
     "As shadowkv, but generated tokens become low-rank as well: a chunk that is no longer among the last ones is found by its mean key,\n"
     "and its keys are rebuilt by the basis that there is. Nothing is chosen anew however long the answer gets.\n"
     "- The paper leaves open which new chunks stay as they are: here the number of outliers is fixed, and a chunk that is more of one\n"
     "  than the least of them takes its place.\n"},
    {"snapkv", "SnapKV", "arXiv:2404.14469", "mean of the last 32 queries and the group, avg pool 5", "evenly", kBestAndWindow, kOnce,
     kWindowQueries, kSelection, all(kSnapOptions),
     "What the prompt's last queries look at is what the answer will need: their attention, smoothed over neighbouring keys, chooses,\n"
     "and they stay themselves.\n"
     "- The code chooses for each query head, on repeated KV; here the group's mean chooses for its KV head, as Ada-KV's code and\n"
     "  kvpress have it.\n"
     "- The code adds queries up, which orders tokens as their mean does. Its pooling is avg 5; its runs on LongBench have max 7.\n"
     "- The window shrinks with small budgets: it takes no more than half of what a head keeps.\n"},
    {"streaming", "StreamingLLM", "arXiv:2309.17453", "none", "evenly", "first tokens and the most recent ones",
     "every step the newest replaces the oldest recent one", "nothing", kSelection, all(kStreamingOptions),
     "The first tokens, which attention leans on, and the last ones; nothing between comes back.\n"
     "- Keys keep the rotary position of the text, where the paper's code turns them by slot.\n"},
    {"synckv", "SyncKV", "section 4 and appendix B", "the representative's last query, max of the group",
     "representatives everything; a layer's others alike", "half of the best for good, half as they change; all generated ones",
     "every 5 steps, as the representative looks", "the last 64 positions' queries, its watching heads' scores, a staging ring", "what is kept, when it is chosen, and misses of refills",
     all(kSyncOptions),
     "Heads of a layer that look at the same tokens share one selection, which a representative makes: half of it stays for good,\n"
     "the other half follows the representative, with an anticipation every 5 steps.\n"
     "- Each cluster has its own set (algorithm 1, line 23 unites all).\n"
     "- Dynamic tokens are taken from those that are not static, so that none is held twice.\n"
     "- k comes from the share of memory, layer by layer: k / L = (share H - N_r) / (H - N_r). So the share must exceed N_r / H.\n"
     "- The paper is silent on pooling, of which there is none here, and on what a group's scores come to: their maximum. Candidates are the\n"
     "  prompt's tokens.\n"},
};

using Made = Result<std::unique_ptr<Policy>>;
struct Entry {
  const char* name;
  Needs needs;
  Made (*make)(const char* name, const Shape&, const Budget&, const Options&, const SharedProfile&);
};
using Maker = Made (*)(const Shape&, const Budget&, const Options&, const SharedProfile&);
template <Maker make>
Made by(const char*, const Shape& shape, const Budget& budget, const Options& options, const SharedProfile& profile) {
  return make(shape, budget, options, profile);
}
Made static_heads(const char* name, const Shape& shape, const Budget& budget, const Options& options, const SharedProfile& profile) {
  return make_static_heads(name, shape, budget, options, profile);
}

Made window(const char* name, const Shape& shape, const Budget& budget, const Options& options, const SharedProfile&) {
  return make_window(name, shape, budget, options);
}

Made pages(const char* name, const Shape& shape, const Budget& budget, const Options& options, const SharedProfile&) {
  return make_pages(name, shape, budget, options);
}

Made shadow(const char* name, const Shape& shape, const Budget& budget, const Options& options, const SharedProfile&) {
  return make_shadowkv(name, shape, budget, options);
}

constexpr Entry kPolicies[] = {
    {"adakv", {kMostWindow}, &window},      {"adapyramid", {kMostWindow}, &window},
    {"arkvale", {1}, &pages},               {"auto", {kMostWindow, KvType::q8_0}, &window},
    {"cake", {kMostWindow}, &window},       {"duoattention", {kMostWindow}, &static_heads},
    {"freekv", {1}, &pages},
    {"h2o", {1}, &by<&make_h2o>},          {"heterocache", {64}, &by<&make_heterocache>}, {"infinigen", {kMostWindow}, &by<&make_infinigen>},
    {"loki", {1}, &by<&make_loki>},
    {"omnikv", {1}, &by<&make_omnikv>},
    {"pyramidkv", {kMostWindow}, &window},
    {"quest", {1}, &pages},                {"raas", {1}, &by<&make_raas>},
    {"razorattention", {kMostWindow}, &static_heads},
    {"shadowkv", {1}, &shadow},             {"shadowkv+", {1}, &shadow},
    {"snapkv", {kMostWindow}, &window},     {"streaming", {0}, &by<&make_streaming>},
    {"synckv", {64}, &by<&make_synckv>},
};

}  // namespace

Span<const PolicyRow> policy_rows() { return {kRows, std::size(kRows)}; }

Result<std::unique_ptr<Policy>> make_policy(const std::string& name, const Shape& shape, const Budget& budget,
                                            const Options& options, const SharedProfile& profile) {
  for (const Entry& entry : kPolicies)
    if (name == entry.name) return entry.make(entry.name, shape, budget, options, profile);
  std::vector<std::string> known;
  std::string list;
  for (const PolicyRow& row : policy_rows()) {
    known.emplace_back(row.name);
    list += (list.empty() ? "" : ", ") + known.back();
  }
  const std::string* near = nearest_name(name, known);
  return error(Code::invalid_argument, "there is no KV policy '%.40s'%s%s%s; these are: %s", name.c_str(),
               near ? "; did you mean '" : "", near ? near->c_str() : "", near ? "'?" : "", list.c_str());
}

Needs policy_needs(const std::string& name, const Options& options) {
  Needs needs;
  for (const Entry& entry : kPolicies)
    if (name == entry.name) needs = entry.needs;
  for (const auto& [option, value] : options)   // pages that are dealt out by what some queries look at
    if (needs.kept_queries > 0 && option == "heads" && value == "adaptive") needs.kept_queries = std::max(needs.kept_queries, kPageQueries);
  return needs;
}

}  // namespace orrery::policy
