// Decoding behind long contexts, under KV policies: bench_kv MODEL.gguf [option=value ...]
//   contexts=32768,131072   tokens of made-up KV
//   policies=full,heterocache   policy[:option=value...]; device_kv=q8_0 among the options: the type of KV on the device;
//                           budget=0.5: the policy's own budget. A policy that cannot be opened is left out, and the reason said
//   profile=FILE,...        head profiles: the first that has the model's shape is of all policies but full. Unless given, profile-1b.json and
//                           profile-8b.json (both made up), if they lie beside this program
//   budget=0.25  steps=50  threads=0  repeat=5
//   seconds=0    begins nothing that would end later than this after the start, and says what is left out; 0: no limit
//   backend=auto            cpu or cuda
//   turns=       yes: policies take turns, a block of steps each, and all have their KV at the same time. no: one after another, so that a
//                device's memory need hold one. Unless given, yes on the CPU, and no on a GPU, whose speed does not depend on others' work
//   budget_gib=0  reservoir_gib=0   sizes of the device's arena and of host memory for KV; 0: a GPU's free memory, and what is needed
//   settlings=0  so many more, behind the blocks: the median's time, and how many tokens a head has room for behind one
//   link=0       bytes per second of a simulated link, 0: none
//   latency=0    its microseconds for each request
//   path=auto    the instruction set
//   load=map     weights where the file is mapped, or read into memory (read), whose pages are larger
//
// KV pages hold random F16 numbers: what heads attend to means nothing, the bytes that move are real.  Each figure is the median of
// `repeat` blocks of steps.  What a step cannot do without are weights, the KV that it attends to, what it looks for tokens in (digests,
// rows of low-rank keys, keys), and what it fetches, which is read once and written once; each as the session has counted it.
//
// On the CPU `of floor` is a step's time over that of these bytes at the rate at which the same threads merely read memory, measured behind
// each block; `of read` the share of that rate that weights and resident KV come to.  On a GPU a step brings the likeliest token to the
// host. `host ms` is a step's time less the time in which the host waits for the device, of which there are `waits` a step; `nodes` are the
// kernels of its graph, and `of full` is its time over that of full attention behind as many tokens, if that has been measured before.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "cuda/cuda_backend.h"
#include "runtime/base/clock.h"
#include "runtime/os/thread_pool.h"
#include "runtime/engine/session/session.h"
#include "runtime/model/families/family.h"
#include "runtime/os/os.h"

namespace orrery {
namespace {

template <class T>
T unwrap(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "bench_kv: %s\n", result.status().message());
  std::exit(1);
}
void unwrap(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "bench_kv: %s\n", status.message());
  std::exit(1);
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
  return parts;
}

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x.empty() ? 0 : x[x.size() / 2];
}

// Bytes per second at which all threads together read a gigabyte.
class ReadRate {
 public:
  explicit ReadRate(int32_t n_threads)
      : pool_(unwrap(ThreadPool::make(n_threads, os::available_processors()))), memory_(unwrap(os::Region::allocate(uint64_t{1} << 30))) {
    std::memset(memory_.data(), 1, memory_.size());
  }
  double measure() {
    constexpr int64_t kItem = 1 << 20;
    const int64_t n = static_cast<int64_t>(memory_.size()) / kItem;
    std::vector<uint64_t> sums(static_cast<size_t>(n));
    const uint64_t start = now_us();
    pool_->run(n, [&](int64_t item, int32_t) {
      const uint64_t* x = reinterpret_cast<const uint64_t*>(memory_.data() + item * kItem);
      uint64_t sum[8] = {};
      for (int64_t i = 0; i < kItem / 8; i += 8)
        for (int j = 0; j < 8; ++j) sum[j] += x[i + j];
      for (const uint64_t s : sum) sums[static_cast<size_t>(item)] += s;
    });
    const double seconds = static_cast<double>(now_us() - start) * 1e-6;
    for (const uint64_t s : sums) check_ += s;
    return static_cast<double>(memory_.size()) / seconds;
  }

 private:
  std::unique_ptr<ThreadPool> pool_;
  os::Region memory_;
  uint64_t check_ = 0;
};

// Pages of random halves of both signs, from 1/8 to 2. Pages differ: each is the first one, with some bits of each number changed. That is
// as fast as copying, where a context of 128K tokens has 17 GB.
class RandomPages {
 public:
  void fill(uint32_t page, Span<std::byte> bytes) {
    const size_t n = bytes.size() / 8;
    for (uint64_t state = 0x9E3779B97F4A7C15u; first_.size() < n;) first_.push_back(kBits & next(&state));
    uint64_t state = (page + 1) * 0x9E3779B97F4A7C15u;
    const uint64_t mask = page == 0 ? 0 : kBits & next(&state);
    for (size_t i = 0; i < n; ++i) {
      const uint64_t halves = (first_[i] ^ mask) + 0x3000300030003000u;
      std::memcpy(bytes.data() + 8 * i, &halves, 8);
    }
  }

 private:
  static constexpr uint64_t kBits = 0x8FFF8FFF8FFF8FFFu;
  static uint64_t next(uint64_t* state) { return *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17; }
  std::vector<uint64_t> first_;
};

// Whether there is time for something that takes as long as the longest so far, or in proportion longer where there are more tokens.
class Limit {
 public:
  explicit Limit(double seconds) : seconds_(seconds) {}
  double elapsed() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  bool over() const { return seconds_ > 0 && elapsed() > seconds_; }
  bool has_time(uint32_t tokens) const { return seconds_ <= 0 || elapsed() + longest_ * std::max(1.0, tokens / tokens_) <= seconds_; }
  void took(double seconds, uint32_t tokens) {
    if (seconds > longest_) longest_ = seconds, tokens_ = std::max(1u, tokens);
  }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  double seconds_, longest_ = 0, tokens_ = 1;
};

struct Settings {
  std::map<std::string, std::string> values = {{"contexts", "32768,131072"},
                                               {"policies", "full,heterocache"},
                                               {"budget", "0.25"},
                                               {"steps", "50"},
                                               {"threads", "0"},
                                               {"repeat", "5"},
                                               {"link", "0"},
                                               {"latency", "0"},
                                               {"settlings", "0"},
                                               {"load", "map"},
                                               {"path", "auto"},
                                               {"backend", "auto"},
                                               {"profile", ""},
                                               {"turns", ""},
                                               {"seconds", "0"},
                                               {"budget_gib", "0"},
                                               {"reservoir_gib", "0"}};
  double number(const char* name) const { return std::atof(values.at(name).c_str()); }
};

KvType kv_type(const std::string& name) {
  if (name == "f32") return KvType::f32;
  if (name == "q8_0") return KvType::q8_0;
  if (name == "k8v4") return KvType::k8v4;
  return name == "q4_0" ? KvType::q4_0 : KvType::f16;
}

struct Contender {
  std::string policy;
  std::unique_ptr<engine::Session> session;
  std::vector<double> times, shares, floors;        // of each block: seconds a step; of the rate of reading; of the floor
  std::vector<double> attended, searched, fetched;  // bytes a step
  std::vector<double> hosts, waits;                 // of each block, on a GPU: seconds and waits a step
  size_t nodes = 0;                                 // of the last step's graph
  double opening = 0;                               // seconds until all KV was there
  std::vector<double> settlings;                    // seconds
  uint32_t room = 0;                                // tokens of the head that is full first
};

// Settles again, and computes the tokens of the steps that settle.
void settle(Contender* c) {
  engine::Resident* r = c->session->resident();
  if (!r) return;
  const uint64_t before = r->settle_us();
  r->invalidate();
  do {
    c->session->push_generated(300);
    unwrap(c->session->decode());
  } while (!r->settled());
  c->settlings.push_back(static_cast<double>(r->settle_us() - before) * 1e-6);
  c->room = UINT32_MAX;
  for (uint32_t head = 0; head < r->store().n_heads(); ++head)
    c->room = std::min(c->room, r->store().capacity(head) - r->store().length(head) + 1);
}

// What a session's steps have read and fetched so far; of full attention's, which counts nothing, all that is there.
struct Bytes {
  double attended = 0, searched = 0, fetched = 0;
};
Bytes bytes_so_far(const engine::Session& session, double steps) {
  const engine::Resident* r = session.resident();
  if (!r) return {static_cast<double>(session.kv_used_bytes()) * steps, 0, 0};
  const engine::Resident::Reads reads = r->reads();
  return {static_cast<double>(reads.kv), static_cast<double>(reads.searched + reads.rebuilt), static_cast<double>(r->refill_stats().bytes)};
}

// The first of the profiles that has the model's shape, or null.
std::shared_ptr<const policy::HeadProfile> find_profile(const std::string& files, bool must_exist, const model::Description& h) {
  const std::vector<uint32_t> kv_heads(static_cast<size_t>(h.n_layers), static_cast<uint32_t>(h.kv().n_kv_heads));
  for (const std::string& name : split(files, ',')) {
    std::ifstream file(name);
    if (!file && !must_exist) continue;
    if (!file) unwrap(error(Code::io, "the head profile %s cannot be read", name.c_str()));
    const std::string json{std::istreambuf_iterator<char>(file), {}};
    auto profile = std::make_shared<const policy::HeadProfile>(unwrap(policy::read_profile(json)));
    if (policy::check_profile_fits(*profile, profile->model, kv_heads).ok()) {
      std::printf("head profile: %s\n", name.c_str());
      return profile;
    }
  }
  std::printf("head profile: none that has the model's %d layers of %d KV heads; what cannot do without one is left out\n", h.n_layers,
              h.kv().n_kv_heads);
  return nullptr;
}

class Bench {
 public:
  Bench(const std::string& path, const std::string& program, const Settings& settings);
  void run();
  bool measured() const { return measured_; }

 private:
  bool on_cpu() const { return info_.computes_on_host; }
  double number(const char* name) const { return settings_.number(name); }
  uint32_t context_of(uint32_t n) const;  // of a session that n tokens of KV are made up for
  Result<std::unique_ptr<engine::Session>> open(const std::string& policy, uint32_t n);
  void step(engine::Session* session, int i);
  void measure(Contender* c);
  // Measures these policies in turns, and prints them.
  void measure_all(uint32_t n, const std::vector<std::string>& policies);
  void print_heads() const;
  void print(uint32_t n, const Contender& c);
  static void leave_out(uint32_t n, const std::string& policy, const char* why) {
    std::printf("left out: %s behind %u: %s\n", policy.c_str(), n, why);
    std::fflush(stdout);
  }

  const Settings& settings_;
  Limit limit_;
  int steps_, repeat_, settlings_;
  bool together_ = false;
  std::shared_ptr<engine::Runtime> runtime_;
  std::shared_ptr<engine::LanguageModel> model_;
  BackendInfo info_;
  std::shared_ptr<const policy::HeadProfile> profile_;
  std::unique_ptr<ReadRate> rate_;  // null on a GPU
  RandomPages pages_;
  engine::Shortlist shortlist_;
  uint64_t weights_ = 0;             // bytes that a step reads
  std::map<uint32_t, double> full_;  // seconds of a step of full attention, by context
  bool measured_ = false;
};

uint32_t Bench::context_of(uint32_t n) const {
  const uint32_t of_settlings = settlings_ > 0 ? n / 32 + 8 * static_cast<uint32_t>(settlings_) : 0;  // a tail, and settling steps
  return n + static_cast<uint32_t>(steps_ * (repeat_ + 1)) + 64 + of_settlings;
}

Bench::Bench(const std::string& path, const std::string& program, const Settings& settings)
    : settings_(settings), limit_(settings.number("seconds")), steps_(std::max(1, static_cast<int>(settings.number("steps")))),
      repeat_(std::max(1, static_cast<int>(settings.number("repeat")))), settlings_(static_cast<int>(settings.number("settlings"))) {
  engine::RuntimeOptions options;
  options.n_threads = static_cast<int32_t>(number("threads"));
  options.backend = settings.values.at("backend");
  options.cpu_path = settings.values.at("path");
  options.link.bytes_per_second = static_cast<uint64_t>(number("link"));
  options.link.latency_us = static_cast<uint32_t>(number("latency"));
  const std::string& load = settings.values.at("load");
  engine::ModelOptions loading;
  loading.load = load == "read" ? gguf::Load::read : gguf::Load::map;

  gguf::OpenOptions header;
  header.header_only = true;
  const gguf::File file = unwrap(gguf::File::open(path, header));
  const model::Description h = unwrap(model::read_description(file, {}));
  // The arena has room for the KV of all sessions that are open together in F16, for converted weights, and for the workspace. The system
  // commits memory at its first use; a GPU's arena takes all of it.
  uint32_t longest = 0;
  for (const std::string& n : split(settings.values.at("contexts"), ','))
    longest = std::max(longest, static_cast<uint32_t>(std::atoi(n.c_str())));
  const std::vector<DeviceDescription> gpus = engine::gpus();
  const bool automatic = options.backend == "auto" && options.cpu_path == "auto";
  const bool gpu = options.backend == "cuda" ||
                   (automatic && std::any_of(gpus.begin(), gpus.end(), [](const DeviceDescription& g) { return g.refused.empty(); }));
  const std::string& turns = settings.values.at("turns");
  together_ = turns.empty() ? !gpu : turns == "yes";
  const uint64_t n_sessions = together_ ? split(settings.values.at("policies"), ',').size() : 1;
  const uint64_t kv = uint64_t{context_of(longest)} * static_cast<uint64_t>(h.n_layers) * static_cast<uint64_t>(h.kv().kv_dim()) * 4;
  std::ifstream weights(path, std::ios::binary | std::ios::ate);
  const uint64_t file_bytes = static_cast<uint64_t>(std::max<std::streamoff>(weights.tellg(), 0)), rest = uint64_t{4} << 30;
  const auto gib = [&](const char* name) { return static_cast<uint64_t>(number(name) * 1073741824.0); };
  const uint64_t needed = n_sessions * (kv + kv / 2) + rest;
  options.reservoir_bytes = number("reservoir_gib") > 0 ? gib("reservoir_gib") : needed;
  options.device_budget_bytes = gib("budget_gib");
  if (options.device_budget_bytes == 0 && !gpu) options.device_budget_bytes = needed + 2 * file_bytes;

  const double before = limit_.elapsed();
  runtime_ = unwrap(engine::Runtime::create(options));
  const double created = limit_.elapsed();
  model_ = unwrap(engine::LanguageModel::open(runtime_, path, loading));
  const double opened = limit_.elapsed();
  info_ = runtime_->backend_info();
  // Of the embedding a token reads one row.
  const Weight& table = model_->weights().weights.embedding;
  const bool tied = table.data.address == model_->weights().weights.output.data.address;
  weights_ = model_->weights().weights_bytes -
             (tied ? 0 : static_cast<uint64_t>(table.n_rows) * row_bytes(table.type, static_cast<uint64_t>(table.n_cols)));
  std::printf("%s, %s (%s), %d threads; weights read by a step: %.0f MB; link %.1f GB/s; runtime %.2f s, model %.2f s\n", path.c_str(),
              info_.name, info_.instruction_set, info_.n_threads, static_cast<double>(weights_) / 1e6, number("link") / 1e9,
              created - before, opened - created);
  const std::string& given = settings.values.at("profile");
  const std::string folder = program.find('/') == std::string::npos ? "" : program.substr(0, program.rfind('/') + 1);
  profile_ = find_profile(given.empty() ? folder + "profile-1b.json," + folder + "profile-8b.json" : given, !given.empty(), h);
  if (on_cpu()) rate_ = std::make_unique<ReadRate>(info_.n_threads);
  shortlist_.ask(0, 0);
  shortlist_.set_best(1);
  std::fflush(stdout);
}

Result<std::unique_ptr<engine::Session>> Bench::open(const std::string& policy, uint32_t n) {
  engine::SessionOptions wishes;
  const std::vector<std::string> parts = split(policy, ':');
  wishes.policy = parts[0];
  wishes.n_context = context_of(n);
  double budget = number("budget");
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t equals = parts[i].find('=');
    if (equals == std::string::npos) return error(Code::invalid_argument, "'%s' is no option=value", parts[i].c_str());
    if (parts[i].substr(0, equals) == "device_kv") {
      wishes.device_kv_type = kv_type(parts[i].substr(equals + 1));
      continue;
    }
    if (parts[i].substr(0, equals) == "budget") {
      budget = std::atof(parts[i].c_str() + equals + 1);
      continue;
    }
    wishes.policy_options.emplace_back(parts[i].substr(0, equals), parts[i].substr(equals + 1));
  }
  if (wishes.compressed()) {
    wishes.kv_share = budget;
    wishes.head_profile = profile_;
  }
  ORRERY_ASSIGN(auto session, engine::Session::open(model_, wishes));
  std::vector<int32_t> prompt(n);
  const uint32_t words = static_cast<uint32_t>(std::clamp(model_->description().n_vocab - 300, 1, 30000));
  for (uint32_t i = 0; i < n; ++i)
    prompt[i] = static_cast<int32_t>(std::min(300, model_->description().n_vocab - 1) + static_cast<int32_t>(i * 7919 % words));
  ORRERY_TRY(session->sequence().assume_prompt(prompt, [&](uint32_t page, Span<std::byte> bytes) { pages_.fill(page, bytes); }));
  return session;
}

void Bench::step(engine::Session* session, int i) {
  session->push_generated(static_cast<int32_t>((300 + i) % model_->description().n_vocab));
  unwrap(session->decode(on_cpu() ? nullptr : &shortlist_));
}

// A block of steps.
void Bench::measure(Contender* c) {
  const auto waits_so_far = [&] { return on_cpu() ? cuda::Waits() : cuda::waits(runtime_->take_turn().backend()); };
  const Bytes before = bytes_so_far(*c->session, 0);
  const cuda::Waits waited = waits_so_far();
  const uint64_t start = now_us();
  for (int i = 0; i < steps_; ++i) step(c->session.get(), i);
  const double step = static_cast<double>(now_us() - start) * 1e-6 / steps_;
  const cuda::Waits now_waited = waits_so_far();
  const Bytes after = bytes_so_far(*c->session, steps_);
  c->attended.push_back((after.attended - before.attended) / steps_);
  c->searched.push_back((after.searched - before.searched) / steps_);
  c->fetched.push_back((after.fetched - before.fetched) / steps_);
  c->times.push_back(step);
  if (!on_cpu()) {
    c->hosts.push_back(step - static_cast<double>(now_waited.ns - waited.ns) * 1e-9 / steps_);
    c->waits.push_back(static_cast<double>(now_waited.n - waited.n) / steps_);
    c->nodes = cuda::graph_nodes(runtime_->take_turn().backend());
    return;
  }
  const double read = rate_->measure();
  const double bytes = static_cast<double>(weights_) + c->attended.back() + c->searched.back() + 2 * c->fetched.back();
  c->floors.push_back(step * read / bytes);
  c->shares.push_back(static_cast<double>(weights_ + c->session->kv_used_bytes()) / step / read);
}

void Bench::measure_all(uint32_t n, const std::vector<std::string>& policies) {
  const double began = limit_.elapsed();
  std::vector<Contender> contenders;
  for (const std::string& policy : policies) {
    const double before = limit_.elapsed();
    auto session = open(policy, n);
    if (!session.ok()) {
      leave_out(n, policy, session.status().message());
      continue;
    }
    contenders.emplace_back();
    contenders.back().policy = policy;
    contenders.back().session = std::move(session).value();
    contenders.back().opening = limit_.elapsed() - before;
  }
  for (Contender& c : contenders)  // a block that does not count: it settles
    for (int i = 0; i < steps_; ++i) step(c.session.get(), i);
  for (int block = 0; block < repeat_ && (block == 0 || !limit_.over()); ++block)
    for (Contender& c : contenders) measure(&c);
  for (int i = 0; i < settlings_; ++i)
    for (Contender& c : contenders) settle(&c);
  for (const Contender& c : contenders) print(n, c);
  contenders.clear();
  limit_.took(limit_.elapsed() - began, n);
}

void Bench::print_heads() const {
  if (on_cpu())
    std::printf("%8s  %-48s %8s %8s %9s %9s %9s %9s %7s %8s %9s %9s %7s\n", "context", "policy", "ms/step", "tokens/s", "KV MB", "attended",
                "searched", "fetched", "of read", "of floor", "checks", "triggers", "hidden");
  else
    std::printf("%8s  %-48s %8s %8s %9s %9s %9s %9s %8s %7s %6s %8s\n", "context", "policy", "ms/step", "tokens/s", "KV MB", "attended",
                "searched", "fetched", "host ms", "waits", "nodes", "of full");
  std::fflush(stdout);
}

void Bench::print(uint32_t n, const Contender& c) {
  const double step = median(c.times);
  policy::Report report;
  kv::Refills::Stats refills;
  double settle_ms = 0;
  if (const engine::Resident* r = c.session->resident())
    report = r->report(), refills = r->refill_stats(), settle_ms = static_cast<double>(r->settle_us()) / 1e3;
  char anew[64] = "";
  if (!c.settlings.empty()) std::snprintf(anew, sizeof anew, "; anew %.1f ms, room for %u tokens", median(c.settlings) * 1e3, c.room);
  std::printf("%8u  %-48s %8.2f %8.2f %9.1f %9.1f %9.1f %9.1f ", n, c.policy.c_str(), step * 1e3, 1 / step,
              static_cast<double>(c.session->kv_used_bytes()) / 1e6, median(c.attended) / 1e6, median(c.searched) / 1e6,
              median(c.fetched) / 1e6);
  if (on_cpu()) {
    std::printf("%6.1f%% %8.2f %9llu %9llu %6.1f%%", 100 * median(c.shares), median(c.floors),
                static_cast<unsigned long long>(report.n_checks), static_cast<unsigned long long>(report.n_triggers),
                refills.transfer_us ? 100 - 100 * static_cast<double>(refills.stall_us) / static_cast<double>(refills.transfer_us) : 100.);
  } else {
    if (c.policy == "full") full_[n] = step;
    char of_full[16] = "";
    if (full_.count(n)) std::snprintf(of_full, sizeof of_full, "%.1f%%", 100 * step / full_[n]);
    std::printf("%8.3f %7.1f %6zu %8s", median(c.hosts) * 1e3, median(c.waits), c.nodes, of_full);
  }
  std::printf(
      "  (%.1f MB refilled, %.1f ms on the link, %.1f ms stalled; settled %llu times, %.1f ms in all%s; %zu blocks, ready behind %.1f s)\n",
      static_cast<double>(refills.bytes) / 1e6, static_cast<double>(refills.transfer_us) / 1e3, static_cast<double>(refills.stall_us) / 1e3,
      static_cast<unsigned long long>(report.n_settled), settle_ms, anew, c.times.size(), c.opening);
  std::fflush(stdout);
  measured_ = true;
}

void Bench::run() {
  print_heads();
  const std::vector<std::string> policies = split(settings_.values.at("policies"), ',');
  for (const std::string& length : split(settings_.values.at("contexts"), ',')) {
    const auto n = static_cast<uint32_t>(std::atoi(length.c_str()));
    std::vector<std::vector<std::string>> groups;
    if (together_) groups.push_back(policies);
    else
      for (const std::string& policy : policies) groups.push_back({policy});
    for (const std::vector<std::string>& group : groups) {
      if (limit_.has_time(n)) {
        measure_all(n, group);
        continue;
      }
      for (const std::string& policy : group) leave_out(n, policy, "there is no time");
    }
  }
}

}  // namespace
}  // namespace orrery

int main(int argc, char** argv) {
  orrery::Settings settings;
  for (int i = 2; i < argc; ++i) {
    const std::string option = argv[i];
    const size_t equals = option.find('=');
    if (equals == std::string::npos || settings.values.count(option.substr(0, equals)) == 0) argc = 0;
    else settings.values[option.substr(0, equals)] = option.substr(equals + 1);
  }
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench_kv MODEL.gguf [option=value ...]; see its first lines\n");
    return 2;
  }
  orrery::Bench bench(argv[1], argv[0], settings);
  bench.run();
  return bench.measured() ? 0 : 1;
}
