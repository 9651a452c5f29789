// A software device that counts what launches of real shapes do, without running all of their blocks.
//
// Blocks of a launch are independent, and along an axis of the grid the work of neighbours is equal or grows evenly. So the device runs
// some blocks and sums over the others. The rule: between two blocks of an axis the counts are a straight line if the block in the middle
// and one at a third lie exactly on that line, in every count and for every instruction; else each half is looked at by itself. Sums of
// straight lines are exact. A launch that is still bent after kMostBlocks blocks is summed with the lines that there are, and says so.
//
// Kernels whose results the host reads (`whole`) run all of their blocks. Memory counts as written: the results of blocks that do not run
// stay as they were. So numbers mean nothing, and only control flow that depends on lengths and positions is that of a real run.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "cuda/device/archive.h"
#include "tests/emulation/cuda/device.h"
#include "tests/ptx/executor/execute.h"
#include "tests/ptx/executor/path.h"

namespace orrery::ptx {

// Counts of a launch: these fields, then how often warps executed each instruction of the kernel. block_sectors: different sectors of 32
// bytes that a block touches, summed over the blocks. own_sectors: of these, sectors that the block's neighbours at 0 on either axis of the
// grid do not touch. So each sector of the launch counts once where tiles of rows and columns share their operands.
struct Counts {
  enum Field {
    barriers,
    read_bytes,
    read_sectors,
    written_bytes,
    written_sectors,
    link_bytes,
    shared_requests,
    shared_passes,
    bank_conflicts,
    products,
    block_sectors,
    own_sectors,
    classes
  };
  static constexpr size_t kFields = classes + static_cast<size_t>(Class::kCount);
  std::vector<int64_t> values;
};

// Launches of one kernel with one geometry.
struct LaunchGroup {
  const Kernel* kernel = nullptr;  // lives as long as the device
  std::string name;                // the kernel's symbol
  Dim3 grid, block;
  uint32_t shared_bytes = 0;  // static and dynamic
  int64_t launches = 0, blocks_run = 0;
  bool estimated = false;
  Path::Length path;  // of the launches' longest blocks among those that ran, summed over the launches
  Counts counts;
};

class CountingDevice : public emulated::Device {
 public:
  static constexpr int64_t kMostBlocks = 400;
  CountingDevice();
  // Runs every block if false.
  bool samples = true;
  bool idle = false;  // launches do nothing and count nothing but themselves: what is left is the host's work
  std::atomic<int64_t> n_launches{0}, n_copies{0};
  std::set<std::string> whole;  // templates of kernels: "select_keys_kernel"
  Latencies latencies;          // of the card, for LaunchGroup::path

  // From here on, launches that differ in nothing but addresses count as one another. A new scope forgets the counts; empty: each launch is
  // counted by itself.
  void set_scope(const std::string& scope);
  std::vector<LaunchGroup> take_groups();           // since the last call, in the order of their first launches
  std::string failure() const { return failure_; }  // the first one; empty: none
  // The place in the source of an instruction: the file's number in the module and the line; {0, 0}: unknown.
  std::pair<int, int> place(const Kernel& kernel, const Instruction& instruction) const;
  // The name of a file of the source; empty: none.
  std::string source_file(const Kernel& kernel, int number) const;

  bool load(const void* image) override;
  bool has(const std::string& name) override;
  size_t shared_bytes(const std::string& name) override;
  void run(const CUfunc_st& function, dim3 grid, dim3 block, size_t dynamic_shared_bytes, void* const* parameters,
           const std::function<void()>& as_source) override;
  void allocated(const void* at, size_t bytes, bool host) override;
  void released(const void* at) override;
  void copied(void*, const void*, size_t) override { ++n_copies; }
  void written(const void*, size_t) override {}

 private:
  struct Counted {
    std::vector<int64_t> values;
    int64_t blocks_run = 0;
    bool estimated = false;
    Path::Length path;
  };
  // Sectors of blocks at 0 of an axis, by place.
  using Sectors = std::map<std::pair<uint32_t, uint32_t>, std::vector<uint64_t>>;
  const Kernel* find(const std::string& name);
  std::vector<int64_t> count(const Kernel& kernel, const Launch& launch, Dim3 block, Sectors* edges);
  Counted count_all(const Kernel& kernel, const Launch& launch);
  std::string key(const Kernel& kernel, const Launch& launch);

  std::mutex mutex_;
  std::string failure_;
  Executor executor_;
  std::deque<Module> modules_;
  std::set<const void*> loaded_;
  struct Source {
    std::vector<std::pair<int, int>> places;  // by line of the text
    std::map<int, std::string> files;
  };
  std::map<std::string, Source> sources_;  // by module
  std::map<std::string, std::pair<Module*, std::string>> by_name_;
  std::map<std::string, const Kernel*> kernels_;
  std::map<const Kernel*, Path> paths_;
  Path::Length longest_;  // of the blocks that count() has run
  std::vector<LaunchGroup> groups_;
  std::string scope_;
  std::map<std::string, Counted> counted_;  // of this scope, by key()
};

}  // namespace orrery::ptx
