#include "tests/fault/faults.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdlib>
#include <new>
#include <utility>

#ifdef ORRERY_OWN_OPERATORS
#include "runtime/base/allocation/blocks.h"
#endif

namespace orrery::testing {

namespace {

struct Armed {
  int64_t left = -1;  // requests until one fails; negative: none does
  bool and_after = false, refused = false;
  int error_number = 0;
};
thread_local Armed armed[5];
thread_local uint64_t read_limit = 0;
std::atomic<int64_t> live{0};
thread_local int64_t reads_left = -1;  // until `before_read` is called
thread_local std::function<void()> before_read;

bool refuse(Fault kind) {
  Armed& a = armed[static_cast<int>(kind)];
  if (a.left < 0 || a.left-- > 0) return false;
  if (a.and_after) a.left = 0;
  a.refused = true;
  return true;
}

int number(Fault kind) { return armed[static_cast<int>(kind)].error_number; }

void* allocate(std::size_t n, std::size_t alignment) {
#ifndef ORRERY_OWN_OPERATORS
  if (refuse(Fault::memory)) return nullptr;
#endif
  n = std::max<std::size_t>(n, 1);
  // malloc underneath, so that sanitizers still see each block.
  void* p = alignment ? std::aligned_alloc(alignment, (n + alignment - 1) / alignment * alignment) : std::malloc(n);
  if (p) ++live;
  return p;
}

#ifndef ORRERY_OWN_OPERATORS
void* allocate_or_throw(std::size_t n, std::size_t alignment) {
  void* p = allocate(n, alignment);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}
#endif

void release(void* p) {
  if (p) --live;
  std::free(p);
}

}  // namespace

void arm(Fault kind, int64_t n, bool and_after, int error_number) { armed[static_cast<int>(kind)] = {n, and_after, false, error_number}; }
bool disarm(Fault kind) {
  Armed& a = armed[static_cast<int>(kind)];
  a.left = -1;
  return a.refused;
}
void limit_reads(uint64_t bytes) { read_limit = bytes; }
void on_read(int64_t n, std::function<void()> f) {
  reads_left = n;
  before_read = std::move(f);
}
int64_t live_blocks() { return live; }

}  // namespace orrery::testing

using orrery::testing::Fault;
namespace ot = orrery::testing;

#ifdef ORRERY_OWN_OPERATORS
// The library's operators, which are the whole program's here, allocate by what the linker wraps below. A request can be refused there,
// or one level down, where an account takes its chunks: then the block of its own, which allocate() asks for instead, is refused too. A
// block counts as live at the upper level alone: an account keeps its chunks.
namespace {
thread_local bool allocating = false, refused_below = false;
}  // namespace
extern "C" {

void* host_block_take(size_t n, size_t alignment) {
  if (allocating && refused_below) return nullptr;
  refused_below = ot::refuse(Fault::memory);
  if (refused_below) return nullptr;
  void* const p = ot::allocate(n, alignment > 16 ? alignment : 0);
  if (p) --ot::live;
  return p;
}
void host_block_give(void* p) {
  if (p) ++ot::live;
  ot::release(p);
}
void host_blocks_trim(void) {}

void* __real__ZN6orrery8allocateEmm(size_t bytes, size_t alignment);
void __real__ZN6orrery7releaseEPv(void* block);
void* __wrap__ZN6orrery8allocateEmm(size_t bytes, size_t alignment) {
  if (ot::refuse(Fault::memory)) return nullptr;
  allocating = true;
  refused_below = false;
  void* const block = __real__ZN6orrery8allocateEmm(bytes, alignment);
  allocating = false;
  if (block) ++ot::live;
  return block;
}
void __wrap__ZN6orrery7releaseEPv(void* block) {
  if (block) --ot::live;
  __real__ZN6orrery7releaseEPv(block);
}

}  // extern "C"
#else
// The whole program's operators.
void* operator new(std::size_t n) { return ot::allocate_or_throw(n, 0); }
void* operator new[](std::size_t n) { return ot::allocate_or_throw(n, 0); }
void* operator new(std::size_t n, const std::nothrow_t&) noexcept { return ot::allocate(n, 0); }
void* operator new[](std::size_t n, const std::nothrow_t&) noexcept { return ot::allocate(n, 0); }
void* operator new(std::size_t n, std::align_val_t a) { return ot::allocate_or_throw(n, static_cast<std::size_t>(a)); }
void* operator new[](std::size_t n, std::align_val_t a) { return ot::allocate_or_throw(n, static_cast<std::size_t>(a)); }
void* operator new(std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return ot::allocate(n, static_cast<std::size_t>(a));
}
void* operator new[](std::size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return ot::allocate(n, static_cast<std::size_t>(a));
}
void operator delete(void* p) noexcept { ot::release(p); }
void operator delete[](void* p) noexcept { ot::release(p); }
void operator delete(void* p, std::size_t) noexcept { ot::release(p); }
void operator delete[](void* p, std::size_t) noexcept { ot::release(p); }
void operator delete(void* p, std::align_val_t) noexcept { ot::release(p); }
void operator delete[](void* p, std::align_val_t) noexcept { ot::release(p); }
void operator delete(void* p, std::size_t, std::align_val_t) noexcept { ot::release(p); }
void operator delete[](void* p, std::size_t, std::align_val_t) noexcept { ot::release(p); }
void operator delete(void* p, const std::nothrow_t&) noexcept { ot::release(p); }
void operator delete[](void* p, const std::nothrow_t&) noexcept { ot::release(p); }
void operator delete(void* p, std::align_val_t, const std::nothrow_t&) noexcept { ot::release(p); }
void operator delete[](void* p, std::align_val_t, const std::nothrow_t&) noexcept { ot::release(p); }
#endif

// What the static library calls, by the linker's --wrap.
extern "C" {

void* __real_mmap(void* at, size_t n, int protection, int flags, int fd, off_t offset);
int __real_munmap(void* at, size_t n);
int __real_open(const char* path, int flags, ...);
ssize_t __real_pread(int fd, void* out, size_t n, off_t offset);
ssize_t __real_write(int fd, const void* data, size_t n);
int __real_fsync(int fd);
int __real_openat(int folder, const char* path, int flags, ...);
int __real_renameat(int from_folder, const char* from, int to_folder, const char* to);

void* __wrap_mmap(void* at, size_t n, int protection, int flags, int fd, off_t offset) {
  if (ot::refuse(Fault::memory)) {
    errno = ENOMEM;
    return MAP_FAILED;
  }
  void* p = __real_mmap(at, n, protection, flags, fd, offset);
  // MAP_FIXED replaces what is there already.
  if (p != MAP_FAILED && !(flags & MAP_FIXED)) ++ot::live;
  return p;
}
int __wrap_munmap(void* at, size_t n) {
  --ot::live;
  return __real_munmap(at, n);
}

// Opening for reading counts as a read, for writing as a write.
int __wrap_open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const int mode = flags & O_CREAT ? va_arg(more, int) : 0;
  va_end(more);
  const Fault kind = (flags & O_ACCMODE) == O_RDONLY ? Fault::read : Fault::write;
  if (ot::refuse(kind)) {
    errno = ot::number(kind);
    return -1;
  }
  return __real_open(path, flags, mode);
}
ssize_t __wrap_pread(int fd, void* out, size_t n, off_t offset) {
  if (ot::refuse(Fault::read)) {
    errno = ot::number(Fault::read);
    return errno ? -1 : 0;  // no error: the file ends here
  }
  if (ot::reads_left >= 0 && ot::reads_left-- == 0) ot::before_read();
  return __real_pread(fd, out, ot::read_limit ? std::min<size_t>(n, ot::read_limit) : n, offset);
}
ssize_t __wrap_write(int fd, const void* data, size_t n) {
  if (ot::refuse(Fault::write)) {
    errno = ot::number(Fault::write);
    return -1;
  }
  // A system may take less than it is given.
  return __real_write(fd, data, n > 1 ? n - n / 2 : n);
}
// Opening a directory and a temporary in it, which saving alone does, counts as a write.
int __wrap_openat(int folder, const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const int mode = flags & O_CREAT ? va_arg(more, int) : 0;
  va_end(more);
  if (!ot::refuse(Fault::write)) return __real_openat(folder, path, flags, mode);
  errno = ot::number(Fault::write);
  return -1;
}
int __wrap_fsync(int fd) {
  struct stat st;
  const Fault kind = fstat(fd, &st) == 0 && S_ISDIR(st.st_mode) ? Fault::directory : Fault::write;
  if (!ot::refuse(kind)) return __real_fsync(fd);
  errno = ot::number(kind);
  return -1;
}
int __wrap_renameat(int from_folder, const char* from, int to_folder, const char* to) {
  if (!ot::refuse(Fault::write)) return __real_renameat(from_folder, from, to_folder, to);
  errno = ot::number(Fault::write);
  return -1;
}

#if !defined(__SANITIZE_THREAD__)
// std::thread lives in the shared standard library, which finds this one first.
__attribute__((visibility("default"))) int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*),
                                                          void* argument) {
  if (ot::refuse(Fault::thread)) return EAGAIN;
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const Create real = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  return real(thread, attributes, start, argument);
}
#endif

}  // extern "C"
