// Key codes, between steps: mean keys, mean values, codes. Parts and tables lie in the scratch memory of top_keys(), so its size limits a
// batch.
#include <algorithm>

#include "cuda/backend.h"
#include "runtime/base/checked.h"

namespace orrery::cuda {

// Parts lie in the memory of top_keys' entries, and tables of pages among its tiles. Jobs that follow each other share a table where they
// share their pages, as the heads of a session do: so a launch takes all of them.
template <class Use>
void CudaBackend::for_each_codes_batch(Span<const KeyCodesJob> jobs, int32_t first_page, int32_t end_page, const Use& use) {
  const TopKeysPlan& plan = plan_.top_keys_plan;
  std::byte *scratch = scratch_ + plan_.top_keys, *parts = scratch + plan.entries;
  for (size_t next = 0; next < jobs.size() && !queue_.failed();) {
    codes_parts_.clear(), uploads_.clear();
    const uint64_t* pages = nullptr;
    for (int32_t n_tables = 0; next < jobs.size() && codes_parts_.size() < most_codes_parts(); ++next) {
      const KeyCodesJob& job = jobs[next];
      if (codes_parts_.empty() || job.pages != pages) {
        if (n_tables == TopKeysPlan::kBatch) break;
        pages = job.pages;
        std::byte* table = scratch + plan.tiles + static_cast<uint64_t>(n_tables++ * plan.tile_stride) * sizeof(uint64_t);
        const auto n_pages = static_cast<uint64_t>(std::max(end_page - first_page, 0));
        uploads_.push_back({{address(table)}, pages + first_page, n_pages * sizeof(uint64_t)});
      }
      CodesPart part = {};
      part.pages = reinterpret_cast<const uint64_t*>(static_cast<uintptr_t>(uploads_.back().to.address));
      part.offset = job.offset, part.mean = device(job.mean), part.tiles = device(job.tiles);
      codes_parts_.push_back(part);
    }
    if (codes_parts_.empty()) return;  // a step's limits had no such jobs
    uploads_.push_back({{address(parts)}, codes_parts_.data(), codes_parts_.size() * sizeof(CodesPart)});
    upload_all(uploads_);
    use(reinterpret_cast<const CodesPart*>(parts), static_cast<int32_t>(codes_parts_.size()));
  }
}

void CudaBackend::mean_keys(Span<const KeyCodesJob> jobs, const KeyCodesShape& shape, int32_t first, int32_t end, int32_t step) {
  const OnDevice here(*gpu_, queue_);
  for_each_codes_batch(jobs, first / kPageTokens, div_up(end, kPageTokens),
                       [&](const CodesPart* parts, int32_t n_parts) { cuda::mean_keys(queue_, parts, shape, n_parts, first, end, step); });
}

void CudaBackend::encode_keys(Span<const KeyCodesJob> jobs, const KeyCodesShape& shape, int32_t first, int32_t end) {
  if (first >= end) return;
  const OnDevice here(*gpu_, queue_);
  for_each_codes_batch(jobs, first / kPageTokens, div_up(end, kPageTokens),
                       [&](const CodesPart* parts, int32_t n_parts) { cuda::encode_keys(queue_, parts, shape, n_parts, first, end); });
}

// At most kBatch jobs in a launch. Parts lie where those of top_keys() do, shares in the memory of its results. A job's sums of pages lie
// in an entry, which has room for 4 floats for each key: 256 for each page.
void CudaBackend::mean_values(Span<const MeanValueJob> jobs, const KvFormat& kv) {
  static_assert(sizeof(CodesPart) <= sizeof(TopKeysPart), "a batch of parts fits where those of top_keys lie");
  const OnDevice here(*gpu_, queue_);
  const TopKeysPlan& plan = plan_.top_keys_plan;
  std::byte* scratch = scratch_ + plan_.top_keys;
  for (size_t next = 0; next < jobs.size() && !queue_.failed();) {
    codes_parts_.clear(), uploads_.clear();
    int32_t most_pages = 0;
    for (; next < jobs.size() && codes_parts_.size() < static_cast<size_t>(TopKeysPlan::kBatch); ++next) {
      const MeanValueJob& job = jobs[next];
      const uint64_t i = codes_parts_.size(), n = job.shares.size(), stride = static_cast<uint64_t>(plan.stride);
      const auto n_pages = static_cast<int32_t>(div_up(n, static_cast<uint64_t>(kPageTokens)));
      std::byte* table = scratch + plan.tiles + i * static_cast<uint64_t>(plan.tile_stride) * sizeof(uint64_t);
      std::byte *shares = scratch + plan.out + i * stride * sizeof(float), *sums = scratch + plan.entries + i * plan.entry_bytes;
      uploads_.push_back({{address(table)}, job.pages, static_cast<uint64_t>(n_pages) * sizeof(uint64_t)});
      uploads_.push_back({{address(shares)}, job.shares.data(), n * sizeof(float)});
      CodesPart part = {};
      part.pages = reinterpret_cast<const uint64_t*>(table);
      part.offset = job.offset, part.mean = device(job.value);
      part.shares = reinterpret_cast<const float*>(shares), part.sums = reinterpret_cast<float*>(sums);
      part.n_shares = static_cast<int32_t>(n);
      codes_parts_.push_back(part);
      most_pages = std::max(most_pages, n_pages);
    }
    uploads_.push_back({{address(scratch)}, codes_parts_.data(), codes_parts_.size() * sizeof(CodesPart)});
    upload_all(uploads_);
    cuda::mean_values(queue_, reinterpret_cast<const CodesPart*>(scratch), kv, static_cast<int32_t>(codes_parts_.size()), most_pages);
  }
}

}  // namespace orrery::cuda
