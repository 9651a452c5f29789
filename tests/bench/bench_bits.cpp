// What codes of all tokens and a few exact ones keep of a model: bench_bits MODEL.gguf FILE.jsonl[:N] ... [option=value ...]
//   schemes=...  what is compared, separated by commas:
//       KTYPEvTYPE[/CENTRE][+M][/read]
//       KTYPE, vTYPE   f16, q8, q4: blocks of 32 as KV types have them; b1 to b4: bits of a dimension, Lloyd and Max's levels of a normal
//                      distribution in units of the vector's factor. q4 and b1 to b4 are of rotated vectors (KvTransform)
//       CENTRE         none; post: one mean key for all positions, as sessions subtract it; pre: RoPE(mean, position); preN: the N
//                      pairs of dimensions that have the largest means by position, the others as `post`
//       +M             beside the first 4 and the last 32 tokens, M tokens of a KV head are exact, chosen by this step's query
//       read           the prompt is read through the codes too; else it is read with exact KV
//   means=model  where mean keys come from: the model's own random tokens, or the prompt's first (prompt)
//   steps=48     tokens of an answer
//   threads=0  path=auto
//
// A text's first question is asked in the form of ChatML. Full attention in F32 answers, and each scheme is given the same tokens. The
// figures are KL(full || scheme) in nats over the answer's tokens, the 99th percentile, and how often the likeliest token is the same.
//
// Types are emulated: pages are F32, and hold what a type would give back. So attention itself is exact.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "runtime/backend/hadamard.h"
#include "runtime/backend/key_codes.h"
#include "runtime/base/half.h"
#include "runtime/engine/sequence/key_means.h"
#include "runtime/engine/session/retrieval.h"
#include "runtime/gguf/dequantize.h"
#include "runtime/gguf/quantize.h"
#include "runtime/kv/memory/sequence_pages.h"

namespace orrery {
namespace {

template <class T>
T unwrap(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  std::fprintf(stderr, "bench_bits: %s\n", result.status().message());
  std::exit(1);
}
void unwrap(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "bench_bits: %s\n", status.message());
  std::exit(1);
}
[[noreturn]] void refuse(const std::string& why) {
  std::fprintf(stderr, "bench_bits: %s\n", why.c_str());
  std::exit(2);
}

constexpr int32_t kSinks = 4, kRecent = 32;

// ---- Types ----

struct Type {
  enum Kind { f16, q8, q4, code } kind = f16;
  int32_t bits = 0;
  bool rotated() const { return kind == q4 || kind == code; }
  // Of a vector of n dimensions.
  double bytes(int32_t n) const {
    return kind == f16 ? 2.0 * n : kind == q8 ? 34.0 / 32 * n : kind == q4 ? 18.0 / 32 * n : bits * n / 8.0 + 2;
  }
};

Type read_type(const std::string& name) {
  if (name == "f16") return {Type::f16, 16};
  if (name == "q8") return {Type::q8, 8};
  if (name == "q4") return {Type::q4, 4};
  if (name.size() == 2 && name[0] == 'b' && name[1] >= '1' && name[1] <= '4') return {Type::code, name[1] - '0'};
  refuse("type '" + name + "'; expected f16, q8, q4 or b1 to b4");
}

float level(int32_t bits, int32_t i) {
  constexpr float kThree[] = {.24509f, .75600f, 1.34391f, 2.15195f};
  if (bits == 3) return i < 4 ? -kThree[3 - i] : kThree[i - 4];
  return key_code_level(bits, i);
}

// x (n) as codes of `bits` give it back: the nearest level in units of the root mean square, and the factor of least squared error.
void through_codes(float* x, int32_t n, int32_t bits) {
  double square = 0;
  for (int32_t i = 0; i < n; ++i) square += double{x[i]} * double{x[i]};
  const float unit = static_cast<float>(std::sqrt(square / n));
  if (unit == 0) return;
  double xc = 0, cc = 0;
  float c[512];
  for (int32_t i = 0; i < n; ++i) {
    const float y = x[i] / unit;
    int32_t at = 0;
    while (at + 1 < (1 << bits) && y > (level(bits, at) + level(bits, at + 1)) / 2) ++at;
    c[i] = level(bits, at);
    xc += double{x[i]} * double{c[i]}, cc += double{c[i]} * double{c[i]};
  }
  const float factor = half_to_float(float_to_half(static_cast<float>(xc / cc)));
  for (int32_t i = 0; i < n; ++i) x[i] = factor * c[i];
}

void through(Type type, float* x, int32_t n) {
  std::byte row[2048];
  if (type.rotated()) hadamard(x, n, hadamard_block(n));
  if (type.kind == Type::code) {
    through_codes(x, n, type.bits);
  } else {
    const TensorType stored = type.kind == Type::f16 ? TensorType::f16 : type.kind == Type::q8 ? TensorType::q8_0 : TensorType::q4_0;
    gguf::quantize_row(stored, x, row, static_cast<uint64_t>(n));
    gguf::dequantize_row(stored, row, x, static_cast<uint64_t>(n));
  }
  if (type.rotated()) hadamard(x, n, hadamard_block(n));
}

struct Scheme {
  std::string name;
  Type k, v;
  enum Centre { none, post, pre } centre = none;
  int32_t pairs = 0;  // of pre: 0: all
  int32_t exact = 0;
  bool read = false;
};

Scheme read_scheme(const std::string& name) {
  Scheme s;
  s.name = name;
  size_t end = name.find_first_of("/+");
  const std::string types = name.substr(0, end);
  const size_t v = types.find('v');
  if (v == std::string::npos) refuse("scheme '" + name + "' names no type of V");
  s.k = read_type(types.substr(0, v)), s.v = read_type(types.substr(v + 1));
  while (end != std::string::npos) {
    const size_t from = end;
    end = name.find_first_of("/+", from + 1);
    const std::string part = name.substr(from + 1, end == std::string::npos ? end : end - from - 1);
    if (name[from] == '+') s.exact = std::atoi(part.c_str());
    else if (part == "read") s.read = true;
    else if (part == "none") s.centre = Scheme::none;
    else if (part == "post") s.centre = Scheme::post;
    else if (part.compare(0, 3, "pre") == 0) s.centre = Scheme::pre, s.pairs = std::atoi(part.c_str() + 3);
    else refuse("'" + part + "' of scheme '" + name + "'");
  }
  return s;
}

// ---- The model's mean keys, before RoPE ----

using Keys = std::vector<double>;  // (n_layers, n_kv_heads, head_dim)

struct Shape {
  int32_t n_layers, n_heads, n_kv_heads, dim;
  float scale;
  const model::RopeTable* rope;
  int32_t group() const { return n_heads / n_kv_heads; }
  size_t head_of(int32_t layer, int32_t head) const { return static_cast<size_t>(layer * n_kv_heads + head); }
};

// Turns the pairs of x (dim) by `position`.
template <class T>
void turn(const Shape& s, double position, T* x) {
  const size_t half = s.rope->inverse_frequency.size();
  for (size_t i = 0; i < half; ++i) {
    const size_t a = s.rope->interleaved ? 2 * i : i, b = s.rope->interleaved ? 2 * i + 1 : i + half;
    const double angle = position * double{s.rope->inverse_frequency[i]}, c = std::cos(angle), z = std::sin(angle);
    const double first = static_cast<double>(x[a]), second = static_cast<double>(x[b]);
    x[a] = static_cast<T>(first * c - second * z), x[b] = static_cast<T>(first * z + second * c);
  }
}

class Means {
 public:
  Means(const Shape& s, Keys turned_back) : s_(s), mean_(std::move(turned_back)), constant_(mean_) {
    const size_t half = s.rope->inverse_frequency.size();
    for (size_t head = 0; head < mean_.size(); head += static_cast<size_t>(s.dim)) {
      std::vector<std::pair<double, size_t>> energy;
      for (size_t i = 0; i < half; ++i) {
        double cosine = 0, sine = 0;
        for (uint32_t p = 0; p < engine::kMeanPositions; ++p) {
          const double angle = p * double{s.rope->inverse_frequency[i]};
          cosine += std::cos(angle), sine += std::sin(angle);
        }
        cosine /= engine::kMeanPositions, sine /= engine::kMeanPositions;
        const size_t a = head + (s.rope->interleaved ? 2 * i : i), b = s.rope->interleaved ? a + 1 : a + half;
        const double x = mean_[a], y = mean_[b];
        constant_[a] = x * cosine - y * sine, constant_[b] = x * sine + y * cosine;
        // What turning takes out that the constant does not.
        energy.push_back({(x * x + y * y) * (1 - cosine * cosine - sine * sine), i});
      }
      std::sort(energy.rbegin(), energy.rend());
      for (const auto& pair : energy) order_.push_back(pair.second);
    }
  }
  // The shift of a key at a position.
  void shift(size_t head, int32_t position, const Scheme& scheme, float* out) const {
    const size_t dim = static_cast<size_t>(s_.dim), at = head * dim;
    if (scheme.centre == Scheme::none) return std::fill(out, out + dim, 0.0f);
    std::copy(constant_.begin() + static_cast<ptrdiff_t>(at), constant_.begin() + static_cast<ptrdiff_t>(at + dim), out);
    if (scheme.centre == Scheme::post) return;
    std::vector<float> turned(dim);
    std::copy(mean_.begin() + static_cast<ptrdiff_t>(at), mean_.begin() + static_cast<ptrdiff_t>(at + dim), turned.begin());
    turn(s_, position, turned.data());
    const size_t half = s_.rope->inverse_frequency.size(), n = scheme.pairs == 0 ? half : std::min(half, static_cast<size_t>(scheme.pairs));
    for (size_t i = 0; i < n; ++i) {
      const size_t pair = order_[head * half + i], a = s_.rope->interleaved ? 2 * pair : pair, b = s_.rope->interleaved ? a + 1 : a + half;
      out[a] = turned[a], out[b] = turned[b];
    }
    if (scheme.pairs == 0)  // dimensions that RoPE leaves alone stay as the mean has them
      for (size_t i = 2 * half; i < dim; ++i) out[i] = turned[i];
  }

 private:
  Shape s_;
  Keys mean_, constant_;
  std::vector<size_t> order_;  // (heads, pairs): pairs that turn most come first
};

// ---- Runs ----

class Bits final : public model::LayerHook {
 public:
  Bits(const std::shared_ptr<engine::LanguageModel>& model, uint32_t n_context)
      : model_(model), ropes_(model->description(), model->weights().rope_factors, n_context) {
    const model::Description& d = model->description();
    const model::AttentionShape& a = d.layer(0).attention;
    s_ = {d.n_layers, a.n_heads, a.n_kv_heads, a.head_dim, a.scale, ropes_.of(d.layer(0))};
    if (d.groups.size() != 1 || !s_.rope) refuse("the model has layers of several kinds");
    options_.n_context = n_context, options_.kv_type = KvType::f32;
    auto pool = unwrap(model->page_pool(KvType::f32));
    reservation_ = unwrap(kv::PageReservation::make(pool, kv::pages_to_reserve(n_context)));
    pages_.add(std::make_unique<kv::PageTable>(pool, kv::pages_to_reserve(n_context)));
    unwrap(model->ensure_workspace(n_context, options_));
  }

  const Shape& shape() const { return s_; }

  // Reads tokens [from, end) with exact KV, or through a scheme.
  void prefill(const std::vector<int32_t>& tokens, size_t from, size_t end, const Scheme* through, const Means* means) {
    scheme_ = through, means_ = means;
    for (size_t at = from; at < end;) {
      const size_t n = std::min<size_t>(options_.chunk(), end - at);
      step(tokens, at, n, Phase::prefill, nullptr);
      at += n;
    }
    scheme_ = nullptr;
  }
  // The logits behind one more token.
  void decode(const std::vector<int32_t>& tokens, size_t at, const Scheme* through, const Means* means, std::vector<float>* logits) {
    scheme_ = through, means_ = means;
    logits->resize(static_cast<size_t>(model_->description().n_vocab));
    step(tokens, at, 1, Phase::decode, logits->data());
    scheme_ = nullptr;
  }
  void truncate(size_t n) { pages_.truncate(static_cast<uint32_t>(n)); }

  // A copy of the KV of the first n tokens: (heads, n, 2 dim).
  void keep(size_t n) {
    const size_t values = 2 * static_cast<size_t>(s_.dim);
    exact_.assign(n_heads(), {});
    for (size_t head = 0; head < n_heads(); ++head) {
      exact_[head].resize(n * values);
      for (size_t t = 0; t < n; ++t) std::copy_n(token(head, t), values, &exact_[head][t * values]);
    }
  }
  void restore(size_t n) {
    const size_t values = 2 * static_cast<size_t>(s_.dim);
    for (size_t head = 0; head < n_heads(); ++head)
      for (size_t t = 0; t < n; ++t) std::copy_n(&exact_[head][t * values], values, token(head, t));
  }
  // Codes of the kept tokens, but for the first and the last.
  void encode(size_t n, const Scheme& scheme, const Means& means) {
    const size_t values = 2 * static_cast<size_t>(s_.dim);
    coded_ = exact_;
    for (size_t head = 0; head < n_heads(); ++head)
      for (size_t t = 0; t < n; ++t) code(head, t, scheme, means, &coded_[head][t * values]);
    changed_.assign(n_heads(), {});
    code_up_to(n);
  }
  // The mean of keys of tokens [first, end), turned back.
  Keys mean_keys(size_t first, size_t end) const {
    Keys sums(n_heads() * static_cast<size_t>(s_.dim));
    std::vector<double> key(static_cast<size_t>(s_.dim));
    for (size_t head = 0; head < n_heads(); ++head)
      for (size_t t = first; t < end; ++t) {
        const float* at = token(head, t);
        std::copy(at, at + s_.dim, key.begin());
        turn(s_, -static_cast<double>(t), key.data());
        for (size_t d = 0; d < key.size(); ++d) sums[head * key.size() + d] += key[d] / static_cast<double>(end - first);
      }
    return sums;
  }

  Status before_attend(KvLayer layer, Ptr<const float> q, int64_t) override {
    if (!scheme_) return ok_status();
    const size_t values = 2 * static_cast<size_t>(s_.dim);
    if (scheme_->read) {
      for (int32_t h = 0; h < s_.n_kv_heads; ++h)
        for (size_t t = from_; t < from_ + n_; ++t)
          code(s_.head_of(layer.layer, h), t, *scheme_, *means_, token(s_.head_of(layer.layer, h), t));
      return ok_status();
    }
    const auto* queries = reinterpret_cast<const float*>(q.address);
    for (int32_t h = 0; h < s_.n_kv_heads; ++h) {
      const size_t head = s_.head_of(layer.layer, h);
      for (const size_t t : changed_[head]) std::copy_n(&coded_[head][t * values], values, token(head, t));
      changed_[head].clear();
      // The step's own token joins the exact ones; the one that leaves the last kRecent is coded.
      exact_[head].resize(from_ * values), coded_[head].resize(from_ * values);
      exact_[head].insert(exact_[head].end(), token(head, from_), token(head, from_) + values);
      coded_[head].insert(coded_[head].end(), token(head, from_), token(head, from_) + values);
      code(head, from_, *scheme_, *means_, &coded_[head][from_ * values]);
      if (from_ >= size_t{kRecent} + kSinks) {
        const size_t leaves = from_ - kRecent;
        std::copy_n(&coded_[head][leaves * values], values, token(head, leaves));
      }
      if (scheme_->exact > 0) choose(head, queries + h * s_.group() * s_.dim);
    }
    return ok_status();
  }

 private:
  size_t n_heads() const { return static_cast<size_t>(s_.n_layers * s_.n_kv_heads); }
  float* token(size_t head, size_t t) const {
    return reinterpret_cast<float*>(pages_.group(0).tokens_of(static_cast<uint32_t>(head)).address(static_cast<uint32_t>(t)));
  }
  void code(size_t head, size_t t, const Scheme& scheme, const Means& means, float* kv) const {
    float shift[512];
    means.shift(head, static_cast<int32_t>(t), scheme, shift);
    for (int32_t d = 0; d < s_.dim; ++d) kv[d] -= shift[d];
    through(scheme.k, kv, s_.dim);
    for (int32_t d = 0; d < s_.dim; ++d) kv[d] += shift[d];
    through(scheme.v, kv + s_.dim, s_.dim);
  }
  void code_up_to(size_t n) {
    const size_t values = 2 * static_cast<size_t>(s_.dim);
    for (size_t head = 0; head < n_heads(); ++head)
      for (size_t t = kSinks; t + kRecent < n; ++t) std::copy_n(&coded_[head][t * values], values, token(head, t));
  }
  // Makes the tokens exact to which some query of the group gives most weight, by the codes of all.
  void choose(size_t head, const float* queries) {
    const size_t n = from_ + 1, values = 2 * static_cast<size_t>(s_.dim);
    weights_.assign(n, 0.0f), products_.resize(n);
    for (int32_t g = 0; g < s_.group(); ++g) {
      const float* q = queries + g * s_.dim;
      float most = -INFINITY;
      for (size_t t = 0; t < n; ++t) {
        const float* k = token(head, t);
        float sums[8] = {};  // heads have a multiple of 8 dimensions
        for (int32_t d = 0; d < s_.dim; d += 8)
          for (int32_t i = 0; i < 8; ++i) sums[i] += q[d + i] * k[d + i];
        const float sum = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
        products_[t] = sum * s_.scale, most = std::max(most, products_[t]);
      }
      double total = 0;
      for (size_t t = 0; t < n; ++t) total += static_cast<double>(products_[t] = std::exp(products_[t] - most));
      for (size_t t = 0; t < n; ++t) weights_[t] = std::max(weights_[t], products_[t] / static_cast<float>(total));
    }
    order_.resize(0);
    for (size_t t = kSinks; t + kRecent <= from_; ++t) order_.push_back(t);
    const size_t m = std::min(order_.size(), static_cast<size_t>(scheme_->exact));
    std::nth_element(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(m), order_.end(),
                     [&](size_t a, size_t b) { return weights_[a] > weights_[b] || (weights_[a] == weights_[b] && a < b); });
    changed_[head].assign(order_.begin(), order_.begin() + static_cast<ptrdiff_t>(m));
    for (const size_t t : changed_[head]) std::copy_n(&exact_[head][t * values], values, token(head, t));
  }
  void step(const std::vector<int32_t>& tokens, size_t at, size_t n, Phase phase, float* logits) {
    const Turn turn = model_->runtime().take_turn();
    Backend& backend = turn.backend();
    unwrap(backend.set_scratch(model_->workspace(turn).scratch, model_->limits(turn)));
    unwrap(pages_.make_writable(&backend, static_cast<uint32_t>(at), static_cast<uint32_t>(at + n)));
    std::vector<Row> rows(n);
    for (size_t i = 0; i < n; ++i) rows[i] = {tokens[at + i], static_cast<int32_t>(at + i), 0};
    Step step;
    step.phase = phase, step.rows = rows;
    kv::StepPages pages;
    pages.give(pages_, &step);
    from_ = at, n_ = n;
    model::ForwardOutput out;
    out.n_logits = logits ? 1 : 0, out.logits = logits;
    unwrap(model::forward(&backend, model_->weights(), ropes_.specs(), model_->workspace(turn), step, nullptr, out, this));
  }

  std::shared_ptr<engine::LanguageModel> model_;
  model::RopeTables ropes_;
  engine::SessionOptions options_;
  kv::PageReservation reservation_;
  kv::SequencePages pages_;
  Shape s_{};
  const Scheme* scheme_ = nullptr;
  const Means* means_ = nullptr;
  size_t from_ = 0, n_ = 0;
  std::vector<std::vector<float>> exact_, coded_;  // by head: (tokens, 2 dim)
  std::vector<std::vector<size_t>> changed_;       // by head: tokens that are exact in this step
  std::vector<float> weights_, products_;
  std::vector<size_t> order_;
};

struct Loss {
  std::vector<double> kl;
  size_t same = 0;
};

size_t likeliest(const std::vector<float>& logits) {
  return static_cast<size_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}
std::vector<double> log_probabilities(const std::vector<float>& logits) {
  const double most = static_cast<double>(*std::max_element(logits.begin(), logits.end()));
  double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<double>(x) - most);
  std::vector<double> out;
  for (const float x : logits) out.push_back(static_cast<double>(x) - most - std::log(sum));
  return out;
}
void note(Loss* loss, const std::vector<float>& full, const std::vector<float>& scheme) {
  const std::vector<double> p = log_probabilities(full), q = log_probabilities(scheme);
  double kl = 0;
  for (size_t i = 0; i < p.size(); ++i) kl += std::exp(p[i]) * (p[i] - q[i]);
  loss->kl.push_back(kl), loss->same += likeliest(full) == likeliest(scheme);
}

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  for (size_t from = 0; from <= text.size();) {
    const size_t end = std::min(text.find(separator, from), text.size());
    if (end > from) parts.push_back(text.substr(from, end - from));
    from = end + 1;
  }
  return parts;
}

int run(int argc, char** argv) {
  std::map<std::string, std::string> settings = {{"schemes", ""}, {"means", "model"}, {"steps", "48"}, {"threads", "0"}, {"path", "auto"}};
  std::vector<std::string> files;
  if (argc < 3) refuse("bench_bits MODEL.gguf FILE.jsonl[:N] ... schemes=...");
  for (int i = 2; i < argc; ++i) {
    const std::string given = argv[i];
    const size_t equals = given.find('=');
    if (equals != std::string::npos && settings.count(given.substr(0, equals)))
      settings[given.substr(0, equals)] = given.substr(equals + 1);
    else files.push_back(given);
  }
  std::vector<Scheme> schemes;
  for (const std::string& name : split(settings["schemes"], ',')) schemes.push_back(read_scheme(name));
  const size_t n_steps = static_cast<size_t>(std::max(1, std::atoi(settings["steps"].c_str())));

  engine::RuntimeOptions options;
  options.n_threads = std::atoi(settings["threads"].c_str()), options.cpu_path = settings["path"], options.backend = "cpu";
  options.device_budget_bytes = uint64_t{12} << 30;
  const auto runtime = unwrap(engine::Runtime::create(options));
  const auto model = unwrap(engine::LanguageModel::open(runtime, argv[1], {}));
  const uint32_t n_context = static_cast<uint32_t>(model->description().trained_context);
  Bits bits(model, n_context);
  const Shape& s = bits.shape();

  Keys random;
  {
    std::vector<int32_t> tokens = unwrap(engine::RepeatedTokens::make(*model)).tokens;
    tokens.resize(engine::kMeasuredTokens);
    bits.prefill(tokens, 0, tokens.size(), nullptr, nullptr);
    random = bits.mean_keys(4, tokens.size());
    bits.truncate(0);
  }
  std::map<std::string, std::vector<Loss>> by_task;
  std::vector<Loss> all(schemes.size());
  std::map<std::string, double> lengths;
  for (const std::string& given : files) {
    const size_t colon = given.rfind(':');
    const std::string path = given.substr(0, colon);
    size_t most = colon == std::string::npos ? SIZE_MAX : static_cast<size_t>(std::atoi(given.c_str() + colon + 1));
    std::ifstream file(path);
    if (!file) refuse("cannot read " + path);
    for (std::string line; most > 0 && std::getline(file, line); --most) {
      if (line.empty()) continue;
      const nlohmann::json text = nlohmann::json::parse(line);
      const std::string task = text["task"].get<std::string>() + "-" + std::to_string(text["length"].get<int>());
      std::vector<int32_t> tokens;
      text::EncodeOptions encoding;
      encoding.parse_special = true;
      const std::string prompt = "<|im_start|>system\n" + text["system"].get<std::string>() + "<|im_end|>\n<|im_start|>user\n" +
                                 text["context"].get<std::string>() + "\n\n" + text["questions"][0]["question"].get<std::string>() +
                                 "<|im_end|>\n<|im_start|>assistant\n";
      unwrap(model->tokenizer().encode(prompt, encoding, &tokens));
      if (tokens.size() + n_steps > n_context) continue;
      const size_t n = tokens.size() - 1;  // the last token of the prompt is the first step
      bits.prefill(tokens, 0, n, nullptr, nullptr);
      bits.keep(n);
      const Means means(s, settings["means"] == "prompt" ? bits.mean_keys(4, std::min<size_t>(n, 256)) : random);
      std::vector<std::vector<float>> full;
      for (size_t i = 0; i < n_steps; ++i) {
        full.emplace_back();
        bits.decode(tokens, n + i, nullptr, nullptr, &full.back());
        tokens.push_back(static_cast<int32_t>(likeliest(full.back())));
        if (model->tokenizer().is_end_of_generation(tokens.back())) break;
      }
      lengths[task] += static_cast<double>(n);
      by_task[task].resize(schemes.size());
      for (size_t i = 0; i < schemes.size(); ++i) {
        const Scheme& scheme = schemes[i];
        bits.truncate(scheme.read ? 0 : n);
        if (scheme.read) {
          bits.prefill(tokens, 0, n, &scheme, &means);
        } else {
          bits.restore(n);
          bits.encode(n, scheme, means);
        }
        std::vector<float> logits;
        for (size_t at = 0; at < full.size(); ++at) {
          bits.decode(tokens, n + at, &scheme, &means, &logits);
          note(&by_task[task][i], full[at], logits), note(&all[i], full[at], logits);
        }
        if (scheme.read) bits.truncate(0);
      }
      bits.truncate(0);
      std::fprintf(stderr, "%s %zu tokens\n", text["id"].get<std::string>().c_str(), n);
    }
  }
  std::printf("| scheme | %% of F16 | KL | 99%% | top-1 |");
  for (const auto& task : by_task) std::printf(" %s |", task.first.c_str());
  std::printf("\n| --- | --- | --- | --- | --- |");
  for (size_t i = 0; i < by_task.size(); ++i) std::printf(" --- |");
  std::printf("\n");
  const auto mean = [](const std::vector<double>& x) {
    return std::accumulate(x.begin(), x.end(), 0.0) / static_cast<double>(std::max<size_t>(x.size(), 1));
  };
  for (size_t i = 0; i < schemes.size(); ++i) {
    Loss& loss = all[i];
    std::vector<double> sorted = loss.kl;
    std::sort(sorted.begin(), sorted.end());
    if (sorted.empty()) continue;
    std::printf("| %s | %.1f | %.5f | %.3f | %.3f |", schemes[i].name.c_str(),
                100 * (schemes[i].k.bytes(s.dim) + schemes[i].v.bytes(s.dim)) / (4.0 * s.dim), mean(loss.kl),
                sorted[sorted.size() * 99 / 100], static_cast<double>(loss.same) / static_cast<double>(loss.kl.size()));
    for (const auto& task : by_task) std::printf(" %.5f |", mean(task.second[i].kl));
    std::printf("\n");
  }
  return 0;
}

}  // namespace
}  // namespace orrery

int main(int argc, char** argv) { return orrery::run(argc, argv); }
