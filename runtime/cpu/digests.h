// Summaries of tokens. Digests of pages (KvSummaries::digest): one thread computes each page. Compensation tokens
// (KvSummaries::add_to_compensation_tokens): one thread computes each token.
#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/backend/backend.h"
#include "runtime/base/span.h"
#include "runtime/os/thread_pool.h"
#include "runtime/cpu/kernels/kernels.h"

namespace orrery::cpu {

void digest(Span<const DigestJob> jobs, const DigestShape& shape, const Kernels& kernels, ThreadPool* pool, std::byte* thread_scratch,
            uint64_t thread_bytes);
void add_to_compensation_tokens(Span<const CompensationJob> jobs, const KvFormat& kv, const Kernels& kernels, ThreadPool* pool,
                                std::byte* thread_scratch, uint64_t thread_bytes);

}  // namespace orrery::cpu
