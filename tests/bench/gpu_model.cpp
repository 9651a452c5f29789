// What one step of a model asks of a GPU, counted on the software device of tests/ptx:
// gpu_model MODEL OUT [name=value ...].
//
// The library's host code launches kernels as on the card that `cards` describes; the kernels are the PTX of the library's archive. Real
// shapes: the device runs some blocks of each launch and sums over the rest (tests/ptx/counting.h). Weights are zeros, and KV is what
// memory holds.
//   MODEL                 a name of the table below; `tiny` is for tests
//   layers=1,1;2,1;1,2    layers of each kind, run by run. A model's layers differ in the types of their weights at most; gpu_model.py adds
//                         up (step of 1,1) + (n_0 - 1) (difference for one more of kind 0) + (n_1 - 1) (the same for kind 1)
//   cards=89:128:75497472:273:3780;...  run by run: architecture, SMs, bytes of second-level cache; cycles of a load from that cache, and of one
//                         from host memory
//   contexts=0,32768      a decode step after this number of tokens, for each number
//   prefills=0            a chunk of `rows` prompt tokens after this number of tokens
//   rows=2048
//   policy=streaming:0.25 KV policy and budget of the decode steps; behind another colon the policy's options, name=value
//   cublas=0              the library's own kernels compute all products
//   idle=50               so many further decode steps, whose kernels do nothing: `host` is what a step takes of the thread beside them, in
//                         seconds; the emulated driver's copies and launches are in it
//   whole=1               runs every block, to check the rule
// OUT gets JSON: steps, each with its launches by kernel and geometry.
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/engine/session/session.h"
#include "tests/bench/shapes.h"
#include "tests/emulation/cuda/dlfcn.h"
#include "tests/ptx/counting.h"
#include "tests/ptx/image.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/temp_dir.h"

namespace orrery::bench {
namespace {

template <class T>
T unwrap(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "gpu_model: %s\n", result.status().message());
  std::exit(1);
}
void unwrap(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "gpu_model: %s\n", status.message());
  std::exit(1);
}

using T = TensorType;
struct Model {
  const char* name;
  const char* shape;  // of shapes.h
  const char* architecture;
  bool tied, biases;
  T embedding, output;
  T most;           // q, k, output, gate, up
  T v[2], down[2];  // of each kind of layer
};
// Published files: Q4_K_M of the larger two; of the smaller two the types of the files that `make models` fetches.
constexpr Model kModels[] = {
    {"8b", "llama-3.1-8b", "llama", false, false, T::q4_k, T::q6_k, T::q4_k, {T::q4_k, T::q6_k}, {T::q4_k, T::q6_k}},
    {"8b-q8_0", "llama-3.1-8b", "llama", false, false, T::q8_0, T::q8_0, T::q8_0, {T::q8_0, T::q8_0}, {T::q8_0, T::q8_0}},
    {"1b", "llama-3.2-1b", "llama", true, false, T::q6_k, T::q6_k, T::q4_k, {T::q4_k, T::q6_k}, {T::q4_k, T::q6_k}},
    {"qwen2.5-0.5b", "qwen2.5-0.5b", "qwen2", false, true, T::q5_0, T::q8_0, T::q5_0, {T::q5_0, T::q8_0}, {T::q4_k, T::q6_k}},
    {"smollm2-135m", "smollm2-135m", "llama", true, false, T::q8_0, T::q8_0, T::q4_1, {T::q4_1, T::q4_1}, {T::q4_1, T::q4_1}},
    {"tiny", "", "llama", false, false, T::q8_0, T::q8_0, T::q8_0, {T::q8_0, T::q4_0}, {T::q8_0, T::q4_0}},
};
constexpr ModelShape kTiny = {"tiny", 256, 2, 8, 2, 32, 512, 640};

struct Settings {
  std::map<std::string, std::string> values = {{"layers", "1,1;2,1;1,2"},
                                               {"cards", "86:28:3145728:240:2670"},
                                               {"contexts", "0"},
                                               {"prefills", ""},
                                               {"rows", "2048"},
                                               {"policy", ""},
                                               {"whole", "0"},
                                               {"steps", "1"},
                                               {"cublas", "0"},
                                               {"idle", "0"}};
  int64_t number(const char* name) const { return std::atoll(values.at(name).c_str()); }
  std::vector<int64_t> list(const char* name) const { return numbers(values.at(name), ','); }
  static std::vector<int64_t> numbers(const std::string& text, char separator) {
    std::vector<int64_t> out;
    for (const std::string& part : split(text, separator)) out.push_back(std::atoll(part.c_str()));
    return out;
  }
  static std::vector<std::string> split(const std::string& text, char separator) {
    std::vector<std::string> parts;
    std::stringstream stream(text);
    for (std::string part; std::getline(stream, part, separator);) parts.push_back(part);
    return parts;
  }
};

// A GGUF file of this shape whose weights are a hole of the file: zeros that take no room.
std::string write_model(const testing::TempDir& dir, const Model& m, const ModelShape& s, const std::vector<int64_t>& layers) {
  testing::GgufBuilder b;
  const std::string a = m.architecture;
  const auto key = [&](const char* name, int64_t value) { b.key(a + name, static_cast<uint32_t>(value)); };
  const int64_t n_layers = layers[0] + layers[1], q = int64_t{s.n_heads} * s.head_dim, kv = int64_t{s.n_kv_heads} * s.head_dim;
  b.key("general.architecture", a).key("general.name", m.name);
  key(".block_count", n_layers), key(".embedding_length", s.n_embd), key(".context_length", 262144), key(".feed_forward_length", s.n_ff);
  key(".attention.head_count", s.n_heads), key(".attention.head_count_kv", s.n_kv_heads);
  if (a == "llama") key(".rope.dimension_count", s.head_dim), key(".vocab_size", s.n_vocab);
  b.key(a + ".attention.layer_norm_rms_epsilon", 1e-5f).key(a + ".rope.freq_base", 500000.0f);
  std::vector<std::string> tokens = {"<unk>", "<s>", "</s>"};
  std::vector<int32_t> types = {2, 3, 3};
  for (int byte = 0; byte < 256; ++byte) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", byte);
    tokens.emplace_back(name), types.push_back(6);
  }
  while (tokens.size() < static_cast<size_t>(s.n_vocab)) {
    tokens.push_back("t" + std::to_string(tokens.size()));
    types.push_back(1);
  }
  b.key("tokenizer.ggml.model", "llama").array("tokenizer.ggml.tokens", tokens);
  b.array("tokenizer.ggml.scores", std::vector<float>(tokens.size(), 0.0f)).array("tokenizer.ggml.token_type", types);
  b.key("tokenizer.ggml.bos_token_id", uint32_t{1}).key("tokenizer.ggml.eos_token_id", uint32_t{2});
  uint64_t at = 0;
  const auto tensor = [&](const std::string& name, T type, int64_t rows, int64_t columns) {
    std::vector<uint64_t> dims = {static_cast<uint64_t>(columns)};
    if (rows > 0) dims.push_back(static_cast<uint64_t>(rows));
    b.raw_tensor(name, static_cast<uint32_t>(dims.size()), dims, static_cast<uint32_t>(type), at);
    at += (row_bytes(type, static_cast<uint64_t>(columns * std::max<int64_t>(rows, 1))) + 31) / 32 * 32;
  };
  tensor("token_embd.weight", m.embedding, s.n_vocab, s.n_embd);
  tensor("output_norm.weight", T::f32, 0, s.n_embd);
  if (!m.tied) tensor("output.weight", m.output, s.n_vocab, s.n_embd);
  for (int64_t i = 0; i < n_layers; ++i) {
    const std::string p = "blk." + std::to_string(i) + ".";
    const size_t kind = i < layers[0] ? 0 : 1;
    tensor(p + "attn_norm.weight", T::f32, 0, s.n_embd), tensor(p + "ffn_norm.weight", T::f32, 0, s.n_embd);
    tensor(p + "attn_q.weight", m.most, q, s.n_embd), tensor(p + "attn_k.weight", m.most, kv, s.n_embd);
    tensor(p + "attn_v.weight", m.v[kind], kv, s.n_embd), tensor(p + "attn_output.weight", m.most, s.n_embd, q);
    if (m.biases) {
      tensor(p + "attn_q.bias", T::f32, 0, q);
      tensor(p + "attn_k.bias", T::f32, 0, kv), tensor(p + "attn_v.bias", T::f32, 0, kv);
    }
    tensor(p + "ffn_gate.weight", m.most, s.n_ff, s.n_embd), tensor(p + "ffn_up.weight", m.most, s.n_ff, s.n_embd);
    tensor(p + "ffn_down.weight", m.down[kind], s.n_embd, s.n_ff);
  }
  const testing::Bytes header = b.build();
  const std::string path = dir.write("model.gguf", header);
  if (truncate(path.c_str(), static_cast<off_t>((header.size() + 31) / 32 * 32 + at)) != 0)
    unwrap(error(Code::internal, "no room for the model"));
  return path;
}

class Counting {
 public:
  Counting(const Model& model, const Settings& settings, const std::string& out) : model_(model), settings_(settings), out_(out) {}
  void run();

 private:
  void run(const std::vector<int64_t>& card, const std::vector<int64_t>& layers);
  void kernels();
  // Opens a session behind `context` prompt tokens.
  std::unique_ptr<engine::Session> session(int64_t context, int64_t room);
  template <class F>
  void step(const std::string& name, const F& what);

  const Model& model_;
  const Settings& settings_;
  std::ofstream out_;
  ptx::CountingDevice device_;
  std::shared_ptr<engine::LanguageModel> opened_;
  std::map<std::string, const ptx::Kernel*> kernels_;
  bool first_ = true;
};

std::unique_ptr<engine::Session> Counting::session(int64_t context, int64_t room) {
  engine::SessionOptions options;
  options.n_context = static_cast<uint32_t>(context + room);
  options.chunk_tokens = static_cast<uint32_t>(settings_.number("rows"));
  if (const std::string policy = settings_.values.at("policy"); !policy.empty()) {
    const std::vector<std::string> parts = Settings::split(policy, ':');
    options.policy = parts[0];
    if (parts.size() > 1) options.kv_share = std::atof(parts[1].c_str());
    for (size_t i = 2; i < parts.size(); ++i) {
      const size_t equals = std::min(parts[i].find('='), parts[i].size() - 1);
      options.policy_options.emplace_back(parts[i].substr(0, equals), parts[i].substr(equals + 1));
    }
  }
  auto made = unwrap(engine::Session::open(opened_, options));
  if (context > 0)
    unwrap(made->sequence().assume_prompt(std::vector<int32_t>(static_cast<size_t>(context), 5), [](uint32_t, Span<std::byte>) {}));
  return made;
}

double thread_seconds() {
  timespec t = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Counts what the call does.
template <class F>
void Counting::step(const std::string& name, const F& what) {
  // Layers are alike, but not the heads of a policy. Cards differ in grids, which tell launches apart.
  device_.set_scope(settings_.values.at("policy").empty() && device_.samples ? name : "");
  device_.take_groups();
  const uint64_t waits = emulated::n_waits(), to_host = emulated::bytes_to_host(), to_device = emulated::bytes_to_device();
  const size_t graphs = emulated::graphs_made();
  const int64_t launches = device_.n_launches, copies = device_.n_copies;
  what();
  const int64_t n_launches = device_.n_launches - launches, n_copies = device_.n_copies - copies;
  const uint64_t n_waits = emulated::n_waits() - waits, n_to_host = emulated::bytes_to_host() - to_host;
  const uint64_t n_to_device = emulated::bytes_to_device() - to_device;
  const size_t n_graphs = emulated::graphs_made() - graphs;
  double host = 0;
  if (const int64_t n = settings_.number("idle"); n > 0) {
    device_.idle = true;
    const double begin = thread_seconds();
    for (int64_t i = 0; i < n; ++i) what();
    host = (thread_seconds() - begin) / static_cast<double>(n);
    device_.idle = false;
  }
  if (!device_.failure().empty()) unwrap(error(Code::internal, "%s", device_.failure().c_str()));
  const std::string policy = settings_.values.at("policy");
  out_ << (first_ ? "" : ",\n") << "{\"name\": \"" << name << (policy.empty() ? "" : ", " + policy) << "\", \"waits\": " << n_waits
       << ", \"graphs\": " << n_graphs << ", \"to_host\": " << n_to_host << ", \"to_device\": " << n_to_device << ", \"host\": " << host
       << ", \"all_launches\": " << n_launches << ", \"copies\": " << n_copies << ", \"launches\": [";
  first_ = false;
  bool first = true;
  for (const ptx::LaunchGroup& g : device_.take_groups()) {
    using C = ptx::Counts;
    const std::vector<int64_t>& v = g.counts.values;
    kernels_[g.kernel->name] = g.kernel;
    out_ << (first ? "\n" : ",\n") << " {\"kernel\": \"" << g.name << "\", \"grid\": [" << g.grid.x << ", " << g.grid.y << ", " << g.grid.z
         << "], \"threads\": " << g.block.product() << ", \"shared\": " << g.shared_bytes << ", \"n\": " << g.launches
         << ", \"blocks_run\": " << g.blocks_run << ", \"estimated\": " << (g.estimated ? "true" : "false")
         << ", \"path\": " << g.path.cycles << ", \"rounds\": " << g.path.rounds;
    constexpr const char* kNames[] = {"barriers",      "read_bytes",      "read_sectors",  "written_bytes",  "written_sectors",
                                      "link_bytes",    "shared_requests", "shared_passes", "bank_conflicts", "products",
                                      "block_sectors", "own_sectors",     "integer",       "single",         "twice",
                                      "half",          "convert",         "move",          "memory",         "control",
                                      "exchange",      "product"};
    static_assert(std::size(kNames) == C::kFields);
    for (size_t i = 0; i < C::kFields; ++i) out_ << ", \"" << kNames[i] << "\": " << v[i];
    // Executions by line of the source: [file, line, of all instructions of the line].
    std::map<std::pair<int, int>, int64_t> lines;
    for (size_t i = 0; i < g.kernel->code.size(); ++i) lines[device_.place(*g.kernel, g.kernel->code[i])] += v[C::kFields + i];
    out_ << ", \"lines\": [";
    bool first_line = true;
    for (const auto& [at, n] : lines)
      if (n > 0) out_ << (first_line ? "" : ",") << "[" << at.first << "," << at.second << "," << n << "]", first_line = false;
    out_ << "]}";
    first = false;
  }
  out_ << "]}";
  out_.flush();
}

void Counting::run() {
  emulated::device = &device_;
  device_.samples = settings_.number("whole") == 0;
  out_ << "{\"model\": \"" << model_.name << "\", \"runs\": [";
  bool first = true;
  for (const std::string& card : Settings::split(settings_.values.at("cards"), ';'))
    for (const std::string& layers : Settings::split(settings_.values.at("layers"), ';')) {
      out_ << (first ? "\n" : ",\n") << "{\"card\": \"" << card << "\", \"layers\": [" << layers << "], \"steps\": [\n";
      first_ = true, first = false;
      run(Settings::numbers(card, ':'), Settings::numbers(layers, ','));
      out_ << "]}";
    }
  out_ << "],\n";
  kernels();
  out_ << "}\n";
  out_.close();
  if (!out_) unwrap(error(Code::internal, "the output cannot be written"));
  emulated::device = nullptr;
}

void Counting::run(const std::vector<int64_t>& card, const std::vector<int64_t>& layers) {
  if (card.size() != 5 || layers.size() != 2) unwrap(error(Code::invalid_argument, "a card has five numbers, and layers two"));
  emulated::architecture = static_cast<int>(card[0]), emulated::n_sms = static_cast<int>(card[1]);
  emulated::has_cublas = settings_.number("cublas") != 0;
  emulated::cache_bytes = static_cast<size_t>(card[2]), emulated::memory_bytes = size_t{64} << 30;
  device_.latencies.global = static_cast<uint32_t>(card[3]), device_.latencies.link = static_cast<uint32_t>(card[4]);
  const ModelShape* published = model_shape(model_.shape);
  const testing::TempDir dir;
  {
    engine::RuntimeOptions options;
    options.backend = "cuda", options.n_threads = 1;
    options.device_budget_bytes = uint64_t{40} << 30, options.reservoir_bytes = uint64_t{40} << 30;
    const std::string path = write_model(dir, model_, published ? *published : kTiny, layers);
    opened_ = unwrap(engine::LanguageModel::open(unwrap(engine::Runtime::create(options)), path, {}));
  }
  for (const int64_t context : settings_.list("contexts")) {
    const auto made = session(std::max<int64_t>(context, 1), 64 + settings_.number("steps") * (1 + settings_.number("idle")));
    const auto decode = [&] {
      made->push_generated(7);
      engine::Shortlist shortlist;
      unwrap(made->decode(&shortlist));
    };
    for (int i = 0; i < 2; ++i) decode();  // settles, and makes graphs
    step("decode " + std::to_string(context), [&] {
      for (int64_t i = 0; i < settings_.number("steps"); ++i) decode();
    });
  }
  for (const int64_t context : settings_.list("prefills")) {
    const int64_t rows = settings_.number("rows");
    const auto made = session(context, rows);
    const std::vector<int32_t> prompt(static_cast<size_t>(rows), 9);
    step("prefill " + std::to_string(rows) + " behind " + std::to_string(context),
         [&] { unwrap(made->sequence().prefill_chunk(prompt, nullptr, false, nullptr)); });
  }
  opened_.reset();
}

// Of each kernel: how many instructions of PTX stand in each line of the source.
void Counting::kernels() {
  out_ << "\"kernels\": {";
  bool first = true;
  for (const auto& [name, kernel] : kernels_) {
    std::map<std::pair<int, int>, int64_t> lines;
    std::map<int, std::string> files;
    for (const ptx::Instruction& i : kernel->code) ++lines[device_.place(*kernel, i)];
    out_ << (first ? "\n" : ",\n") << " \"" << name << "\": {\"module\": \"" << kernel->file << "\", \"name\": \"" << ptx::demangled(name)
         << "\", \"lines\": [";
    first = false;
    bool first_line = true;
    for (const auto& [at, n] : lines) {
      files[at.first] = device_.source_file(*kernel, at.first);
      out_ << (first_line ? "" : ",") << "[" << at.first << "," << at.second << "," << n << "]", first_line = false;
    }
    out_ << "], \"files\": {";
    first_line = true;
    for (const auto& [number, file] : files) {
      out_ << (first_line ? "" : ", ") << "\"" << number << "\": \"" << file << "\"";
      first_line = false;
    }
    out_ << "}}";
  }
  out_ << "}";
}

}  // namespace
}  // namespace orrery::bench

int main(int argc, char** argv) {
  using namespace orrery::bench;
  Settings settings;
  const Model* model = nullptr;
  for (const Model& m : kModels)
    if (argc > 2 && std::string(argv[1]) == m.name) model = &m;
  bool known = model != nullptr;
  for (int i = 3; i < argc; ++i) {
    const std::string option = argv[i];
    const size_t equals = option.find('=');
    if (equals == std::string::npos || settings.values.count(option.substr(0, equals)) == 0) known = false;
    else settings.values[option.substr(0, equals)] = option.substr(equals + 1);
  }
  if (!known) {
    std::fprintf(stderr, "usage: gpu_model MODEL OUT [name=value ...]; see its first lines\n");
    return 2;
  }
  Counting(*model, settings, argv[2]).run();
  return 0;
}
