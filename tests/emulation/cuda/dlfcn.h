// dlopen() for the emulated build, which finds this header before the system's of the same name. The libraries are the emulated driver and
// a cuBLAS whose products are computed by their definition.
#pragma once

#include <cstddef>

namespace orrery::emulated {

// For tests: whether cuBLAS exists, and the number of products that it has computed.
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
