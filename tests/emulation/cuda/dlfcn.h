// The one library that cuda/ opens, in the emulated build: found in place of the system's header of this name. It is a cuBLAS whose
// products are computed by their definition.
#pragma once

#include <cstddef>

namespace orrery::emulated {

// For tests: whether there is such a library, and how many products it has computed.
extern bool has_cublas;
size_t cublas_products();

void* open_library(const char* name);
void* find_function(void* library, const char* name);

}  // namespace orrery::emulated

#define RTLD_NOW 2
#define RTLD_LOCAL 0
#define RTLD_NODELETE 0x1000
#define dlopen(name, flags) orrery::emulated::open_library(name)
#define dlsym(library, name) orrery::emulated::find_function(library, name)
