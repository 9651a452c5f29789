// Decoding behind long contexts, under KV policies: bench_kv MODEL.gguf [option=value ...]
//   contexts=32768,131072   tokens of made-up KV
//   policies=full,heterocache   policy[:option=value...]; all but full with the made-up head profile beside this file, where that has the model's
//                           shape; device_kv=q8_0 among the options: the type of KV on the device
//   budget=0.25  steps=50  threads=0  repeat=5
//   settlings=0  so many more, behind the blocks: the median's time, and how many tokens a head has room for behind one
//   link=0       bytes per second of a simulated link, 0: none
//   latency=0    its microseconds for each request
//   path=auto    the instruction set
//   load=map     weights where the file is mapped, or read into memory (read), whose pages are larger
//
// KV pages hold random F16 numbers: what heads attend to means nothing, the bytes that move are real.  Policies take turns,
// a block of steps each, and each figure is the median of `repeat` blocks.  What a step cannot do without are weights, the KV that it
// attends to, what it looks for tokens in (digests, rows of low-rank keys, keys), and what it fetches, which is read once and written
// once; each as the session has counted it.  `of floor` is a step's time over that of these bytes at the rate at which the same threads
// merely read memory, measured behind each block; `of read` the share of that rate that weights and resident KV come to.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/os/thread_pool.h"
#include "runtime/engine/session/session.h"
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
      : pool_(unwrap(ThreadPool::make(n_threads, os::available_processors()))),
        memory_(unwrap(os::Region::allocate(uint64_t{1} << 30))) {
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

void fill_page(uint32_t page, Span<std::byte> bytes) {
  uint64_t state = page * 0x9E3779B97F4A7C15u + 1;
  for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    // Halves of both signs, from 1/8 to 2.
    const uint64_t halves = (state & 0x8FFF8FFF8FFF8FFFu) + 0x3000300030003000u;
    std::memcpy(bytes.data() + i, &halves, 8);
  }
}

struct Settings {
  std::map<std::string, std::string> values = {{"contexts", "32768,131072"}, {"policies", "full,heterocache"},
                                               {"budget", "0.25"},           {"steps", "50"},
                                               {"threads", "0"},             {"repeat", "5"},
                                               {"link", "0"},                {"latency", "0"},
                                               {"settlings", "0"},           {"load", "map"},
                                               {"path", "auto"}};
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
  std::vector<double> times, shares, floors;   // of each block: seconds a step; of the rate of reading; of the floor
  std::vector<double> attended, searched, fetched;   // bytes a step
  std::vector<double> settlings;                     // seconds
  uint32_t room = 0;                                 // tokens of the head that is full first
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

void run(const std::string& path, const Settings& settings) {
  engine::RuntimeOptions options;
  options.n_threads = static_cast<int32_t>(settings.number("threads"));
  options.cpu_path = settings.values.at("path");
  options.link.bytes_per_second = static_cast<uint64_t>(settings.number("link"));
  options.link.latency_us = static_cast<uint32_t>(settings.number("latency"));
  const uint64_t n_sessions = split(settings.values.at("policies"), ',').size();
  options.device_budget_bytes = options.reservoir_bytes = (4 + n_sessions * 5) << 30;
  const auto runtime = unwrap(engine::Runtime::create(options));
  engine::ModelOptions loading;
  loading.load = settings.values.at("load") == "read" ? gguf::Load::read : gguf::Load::map;
  const auto model = unwrap(engine::LanguageModel::open(runtime, path, loading));
  const BackendInfo info = runtime->backend_info();
  std::ifstream file(ORRERY_BENCH_PROFILE);
  const std::string json{std::istreambuf_iterator<char>(file), {}};
  const auto profile = std::make_shared<const policy::HeadProfile>(unwrap(policy::read_profile(json)));
  ReadRate rate(info.n_threads);

  const int steps = static_cast<int>(settings.number("steps")), repeat = static_cast<int>(settings.number("repeat"));
  const int settlings = static_cast<int>(settings.number("settlings"));
  // Of the embedding a token reads one row.
  const Weight& table = model->weights().weights.embedding;
  const bool tied = table.data.address == model->weights().weights.output.data.address;
  const uint64_t weights =
      model->weights().weights_bytes -
      (tied ? 0 : static_cast<uint64_t>(table.n_rows) * row_bytes(table.type, static_cast<uint64_t>(table.n_cols)));
  std::printf("%s, %s (%s), %d threads; weights read by a step: %.0f MB; link %.1f GB/s\n", path.c_str(), info.name,
              info.instruction_set, info.n_threads, static_cast<double>(weights) / 1e6, settings.number("link") / 1e9);
  std::printf("%8s  %-48s %8s %8s %9s %9s %9s %9s %7s %8s %9s %9s %7s\n", "context", "policy", "ms/step", "tokens/s", "KV MB", "attended",
              "searched", "fetched", "of read", "of floor", "checks", "triggers", "hidden");
  for (const std::string& length : split(settings.values.at("contexts"), ',')) {
    const uint32_t n = static_cast<uint32_t>(std::atoi(length.c_str()));
    std::vector<Contender> contenders;
    for (const std::string& policy : split(settings.values.at("policies"), ',')) {
      engine::SessionOptions wishes;
      const std::vector<std::string> parts = split(policy, ':');
      wishes.policy = parts[0];
      const uint32_t of_settlings = settlings > 0 ? n / 32 + 8 * static_cast<uint32_t>(settlings) : 0;   // a tail, and settling steps
      wishes.n_context = n + static_cast<uint32_t>(steps * (repeat + 1)) + 64 + of_settlings;
      for (size_t i = 1; i < parts.size(); ++i) {
        const size_t equals = parts[i].find('=');
        if (parts[i].substr(0, equals) == "device_kv") {
          wishes.device_kv_type = kv_type(parts[i].substr(equals + 1));
          continue;
        }
        wishes.policy_options.emplace_back(parts[i].substr(0, equals), parts[i].substr(equals + 1));
      }
      if (wishes.compressed()) {
        wishes.kv_share = settings.number("budget");
        const model::Hyperparameters& h = model->hyper();
        const std::vector<uint32_t> kv_heads(static_cast<size_t>(h.n_layers), static_cast<uint32_t>(h.n_kv_heads));
        if (policy::check_profile_fits(*profile, profile->model, kv_heads).ok()) wishes.head_profile = profile;
      }
      contenders.emplace_back();
      contenders.back().policy = policy;
      contenders.back().session = unwrap(engine::Session::open(model, wishes));
      std::vector<int32_t> prompt(n);
      for (uint32_t i = 0; i < n; ++i) prompt[i] = static_cast<int32_t>(300 + i * 7919 % 30000);
      unwrap(contenders.back().session->assume_prompt(prompt, fill_page));
    }
    for (int block = 0; block <= repeat; ++block)   // the first does not count: it settles
      for (Contender& c : contenders) {
        const Bytes before = bytes_so_far(*c.session, 0);
        const uint64_t start = now_us();
        for (int i = 0; i < steps; ++i) {
          c.session->push_generated(static_cast<int32_t>(300 + i));
          unwrap(c.session->decode());
        }
        const double step = static_cast<double>(now_us() - start) * 1e-6 / steps;
        const double read = rate.measure();
        if (block == 0) continue;
        const Bytes after = bytes_so_far(*c.session, steps);
        c.attended.push_back((after.attended - before.attended) / steps);
        c.searched.push_back((after.searched - before.searched) / steps);
        c.fetched.push_back((after.fetched - before.fetched) / steps);
        const double bytes = static_cast<double>(weights) + c.attended.back() + c.searched.back() + 2 * c.fetched.back();
        c.floors.push_back(step * read / bytes);
        c.times.push_back(step);
        c.shares.push_back(static_cast<double>(weights + c.session->kv_used_bytes()) / step / read);
      }
    for (int i = 0; i < settlings; ++i)
      for (Contender& c : contenders) settle(&c);
    for (const Contender& c : contenders) {
      const double step = median(c.times);
      const uint64_t kv = c.session->kv_used_bytes();
      policy::Report report;
      kv::Refills::Stats refills;
      double settle_ms = 0;
      if (const engine::Resident* r = c.session->resident())
        report = r->report(), refills = r->refill_stats(), settle_ms = static_cast<double>(r->settle_us()) / 1e3;
      char anew[64] = "";
      if (!c.settlings.empty())
        std::snprintf(anew, sizeof anew, "; anew %.1f ms, room for %u tokens", median(c.settlings) * 1e3, c.room);
      std::printf("%8u  %-48s %8.2f %8.2f %9.1f %9.1f %9.1f %9.1f %6.1f%% %8.2f %9llu %9llu %6.1f%%  (%.1f MB refilled, %.1f ms on the link, "
                  "%.1f ms stalled; settled %llu times, %.1f ms in all%s)\n",
                  n, c.policy.c_str(), step * 1e3, 1 / step, static_cast<double>(kv) / 1e6, median(c.attended) / 1e6, median(c.searched) / 1e6,
                  median(c.fetched) / 1e6, 100 * median(c.shares), median(c.floors), static_cast<unsigned long long>(report.n_checks),
                  static_cast<unsigned long long>(report.n_triggers), 100 * refills.hidden(), static_cast<double>(refills.bytes) / 1e6,
                  static_cast<double>(refills.transfer_us) / 1e3, static_cast<double>(refills.stall_us) / 1e3,
                  static_cast<unsigned long long>(report.n_settled), settle_ms, anew);
      std::fflush(stdout);
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
  orrery::run(argv[1], settings);
  return 0;
}
