// operator new and operator delete of the library. They are hidden in liborrery.so and liborrery.a, and serve all C++ code inside: ours,
// and the C++ standard library's, which is linked into both. The application keeps its own operators and its own malloc.
#include <cstddef>
#include <new>

#include "runtime/base/allocation/account.h"

namespace {

void* allocate_or_throw(std::size_t bytes, std::size_t alignment) {
  void* const block = orrery::allocate(bytes, alignment);
  if (block == nullptr) throw std::bad_alloc();
  return block;
}

constexpr std::size_t kAlignment = __STDCPP_DEFAULT_NEW_ALIGNMENT__;

}  // namespace

void* operator new(std::size_t n) { return allocate_or_throw(n, kAlignment); }
void* operator new[](std::size_t n) { return allocate_or_throw(n, kAlignment); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return orrery::allocate(n, kAlignment); }
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return orrery::allocate(n, kAlignment); }
void* operator new(std::size_t n, std::align_val_t a) { return allocate_or_throw(n, static_cast<std::size_t>(a)); }
void* operator new[](std::size_t n, std::align_val_t a) { return allocate_or_throw(n, static_cast<std::size_t>(a)); }
void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return orrery::allocate(n, static_cast<std::size_t>(a));
}
void* operator new[](std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return orrery::allocate(n, static_cast<std::size_t>(a));
}

void operator delete(void* p) noexcept { orrery::release(p); }
void operator delete[](void* p) noexcept { orrery::release(p); }
void operator delete(void* p, std::size_t) noexcept { orrery::release(p); }
void operator delete[](void* p, std::size_t) noexcept { orrery::release(p); }
void operator delete(void* p, std::align_val_t) noexcept { orrery::release(p); }
void operator delete[](void* p, std::align_val_t) noexcept { orrery::release(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { orrery::release(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { orrery::release(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { orrery::release(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { orrery::release(p); }
void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept { orrery::release(p); }
void operator delete[](void* p, std::align_val_t, const std::nothrow_t&) noexcept { orrery::release(p); }
