// The emulated driver's kernels, run from the PTX that nvcc made of them. A program that this file is linked with behaves so: a module is
// an image of the library's archive, with its PTX; the executor runs a kernel of it. What the executor finds wrong fails the test that
// runs.
//
// Environment: ORRERY_PTX, a folder of .ptx files in place of the archive's texts; ORRERY_PTX_SEED, the order of warps and blocks;
// ORRERY_PTX_COUNTERS, a file that gets what each kernel did; ORRERY_PTX_COMPARE, 1: each launch also runs as source, and a kernel that
// exact.txt names must give the same bits; ORRERY_PTX_APPROXIMATE, 1: approximations are off by what the manual allows.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <iostream>
#include <mutex>
#include <set>
#include <sstream>

#include "cuda/device/archive.h"
#include "cuda/device/gpu.h"
#include "tests/emulation/cuda/device.h"
#include "tests/ptx/executor/execute.h"
#include "tests/ptx/image.h"

namespace orrery::ptx {

namespace {

const char* environment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value ? value : otherwise;
}

class PtxDevice : public emulated::Device {
 public:
  PtxDevice() : executor_(settings()) {
    std::ifstream exact(ORRERY_SOURCE_DIR "/tests/ptx/exact.txt");
    for (std::string line; std::getline(exact, line);)
      if (!line.empty() && line[0] != '#') exact_.insert(line);
  }

  bool load(const void* data) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const cuda::Image& image : cuda::archive()) {
      if (image.data != data) continue;
      if (!loaded_.insert(data).second) return true;
      std::string text = ptx_of(image);
      if (const char* folder = std::getenv("ORRERY_PTX")) {
        std::stringstream read;
        read << std::ifstream(std::string(folder) + "/" + image.file + ".ptx").rdbuf();
        text = read.str();
      }
      if (text.empty()) return false;
      modules_.emplace_back(std::string(image.file) + ".ptx", text);
      Module& module = modules_.back();
      for (const std::string& entry : module.entries()) by_name_[cuda::readable_name(entry.c_str())] = {&module, entry};
      for (const auto& [at, bytes] : module.variables()) executor_.memory().add(at, bytes, false);
      return true;
    }
    return false;
  }
  bool has(const std::string& name) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    return by_name_.count(name) > 0;
  }
  size_t shared_bytes(const std::string& name) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (by_name_.count(name) == 0) return 0;  // run() says so
    const Kernel* kernel = find(name);
    return kernel ? kernel->static_shared_bytes : 0;
  }
  void run(const CUfunc_st& function, dim3 grid, dim3 block, size_t dynamic_shared_bytes, void* const* parameters,
           const std::function<void()>& as_source) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Kernel* kernel = find(function.name);
    if (!kernel) return;
    const size_t n = function.sizes.size();
    Launch launch;
    launch.grid = {grid.x, grid.y, grid.z};
    launch.block = {block.x, block.y, block.z};
    launch.dynamic_shared_bytes = static_cast<uint32_t>(dynamic_shared_bytes);
    launch.parameters.resize(kernel->parameter_bytes);
    if (n != kernel->parameters.size()) return fail(kernel->name + ": launched with " + std::to_string(n) + " arguments");
    for (size_t i = 0; i < n; ++i) {
      const Parameter& p = kernel->parameters[i];
      if (p.bytes != function.sizes[i]) return fail(kernel->name + ": an argument of another size than the parameter " + p.name);
      std::memcpy(launch.parameters.data() + p.offset, parameters[i], p.bytes);
    }
    if (launch.block.product() > kernel->max_threads) return fail(kernel->name + ": launched with more threads than its launch bounds");
    std::vector<Replaced> replaced;
    if (compares_) executor_.replaced = &replaced;
    const bool ended = executor_.run(*kernel, launch, &counters_[kernel->name]);
    if (compares_ && ended) compare(*kernel, replaced, as_source);
  }
  void allocated(const void* at, size_t bytes, bool host) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    executor_.memory().add(at, bytes, !host, host);
  }
  void released(const void* at) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    executor_.memory().remove(at);
  }
  void copied(void* to, const void* from, size_t bytes) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    executor_.memory().copied(to, from, bytes);
  }
  void written(const void* at, size_t bytes) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    executor_.memory().mark_written(at, bytes);
  }

  // Runs the launch again as source, from the same memory, and compares all bytes that the kernel wrote. The kernel's results stay.
  void compare(const Kernel& kernel, const std::vector<Replaced>& replaced, const std::function<void()>& as_source) {
    const auto memory = [](uint64_t at) { return reinterpret_cast<std::byte*>(at); };
    std::vector<std::byte> results(16 * replaced.size());
    for (size_t i = 0; i < replaced.size(); ++i) std::memcpy(&results[16 * i], memory(replaced[i].at), replaced[i].bytes);
    for (size_t i = replaced.size(); i-- > 0;) std::memcpy(memory(replaced[i].at), replaced[i].before, replaced[i].bytes);
    as_source();
    size_t different = 0;
    for (size_t i = 0; i < replaced.size(); ++i) {
      different += std::memcmp(&results[16 * i], memory(replaced[i].at), replaced[i].bytes) != 0;
      std::memcpy(memory(replaced[i].at), &results[16 * i], replaced[i].bytes);
    }
    Compared& c = compared_[template_of(kernel.name)];
    ++c.launches, c.different += different > 0, c.stores += replaced.size(), c.different_stores += different;
    if (different > 0 && exact_.count(template_of(kernel.name)))
      fail(demangled(kernel.name) + ": " + std::to_string(different) + " of " + std::to_string(replaced.size()) +
           " stores differ from the source's");
  }
  // "add_kernel" of a kernel's symbol.
  static std::string template_of(const std::string& symbol) {
    const std::string name = demangled(symbol);
    const size_t end = name.find("_kernel") + 7, begin = name.rfind("::", end);
    return name.substr(begin + 2, end - begin - 2);
  }
  void write_compared(std::ostream& out) const {
    for (const auto& [name, c] : compared_)
      out << name << ": " << c.different << " of " << c.launches << " launches differ from the source's, in " << c.different_stores
          << " of " << c.stores << " stores\n";
  }

  void new_test() {
    const std::lock_guard<std::mutex> lock(mutex_);
    reported_.clear();
  }
  void write_counters(std::ostream& out) const {
    out << "kernel launches blocks barriers integer single twice half convert move memory control exchange product read_bytes read_sectors "
           "written_bytes written_sectors shared_requests shared_passes bank_conflicts products\n";
    for (const auto& [name, c] : counters_) {
      std::string plain = demangled(name);
      std::replace(plain.begin(), plain.end(), ' ', '_');
      out << plain << ' ' << c.launches << ' ' << c.blocks << ' ' << c.barriers;
      for (const uint64_t x : c.instructions) out << ' ' << x;
      out << ' ' << c.read_bytes << ' ' << c.read_sectors << ' ' << c.written_bytes << ' ' << c.written_sectors << ' ' << c.shared_requests
          << ' ' << c.shared_passes << ' ' << c.bank_conflicts << ' ' << c.products << '\n';
    }
  }

 private:
  Settings settings() {
    Settings s;
    s.seed = std::strtoull(environment("ORRERY_PTX_SEED", "0"), nullptr, 0);
    s.approximate = std::string(environment("ORRERY_PTX_APPROXIMATE", "0")) == "1";
    s.report = [this](const Fault& fault) {
      // Once for each line of the text; what follows from it says little.
      if (reported_.size() < 10 && reported_.insert(fault.file + ":" + std::to_string(fault.line)).second)
        fail(demangled(fault.kernel) + ", " + fault.file + ":" + std::to_string(fault.line) + ": " + fault.what);
    };
    return s;
  }
  void fail(const std::string& what) { ADD_FAILURE() << what; }

  const Kernel* find(const std::string& name) {
    if (const auto known = kernels_.find(name); known != kernels_.end()) return known->second;
    const auto found = by_name_.find(name);
    const Kernel* kernel = nullptr;
    try {
      if (found == by_name_.end()) fail("no PTX of the kernel " + name);
      else kernel = &found->second.first->kernel(found->second.second);
    } catch (const Refused& refused) {
      fail(refused.what());
    }
    return kernels_[name] = kernel;
  }

  struct Compared {
    uint64_t launches = 0, different = 0, stores = 0, different_stores = 0;
  };

  std::mutex mutex_;
  bool compares_ = std::string(environment("ORRERY_PTX_COMPARE", "0")) == "1";
  std::set<std::string> exact_;  // templates
  std::map<std::string, Compared> compared_;
  std::set<std::string> reported_;
  Executor executor_;
  std::deque<Module> modules_;
  std::set<const void*> loaded_;                                    // images
  std::map<std::string, std::pair<Module*, std::string>> by_name_;  // by readable name: the kernel's module and symbol
  std::map<std::string, const Kernel*> kernels_;                    // by readable name
  std::map<std::string, Counters> counters_;
};

class NewTest : public ::testing::EmptyTestEventListener {
 public:
  explicit NewTest(PtxDevice* device) : device_(*device) {}
  void OnTestStart(const ::testing::TestInfo&) override { device_.new_test(); }

 private:
  PtxDevice& device_;
};

// Before main(), and so before any test.
struct Installed {
  Installed() {
    emulated::device = &device;
    ::testing::UnitTest::GetInstance()->listeners().Append(new NewTest(&device));
  }
  ~Installed() {
    emulated::device = nullptr;
    if (const char* path = std::getenv("ORRERY_PTX_COUNTERS")) {
      std::ofstream out(path);
      device.write_counters(out);
    }
    device.write_compared(std::cerr);
  }
  PtxDevice device;
} installed;

}  // namespace

}  // namespace orrery::ptx
