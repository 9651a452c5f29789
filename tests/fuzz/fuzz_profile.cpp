// Head profiles and DuoAttention's gates from strangers: what is accepted reads back, as the same bytes.
//
// Input: a byte, then the text. 0xFF: a profile in any format. Else a gates file; the byte is its sparsity,
// in 200ths (so that some are above 1).
#include <cmath>

#include "runtime/policy/heads/gates.h"
#include "runtime/policy/heads/profile.h"
#include "tests/fuzz/checks.h"

namespace {

using namespace orrery;
using namespace orrery::fuzz;

orrery_status import_profile(const std::string& text, std::vector<char>* json) {
  return sized_out<char>([&](char* out, size_t capacity, size_t* n,
                             orrery_error* error) { return orrery_head_profile_import(text.c_str(), out, capacity, n, error); },
                         json);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const bool profile = data[0] == 0xFF;
  const double sparsity = data[0] == 0xFE ? std::nan("") : data[0] / 200.0;
  std::vector<char> json;
  const orrery_status status = profile ? import_profile(text, &json)
                                       : sized_out<char>(
                                             [&](char* out, size_t capacity, size_t* n, orrery_error* error) {
                                               return orrery_head_profile_import_gates(text.c_str(), sparsity, out, capacity, n, error);
                                             },
                                             &json);
  // Unsupported is a profile of another version.
  require(status == ORRERY_OK || status == ORRERY_INVALID_ARGUMENT || (profile && status == ORRERY_UNSUPPORTED),
          "a profile is accepted, or an invalid argument");
  if (status == ORRERY_OK) {
    require(sparsity <= 1.0 || profile, "sparsity is at most 1");
    require(whole_utf8({json.data(), json.size()}), "a profile is UTF-8");
    std::vector<char> again;
    require(import_profile(std::string(json.begin(), json.end()), &again) == ORRERY_OK, "what is written reads back");
    require(again == json, "what is written reads back as it was");
  }
  return 0;
}
