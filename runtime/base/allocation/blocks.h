// Where the library's memory blocks come from: mimalloc (blocks_mimalloc.c), or the C library (blocks_malloc.c) in a build without
// it. Only account.cpp calls these functions. They set no error and call no handler.
#pragma once

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// A block of `bytes` that begins at a multiple of `alignment`, a power of two, at least 16. NULL: the system gives no memory.
void *host_block_take(size_t bytes, size_t alignment);
// Gives it back, on any thread. NULL is accepted.
void host_block_give(void *block);
// Gives the system what this thread's past blocks have left unused.
void host_blocks_trim(void);

#ifdef __cplusplus
}
#endif
