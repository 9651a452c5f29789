// See counting.h.
#include "tests/ptx/counting.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <sstream>

#include "cuda/device/gpu.h"
#include "tests/ptx/image.h"

namespace orrery::ptx {

namespace {

using Vec = std::vector<int64_t>;

void add(Vec* sum, const Vec& x, int64_t times = 1) {
  if (sum->empty()) sum->resize(x.size());
  for (size_t i = 0; i < x.size(); ++i) (*sum)[i] += times * x[i];
}
// Whether f(at) lies on the line through f(a) and f(b).
bool on_line(int64_t a, const Vec& fa, int64_t b, const Vec& fb, int64_t at, const Vec& f) {
  for (size_t i = 0; i < f.size(); ++i)
    if (f[i] * (b - a) != fa[i] * (b - at) + fb[i] * (at - a)) return false;
  return true;
}

// Sums f over an axis.
class Axis {
 public:
  using Function = std::function<Vec(int64_t)>;
  Axis(const Function& f, const std::function<bool()>& may_look) : f_(f), may_look_(may_look) {}

  Vec sum(int64_t n) {
    Vec total;
    if (n <= 4) {
      for (int64_t i = 0; i < n; ++i) add(&total, f_(i));
      return total;
    }
    const Vec first = f_(0), last = f_(n - 1);
    add(&total, first), add(&total, last);
    between(0, first, n - 1, last, &total);
    return total;
  }

 private:
  // Adds f of all blocks behind a and before b.
  void between(int64_t a, const Vec& fa, int64_t b, const Vec& fb, Vec* total) {
    const int64_t n = b - a - 1;
    if (n <= 0) return;
    const int64_t middle = a + (b - a) / 2, third = a + (b - a + 2) / 3;
    const Vec fm = f_(middle);
    if (n == 1) return add(total, fm);
    const bool straight = on_line(a, fa, b, fb, middle, fm) && (third == middle || on_line(a, fa, b, fb, third, f_(third)));
    if (straight || !may_look_()) {
      // n (f(a) + f(b)) / 2, which is whole where the line is one.
      for (size_t i = 0; i < fm.size(); ++i) (*total)[i] += n * (fa[i] + fb[i]) / 2;
      return;
    }
    add(total, fm);
    between(a, fa, middle, fm, total);
    between(middle, fm, b, fb, total);
  }

  const Function& f_;
  const std::function<bool()>& may_look_;
};

std::string template_of(const std::string& symbol) {
  const std::string name = demangled(symbol);
  const size_t end = name.find("_kernel");
  if (end == std::string::npos) return name;
  const size_t begin = name.rfind("::", end);
  return begin == std::string::npos ? name : name.substr(begin + 2, end + 7 - begin - 2);
}

}  // namespace

CountingDevice::CountingDevice()
    : executor_([this] {
        Settings s;
        s.races = false;
        s.report = [this](const Fault& fault) {
          if (failure_.empty()) failure_ = fault.message();
        };
        return s;
      }()) {}

bool CountingDevice::load(const void* data) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const cuda::Image& image : cuda::archive()) {
    if (image.data != data) continue;
    if (!loaded_.insert(data).second) return true;
    const std::string text = ptx_of(image);
    if (text.empty()) return false;
    const std::string file = std::string(image.file) + ".ptx";
    modules_.emplace_back(file, text);
    Module& module = modules_.back();
    for (const std::string& entry : module.entries()) by_name_[cuda::readable_name(entry.c_str())] = {&module, entry};
    for (const auto& [at, bytes] : module.variables()) executor_.memory().add(at, bytes, false);
    Source& source = sources_[file];
    std::istringstream lines(text);
    std::pair<int, int> place{0, 0};
    source.places.push_back(place);  // lines are counted from 1
    for (std::string line; std::getline(lines, line);) {
      int number = 0, at = 0;
      char name[1024] = "";
      if (std::sscanf(line.c_str(), " .loc %d %d", &number, &at) == 2) {
        if (at > 0) place = {number, at};  // 0: no line of the source; the code goes with what stands before
      } else if (std::sscanf(line.c_str(), " .file %d \"%1023[^\"]\"", &number, name) == 2) {
        source.files[number] = name;
      } else if (line.find(".entry") != std::string::npos || line.find(".func") != std::string::npos) {
        place = {0, 0};
      }
      source.places.push_back(place);
    }
    return true;
  }
  return false;
}

std::pair<int, int> CountingDevice::place(const Kernel& kernel, const Instruction& instruction) const {
  const auto source = sources_.find(kernel.file);
  if (source == sources_.end() || instruction.line >= source->second.places.size()) return {0, 0};
  return source->second.places[instruction.line];
}
std::string CountingDevice::source_file(const Kernel& kernel, int number) const {
  const auto source = sources_.find(kernel.file);
  if (source == sources_.end()) return {};
  const auto file = source->second.files.find(number);
  return file == source->second.files.end() ? std::string() : file->second;
}

bool CountingDevice::has(const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return by_name_.count(name) > 0;
}
size_t CountingDevice::shared_bytes(const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const Kernel* kernel = find(name);
  return kernel ? kernel->static_shared_bytes : 0;
}
void CountingDevice::allocated(const void* at, size_t bytes, bool host) {
  const std::lock_guard<std::mutex> lock(mutex_);
  executor_.memory().add(at, bytes, false, host);
}
void CountingDevice::released(const void* at) {
  const std::lock_guard<std::mutex> lock(mutex_);
  executor_.memory().remove(at);
}

const Kernel* CountingDevice::find(const std::string& name) {
  if (const auto known = kernels_.find(name); known != kernels_.end()) return known->second;
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) return nullptr;
  return kernels_[name] = &found->second.first->kernel(found->second.second);
}

Vec CountingDevice::count(const Kernel& kernel, const Launch& launch, Dim3 block, Sectors* edges) {
  Counters c;
  c.executed.resize(kernel.code.size());
  c.notes_sectors = true;
  Path& path = paths_.try_emplace(&kernel, kernel).first->second;
  path.begin(latencies, static_cast<unsigned>((launch.block.product() + kLanes - 1) / kLanes));
  c.path = &path;
  if (!executor_.run_block(kernel, launch, block, &c) && failure_.empty()) failure_ = kernel.name + ": a block does not end";
  longest_ = std::max(longest_, path.length());
  std::vector<uint64_t>& sectors = c.sectors;
  std::sort(sectors.begin(), sectors.end());
  sectors.erase(std::unique(sectors.begin(), sectors.end()), sectors.end());
  // What blocks at 0 of the first and of the second axis touch, too.
  int64_t own = static_cast<int64_t>(sectors.size());
  if (block.x != 0 || block.y != 0) {
    const auto edge = [&](uint32_t x, uint32_t y) -> const std::vector<uint64_t>& {
      const auto found = edges->find({x, y});
      if (found != edges->end()) return found->second;
      count(kernel, launch, {x, y, block.z}, edges);
      return (*edges)[{x, y}];
    };
    const std::vector<uint64_t>& a = block.x == 0 || block.y == 0 ? edge(0, 0) : edge(0, block.y);
    const std::vector<uint64_t>& b = block.x == 0 || block.y == 0 ? a : edge(block.x, 0);
    for (const uint64_t s : sectors) own -= std::binary_search(a.begin(), a.end(), s) || std::binary_search(b.begin(), b.end(), s);
  }
  Vec v;
  for (const uint64_t x :
       {c.barriers, c.read_bytes, c.read_sectors, c.written_bytes, c.written_sectors, c.link_bytes, c.shared_requests, c.shared_passes,
        c.bank_conflicts, c.products, static_cast<uint64_t>(sectors.size()), static_cast<uint64_t>(own)})
    v.push_back(static_cast<int64_t>(x));
  for (const uint64_t x : c.instructions) v.push_back(static_cast<int64_t>(x));
  for (const uint64_t x : c.executed) v.push_back(static_cast<int64_t>(x));
  if (block.x == 0 || block.y == 0) (*edges)[{block.x, block.y}] = std::move(sectors);
  return v;
}

CountingDevice::Counted CountingDevice::count_all(const Kernel& kernel, const Launch& launch) {
  Counted out;
  longest_ = {};
  const Dim3 grid = launch.grid;
  Sectors edges;
  if (!samples || whole.count(template_of(kernel.name)) > 0) {
    for (uint32_t z = 0; z < grid.z; ++z, edges.clear())
      for (uint32_t y = 0; y < grid.y; ++y)
        for (uint32_t x = 0; x < grid.x; ++x) ++out.blocks_run, add(&out.values, count(kernel, launch, {x, y, z}, &edges));
    out.path = longest_;
    return out;
  }
  const std::function<bool()> may_look = [&] { return out.blocks_run < kMostBlocks || (out.estimated = true, false); };
  const auto axis = [&](int64_t n, const Axis::Function& f) { return Axis(f, may_look).sum(n); };
  out.values = axis(grid.z, [&](int64_t z) {
    edges.clear();
    return axis(grid.y, [&](int64_t y) {
      return axis(grid.x, [&](int64_t x) {
        ++out.blocks_run;
        return count(kernel, launch, {static_cast<uint32_t>(x), static_cast<uint32_t>(y), static_cast<uint32_t>(z)}, &edges);
      });
    });
  });
  out.path = longest_;
  return out;
}

// The launch without its addresses.
std::string CountingDevice::key(const Kernel& kernel, const Launch& launch) {
  std::string out = kernel.name + "/";
  for (const Dim3& d : {launch.grid, launch.block})
    for (const uint32_t n : {d.x, d.y, d.z}) out += std::to_string(n) + "/";
  out += std::to_string(launch.dynamic_shared_bytes) + "/";
  std::vector<std::byte> parameters = launch.parameters;
  for (size_t at = 0; at + 8 <= parameters.size(); at += 8) {
    uint64_t word = 0;
    std::memcpy(&word, &parameters[at], 8);
    if (executor_.memory().find(word)) std::memset(&parameters[at], 0xFF, 8);
  }
  return out.append(reinterpret_cast<const char*>(parameters.data()), parameters.size());
}

void CountingDevice::set_scope(const std::string& scope) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (scope_ != scope) counted_.clear();
  scope_ = scope;
}

void CountingDevice::run(const CUfunc_st& function, dim3 grid, dim3 block, size_t dynamic_shared_bytes, void* const* parameters,
                         const std::function<void()>&) {
  ++n_launches;
  if (idle) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  const Kernel* kernel = find(function.name);
  if (!kernel || function.sizes.size() != kernel->parameters.size()) {
    if (failure_.empty()) failure_ = function.name + ": no PTX of it, or other parameters";
    return;
  }
  Launch launch;
  launch.grid = {grid.x, grid.y, grid.z};
  launch.block = {block.x, block.y, block.z};
  launch.dynamic_shared_bytes = static_cast<uint32_t>(dynamic_shared_bytes);
  launch.parameters.resize(kernel->parameter_bytes);
  for (size_t i = 0; i < function.sizes.size(); ++i)
    std::memcpy(launch.parameters.data() + kernel->parameters[i].offset, parameters[i], kernel->parameters[i].bytes);

  Counted counted;
  if (scope_.empty()) {
    counted = count_all(*kernel, launch);
  } else {
    const std::string name = key(*kernel, launch);
    auto known = counted_.find(name);
    if (known == counted_.end()) known = counted_.emplace(name, count_all(*kernel, launch)).first;
    counted = known->second;
  }
  const uint32_t shared = kernel->static_shared_bytes + launch.dynamic_shared_bytes;
  const auto same = [&](const LaunchGroup& g) {
    return g.kernel == kernel && g.grid.x == grid.x && g.grid.y == grid.y && g.grid.z == grid.z &&
           g.block.product() == launch.block.product() && g.shared_bytes == shared;
  };
  auto group = std::find_if(groups_.begin(), groups_.end(), same);
  if (group == groups_.end()) {
    groups_.emplace_back();
    group = groups_.end() - 1;
    group->kernel = kernel, group->name = kernel->name, group->shared_bytes = shared;
    group->grid = launch.grid, group->block = launch.block;
  }
  ++group->launches;
  group->blocks_run += counted.blocks_run;
  group->estimated |= counted.estimated;
  group->path.cycles += counted.path.cycles, group->path.rounds += counted.path.rounds;
  add(&group->counts.values, counted.values);
}

std::vector<LaunchGroup> CountingDevice::take_groups() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(groups_, {});
}

}  // namespace orrery::ptx
