// Grammars on published schemas and instances, on one thread: bench_grammar VOCABULARY.gguf PART [FOLDER] [list=0] [any_order=0] [every=1] [worst=0] [digests=FILE].
//   suite FOLDER       files of JSON-Schema-Test-Suite, tests/draft2020-12: lists of {schema, tests: [{data, valid}]}
//   instances FOLDER   files of MaskBench, maskbench/data: one {schema, tests} each. Times every compilation, mask and token
//   vocabulary         the first use of a vocabulary
//   tools              compiles calls of 1 to 128 tools of ten properties, up to the first mask.
//   tagged             the same of calls with a mark around each argument
//   any_order=1        objects' keys may come in any order
//   list=1             prints each refusal and each difference; every=N reads every Nth file only
//   worst=N            prints the N longest masks, compilations and refusals by name
//   digests=FILE       writes a line for each schema: its name, its refusal or a digest of all its masks. Two versions compare by `diff`
//
// An instance is written as Python's json.dumps writes it, then read token by token. Right: a valid instance is taken whole, an invalid one
// is not. A schema that fits no value is right where it has no valid instance. Times are processor time. The program fails if it takes an
// invalid instance, or if the tokens and the bytes of an instance disagree.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <queue>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/base/hash.h"
#include "runtime/gguf/gguf.h"
#include "runtime/text/format/answer.h"
#include "runtime/text/grammar/grammar.h"
#include "runtime/text/json/json.h"

namespace orrery::text::grammar {
namespace {

double now_us() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return 1e6 * static_cast<double>(t.tv_sec) + 1e-3 * static_cast<double>(t.tv_nsec);
}

std::string quantiles(std::vector<double> values, const std::vector<double>& shares) {
  std::sort(values.begin(), values.end());
  std::string out;
  for (const double share : shares) {
    const size_t at = values.empty() ? 0 : std::min(values.size() - 1, static_cast<size_t>(share * static_cast<double>(values.size())));
    out += orrery::format("%s%.1f", out.empty() ? "" : " / ", values.empty() ? 0.0 : values[at]);
  }
  return out;
}

double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

// Whether a grammar takes a value if the keys of its objects may come in another order. Finds an order greedily, with few steps back.
class AnyOrder {
 public:
  explicit AnyOrder(const Network& network) : space_(network) {}
  bool takes(const Value& value) {
    const uint32_t end = read(value, space_.start());
    return end != Space::kRefused && space_.may_end(end);
  }

 private:
  uint32_t text(std::string_view text, uint32_t at) {
    for (const char c : text) {
      at = space_.step(at, static_cast<uint8_t>(c));
      if (at == Space::kRefused || at == Space::kTooAmbiguous) return Space::kRefused;
    }
    return at;
  }
  uint32_t read(const Value& value, uint32_t at) {
    if (at == Space::kRefused) return at;
    if (value.is_map()) {
      std::vector<bool> used(value.as_map().size(), false);
      return members(value.as_map(), &used, 0, text("{", at));
    }
    if (!value.is_list()) return text(dump_json(value).value(), at);
    at = text("[", at);
    for (size_t i = 0; i < value.as_items().size(); ++i)
      at = read(value.as_items()[i], i == 0 || at == Space::kRefused ? at : text(", ", at));
    return at == Space::kRefused ? at : text("]", at);
  }
  uint32_t members(const Map& map, std::vector<bool>* used, size_t n, uint32_t at) {
    if (at == Space::kRefused || ++work_ > 20000) return Space::kRefused;
    if (n == map.size()) return text("}", at);
    for (size_t i = 0; i < map.size(); ++i) {
      if ((*used)[i]) continue;
      const auto& [key, value] = map.entries()[i];
      const uint32_t name = text((n == 0 ? "" : ", ") + dump_json(key).value() + ": ", at);
      (*used)[i] = true;
      const uint32_t end = members(map, used, n + 1, read(value, name));
      if (end != Space::kRefused) return end;
      (*used)[i] = false;
    }
    return Space::kRefused;
  }
  Space space_;
  size_t work_ = 0;
};

struct Counts {
  size_t schemas = 0, refused_schemas = 0;
  size_t valid = 0, invalid = 0;                            // instances of compiled schemas
  size_t valid_refused = 0, invalid_taken = 0, unread = 0;  // unread: instances of refused schemas
  size_t other_order = 0;                                   // of the valid ones that are refused: taken with their keys in another order
  size_t right() const { return valid - valid_refused + invalid - invalid_taken; }
  void add(const Counts& o) {
    schemas += o.schemas, refused_schemas += o.refused_schemas, valid += o.valid, invalid += o.invalid;
    valid_refused += o.valid_refused, invalid_taken += o.invalid_taken, unread += o.unread, other_order += o.other_order;
  }
};

// The largest values that were added, with their names.
class Worst {
 public:
  explicit Worst(size_t n) : n_(n) {}
  void add(double value, const std::string& name) {
    if (n_ == 0 || (kept_.size() == n_ && value <= kept_.top().first)) return;
    kept_.emplace(value, name);
    if (kept_.size() > n_) kept_.pop();
  }
  void print(const char* what) {
    std::vector<std::pair<double, std::string>> all;
    for (; !kept_.empty(); kept_.pop()) all.push_back(kept_.top());
    for (; !all.empty(); all.pop_back()) std::printf("  %s %10.2f: %s\n", what, all.back().first, all.back().second.c_str());
  }

 private:
  using Named = std::pair<double, std::string>;
  const size_t n_;
  std::priority_queue<Named, std::vector<Named>, std::greater<Named>> kept_;
};

struct BenchOptions {
  size_t every = 1, worst = 0;
  bool list = false, any_order = false;
  std::string digests;
};

class Bench {
 public:
  Bench(std::shared_ptr<const TokenTrie> trie, const Tokenizer& tokenizer, const BenchOptions& options)
      : worst_masks(options.worst), worst_compiles(options.worst), worst_refusals(options.worst), trie_(std::move(trie)),
        tokenizer_(tokenizer), list_(options.list), any_order_(options.any_order) {
    if (!options.digests.empty()) digests_.open(options.digests, std::ios::binary);
  }

  Counts group(const std::string& name, const Value& group) {
    Counts counts;
    counts.schemas = 1;
    const Value *schema = group.find("schema"), *tests = group.find("tests");
    if (schema == nullptr || tests == nullptr || !tests->is_list()) return counts;
    const std::vector<Value>& items = tests->as_items();
    GrammarOptions options;
    options.language = Language::json_schema;
    options.schema.any_order = any_order_;
    const std::string source = dump_json(*schema).value();
    const double start = now_us();
    auto grammar = Grammar::compile(source, options, trie_);
    const double took_ms = 1e-3 * (now_us() - start);
    (grammar.ok() ? compile_ms : refuse_ms).push_back(took_ms);
    (grammar.ok() ? worst_compiles : worst_refusals).add(took_ms, name);
    if (!grammar.ok()) {
      if (digests_.is_open()) digests_ << name << ": " << grammar.status().message() << "\n";
      const bool nothing_fits = grammar.status().code() == Code::invalid_argument && std::none_of(items.begin(), items.end(), is_valid);
      if (nothing_fits) {
        counts.invalid = items.size();
      } else {
        counts.refused_schemas = 1;
        counts.unread = items.size();
        if (list_) std::printf("refused: %s: %s\n", name.c_str(), grammar.status().message());
        const std::string message = grammar.status().message();
        const size_t place = message.find(": ");
        ++reasons[message.substr(place == std::string::npos ? 0 : place + 2).substr(0, 90)];
      }
      return counts;
    }
    for (size_t i = 0; i < items.size(); ++i) {
      const Value* data = items[i].find("data");
      if (data == nullptr) continue;
      const std::string text = dump_json(*data).value();
      bool complete = false;
      const size_t read = (*grammar)->match(text, &complete);
      const bool by_bytes = complete && read == text.size(), by_tokens = takes(**grammar, text, name + ", instance " + std::to_string(i));
      if (by_bytes != by_tokens) {
        ++disagreements;
        std::printf("tokens and bytes disagree: %s, instance %zu\n", name.c_str(), i);
      }
      const bool valid = is_valid(items[i]);
      ++(valid ? counts.valid : counts.invalid);
      if (by_tokens == valid) continue;
      ++(valid ? counts.valid_refused : counts.invalid_taken);
      const bool by_order = valid && AnyOrder((*grammar)->network()).takes(*data);
      counts.other_order += by_order;
      if (!valid || list_)
        std::printf("%s: %s, instance %zu: %.80s [here] %.60s\n",
                    !valid     ? "INVALID, TAKEN"
                    : by_order ? "valid, refused for its order"
                               : "valid, refused",
                    name.c_str(), i, text.substr(read - std::min<size_t>(read, 80), std::min<size_t>(read, 80)).c_str(),
                    text.substr(read).c_str());
    }
    if (digests_.is_open()) {
      uint8_t digest[16];
      masks_.digest(digest);
      masks_ = {};
      digests_ << name << ": ";
      for (const uint8_t byte : digest) digests_ << orrery::format("%02x", byte);
      digests_ << "\n";
    }
    return counts;
  }

  std::vector<double> compile_ms, refuse_ms, mask_us, accept_us;  // refuse_ms: of schemas that do not compile
  Worst worst_masks, worst_compiles, worst_refusals;
  std::map<std::string, size_t> reasons;
  size_t disagreements = 0;

 private:
  static bool is_valid(const Value& test) {
    const Value* valid = test.find("valid");
    return valid != nullptr && valid->is_bool() && valid->as_bool();
  }

  bool takes(const Grammar& grammar, const std::string& text, const std::string& name) {
    std::vector<int32_t> tokens;
    if (!tokenizer_.encode(text, {}, &tokens).ok()) return false;
    Matcher matcher = grammar.matcher();
    for (const int32_t token : tokens) {
      double start = now_us();
      auto mask = matcher.mask();
      mask_us.push_back(now_us() - start);
      worst_masks.add(mask_us.back(), name);
      if (digests_.is_open() && mask.ok()) masks_.update(*mask, matcher.n_words() * sizeof(uint32_t));
      if (!mask.ok() || !((*mask)[static_cast<size_t>(token) >> 5] >> (token & 31) & 1)) return false;
      start = now_us();
      auto accepted = matcher.accept(token);
      accept_us.push_back(now_us() - start);
      if (!accepted.ok() || !*accepted) {
        ++disagreements;
        return false;
      }
    }
    return matcher.may_end();
  }

  const std::shared_ptr<const TokenTrie> trie_;
  const Tokenizer& tokenizer_;
  const bool list_, any_order_;
  std::ofstream digests_;
  Hash128 masks_;  // of one schema
};

void print_counts(const char* name, const Counts& c) {
  std::printf(
      "%-28s schemas %5zu, refused %4zu | instances right %5zu, unread %4zu, valid refused %3zu of %5zu (order: %zu), "
      "invalid taken %3zu of %5zu\n",
      name, c.schemas, c.refused_schemas, c.right(), c.unread, c.valid_refused, c.valid, c.other_order, c.invalid_taken, c.invalid);
}

int read_files(Bench* bench, const std::string& folder, bool groups, size_t every) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".json") files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  Counts all;
  size_t unreadable = 0;
  for (size_t i = 0; i < files.size(); i += every) {
    std::ifstream in(files[i], std::ios::binary);
    std::stringstream content;
    content << in.rdbuf();
    JsonLimits limits;
    limits.max_depth = 1000;
    auto value = parse_json(content.str(), limits);
    if (!value.ok()) {
      std::printf("%s: %s\n", files[i].filename().c_str(), value.status().message());
      ++unreadable;
      continue;
    }
    Counts counts;
    if (groups && value->is_list()) {
      for (const Value& group : value->as_items()) {
        const Value* description = group.find("description");
        counts.add(bench->group(files[i].filename().string() + ": " + (description != nullptr ? std::string(description->as_string()) : ""),
                                group));
      }
      print_counts(files[i].filename().c_str(), counts);
    } else if (!groups) {
      counts = bench->group(files[i].filename().string(), *value);
    }
    all.add(counts);
  }
  if (all.schemas == 0) return std::fprintf(stderr, "%s: no schemas\n", folder.c_str()), 1;
  print_counts("all", all);
  std::printf(
      "unreadable files %zu; schemas compiled %.2f%%; valid instances refused %.2f%%, with keys in any order %.2f%%; tokens and bytes "
      "disagree %zu times\n",
      unreadable, 100.0 * static_cast<double>(all.schemas - all.refused_schemas) / static_cast<double>(all.schemas),
      100.0 * static_cast<double>(all.valid_refused) / static_cast<double>(std::max<size_t>(all.valid, 1)),
      100.0 * static_cast<double>(all.valid_refused - all.other_order) / static_cast<double>(std::max<size_t>(all.valid, 1)),
      bench->disagreements);
  std::printf("compile, ms: p50 / p90 / p99 / max %s; to a refusal %s\n", quantiles(bench->compile_ms, {.5, .9, .99, 1}).c_str(),
              quantiles(bench->refuse_ms, {.5, .9, .99, 1}).c_str());
  std::printf("masks %zu, us: mean %.1f, p50 / p90 / p99 / p99.9 / max %s\n", bench->mask_us.size(), mean(bench->mask_us),
              quantiles(bench->mask_us, {.5, .9, .99, .999, 1}).c_str());
  bench->worst_masks.print("mask, us");
  bench->worst_compiles.print("compile, ms");
  bench->worst_refusals.print("refusal, ms");
  std::printf("accepting a token, us: mean %.2f, p99 %s\n", mean(bench->accept_us), quantiles(bench->accept_us, {.99}).c_str());
  std::vector<std::pair<size_t, std::string>> reasons;
  for (const auto& [reason, n] : bench->reasons) reasons.emplace_back(n, reason);
  std::sort(reasons.rbegin(), reasons.rend());
  for (size_t i = 0; i < std::min<size_t>(reasons.size(), 30); ++i)
    std::printf("  refused %4zu: %s\n", reasons[i].first, reasons[i].second.c_str());
  return all.invalid_taken == 0 && bench->disagreements == 0 ? 0 : 1;
}

// Tools of ten properties, of all types.
std::string tools_of_ten(size_t n) {
  std::string out = "[";
  for (size_t i = 0; i < n; ++i) {
    const std::string k = std::to_string(i);
    out += (i ? "," : "") + std::string(R"({"type":"function","function":{"name":"tool_)") + k +
           R"(","description":"A tool.","parameters":{"type":"object","properties":{
      "name)" +
           k + R"(":{"type":"string"},"city":{"type":"string","maxLength":)" + std::to_string(20 + i) + R"(},"unit)" + k +
           R"(":{"enum":["a","b)" + k + R"("]},
      "count":{"type":"integer","minimum":0,"maximum":)" +
           std::to_string(100 + i) + R"(},"share":{"type":"number"},"when":{"type":"string","format":"date-time"},
      "tags":{"type":"array","items":{"type":"string"},"maxItems":8},"exact":{"type":"boolean"},"mail":{"type":"string","format":"email"},
      "place)" +
           k + R"(":{"type":"object","properties":{"lat":{"type":"number"},"lon":{"type":"number"}},"required":["lat","lon"]}},
      "required":["name)" +
           k + R"(","count"]}}})";
  }
  return out + "]";
}

// Calls as one JSON object, or with a mark around each argument.
format::CallFormat call_format(bool tagged) {
  format::CallFormat call;
  call.fields = {format::Field::name, format::Field::arguments};
  call.many = call.with_content = true;
  if (tagged) {
    TaggedFormat t;
    t.open = t.next_key = "<parameter=";
    t.to_value[0] = t.to_value[1] = ">\n";
    t.close[0] = t.close[1] = "\n</parameter>\n";
    t.string_end = "\n</parameter>\n";
    t.words[0] = "True", t.words[1] = "False", t.words[2] = "None";
    t.lists = t.objects = Notation::json;
    call.tagged = t;
    call.first = "<tool_call>\n<function=";
    call.between = {">\n"};
    call.last = "</function>\n</tool_call>";
    call.next = "</function>\n</tool_call>\n<tool_call>\n<function=";
    call.after_content = "\n" + call.first;
    return call;
  }
  call.first = "<tool_call>\n{\"name\": \"";
  call.between = {"\", \"arguments\": "};
  call.last = "}\n</tool_call>";
  call.next = "}\n</tool_call>\n<tool_call>\n{\"name\": \"";
  call.after_content = "\n" + call.first;
  return call;
}

int tools(std::shared_ptr<const TokenTrie> trie, const Tokenizer& tokenizer, bool tagged) {
  format::ChatFormat chat;
  const format::CallFormat call = call_format(tagged);
  chat.call = call;
  std::printf(
      "| tools | compiled | read, ms | tree, ms | automata, ms | first mask, ms | to the first token, ms | a call, ms | states |\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
  // The first round fills what all grammars of a vocabulary share; the fastest of five others counts.
  for (const auto& [n, deferred] : {std::pair(1, false), std::pair(1, false), std::pair(1, true), std::pair(8, false), std::pair(8, true),
                                    std::pair(128, false), std::pair(128, true)}) {
    const std::string source = tools_of_ten(static_cast<size_t>(n));
    const Value list = parse_json(source).value();
    double best[5] = {1e300, 1e300, 1e300, 1e300, 1e300};
    uint32_t states = 0;
    for (int round = 0; round < 5; ++round) {
      double at = now_us();
      const auto lap = [&](size_t i) {
        const double next = now_us();
        best[i] = std::min(best[i], 1e-3 * (next - at));
        at = next;
      };
      format::AnswerRules rules;
      rules.format = chat;
      rules.choice = format::ToolChoice::automatic;
      rules.may_reason = false;
      rules.tools = format::tools_of(list).value();
      lap(0);
      GrammarOptions options;
      std::vector<std::string> notices;
      const std::vector<uint32_t> none;
      auto tree = format::answer_tree(&rules, nullptr, &tokenizer, options.limits, &notices, deferred ? &none : nullptr);
      if (!tree.ok()) return std::fprintf(stderr, "%s\n", tree.status().message()), 1;
      lap(1);
      const auto grow = [&](const std::vector<uint32_t>& compiled, const CompileLimits& limits) {
        return format::answer_tree(&rules, nullptr, &tokenizer, limits, &notices, &compiled);
      };
      auto grammar = Grammar::of_tree(*tree, options, trie, std::move(notices), grow);
      if (!grammar.ok()) {
        std::printf("| %d | %s | refused: %s |\n", n, deferred ? "on demand" : "at once", grammar.status().message());
        break;
      }
      lap(2);
      Matcher matcher = (*grammar)->matcher();
      if (!matcher.mask().ok()) return 1;
      lap(3);
      const std::string last = std::to_string(n - 1);
      std::vector<int32_t> tokens;
      const std::string arguments = tagged ? "<parameter=name" + last +
                                                 ">\nParis\n</parameter>\n<parameter=count>\n7\n</parameter>\n<parameter=share>\n0.5\n"
                                                 "</parameter>\n"
                                           : R"({"name)" + last + R"(": "Paris", "count": 7, "share": 0.5})";
      const std::string text = call.first + "tool_" + last + call.between[0] + arguments + call.last;
      if (!tokenizer.encode(text, {}, &tokens).ok()) return 1;
      for (const int32_t token : tokens) {
        auto mask = matcher.mask();
        auto accepted = matcher.accept(token);
        if (!mask.ok() || !accepted.ok() || !*accepted) return std::fprintf(stderr, "a call is refused\n"), 1;
      }
      lap(4);
      states = (*grammar)->network().n_states();
    }
    if (states == 0) continue;
    std::printf("| %d | %s | %.2f | %.2f | %.2f | %.2f | %.2f | %.2f | %u |\n", n, deferred ? "on demand" : "at once", best[0], best[1],
                best[2], best[3], best[0] + best[1] + best[2] + best[3], best[4], states);
  }
  return 0;
}

int vocabulary(const Tokenizer& tokenizer) {
  double best = 1e300, string = 1e300;
  for (int round = 0; round < 5; ++round) {
    const double start = now_us();
    auto trie = TokenTrie::make(tokenizer);
    if (!trie.ok()) return std::fprintf(stderr, "%s\n", trie.status().message()), 1;
    const double made = now_us();
    GrammarOptions options;
    options.language = Language::json_schema;
    auto grammar = Grammar::compile(R"({"type": "string"})", options, *trie);
    Matcher matcher = (*grammar)->matcher();
    if (!matcher.mask().ok() || !matcher.accept(trie.value()->longest_prefix("\"")).value() || !matcher.mask().ok()) return 1;
    best = std::min(best, 1e-3 * (made - start)), string = std::min(string, 1e-3 * (now_us() - made));
  }
  std::printf("vocabulary of %d tokens: tree %.1f ms, a string's first masks %.1f ms, together %.1f ms\n", tokenizer.n_vocab(), best,
              string, best + string);
  return 0;
}

int run(int argc, char** argv) {
  BenchOptions options;
  std::vector<std::string> words;
  for (int i = 1; i < argc; ++i) {
    if (std::strncmp(argv[i], "every=", 6) == 0) options.every = static_cast<size_t>(std::max(1, std::atoi(argv[i] + 6)));
    else if (std::strncmp(argv[i], "list=", 5) == 0) options.list = std::atoi(argv[i] + 5) != 0;
    else if (std::strncmp(argv[i], "any_order=", 10) == 0) options.any_order = std::atoi(argv[i] + 10) != 0;
    else if (std::strncmp(argv[i], "worst=", 6) == 0) options.worst = static_cast<size_t>(std::max(0, std::atoi(argv[i] + 6)));
    else if (std::strncmp(argv[i], "digests=", 8) == 0) options.digests = argv[i] + 8;
    else words.emplace_back(argv[i]);
  }
  const bool groups = words.size() == 3 && words[1] == "suite", instances = words.size() == 3 && words[1] == "instances";
  if (!groups && !instances && !(words.size() == 2 && (words[1] == "vocabulary" || words[1] == "tools" || words[1] == "tagged"))) {
    std::fprintf(stderr,
                 "usage: bench_grammar VOCABULARY.gguf suite|instances|vocabulary|tools|tagged [FOLDER] [list=0] [any_order=0] [every=1] "
                 "[worst=0] [digests=FILE]; see its first lines\n");
    return 2;
  }
  Result<gguf::File> file = gguf::File::open(words[0]);
  if (!file.ok()) return std::fprintf(stderr, "%s\n", file.status().message()), 1;
  Result<Tokenizer> tokenizer = Tokenizer::from_gguf(*file);
  if (!tokenizer.ok()) return std::fprintf(stderr, "%s\n", tokenizer.status().message()), 1;
  if (words[1] == "vocabulary") return vocabulary(*tokenizer);
  auto trie = TokenTrie::make(*tokenizer);
  if (!trie.ok()) return std::fprintf(stderr, "%s\n", trie.status().message()), 1;
  if (words[1] == "tools" || words[1] == "tagged") return tools(*trie, *tokenizer, words[1] == "tagged");
  Bench bench(*trie, *tokenizer, options);
  return read_files(&bench, words[2], groups, options.every);
}

}  // namespace
}  // namespace orrery::text::grammar

int main(int argc, char** argv) { return orrery::text::grammar::run(argc, argv); }
