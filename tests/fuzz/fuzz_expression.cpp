// Regular expressions from strangers: refused with a message, or walked.
#include "tests/fuzz/grammar_steps.h"

using namespace orrery::fuzz;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto form = compile_or_refuse({reinterpret_cast<const char*>(data), size}, grammar::Language::expression);
  if (form) walk(*form, data, size, 24);
  return 0;
}
