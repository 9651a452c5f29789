// Counters of the server, as Prometheus reads them. Any thread counts; a page is a snapshot, and its numbers may be of slightly different
// moments.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace orrery::server {

class Metrics {
 public:
  using Counter = std::atomic<uint64_t>;
  Counter prompt_tokens{0}, reused_tokens{0}, generated_tokens{0};
  Counter prefill_us{0}, decode_us{0}, first_token_us{0}, queued_us{0};
  Counter texts{0};                      // with an embedding, or ranked
  Counter answers{0};                    // that began: divides first_token_us
  Counter left{0}, late{0}, stopped{0};  // cancelled: the client left, the time was over, the server ended
  Counter closed_late{0};                // connections closed for slowness
  std::atomic<int64_t> connections{0}, waiting{0}, busy{0}, resting{0}, sessions{0};

  void responded(const std::string& route, int status);
  std::string page() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::pair<std::string, int>, uint64_t> responses_;  // by route and status
};

}  // namespace orrery::server
