/* old_glibc.c - functions that the C library has had since some version after 2.28, over those of 2.28. build_wheel.py links them into the
 * wheel's library, where nobody else sees them (capi/orrery.map). x86-64 and 64-bit ARM. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* 2.33. Before, programs called __xstat() with the version of the struct. */
#ifdef __x86_64__
enum { kStatVersion = 1 };
#else
enum { kStatVersion = 0 };
#endif
int __xstat(int version, const char* path, struct stat* out);
int __lxstat(int version, const char* path, struct stat* out);
int __fxstat(int version, int fd, struct stat* out);
int __fxstatat(int version, int folder, const char* path, struct stat* out, int flags);
int stat(const char* path, struct stat* out) { return __xstat(kStatVersion, path, out); }
int lstat(const char* path, struct stat* out) { return __lxstat(kStatVersion, path, out); }
int fstat(int fd, struct stat* out) { return __fxstat(kStatVersion, fd, out); }
int fstatat(int folder, const char* path, struct stat* out, int flags) { return __fxstatat(kStatVersion, folder, path, out, flags); }

/* 2.32. 0: the C++ library then counts references by atomic operations, which are right with any number of threads. */
char __libc_single_threaded = 0;

/* 2.30. A condition variable of C++ waits by the clock of the day, so the time that is left is added to that clock's. */
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const struct timespec* until) {
  struct timespec now, day;
  if (clock == CLOCK_REALTIME) return pthread_cond_timedwait(condition, mutex, until);
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &day);
  int64_t nanoseconds = (int64_t)(until->tv_sec - now.tv_sec) * 1000000000 + (until->tv_nsec - now.tv_nsec);
  if (nanoseconds < 0) return ETIMEDOUT;
  nanoseconds += day.tv_nsec;
  day.tv_sec += (time_t)(nanoseconds / 1000000000);
  day.tv_nsec = (long)(nanoseconds % 1000000000);
  return pthread_cond_timedwait(condition, mutex, &day);
}

/* 2.36. */
uint32_t arc4random(void) {
  uint32_t value = 0;
  while (getentropy(&value, sizeof value) != 0) {
  }
  return value;
}

/* 2.35. The unwinder asks which object holds an instruction, and where the object's table of frames is. */
struct search {
  uintptr_t at;
  struct dl_find_object* out;
};

static int holds(struct dl_phdr_info* object, size_t size, void* of) {
  const struct search* s = of;
  uintptr_t start = UINTPTR_MAX, end = 0;
  const ElfW(Phdr)* frames = NULL;
  int found = 0;
  (void)size;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)* part = &object->dlpi_phdr[i];
    const uintptr_t from = object->dlpi_addr + part->p_vaddr, to = from + part->p_memsz;
    if (part->p_type == PT_GNU_EH_FRAME) frames = part;
    if (part->p_type != PT_LOAD) continue;
    start = from < start ? from : start;
    end = to > end ? to : end;
    found |= s->at >= from && s->at < to;
  }
  if (!found || !frames) return 0;
  s->out->dlfo_map_start = (void*)start;
  s->out->dlfo_map_end = (void*)end;
  s->out->dlfo_eh_frame = (void*)(object->dlpi_addr + frames->p_vaddr);
  return 1;
}

int _dl_find_object(void* at, struct dl_find_object* out) {
  struct search s = {(uintptr_t)at, out};
  *out = (struct dl_find_object){0};
  return dl_iterate_phdr(holds, &s) ? 0 : -1;
}
