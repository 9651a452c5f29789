// keycodes: our own. A query finds its tokens by 1, 2 or 4 bits for each dimension of all keys, which stay on the device.
//   score     the query's products with the decoded keys, divided by sqrt(head_dim); softmax over the candidates, maximum (or mean) over
//             the group
//   allocate  by the number of tokens that each head has among the best of all heads, for the last 16 queries; at least a floor
//   select    the first and the last tokens, the best of the others; the reservoir keeps all tokens
//   refresh   every step, by its own query, before each layer attends. Found tokens are read in the reservoir where that is the device's memory;
//             else misses are fetched whole and exact
// The codes: runtime/backend/key_codes.h. What was measured: tests/bench/results/real-models.md. Engine: engines/codes.
#include "runtime/policy/engines/codes.h"

namespace orrery::policy {

namespace keycodes_method {

constexpr char kPage[] =
    "Which tokens a query attends to is told by few bits of the keys. A code of 2 bits a dimension stays on the device for every\n"
    "token. Each step scores all tokens by their codes, with this step's query of this layer, and attends to the best tokens\n"
    "exactly.\n"
    "- On the CPU without a link the device's memory is the reservoir's, so nothing is copied (copy=0): attention reads the found\n"
    "  tokens in the reservoir, in its type. The budget holds the codes. A head reads the tokens that weigh more than the mean of\n"
    "  its candidates (skip), at most a quarter of them (least), or the budget's share if that is more. Above a quarter it also\n"
    "  reads lighter tokens: from skip = (1 / 4 / share)^2 on.\n"
    "- With copy=1 tokens that were resident stay; the others are fetched within the step, and the budget counts codes and tokens.\n"
    "- A code is made of the key after RoPE, less the mean of its head's keys, and rotated by the Hadamard transform. The mean\n"
    "  adds the same to all products of a query. Rotated dimensions are alike, so one codebook serves all: Lloyd and Max's\n"
    "  levels of a normal distribution. Each key has one factor in F16.\n"
    "- A mean is that of the first 2^i keys, the largest number that there is, and of at most 4,096 of them. So codes of an earlier\n"
    "  turn stay until the context is twice as long. Generated tokens get codes by the same means when they leave the window.\n"
    "- The budget counts the codes: (bits head_dim / 8 + 2) bytes a token and head. Of full KV in F16 that is 7.0% with 2 bits,\n"
    "  3.9% with 1 bit and 13.3% with 4 bits (heads of 64). With copy=1 the rest of the budget holds tokens.\n"
    "- Heads differ in how many tokens they attend to. For each of the last 16 queries the best tokens of all heads are counted,\n"
    "  by their codes, and a head gets room in proportion to its count, at least three quarters of the average.\n"
    "- Evicted tokens stay as one compensation token for each head. Its value is their mean by the weights of the last 16 queries,\n"
    "  made when the session settles. Each step weighs it for each query head: by the sum of the weights that this query's\n"
    "  codes give to all evicted tokens. Where the codes leave a product a variance of more than 2, the head has none in this step.\n"
    "  It takes 4 head_dim bytes a head.\n"
    "- values=2 or 1: codes of all values, too. The evicted tokens' mean value is then made in each step, for each query head, by\n"
    "  these codes and by this step's weights. In place a head reads 64 tokens exactly, or 128 with 1 bit (exact), and 4 sinks and the\n"
    "  last 32, however long the context is. With copy=1 a head holds what the rest of the budget holds, or `exact` tokens, 4 sinks and\n"
    "  the last 32: then a step fetches at most that many. Codes of 2 bits of keys and values take 14.1% of full KV in F16, and 10.9%\n"
    "  with 1 bit of values (heads of 64).\n"
    "- Where keys have a mean before RoPE, as keys with a bias do, it turns with the position. From the 8 pairs of dimensions that lose\n"
    "  most of it by turning, codes take the mean as it stands at the key's position. Keys that are stored rotated (slots or pages of\n"
    "  4 bits) have no such pairs.\n"
    "- With copy=1 a head holds what the last step's query chose, so that a step fetches the difference: hits and misses are both\n"
    "  counted. Where heads hold at least an eighth of the tokens, a resident token's score counts four times (stay). Then a token\n"
    "  stays unless others are much better, and a step fetches less than half.\n"
    "- Copies are Q8_0, unless device_kv_type says otherwise: where KV is kept in F16 the same bytes hold 1.88 times the tokens.\n"
    "  device_kv_type asks for copies, and so does KV in F32.\n"
    "- The CPU and the CUDA backend have key codes. On a backend without them the policy is refused.\n";

MadePolicy make(const Shape& shape, const Budget& budget, const Options& options, const SharedProfile&) {
  return make_codes("keycodes", shape, budget, options);
}

}  // namespace keycodes_method

constexpr Method kKeyCodes = {{"keycodes", "Resident key codes", "",
                               /* score    */ "products with codes of all keys, softmax, maximum of the group",
                               /* allocate */ "by the best tokens of all heads, for the last 16 queries",
                               /* keep     */ "the first and the last tokens, the best of the others",
                               /* refresh  */ "every step, by its own query, before it attends",
                               /* device   */
                               "copies in Q8_0, below an eighth of F16's bytes in K8V4, where KV is kept in more; codes of all keys, and "
                               "of all values if asked; a mean "
                               "key a head, the last 16 "
                               "positions' queries",
                               /* link     */ kSelectionAndWaitOnLink, all(kCodeOptions), keycodes_method::kPage},
                              {kPageQueries, KvType::q8_0, false, {kCodesTypes, std::size(kCodesTypes)}, {}, 1, 0},
                              keycodes_method::make};

}  // namespace orrery::policy
