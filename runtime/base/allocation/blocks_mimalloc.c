// Blocks from mimalloc: Debian's source package, compiled into this one file, every name static or hidden.
//
// mimalloc by itself reads MIMALLOC_... from the environment, writes warnings to stderr, registers an exit handler and can abort. A
// library inside other people's programs does none of these: the macros below take the calls out. CMake names the folder of
// mimalloc's sources, and switches its statistics, checks and environment off (runtime/base/CMakeLists.txt).
#define _DEFAULT_SOURCE
#include <stdio.h>
#include <stdlib.h>

#include "runtime/base/allocation/blocks.h"

#define getenv(name) ((char *)0)
#define fputs(text, file) ((void)(text), (void)(file))
#define atexit(handler) ((void)(handler))
#define abort() ((void)0)
#undef stderr
#undef stdout
#define stderr ((FILE *)0)
#define stdout ((FILE *)0)

#include <static.c>

void *host_block_take(size_t bytes, size_t alignment) { return alignment <= 16 ? mi_malloc(bytes) : mi_malloc_aligned(bytes, alignment); }
void host_block_give(void *block) { mi_free(block); }

// mi_collect() frees segments that are empty. Until mimalloc 2.1 it leaves alone what is unused inside the others, until the next block of
// that segment is freed.
#if MI_MALLOC_VERSION < 210
static bool decommit_unused(mi_heap_t *heap, mi_page_queue_t *queue, mi_page_t *page, void *arg1, void *arg2) {
  (void)queue, (void)arg1, (void)arg2;
  mi_segment_delayed_decommit(_mi_page_segment(page), true, &heap->tld->stats);
  return true;
}
void host_blocks_trim(void) {
  mi_collect(true);
  mi_heap_visit_pages(mi_heap_get_backing(), &decommit_unused, NULL, NULL);
}
#else
void host_blocks_trim(void) { mi_collect(true); }
#endif

// When the library is unloaded, its threads' ends must no longer call into it.
__attribute__((destructor)) static void forget_threads(void) {
  mi_collect(true);
  if (_mi_heap_default_key != (pthread_key_t)(-1)) pthread_key_delete(_mi_heap_default_key);
  _mi_heap_default_key = (pthread_key_t)(-1);
}
