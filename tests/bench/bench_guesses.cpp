// What guessed tokens bring: bench_guesses MODEL.gguf [threads [rounds [tokens [draft DRAFT.gguf | forms | context TEXT]]]].
//   rows    the cost of a decode step of 1 to 8 tokens: an endless repetition, of which every guess is right
//   quote   the model is asked to repeat a text word for word
//   code    the model is asked to change one name in a program
//   free    the model is asked to write a story; greedy, and drawn at temperature 0.8
// With a context and a text file, behind that many tokens instead. The text is computed once, and its KV is loaded for each row:
//   rows    as above
//   long    the text goes on: policy full, auto at 10% alone, and auto at 10% that drafts (speculate policy)
// With `forms`, answers under a JSON schema:
//   schema  a story as the one string of an object, beside the same question's answer without a schema, by turns
//   form    an object of fixed keys: what the schema forces is guessed
// With `draft` and a smaller model: quote, code and free, where this model drafts (speculate draft).
// With speculate off and ngram (or draft) by turns, in new sessions; the fastest round of each counts. Processor time is that of all
// threads. The answers of the two must be the same. path=NAME as the last argument: the instruction set. Through orrery.h
// alone, as an application has it.
#include <ctime>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "tests/abi/handles.h"

namespace orrery::testing {
namespace {

double wall() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
double processor() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

const char* const kText =
    "The lighthouse at Port Emery was built in 1871 by three brothers from Aberdeen. Its lamp burned whale oil until 1902, when the "
    "harbour board replaced it with acetylene. In the winter of 1911 the keeper, Agnes Dunmore, kept the light burning for nineteen "
    "nights while the telegraph line lay under the snow. Ships from Halifax, Bergen and Lisbon found the harbour by it. The board gave "
    "her a silver watch, which is now in the town's museum beside the first lens. Today the tower is painted white and red, and a small "
    "electric lamp does the work of four men.";
const char* const kCode =
    "def read_orders(path):\n    orders = []\n    with open(path) as file:\n        for line in file:\n            fields = "
    "line.strip().split(',')\n            if len(fields) != 4:\n                continue\n            order = {'name': fields[0], 'price': "
    "float(fields[1]), 'count': int(fields[2]), 'day': fields[3]}\n            orders.append(order)\n    return orders\n\n\ndef "
    "total_of(orders):\n    total = 0.0\n    for order in orders:\n        total += order['price'] * order['count']\n    return total\n";

struct Task {
  const char* name;
  std::string prompt;
  float temperature;
  const char* schema = nullptr;
};

struct Result {
  double wall_ms = 1e9, processor_ms = 1e9;  // by token, behind the first
  std::vector<int32_t> tokens;
  uint64_t guessed = 0, accepted = 0;
};

Session session_of(const Model& model, uint32_t speculate, uint32_t most, uint32_t n_context = 2048, bool compressed = false,
                   orrery_model* draft = nullptr) {
  orrery_session_options o = session_options();
  o.n_context = n_context;
  o.reuse_prompts = 0;
  o.kv_budget_share = compressed ? 0.1f : 1.0f;
  o.policy = compressed ? "auto" : "full";
  o.speculate = speculate;
  o.speculate_tokens = most;
  o.draft_model = draft;
  return open_session(model, o);
}

void run(const Session& session, const Generation& answer, Result* best) {
  Error error;
  orrery_event event = options(&orrery_event_init);
  std::vector<int32_t> tokens;
  double start = 0, start_processor = 0;
  do {
    check(orrery_next(answer.get(), &event, &error), error, "orrery_next");
    if (event.type != ORRERY_EVENT_TOKEN) continue;
    tokens.push_back(event.token);
    if (tokens.size() == 1) start = wall(), start_processor = processor();
  } while (event.type != ORRERY_EVENT_DONE);
  const double n = static_cast<double>(tokens.size()) - 1;
  best->wall_ms = std::min(best->wall_ms, 1e3 * (wall() - start) / n);
  best->processor_ms = std::min(best->processor_ms, 1e3 * (processor() - start_processor) / n);
  if (!best->tokens.empty() && best->tokens != tokens) throw std::runtime_error("an answer differs from the one before");
  best->tokens = std::move(tokens);
  orrery_stats stats = options(&orrery_stats_init);
  check(orrery_session_stats(session.get(), &stats, &error), error, "orrery_session_stats");
  best->guessed = stats.guessed_tokens, best->accepted = stats.accepted_tokens;
}

// The KV of a text but for its last tokens, whose queries a policy needs.
class SavedPrompt {
 public:
  SavedPrompt(const Model& model, const std::vector<int32_t>& prompt) : prompt_(prompt) {
    const Session session = session_of(model, ORRERY_SPECULATE_OFF, 0, static_cast<uint32_t>(prompt.size()));
    Error error;
    check(orrery_session_evaluate(session.get(), prompt.data(), prompt.size() - kRest, nullptr, &error), error, "orrery_session_evaluate");
    kv_ = save(session);
  }
  // Returns the whole prompt, whose last tokens are left to compute.
  std::vector<int32_t> load(const Session& session) const {
    Error error;
    check(orrery_session_load_buffer(session.get(), kv_.data(), kv_.size(), &error), error, "orrery_session_load_buffer");
    return prompt_;
  }

 private:
  static constexpr ptrdiff_t kRest = 64;
  const std::vector<int32_t> prompt_;
  std::vector<unsigned char> kv_;
};

// saved: the KV of n_prompt tokens; null: a prompt of this size is computed.
void cost_of_rows(const Model& model, int rounds, uint32_t n_prompt, const std::vector<uint32_t>& guesses, uint32_t n_tokens,
                  const SavedPrompt* saved = nullptr) {
  std::vector<int32_t> cycle;
  for (uint32_t i = 0; i < (saved ? 64 : n_prompt); ++i) cycle.push_back(300 + static_cast<int32_t>(i % 8));
  // The bias makes the answer repeat the cycle: each token's successor is the only one that is left.
  struct Cycle {
    static int32_t next(void*, float* logits, size_t n, const int32_t* tokens, size_t n_tokens) {
      std::fill_n(logits, n, -1e30f);
      logits[300 + (tokens[n_tokens - 1] - 299) % 8] = 0.0f;
      return 0;
    }
  };
  Result results[8];
  orrery_generate_options o = generate_options(n_tokens + 1);
  o.logits_hook = &Cycle::next;
  o.ignore_end = 1;
  for (int round = 0; round < rounds; ++round)
    for (const uint32_t k : guesses) {
      const Session session = session_of(model, k == 0 ? ORRERY_SPECULATE_OFF : ORRERY_SPECULATE_NGRAM, k, n_prompt + 512);
      std::vector<int32_t> prompt = saved ? saved->load(session) : std::vector<int32_t>();
      prompt.insert(prompt.end(), cycle.begin(), cycle.end());
      run(session, generate_tokens(session, prompt, o), &results[k]);
    }
  std::printf(
      "| tokens of a step | ms wall | ms processor | times a step of one, wall | processor | guessed | right |\n"
      "|---|---|---|---|---|---|---|\n");
  for (const uint32_t k : guesses) {
    const double steps = 1.0 - static_cast<double>(results[k].accepted) / n_tokens;  // by token
    std::printf("| %u | %.1f | %.1f | %.2f | %.2f | %llu | %llu |\n", k + 1, results[k].wall_ms / steps, results[k].processor_ms / steps,
                results[k].wall_ms / steps / results[0].wall_ms, results[k].processor_ms / steps / results[0].processor_ms,
                static_cast<unsigned long long>(results[k].guessed), static_cast<unsigned long long>(results[k].accepted));
  }
  std::fflush(stdout);
}

// draft: the model that drafts; null: ngram guesses.
void compare(const Model& model, const Task& task, int rounds, uint32_t n_tokens, orrery_model* draft) {
  Result off, ngram;
  orrery_generate_options o = generate_options(n_tokens);
  o.temperature = task.temperature;
  o.seed = 7;
  o.grammar = task.schema;
  if (task.schema) o.grammar_kind = ORRERY_GRAMMAR_JSON_SCHEMA, o.grammar_whitespace = ORRERY_WHITESPACE_SPACED;
  for (int round = 0; round < rounds; ++round)
    for (Result* result : {&off, &ngram}) {
      const uint32_t kind = result == &off ? ORRERY_SPECULATE_OFF : draft ? ORRERY_SPECULATE_DRAFT : ORRERY_SPECULATE_NGRAM;
      const Session session = session_of(model, kind, 0, 2048, false, result == &off ? nullptr : draft);
      say(session, task.prompt.c_str());
      run(session, generate(session, o), result);
    }
  if (off.tokens != ngram.tokens) throw std::runtime_error(std::string(task.name) + ": guesses changed the answer");
  std::printf("| %s | %zu | %.2f | %.2f | **%.2f** | %.2f | %.2f | **%.2f** | %llu | %llu |\n", task.name, off.tokens.size(), off.wall_ms,
              ngram.wall_ms, off.wall_ms / ngram.wall_ms, off.processor_ms, ngram.processor_ms, off.processor_ms / ngram.processor_ms,
              static_cast<unsigned long long>(ngram.guessed), static_cast<unsigned long long>(ngram.accepted));
  std::fflush(stdout);
}

// Time by token of the same question's answer, without and with a schema.
void compare_schema(const Model& model, const Task& task, int rounds, uint32_t n_tokens) {
  Result free, bound;
  for (int round = 0; round < rounds; ++round)
    for (Result* result : {&free, &bound}) {
      orrery_generate_options o = generate_options(n_tokens);
      o.temperature = task.temperature;
      o.seed = 7;
      o.grammar = result == &free ? nullptr : task.schema;
      o.grammar_kind = result == &free ? ORRERY_GRAMMAR_GBNF : ORRERY_GRAMMAR_JSON_SCHEMA;
      const Session session = session_of(model, ORRERY_SPECULATE_OFF, 0);
      say(session, task.prompt.c_str());
      run(session, generate(session, o), result);
    }
  std::printf("| %s | %zu, %zu | %.2f | %.2f | **%.3f** | %.2f | %.2f | **%.3f** |\n", task.name, free.tokens.size(), bound.tokens.size(),
              free.wall_ms, bound.wall_ms, free.wall_ms / bound.wall_ms, free.processor_ms, bound.processor_ms,
              free.processor_ms / bound.processor_ms);
  std::fflush(stdout);
}

void compare_forms(const Model& model, int rounds, uint32_t n_tokens, const char* head) {
  const std::string story = "Write a long story about a fox who learns to sail, as a JSON object with one key, \"story\".";
  const char* const one =
      R"({"type": "object", "properties": {"story": {"type": "string", "minLength": 400}}, "required": ["story"], "additionalProperties": false})";
  std::printf(
      "| answer | tokens, free and by schema | free, ms wall | schema | rate | free, ms processor | schema | rate "
      "|\n|---|---|---|---|---|---|---|---|\n");
  for (const Task& task : {Task{"schema", story, 0.0f, one}, Task{"schema, drawn", story, 0.8f, one}})
    compare_schema(model, task, rounds, n_tokens);
  std::printf("\n%s", head);
  const std::string ask = std::string("Fill in a form about the lighthouse, as JSON.\n\n") + kText;
  const char* const form =
      R"({"type": "object", "properties": {"name_of_the_lighthouse": {"type": "string", "maxLength": 30}, "year_of_construction": {"type": "integer"},
    "number_of_builders": {"type": "integer"}, "builders_came_from": {"type": "string", "maxLength": 20}, "name_of_the_keeper_in_1911": {"type": "string", "maxLength": 30},
    "number_of_nights_without_telegraph": {"type": "integer"}, "kept_in_the_town_museum": {"type": "boolean"}, "colours_of_the_tower": {"type": "array", "items": {"enum": ["white", "red", "black"]}, "maxItems": 2},
    "the_lamp_is_electric_today": {"type": "boolean"}}, "required": ["name_of_the_lighthouse", "year_of_construction", "number_of_builders", "builders_came_from",
    "name_of_the_keeper_in_1911", "number_of_nights_without_telegraph", "kept_in_the_town_museum", "colours_of_the_tower", "the_lamp_is_electric_today"], "additionalProperties": false})";
  for (const Task& task : {Task{"form", ask, 0.0f, form}, Task{"form, drawn", ask, 0.8f, form}})
    compare(model, task, rounds, n_tokens, nullptr);
}

void compare_long(const Model& model, const SavedPrompt& saved, uint32_t n_prompt, int rounds, uint32_t n_tokens) {
  struct Mode {
    const char* name;
    uint32_t speculate;
    bool compressed;
    Result result;
  } modes[] = {{"full", ORRERY_SPECULATE_OFF, false, {}},
               {"full, ngram", ORRERY_SPECULATE_NGRAM, false, {}},
               {"auto at 10%", ORRERY_SPECULATE_OFF, true, {}},
               {"auto at 10%, policy", ORRERY_SPECULATE_POLICY, true, {}}};
  orrery_generate_options o = generate_options(n_tokens);
  o.ignore_end = 1;
  for (int round = 0; round < rounds; ++round)
    for (Mode& mode : modes) {
      const Session session = session_of(model, mode.speculate, 0, n_prompt + 512, mode.compressed);
      run(session, generate_tokens(session, saved.load(session), o), &mode.result);
    }
  std::printf("\n| behind %u tokens | ms wall | ms processor | guessed | right | full attention's tokens |\n|---|---|---|---|---|---|\n",
              n_prompt);
  for (const Mode& mode : modes)
    std::printf("| %s | %.2f | %.2f | %llu | %llu | %s |\n", mode.name, mode.result.wall_ms, mode.result.processor_ms,
                static_cast<unsigned long long>(mode.result.guessed), static_cast<unsigned long long>(mode.result.accepted),
                mode.result.tokens == modes[0].result.tokens ? "yes" : "no");
}

// The first n tokens of a file.
std::vector<int32_t> tokens_of(const Model& model, const char* path, size_t n) {
  std::ifstream file(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const Vocab vocab(orrery_model_vocab(model.get()));
  std::vector<int32_t> tokens(text.size() + 8);
  size_t n_tokens = 0;
  Error error;
  check(orrery_tokenize(vocab.get(), text.data(), text.size(), 0, tokens.data(), tokens.size(), &n_tokens, &error), error,
        "orrery_tokenize");
  if (n_tokens < n) throw std::runtime_error("the text has fewer tokens than the context");
  tokens.resize(n);
  return tokens;
}

int main_of(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "bench_guesses MODEL.gguf [threads [rounds [tokens [draft DRAFT.gguf | forms | context TEXT]]]] [path=NAME]\n");
    return 2;
  }
  const char* const last = argv[argc - 1];
  const bool names_path = std::strncmp(last, "path=", 5) == 0;
  if (names_path) --argc;
  const int32_t n_threads = argc > 2 ? std::atoi(argv[2]) : 0;
  const int rounds = argc > 3 ? std::max(1, std::atoi(argv[3])) : 3;
  const uint32_t n_tokens = argc > 4 ? static_cast<uint32_t>(std::atoi(argv[4])) : 192;
  orrery_runtime_options wishes = runtime_options();
  wishes.n_threads = n_threads;
  if (names_path) wishes.cpu_path = last + 5;
  orrery_runtime* made = nullptr;
  Error error;
  check(orrery_runtime_create(&wishes, &made, &error), error, "orrery_runtime_create");
  const Runtime runtime(made);
  const Model model = open_model(runtime, argv[1]);
  Model draft;
  if (argc > 6 && std::strcmp(argv[5], "draft") == 0) draft = open_model(runtime, argv[6]);
  const char* const head =
      "| answer | tokens | off, ms wall | guesses | times as fast | off, ms processor | guesses | times as fast | guessed | right |\n"
      "|---|---|---|---|---|---|---|---|---|---|\n";
  if (argc > 5 && std::strcmp(argv[5], "forms") == 0) return compare_forms(model, rounds, n_tokens, head), 0;
  if (argc > 6 && !draft) {
    const auto n_prompt = static_cast<uint32_t>(std::atoi(argv[5]));
    if (n_prompt < 128) throw std::runtime_error("a context of at least 128 tokens is wanted");
    const SavedPrompt saved(model, tokens_of(model, argv[6], n_prompt));
    cost_of_rows(model, rounds, n_prompt, {0, 1, 3, 7}, 64, &saved);
    compare_long(model, saved, n_prompt, rounds, n_tokens);
    return 0;
  }
  std::printf("%s", head);
  const std::string quote = std::string("Repeat the following text word for word.\n\n") + kText;
  const std::string code =
      std::string("Rename `orders` to `purchases` in this program, and print the whole program.\n\n```python\n") + kCode + "```\n";
  const std::string story = "Write a long story about a fox who learns to sail. Then explain what readers may learn from it.";
  for (const Task& task : {Task{"quote", quote, 0.0f}, Task{"quote, drawn", quote, 0.8f}, Task{"code", code, 0.0f},
                           Task{"free", story, 0.0f}, Task{"free, drawn", story, 0.8f}})
    compare(model, task, rounds, n_tokens, draft.get());
  if (draft) return 0;
  std::printf("\n");
  cost_of_rows(model, rounds, 480, {0, 1, 2, 3, 4, 5, 6, 7}, 256);
  return 0;
}

}  // namespace
}  // namespace orrery::testing

int main(int argc, char** argv) {
  try {
    return orrery::testing::main_of(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "bench_guesses: %s\n", e.what());
    return 1;
  }
}
