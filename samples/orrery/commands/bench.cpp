// orrery bench: measured speed beside the machine's measured limits. Each row is a context length: prefill of that
// many tokens, then decode after them. One short run first brings the weights into memory and does not count. Each
// figure is the median of --repeat runs, with the minimum and maximum. Memory bandwidth bounds decode, and products
// bound prefill. Both limits (limits.h) are measured between the runs with the same number of threads, and each speed
// is shown as a share of its limit.
#include <algorithm>
#include <optional>

#include "answer.h"
#include "api.h"
#include "command.h"
#include "measure/bench_trace.h"
#include "measure/limits.h"
#include "measure/work.h"
#include "json_file.h"
#include "settings.h"
#include "system/write_file.h"

namespace orrery::tool {
namespace {

struct Spread {
  double median = 0, least = 0, most = 0;
  explicit Spread(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    const size_t n = values.size();
    median = n % 2 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
    least = values.front();
    most = values.back();
  }
  Json json() const { return {{"median", median}, {"min", least}, {"max", most}}; }
};

orrery_experts_info experts_of(const orrery_model* model) {
  orrery_experts_info info;
  orrery_experts_info_init(&info, sizeof info);
  call([&](orrery_error* error) { return orrery_model_experts(model, &info, error); });
  return info;
}

// What a generated token asked of the experts that lie on the device or beyond a link, as means over all of them.
struct ExpertsOfToken {
  double hits = 0, late = 0, missed = 0, wasted = 0, link_bytes = 0, stall_us = 0;
  double by_host = 0, host_us = 0;
  ExpertsOfToken() = default;
  ExpertsOfToken(const orrery_experts_info& before, const orrery_experts_info& after, uint64_t n_tokens) {
    const auto mean = [n_tokens](uint64_t from, uint64_t to) { return static_cast<double>(to - from) / static_cast<double>(n_tokens); };
    hits = mean(before.n_hits, after.n_hits), late = mean(before.n_late, after.n_late), missed = mean(before.n_missed, after.n_missed);
    wasted = mean(before.n_wasted, after.n_wasted), link_bytes = mean(before.link_bytes, after.link_bytes);
    stall_us = mean(before.stall_us, after.stall_us);
    by_host = mean(before.n_by_host, after.n_by_host), host_us = mean(before.host_us, after.host_us);
  }
  double asked() const { return hits + late + missed + by_host; }
};

orrery_streaming_info streaming_of(const orrery_model* model) {
  orrery_streaming_info info;
  orrery_streaming_info_init(&info, sizeof info);
  call([&](orrery_error* error) { return orrery_model_streaming(model, &info, error); });
  return info;
}

// What a generated token brought of the layers that lie in host memory, and what the processor computed of them.
struct LayersOfToken {
  uint64_t n_layers = 0, n_divided = 0;
  double link_bytes = 0, stall_us = 0, host_us = 0;
  LayersOfToken() = default;
  LayersOfToken(const orrery_streaming_info& before, const orrery_streaming_info& after, uint64_t n_tokens)
      : n_layers(after.n_layers), n_divided(after.n_divided) {
    const auto mean = [n_tokens](uint64_t from, uint64_t to) { return static_cast<double>(to - from) / static_cast<double>(n_tokens); };
    link_bytes = mean(before.link_bytes, after.link_bytes), stall_us = mean(before.stall_us, after.stall_us);
    host_us = mean(before.host_us, after.host_us);
  }
};

struct Measured {
  uint64_t prompt_tokens;
  Spread prefill, decode, first_token_ms;
  uint64_t kv_bytes;  // read by the last token
  ExpertsOfToken experts;
  LayersOfToken layers;
};

// "512,4096"
std::vector<uint64_t> parse_lengths(const std::string& text) {
  std::vector<uint64_t> lengths;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    lengths.push_back(parse_tokens(std::string_view(text).substr(begin, end - begin), "--prompt-tokens", 1, 1u << 28));
    begin = end + 1;
  }
  return lengths;
}

// Ordinary tokens without a pattern, in the same order on every run.
std::vector<int32_t> bench_prompt(const orrery_vocab* vocab, size_t n) {
  const orrery_vocab_info info = vocab_info(vocab);
  std::vector<int32_t> ordinary;
  for (int32_t token = 0; token < info.n_tokens; ++token) {
    if (orrery_token_flags(vocab, token) == 0) ordinary.push_back(token);
  }
  if (ordinary.empty()) throw Failure(kExitBadModel, "the vocabulary has no ordinary tokens to read");
  std::vector<int32_t> tokens;
  uint64_t state = 1;
  for (size_t i = 0; i < n; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    tokens.push_back(ordinary[(state >> 33) % ordinary.size()]);
  }
  return tokens;
}

// The minimum time per token for a prompt of n tokens, without attention and recurrence. 0 if a peak is unknown.
double prefill_seconds(const Work& work, uint64_t n, const Limits& limits) {
  const double count = static_cast<double>(n), floats = limits.float_ops_per_second(), halves = limits.half_ops_per_second(),
               quantized = limits.quantized_ops_per_second();
  if (floats <= 0 || halves <= 0 || quantized <= 0) return 0;
  const Work::Ops &all = work.ops, &last = work.last_ops;
  return (all.floats + last.floats / count) / floats + (all.halves + last.halves / count) / halves +
         (all.quantized + last.quantized / count) / quantized;
}

Measured measure(const orrery_model* model, orrery_session* session, const orrery_vocab* vocab, uint64_t n_prompt, uint32_t n_generate,
                 uint64_t repeat, Limits* limits, StepTrace* trace) {
  const std::vector<int32_t> prompt = bench_prompt(vocab, n_prompt);
  const std::vector<int32_t> short_prompt(prompt.begin(), prompt.begin() + static_cast<int64_t>(std::min<uint64_t>(n_prompt, 32)));
  orrery_generate_options options;
  orrery_generate_options_init(&options, sizeof options);
  options.ignore_end = 1;
  std::vector<double> prefill, decode, first;
  orrery_experts_info before = {};
  orrery_streaming_info layers_before = {};
  for (uint64_t i = 0; i <= repeat; ++i) {
    call([&](orrery_error* error) { return orrery_session_rewind(session, 0, error); });
    options.max_tokens = i == 0 ? 2 : n_generate;
    const Generation generation = begin_continuation(session, i == 0 ? short_prompt : prompt, options);
    const Answer answer = take_answer(generation.get(), {});
    if (answer.interrupted()) throw Failure(kExitInterrupted, "interrupted");
    limits->sample();
    if (trace && i == 0) trace->clear();
    if (i == 0) before = experts_of(model), layers_before = streaming_of(model);
    if (i == 0) continue;
    if (trace) trace->add_decode(answer.decode_seconds * 1e6, answer.generated_tokens - 1);
    prefill.push_back(answer.prefill_rate());
    decode.push_back(answer.decode_rate());
    first.push_back(static_cast<double>(answer.first_token_us) / 1000);
  }
  orrery_stats stats;
  orrery_stats_init(&stats, sizeof stats);
  call([&](orrery_error* error) { return orrery_session_stats(session, &stats, error); });
  const ExpertsOfToken experts(before, experts_of(model), repeat * (n_generate - 1));
  const LayersOfToken layers(layers_before, streaming_of(model), repeat * (n_generate - 1));
  return {n_prompt, Spread(prefill), Spread(decode), Spread(first), stats.device_kv_used_bytes, experts, layers};
}

int bench(const Args& args, Output& out) {
  const std::vector<uint64_t> lengths = parse_lengths(args.text("--prompt-tokens", "512"));
  const auto n_generate = static_cast<uint32_t>(args.tokens("--gen-tokens", 2, 1u << 28, 64));
  const uint64_t repeat = args.integer("--repeat", 1, 10000, 5);
  const SessionSettings session_settings(args);
  orrery_session_options wishes = session_settings.options();
  wishes.reuse_prompts = 0;  // the same prompt again is computed again
  const uint64_t needed = *std::max_element(lengths.begin(), lengths.end()) + n_generate;
  if (wishes.n_context == 0) wishes.n_context = static_cast<uint32_t>(needed);
  if (wishes.n_context < needed) {
    throw UsageError(format("--context %u is less than the %llu tokens to be read and written", wishes.n_context,
                            static_cast<unsigned long long>(needed)));
  }
  const std::string& path = args.words()[0];
  const Interrupts interrupts;
  const Json description = parse_json(inspect(path), path);
  const Json& tensors = description.at("tensors");
  const std::string* picture = args.find("--trace-svg");
  if (picture && is_standard_output(*picture)) throw UsageError("--trace-svg: the table goes to standard output, the picture needs a file");
  std::optional<StepTrace> trace;
  if (picture || args.has("--trace")) trace.emplace(tensors);
  const std::optional<LogSink> sink = trace ? std::optional<LogSink>(trace->sink()) : std::nullopt;
  const Loaded loaded = load(path, args, interrupts, sink ? &*sink : nullptr);
  const Session session = open_session(loaded, wishes);
  orrery_stats opened;
  orrery_stats_init(&opened, sizeof opened);
  call([&](orrery_error* error) { return orrery_session_stats(session.get(), &opened, error); });
  const Vocab vocab(orrery_model_vocab(loaded.model.get()));
  const orrery_model_info info = model_info(loaded.model.get());
  orrery_runtime_info runtime;
  orrery_runtime_info_init(&runtime, sizeof runtime);
  call([&](orrery_error* error) { return orrery_runtime_get_info(loaded.runtime.get(), &runtime, error); });
  const Work work = work_per_token(description);
  Limits limits(runtime.n_threads, runtime.path, work.weights_bytes);

  Json rows = Json::array();
  if (!args.has("--json")) {
    out.text(format("%s: %s, %s parameters, %s\n", info.name[0] ? info.name : path.c_str(), info.architecture,
                    human_count(info.n_parameters).c_str(), info.quantization));
    out.write(format("%s (%s), %d threads, KV cache %s; %llu runs after a short run that does not count, median (minimum - maximum)\n",
                     runtime.backend, runtime.path, runtime.n_threads, kv_type_names(wishes.kv_type, opened.device_kv_type).c_str(),
                     static_cast<unsigned long long>(repeat)));
    if (runtime.gpu_use != ORRERY_GPU_USED && runtime.gpu_use != ORRERY_GPU_NOT_WANTED)
      out.text(format("No GPU computes: %s\n", runtime.gpu_reason));
    out.write(format("Every token reads %s bytes of weights (%s)\n", grouped(work.weights_bytes).c_str(),
                     human_bytes(work.weights_bytes).c_str()));
    if (work.state_bytes > 0)
      out.write(format("and %s bytes of recurrent states, half of them to be written\n", grouped(work.state_bytes).c_str()));
    out.write("\n");
    out.write(format("%8s  %28s  %7s  %28s  %9s  %7s  %12s\n", "context", "prefill tokens/s", "of peak", "decode tokens/s", "bytes",
                     "of read", "first token"));
    out.flush();
  }
  bool beaten = false;
  for (const uint64_t length : lengths) {
    const Measured measured =
        measure(loaded.model.get(), session.get(), vocab.get(), length, n_generate, repeat, &limits, trace ? &*trace : nullptr);
    const double read = limits.read_bytes_per_second();
    const double rate = measured.decode.median * static_cast<double>(work.bytes() + measured.kv_bytes);
    const double prefill_share = measured.prefill.median * prefill_seconds(work, length, limits);
    const double decode_share = read > 0 ? rate / read : 0;
    const auto cell = [](const Spread& spread, int digits) {
      return format("%.*f (%.*f - %.*f)", digits, spread.median, digits, spread.least, digits, spread.most);
    };
    // A limit that was beaten is none: its measurement is wrong on this machine, and a share of it would say nothing.
    beaten = beaten || prefill_share > 1 || decode_share > 1;
    const auto percent = [](double share) { return share > 0 && share <= 1 ? format("%.0f%%", 100 * share) : std::string("-"); };
    const auto share_of_limit = [](double share) { return share > 0 && share <= 1 ? Json(share) : Json(); };
    if (picture && !trace->empty())
      write_file(*picture, trace->svg(format("%s, %s, %d threads, behind %llu tokens", info.name[0] ? info.name : path.c_str(),
                                             runtime.path, runtime.n_threads, static_cast<unsigned long long>(length)),
                                      read));
    if (args.has("--json")) {
      rows.push_back({{"prompt_tokens", length},
                      {"generated_tokens", n_generate},
                      {"prefill_tokens_per_second", measured.prefill.json()},
                      {"prefill_share_of_peak", share_of_limit(prefill_share)},
                      {"decode_tokens_per_second", measured.decode.json()},
                      {"decode_share_of_read", share_of_limit(decode_share)},
                      {"first_token_ms", measured.first_token_ms.json()},
                      {"kv_bytes", measured.kv_bytes},
                      {"weights_gb_per_second", measured.decode.median * static_cast<double>(work.weights_bytes) / 1e9}});
      if (const ExpertsOfToken& e = measured.experts; e.asked() > 0)
        rows.back()["experts_of_token"] = {
            {"hits", e.hits},         {"late", e.late},       {"missed", e.missed},  {"wasted", e.wasted}, {"link_bytes", e.link_bytes},
            {"stall_us", e.stall_us}, {"by_host", e.by_host}, {"host_us", e.host_us}};
      if (const LayersOfToken& l = measured.layers; l.n_layers + l.n_divided > 0)
        rows.back()["layers_of_token"] = {{"layers", l.n_layers},
                                          {"link_bytes", l.link_bytes},
                                          {"stall_us", l.stall_us},
                                          {"divided", l.n_divided},
                                          {"host_us", l.host_us}};
      if (trace) rows.back()["trace"] = trace->json(read);
      continue;
    }
    out.write(format("%8llu  %28s  %7s  %28s  %4.1f GB/s  %7s  %9.1f ms\n", static_cast<unsigned long long>(length),
                     cell(measured.prefill, 0).c_str(), percent(prefill_share).c_str(), cell(measured.decode, 1).c_str(), rate / 1e9,
                     percent(decode_share).c_str(), measured.first_token_ms.median));
    if (const ExpertsOfToken& e = measured.experts; e.by_host > 0)
      out.write(format("%8s  experts of a token: %.0f%% on the device, %.0f%% computed by the processor in %.2f ms\n", "",
                       100 * e.hits / e.asked(), 100 * e.by_host / e.asked(), e.host_us / 1000));
    else if (e.asked() > 0)
      out.write(
          format("%8s  experts of a token: %.0f%% on the device, %.0f%% on their way, %.0f%% missed; %s over the link, %.2f ms waited\n",
                 "", 100 * e.hits / e.asked(), 100 * e.late / e.asked(), 100 * e.missed / e.asked(),
                 human_bytes(static_cast<uint64_t>(e.link_bytes)).c_str(), e.stall_us / 1000));
    if (const LayersOfToken& l = measured.layers; l.n_layers > 0)
      out.write(format("%8s  %llu layers in host memory: %s over the link for a token, %.2f ms waited\n", "",
                       static_cast<unsigned long long>(l.n_layers), human_bytes(static_cast<uint64_t>(l.link_bytes)).c_str(),
                       l.stall_us / 1000));
    if (const LayersOfToken& l = measured.layers; l.n_divided > 0)
      out.write(format("%8s  %llu layers with columns that the processor computed, in %.2f ms of a token\n", "",
                       static_cast<unsigned long long>(l.n_divided), l.host_us / 1000));
    if (trace) out.text(trace->empty() ? "the backend does not measure its steps\n" : trace->table(read) + "\n");
    out.flush();
  }
  const double read = limits.read_bytes_per_second(), float_peak = limits.float_ops_per_second(), half_peak = limits.half_ops_per_second(),
               quantized_peak = limits.quantized_ops_per_second();
  if (!args.has("--json")) {
    out.write(format("\nMeasured between the runs, with the same number of threads: reading %.1f GB/s", read / 1e9));
    if (float_peak > 0)
      out.write(format(", products %.0f GFLOP/s in F32, %.0f of F16 and BF16, %.0f GOP/s of quantized weights", float_peak / 1e9,
                       half_peak / 1e9, quantized_peak / 1e9));
    out.write("\n");
    if (beaten) out.write("A speed without a share was above its limit: on this machine that limit is measured too low.\n");
  } else {
    const Json json = {{"model",
                        {{"path", path},
                         {"name", info.name},
                         {"architecture", info.architecture},
                         {"parameters", info.n_parameters},
                         {"quantization", info.quantization}}},
                       {"library", orrery_version()},
                       {"backend", runtime.backend},
                       {"cpu_path", runtime.path},
                       {"threads", runtime.n_threads},
                       {"kv_type", kv_type_name(wishes.kv_type)},
                       {"device_kv_type", kv_type_name(opened.device_kv_type)},
                       {"repeat", repeat},
                       {"weights_bytes_per_token", work.weights_bytes},
                       {"state_bytes_per_token", work.state_bytes},
                       {"limits",
                        {{"read_gb_per_second", read / 1e9},
                         {"float_gflop_per_second", float_peak / 1e9},
                         {"half_gflop_per_second", half_peak / 1e9},
                         {"quantized_gop_per_second", quantized_peak / 1e9}}},
                       {"results", rows}};
    out.text(dump_json(json, 2) + "\n");
  }
  return kExitOk;
}

}  // namespace

const Command& bench_command() {
  static const Command command = {
      "bench",
      "MODEL.gguf [options]",
      "prefill and decode speed, measured",
      "For each context length: prefill of that many tokens, then decode of --gen-tokens after them. GB/s is the rate of\n"
      "reading weights and KV that the measured decode speed implies. The machine's limits are measured between the runs,\n"
      "with the same number of threads: reading a buffer of the weights' size (this needs that memory for a moment, 4 GiB\n"
      "at most), and products in registers (the limit of prefill; products of attention are not counted).\n"
      "--trace adds a table of a decode step's microseconds by operation and thread, with the bytes beside each; measuring them\n"
      "slows the step a little.\n",
      {{"Options",
        {{"--prompt-tokens", "N[,N...]", "Context lengths to measure at (default 512)."},
         {"--gen-tokens", "N", "Tokens written at each, at least 2 (default 64)."},
         {"--repeat", "N", "Runs that count (default 5)."},
         {"--trace", nullptr, "Where a decode step's time goes (CPU)."},
         {"--trace-svg", "FILE", "The same as a picture, of the last context length; implies --trace."},
         {"--json", nullptr, "The results as JSON."}}},
       session_group(),
       runtime_group(),
       model_group()},
      "  orrery bench model.gguf --prompt-tokens 512,4096,16384\n"
      "  orrery bench model.gguf --threads 4 --json > before.json\n",
      1,
      1,
      bench};
  return command;
}

}  // namespace orrery::tool
