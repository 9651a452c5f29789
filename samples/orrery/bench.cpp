// orrery bench: how fast, measured. Each row is a context length: prefill of that many tokens, then decoding
// behind them; one run that does not count, then the median of --repeat runs with the least and the most. The
// decode speed is put beside the bytes of weights that every token reads, because memory bandwidth is what
// bounds it.
#include <algorithm>

#include "answer.h"
#include "api.h"
#include "command.h"
#include "json_file.h"
#include "settings.h"

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

struct Measured {
  uint64_t prompt_tokens;
  Spread prefill, decode, first_token_ms;
};

// "512,4096"
std::vector<uint64_t> parse_lengths(const std::string& text) {
  std::vector<uint64_t> lengths;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find(',', begin), text.size());
    lengths.push_back(
        parse_integer(std::string_view(text).substr(begin, end - begin), "--prompt-tokens", 1, 1u << 28));
    begin = end + 1;
  }
  return lengths;
}

// Ordinary tokens in an order that has no pattern and is the same every time.
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

// Of an embedding that is not also the output matrix, a token reads one row: it does not count.
uint64_t weights_per_token(const std::string& path) {
  const Json description = parse_json(inspect(path), path);
  uint64_t total = 0, embedding = 0;
  bool has_output = false;
  for (const Json& tensor : description.at("tensors")) {
    const std::string name = tensor.at("name");
    const uint64_t bytes = tensor.at("bytes");
    total += bytes;
    if (name == "token_embd.weight") embedding = bytes;
    if (name == "output.weight") has_output = true;
  }
  return has_output ? total - embedding : total;
}

Measured measure(orrery_session* session, const orrery_vocab* vocab, uint64_t n_prompt, uint32_t n_generate,
                 uint64_t repeat) {
  const std::vector<int32_t> prompt = bench_prompt(vocab, n_prompt);
  orrery_generate_options options;
  orrery_generate_options_init(&options);
  options.max_tokens = n_generate;
  options.ignore_end = 1;
  std::vector<double> prefill, decode, first;
  for (uint64_t i = 0; i <= repeat; ++i) {
    call([&](orrery_error* error) { return orrery_session_rewind(session, 0, error); });
    const Generation generation = begin_continuation(session, prompt, options);
    const Answer answer = take_answer(generation.get(), {});
    if (answer.interrupted()) throw Failure(kExitInterrupted, "interrupted");
    if (i == 0) continue;
    prefill.push_back(answer.prefill_rate());
    decode.push_back(answer.decode_rate());
    first.push_back(static_cast<double>(answer.first_token_us) / 1000);
  }
  return {n_prompt, Spread(prefill), Spread(decode), Spread(first)};
}

int bench(const Args& args, Output& out) {
  const std::vector<uint64_t> lengths = parse_lengths(args.text("--prompt-tokens", "512"));
  const auto n_generate = static_cast<uint32_t>(args.integer("--gen-tokens", 2, 1u << 28, 64));
  const uint64_t repeat = args.integer("--repeat", 1, 10000, 5);
  const SessionSettings session_settings(args);
  orrery_session_options wishes = session_settings.options();
  const uint64_t needed = *std::max_element(lengths.begin(), lengths.end()) + n_generate;
  if (wishes.n_context == 0) wishes.n_context = static_cast<uint32_t>(needed);
  if (wishes.n_context < needed) {
    throw UsageError(format("--context %u is less than the %llu tokens to be read and written",
                            wishes.n_context, static_cast<unsigned long long>(needed)));
  }
  const std::string& path = args.words()[0];
  const Interrupts interrupts;
  const Loaded loaded = load(path, args, interrupts);
  const Session session = open_session(loaded.model, wishes);
  const Vocab vocab(orrery_model_vocab(loaded.model.get()));
  const orrery_model_info info = model_info(loaded.model.get());
  orrery_runtime_info runtime;
  orrery_runtime_info_init(&runtime);
  call([&](orrery_error* error) { return orrery_runtime_get_info(loaded.runtime.get(), &runtime, error); });
  const uint64_t weights = weights_per_token(path);
  const auto gigabytes = [&](double rate) { return rate * static_cast<double>(weights) / 1e9; };

  Json rows = Json::array();
  if (!args.has("--json")) {
    out.text(format("%s: %s, %s parameters, %s\n", info.name[0] ? info.name : path.c_str(), info.architecture,
                    human_count(info.n_parameters).c_str(), info.quantization));
    out.write(format(
        "%s (%s), %d threads, KV cache %s; %llu runs after one that does not count, median (least - most)\n",
        runtime.backend, runtime.path, runtime.n_threads, kv_type_names(wishes).c_str(),
        static_cast<unsigned long long>(repeat)));
    out.write(format("Every token reads %s bytes of weights (%s)\n\n", grouped(weights).c_str(),
                     human_bytes(weights).c_str()));
    out.write(format("%8s  %28s  %28s  %9s  %12s\n", "context", "prefill tokens/s", "decode tokens/s",
                     "weights", "first token"));
    out.flush();
  }
  for (const uint64_t length : lengths) {
    const Measured measured = measure(session.get(), vocab.get(), length, n_generate, repeat);
    const auto cell = [](const Spread& spread, int digits) {
      return format("%.*f (%.*f - %.*f)", digits, spread.median, digits, spread.least, digits, spread.most);
    };
    if (args.has("--json")) {
      rows.push_back({{"prompt_tokens", length},
                      {"generated_tokens", n_generate},
                      {"prefill_tokens_per_second", measured.prefill.json()},
                      {"decode_tokens_per_second", measured.decode.json()},
                      {"first_token_ms", measured.first_token_ms.json()},
                      {"weights_gb_per_second", gigabytes(measured.decode.median)}});
      continue;
    }
    out.write(format("%8llu  %28s  %28s  %4.1f GB/s  %9.1f ms\n", static_cast<unsigned long long>(length),
                     cell(measured.prefill, 0).c_str(), cell(measured.decode, 1).c_str(),
                     gigabytes(measured.decode.median), measured.first_token_ms.median));
    out.flush();
  }
  if (args.has("--json")) {
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
                       {"device_kv_type", device_kv_type_name(wishes)},
                       {"repeat", repeat},
                       {"weights_bytes_per_token", weights},
                       {"results", rows}};
    out.write(dump_json(json, 2) + "\n");
  }
  return kExitOk;
}

}  // namespace

const Command& bench_command() {
  static const Command command = {
      "bench",
      "MODEL.gguf [options]",
      "prefill and decode speed, measured",
      "For each context length: reads that many tokens, then writes --gen-tokens behind them. GB/s is the "
      "speed at\n"
      "which the weights must have been read for the decode speed that was measured.\n",
      {{"Options",
        {{"--prompt-tokens", "N[,N...]", "Context lengths to measure at (default 512)."},
         {"--gen-tokens", "N", "Tokens written at each, at least 2 (default 64)."},
         {"--repeat", "N", "Runs that count (default 5)."},
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
