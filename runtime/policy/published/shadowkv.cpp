// ShadowKV (Sun et al., arXiv:2410.21465): values in host memory, low-rank keys on the device. Two methods: ShadowKV, and its "+" of
// appendix A.1, whose generated tokens become low-rank as well.
//   score     softmax of the query's products with landmarks (chunks' mean keys), maximum over the group
//   allocate  evenly
//   select    outlier chunks, the last chunks, and generated tokens exactly; the best of the other chunks with rebuilt keys
//   refresh   every step, by its own query, before each layer attends; V of the misses is fetched
// Paper, code and this build: the pages below. Engine: engines/chunks.
#include "runtime/policy/published/engines/chunks.h"
#include "runtime/policy/rows.h"
#include "runtime/policy/table.h"

namespace orrery::policy {

namespace shadowkv_method {

constexpr OptionRow kOptions[] = {
    {"chunk", "8", "tokens: 4, 8, 16, 32 or 64"},
    {"rank", "(160, or less)",
     "values of a key's low-rank form, all KV heads together; less where heads are narrow or the budget is small. As many as dimensions, "
     "or more: exact keys"},
    {"outliers", "48", "chunks that always stay exact, at most a sixth"},
    {"local", "32", "most recent tokens that always stay exact, at most a quarter"},
    kTailRow,
};
constexpr size_t kPlusOptions = 4;  // all but the tail
constexpr char kPage[] =
    "Every step, each layer selects chunks by its own query, and waits for their V alone. The keys of all KV heads of a layer\n"
    "together, before RoPE, are nearly products of a few coefficients per token with a basis of the layer. Coefficients and\n"
    "basis stay on the device, and K is rebuilt from them. Chunks whose keys differ from their mean (outliers) are few, and\n"
    "hard to find by it: they stay exact.\n"
    "- The basis is that of the keys present when the session settles: the eigenvectors of their Gram matrix, instead of a\n"
    "  singular value decomposition. Where it would have as many vectors as keys have dimensions, exact keys are fetched.\n"
    "- Selected keys are always rebuilt. The code keeps exact keys while they hit, so its output depends on history.\n"
    "- Scores are divided by sqrt(head_dim); the code has sqrt(128).\n"
    "- The budget counts landmarks, low-rank keys, bases and generated tokens, in bytes. In the paper it is 2,048 selected\n"
    "  tokens, and the rest is free; its memory formula (appendix A.2) lacks a factor.\n"
    "- The window, the outliers and the rank shrink where the budget, the context or the heads' width is small.\n";
constexpr char kPlusPage[] =
    "As shadowkv, but generated tokens become low-rank as well. A chunk that leaves the window is found by its mean key, and\n"
    "its keys are rebuilt by the existing basis. Nothing is settled again, however long the answer gets.\n"
    "- The paper leaves open which new chunks stay exact. Here the number of outliers is fixed, so that no budget is exceeded,\n"
    "  and a chunk that is more outlying than the least outlying outlier takes its place.\n";

MadePolicy make(const Shape& shape, const Budget& budget, const Options& options, const SharedProfile&) {
  return make_chunks("shadowkv", false, shape, budget, options);
}
MadePolicy make_plus(const Shape& shape, const Budget& budget, const Options& options, const SharedProfile&) {
  return make_chunks("shadowkv+", true, shape, budget, options);
}

}  // namespace shadowkv_method

constexpr Method kShadowKv = {{"shadowkv", "ShadowKV", "arXiv:2410.21465",
                               /* score    */ "products with chunks' mean keys, softmax, max of the group",
                               /* allocate */ "evenly",
                               /* keep     */ "outlier chunks, the last chunks, all generated tokens; the best of the others, K rebuilt",
                               /* refresh  */ "every step, by its own query, before it attends",
                               /* device   */ "mean keys of all chunks, low-rank keys of all tokens, a staging ring",
                               /* link     */ "the selection, when it is made; V of every step's misses, which it waits for",
                               all(shadowkv_method::kOptions), shadowkv_method::kPage},
                              {1, {}, true},
                              shadowkv_method::make};

constexpr Method kShadowKvPlus = {{"shadowkv+",
                                   "ShadowKV+",
                                   "arXiv:2410.21465, A.1",
                                   /* score    */ "products with chunks' mean keys, softmax, max of the group",
                                   /* allocate */ "evenly",
                                   /* keep     */ "outlier chunks, the last chunks; the best of the others, K rebuilt",
                                   /* refresh  */ "every step, by its own query, before it attends",
                                   /* device   */ "mean keys of all chunks, low-rank keys of all tokens, a staging ring",
                                   /* link     */ "the selection, when it is made; V of every step's misses, which it waits for",
                                   {shadowkv_method::kOptions, shadowkv_method::kPlusOptions},
                                   shadowkv_method::kPlusPage},
                                  {1, {}, true},
                                  shadowkv_method::make_plus};

}  // namespace orrery::policy
