// JSON schemas from strangers: refused with a message, or walked. Schemas of an odd length leave the order of keys free.
#include "tests/fuzz/grammar_steps.h"

using namespace orrery::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto form = compile_or_refuse({reinterpret_cast<const char*>(data), size}, grammar::Language::json_schema, 0, size % 2 != 0);
  if (form) walk(*form, data, size, 48);
  return 0;
}
