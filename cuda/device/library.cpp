// See library.h. The emulated build puts a dlfcn.h of its own before the system's.
#include "cuda/device/library.h"

#ifdef _WIN32
#include <windows.h>
#else
#include <dlfcn.h>
#endif

namespace orrery::cuda {

#ifdef _WIN32

Library::Library(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (!handle_) handle_ = reinterpret_cast<void*>(LoadLibraryExA(name, nullptr, LOAD_LIBRARY_SEARCH_DEFAULT_DIRS));
}
void* Library::symbol(const char* name) const {
  return handle_ ? reinterpret_cast<void*>(GetProcAddress(reinterpret_cast<HMODULE>(handle_), name)) : nullptr;
}

#else

Library::Library(std::initializer_list<const char*> names) {
  for (const char* name : names)
    if (!handle_) handle_ = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}
void* Library::symbol(const char* name) const { return handle_ ? dlsym(handle_, name) : nullptr; }

#endif

}  // namespace orrery::cuda
