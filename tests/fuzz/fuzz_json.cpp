// JSON from strangers: what is accepted must print, and read back as the same value.
#include <cstdint>
#include <cstdlib>

#include "runtime/text/json/json.h"

using namespace orrery;
using namespace orrery::text;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  Result<Value> v = parse_json(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!v.ok()) {
    if (v.status().detail().line == 0 || v.status().detail().offset > size) std::abort();
    return 0;
  }
  for (const bool ascii : {false, true}) {
    JsonFormat format;
    format.ensure_ascii = format.pretty = ascii;
    Result<std::string> text = dump_json(v.value(), format);
    if (!text.ok()) std::abort();
    Result<Value> again = parse_json(text.value());
    if (!again.ok() || !again.value().equals(v.value())) std::abort();
  }
  return 0;
}
