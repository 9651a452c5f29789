// Asks the system for a mapped file's next tensors while others are copied, on a thread of its own: the request itself takes time where
// pages must be found. Threads that copy then find the pages in memory, and the disk always has work.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/gguf/gguf.h"

namespace orrery::model {

class ReadAhead {
 public:
  static constexpr uint64_t kWindowBytes = uint64_t{256} << 20;   // that are asked for beyond the tensor that is copied
  // tensors: in the order in which they will be copied. Does nothing for a file that is not mapped, or where the system gives no thread.
  ReadAhead(const gguf::File& file, Span<const gguf::Tensor* const> tensors);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // Tensor i is copied now.
  void begin(size_t i);

 private:
  void run();

  const gguf::File& file_;
  const Span<const gguf::Tensor* const> tensors_;
  std::vector<uint64_t> ends_;   // (tensors) sums of their bytes
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t limit_ = 0;           // bytes of the tensors that may be asked for
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace orrery::model
