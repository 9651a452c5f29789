// Blocks from the C library, for builds without mimalloc. Everything above, accounts and operators, is the same.
#include "runtime/base/allocation/blocks.h"

#include <stdint.h>
#include <stdlib.h>

#ifdef _WIN32
#include <malloc.h>
void *host_block_take(size_t bytes, size_t alignment) { return _aligned_malloc(bytes, alignment); }
void host_block_give(void *block) { _aligned_free(block); }
#else
void *host_block_take(size_t bytes, size_t alignment) {
  if (alignment <= 16) return malloc(bytes);
  if (bytes > SIZE_MAX - alignment) return NULL;
  return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}
void host_block_give(void *block) { free(block); }
#endif
void host_blocks_trim(void) {}
