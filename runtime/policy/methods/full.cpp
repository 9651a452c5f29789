// full: no policy. All KV lies on the device, and the engine makes no Policy object.
//   score     none
//   allocate  everything
//   select    everything
//   refresh   never
#include "runtime/policy/table.h"

namespace orrery::policy {

constexpr Method kFull = {{"full",
                           "full attention",
                           "",
                           /* score    */ "none",
                           /* allocate */ "everything",
                           /* keep     */ "everything",
                           /* refresh  */ "never",
                           /* device   */ "all KV",
                           /* link     */ "nothing",
                           {},
                           "All KV lies on the device; host memory holds no copy. Every policy is compared with full attention.\n"},
                          {},
                          nullptr};

}  // namespace orrery::policy
