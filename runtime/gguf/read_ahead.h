// Asks the system for a mapped file's next tensors while others are copied, and releases the pages of those that have been copied. It has
// a thread of its own, because both take time: of a file in memory, a tenth of a second for each 2 GB. Threads that copy find the pages in
// memory, the disk always has work, and the process holds few pages of the file.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/gguf/gguf.h"

namespace orrery::gguf {

class ReadAhead {
 public:
  static constexpr uint64_t kWindowBytes = uint64_t{256} << 20;  // that are asked for beyond the tensor that is copied
  // tensors: in the order in which they will be copied. Does nothing for a file that is not mapped, or where the system gives no thread.
  ReadAhead(const File& file, Span<const Tensor* const> tensors);
  ~ReadAhead();
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  // Tensor i is copied now, and the ones before it have been copied.
  void begin(size_t i);

 private:
  void run();
  void ask_for_piece();

  const File& file_;
  const Span<const Tensor* const> tensors_;
  std::vector<uint64_t> ends_;  // (tensors) sums of their bytes
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t limit_ = 0;  // bytes of the tensors that may be asked for
  size_t n_copied_ = 0;
  bool stop_ = false;
  // Of the thread: the tensor that is asked for, the bytes that have been asked for, and the tensors whose pages have been released.
  size_t next_ = 0;
  uint64_t asked_ = 0;
  size_t n_released_ = 0;
  std::thread thread_;
};

}  // namespace orrery::gguf
