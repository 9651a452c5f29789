// What a token costs where some experts of a mixture cross a simulated link: bench_experts MODEL.gguf [option=value ...]
//   links=26,12       GB/s, each with latency_us
//   shares=75,50,25   percent of the experts that the arena has room for; all is measured first
//   latency_us=5      of each transfer
//   prompt=32  tokens=256  decoded behind it; each is drawn at random, so experts are chosen as the file's weights choose
//   repeat=3  threads=2  path=auto  budget_gib=4
//   host=1     the processor computes the other experts beside the "device": half of the threads stand for each, and no link is used. Of a
//              dense model: the other columns of its feed-forward blocks
//
// Each row: the time of a token (median of the runs, each of which decodes all tokens), its share of the speed of all experts in the arena,
// what was there, on its way or missed, and the time that the plan's arithmetic (samples/orrery/measure/division.h) gives for the row's own share of
// guesses and of experts that cross the link, and for the copies themselves. Shares and predictions are of the runs of all experts that take turns with the row's own: these
// machines are noisy.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/engine/session/session.h"
#include "samples/orrery/measure/division.h"

namespace orrery {
namespace {

template <class T>
T unwrap(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "bench_experts: %s\n", result.status().message());
  std::exit(1);
}
void unwrap(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "bench_experts: %s\n", status.message());
  std::exit(1);
}

struct Wishes {
  std::string path;
  std::vector<double> links = {26, 12}, shares = {75, 50, 25};
  double latency_us = 5, budget_gib = 4;
  int prompt = 32, tokens = 256, repeat = 3, threads = 2, host = 0;
  std::string instruction_set = "auto";
};

std::vector<double> numbers(const std::string& text) {
  std::vector<double> all;
  for (const char* at = text.c_str(); *at;) {
    char* end = nullptr;
    all.push_back(std::strtod(at, &end));
    if (end == at) std::exit(2);
    at = *end == ',' ? end + 1 : end;
  }
  return all;
}

Wishes read_wishes(int argc, char** argv) {
  Wishes w;
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench_experts MODEL.gguf [option=value ...]\n");
    std::exit(2);
  }
  w.path = argv[1];
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    const size_t at = word.find('=');
    const std::string name = word.substr(0, at), value = at == std::string::npos ? "" : word.substr(at + 1);
    if (name == "links") w.links = numbers(value);
    else if (name == "shares") w.shares = numbers(value);
    else if (name == "latency_us") w.latency_us = std::atof(value.c_str());
    else if (name == "budget_gib") w.budget_gib = std::atof(value.c_str());
    else if (name == "prompt") w.prompt = std::atoi(value.c_str());
    else if (name == "tokens") w.tokens = std::atoi(value.c_str());
    else if (name == "repeat") w.repeat = std::atoi(value.c_str());
    else if (name == "threads") w.threads = std::atoi(value.c_str());
    else if (name == "host") w.host = std::atoi(value.c_str());
    else if (name == "path") w.instruction_set = value;
    else {
      std::fprintf(stderr, "bench_experts: no option is called '%s'\n", name.c_str());
      std::exit(2);
    }
  }
  return w;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0.0 : values[values.size() / 2];
}

// A model with room for some of its experts on the device, and one session of it.
struct Opened {
  std::shared_ptr<engine::LanguageModel> model;
  std::unique_ptr<engine::Session> session;
};

Opened open(const Wishes& w, double link, int64_t experts, bool by_host = false, int64_t columns = -1) {
  engine::RuntimeOptions options;
  options.n_threads = by_host ? w.threads / 2 : w.threads;
  options.n_host_threads = w.threads - options.n_threads;
  options.cpu_path = w.instruction_set;
  options.device_budget_bytes = static_cast<uint64_t>(w.budget_gib * 1024 * 1024 * 1024);
  if (link > 0) options.link = {static_cast<uint64_t>(link * 1e9), static_cast<uint32_t>(w.latency_us)};
  engine::ModelOptions model;
  model.experts_on_device = experts, model.host_computes = by_host ? engine::HostComputes::always : engine::HostComputes::never;
  model.columns_on_device = columns;
  engine::ModelSource source;
  source.path = w.path;
  Opened o;
  o.model = unwrap(engine::LanguageModel::open(unwrap(engine::Runtime::create(options)), source, model));
  engine::SessionOptions session;
  session.n_context = static_cast<uint32_t>(w.prompt + w.tokens + 1);
  o.session = unwrap(engine::Session::open(o.model, session));
  return o;
}

// Milliseconds of a token. The seed is the run's, so each division decodes the same tokens.
double decode(const Wishes& w, Opened* o, uint64_t seed) {
  const auto n_vocab = static_cast<uint64_t>(o->model->description().n_vocab);
  const auto next = [&] {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int32_t>((seed >> 33) % n_vocab);
  };
  std::vector<int32_t> prompt(static_cast<size_t>(w.prompt));
  for (int32_t& token : prompt) token = next();
  o->session->sequence().truncate(0);
  unwrap(o->session->prefill(prompt, nullptr, nullptr));
  const uint64_t begin = now_us();
  for (int i = 0; i < w.tokens; ++i) {
    o->session->push_generated(next());
    unwrap(o->session->decode());
  }
  return static_cast<double>(now_us() - begin) / 1000 / w.tokens;
}

// Microseconds in which the processor computed beside the device, and its share of what it might have computed.
struct ByHost {
  double us = 0, share = 0;
};
ByHost by_host(const Opened& o, double share_there, const model::HostExperts::Counts& before, uint64_t us_before) {
  if (const model::HostColumns* columns = o.model->weights().columns.get())
    return {static_cast<double>(columns->counts().host_us - us_before), 100 - share_there};
  const model::HostExperts::Counts after = o.model->weights().host->counts();
  const auto here = static_cast<double>(after.by_host - before.by_host), there = static_cast<double>(after.on_device - before.on_device);
  return {static_cast<double>(after.host_us - before.host_us), 100 * here / (here + there)};
}

// Both sides compute the experts or columns: against all of them on one side with all threads, whose rate is the sum of both sides', and with
// the device's threads alone.
void run_by_host(const Wishes& w) {
  Wishes one_side = w;
  one_side.threads = w.threads / 2;
  Opened all = open(w, 0, -1), half = open(one_side, 0, -1);
  const bool mixture = static_cast<bool>(all.model->description().experts());
  const double n_units = mixture ? static_cast<double>(open(w, 0, 0).model->weights().experts->units().n_units()) : 0;
  std::printf("%s: %.0f experts; %d threads on each side, %s\n", w.path.c_str(), n_units, w.threads / 2,
              all.model->runtime().backend_info().instruction_set);
  std::printf("%7s  %9s %10s %9s  %6s  %8s %8s\n", mixture ? "experts" : "columns", "ms/token", "both sides", "one side", "of sum",
              "by host", "its ms");
  for (const double share : w.shares) {
    Opened some = mixture ? open(w, 26, static_cast<int64_t>(n_units * share / 100), true) : open(w, 26, -1, true, std::lround(share));
    for (Opened* o : {&some, &all, &half}) (void)decode(w, o, 1);
    const model::HostExperts::Counts before = mixture ? some.model->weights().host->counts() : model::HostExperts::Counts{};
    const uint64_t us_before = mixture ? 0 : some.model->weights().columns->counts().host_us;
    std::vector<double> ms[3];
    for (int i = 0; i < w.repeat; ++i) {
      const auto seed = static_cast<uint64_t>(2 + i);
      ms[0].push_back(decode(w, &some, seed)), ms[1].push_back(decode(w, &all, seed)), ms[2].push_back(decode(w, &half, seed));
    }
    const ByHost host = by_host(some, share, before, us_before);
    std::printf("%6.0f%%  %9.2f %10.2f %9.2f  %5.0f%%  %7.0f%% %8.2f\n", share, median(ms[0]), median(ms[1]), median(ms[2]),
                100 * median(ms[1]) / median(ms[0]), host.share, host.us / 1000 / (static_cast<double>(w.repeat) * w.tokens));
    std::fflush(stdout);
  }
}

void run(const Wishes& w) {
  Opened all = open(w, 0, -1);
  const model::Description& d = all.model->description();
  const auto units = open(w, 0, 0).model->weights().experts->units();
  const auto n_units = static_cast<double>(units.n_units());
  double used = 0;
  for (const model::ExpertUnits::Layer& layer : units.layers) used += d.layer(layer.layer).experts.router.n_used;
  std::printf("%s: %.0f experts of %.2f MiB, %.0f of them a token; %d threads, %s\n", w.path.c_str(), n_units,
              static_cast<double>(units.slot_bytes()) / 1048576, used, w.threads, all.model->runtime().backend_info().instruction_set);
  std::printf("%5s %7s  %9s %9s %6s  %5s %5s %6s  %8s %8s  %9s %6s\n", "GB/s", "experts", "ms/token", "all there", "speed", "there", "late",
              "missed", "MB/token", "waited", "predicted", "error");
  for (const double link : w.links)
    for (const double share : w.shares) {
      const auto n = static_cast<int64_t>(n_units * share / 100);
      Opened some = open(w, link, n);
      (void)decode(w, &some, 1), (void)decode(w, &all, 1);
      const model::ExpertStore::Counts before = some.model->weights().experts->counts();
      std::vector<double> with, without;
      for (int i = 0; i < w.repeat; ++i) {
        without.push_back(decode(w, &all, static_cast<uint64_t>(2 + i)));
        with.push_back(decode(w, &some, static_cast<uint64_t>(2 + i)));
      }
      const model::ExpertStore::Counts after = some.model->weights().experts->counts();
      const double tokens = static_cast<double>(w.repeat) * w.tokens;
      const double asked = static_cast<double>(after.asked() - before.asked()) / tokens;
      const auto of_asked = [&](uint64_t from, uint64_t to) { return 100 * static_cast<double>(to - from) / tokens / asked; };
      const double bytes = static_cast<double>(after.bytes - before.bytes) / tokens;
      const double ms = median(with), all_ms = median(without);
      // The plan's arithmetic: computation is as long as it is with all experts there.
      tool::Division division;
      division.work.n_experts = units.n_units(), division.work.used_experts = static_cast<uint64_t>(used);
      division.work.expert_bytes = units.bytes(), division.work.weights_bytes = static_cast<uint64_t>(all_ms * 1e-3 * 1e9);
      division.work.expert_layers = units.layers.size();
      const double transfer = 1 / (1 / (link * 1e9) + w.latency_us * 1e-6 / division.unit_bytes());
      const double crossing = bytes / division.unit_bytes(), missed = static_cast<double>(after.missed - before.missed) / tokens;
      const tool::TokenTime time =
          division.time({1e9, transfer, crossing > 0 ? 1 - missed / crossing : 0}, static_cast<uint64_t>(n), 1 - crossing / used);
      // Here the device's memory is the host's: what crosses the link is read and written there, at the rate of the products.
      const model::Model& m = all.model->weights();
      const double active =
          static_cast<double>(m.weights_bytes) * static_cast<double>(m.n_used_parameters) / static_cast<double>(m.n_parameters);
      const double predicted = time.total() * 1e3 + 2 * bytes / active * all_ms;
      std::printf("%5.0f %6.0f%%  %9.2f %9.2f %5.0f%%  %4.0f%% %4.0f%% %5.0f%%  %8.1f %6.2fms  %9.2f %+5.0f%%\n", link, share, ms, all_ms,
                  100 * all_ms / ms, of_asked(before.hits, after.hits), of_asked(before.late, after.late),
                  of_asked(before.missed, after.missed), bytes / 1e6, static_cast<double>(after.stall_us - before.stall_us) / tokens / 1000,
                  predicted, 100 * (predicted / ms - 1));
      std::fflush(stdout);
    }
}

}  // namespace
}  // namespace orrery

int main(int argc, char** argv) {
  const orrery::Wishes wishes = orrery::read_wishes(argc, argv);
  if (wishes.host) orrery::run_by_host(wishes);
  else orrery::run(wishes);
  return 0;
}
