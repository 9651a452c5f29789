// Tens of thousands of turns of conversation under every policy, with forks, rewinds, saves, loads and
// cancels between them: memory stays constant, and every answer is the one that a fresh session gives.
//
//   soak TURNS [SEED [POLICY ...]]
//
// TURNS are shared out over the policies. A few sessions live at once, each with the lineage of turns that
// led to what it holds; forks and loaded sessions take over another's. When a lineage ends, a fresh session
// replays it turn by turn, and every answer is compared.
//
// Some policies choose by the queries of tokens before the prompt's end. Where a rewind or a load has lost
// these, the engine computes them again, and that of a generated token is another then
// (runtime/engine/session/session.h). So an answer that differs is asked for once more, of a fresh session that
// rewinds and loads where the lineage did: if it is the same now, it counts as chosen again, otherwise as
// wrong. Under "full" nothing may be chosen again.
//
// Prints a row for each policy; fails on a wrong answer, a call that fails, an arena that is not empty again,
// and resident memory that grows beyond a bound after a warm-up.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/abi/handles.h"
#include "tests/support/random_blocks.h"
#include "tests/support/temp_dir.h"

namespace orrery::testing {
namespace {

constexpr uint32_t kContext = 384;
constexpr size_t kSessions = 3, kMostTurns = 8;
constexpr uint64_t kMostTold = 5;     // wrong answers of a policy that are told of one by one
constexpr double kMostGrowthMib = 8;  // of resident memory, after the warm-up
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // freed memory is kept aside
#else
constexpr bool kSanitized = false;
#endif

double resident_mib() {
  std::ifstream in("/proc/self/statm");
  double pages = 0;
  in >> pages >> pages;
  return pages * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

// One turn, as it was asked and answered; and what the session held behind it.
struct Turn {
  std::string text;             // of a turn by messages
  std::vector<int32_t> prompt;  // of a turn by tokens
  uint32_t max_tokens = 0;
  std::vector<int32_t> answer;
  std::string way;  // what was done before it: f fork, r rewind, b / F loaded from a buffer / a file, c cancel
  // Before it was taken back to where the turn begins, the session held so many tokens; and then so many,
  // where an answer by messages was cancelled before it had computed again what it spells otherwise.
  size_t high = 0, low = SIZE_MAX;
  size_t n_tokens = 0, n_messages = 0;
};

struct Lineage {
  bool by_messages = false;
  std::vector<Turn> turns;
  std::string way;  // since the last turn, as in Turn
  size_t high = 0, low = SIZE_MAX;

  size_t n_tokens(size_t k) const { return k == 0 ? 0 : turns[k - 1].n_tokens; }
  size_t n_messages(size_t k) const { return k == 0 ? 0 : turns[k - 1].n_messages; }
};

struct Counts {
  uint64_t turns = 0, forks = 0, rewinds = 0, saves = 0, loads = 0, cancels = 0, compared = 0, again = 0, wrong = 0;
  double rss_start_mib = 0, rss_end_mib = 0, rss_peak_mib = 0, seconds = 0;
};

// Begins a turn's answer. By tokens the whole sequence is given, by messages one more of them.
Generation begin(const Session& session, const Lineage& lineage, const Turn& turn, const orrery_generate_options& o) {
  if (lineage.by_messages) {
    say(session, turn.text.c_str());
    return generate(session, o);
  }
  std::vector<int32_t> all;
  for (const Turn& t : lineage.turns) {
    all.insert(all.end(), t.prompt.begin(), t.prompt.end());
    all.insert(all.end(), t.answer.begin(), t.answer.end());
  }
  all.insert(all.end(), turn.prompt.begin(), turn.prompt.end());
  return generate_tokens(session, all, o);
}

orrery_generate_options options_of(const Turn& turn) {
  orrery_generate_options o = generate_options(turn.max_tokens);
  o.ignore_end = 1;
  return o;
}

// Takes the turn on a session that holds the lineage so far, and appends it.
void take(const Session& session, Lineage* lineage, Turn turn) {
  turn.answer = pull(begin(session, *lineage, turn, options_of(turn))).tokens;
  turn.n_tokens = orrery_session_n_tokens(session.get());
  turn.n_messages = orrery_session_n_messages(session.get());
  turn.way.swap(lineage->way);
  turn.high = std::exchange(lineage->high, 0);
  turn.low = std::exchange(lineage->low, SIZE_MAX);
  lineage->turns.push_back(std::move(turn));
}

// Takes the session and its lineage back to where k turns were done.
void rewind_to(const Session& session, Lineage* lineage, size_t k, char how) {
  const size_t n_tokens = orrery_session_n_tokens(session.get());
  lineage->high = std::max(lineage->high, n_tokens);
  for (size_t i = k; i < lineage->turns.size(); ++i) {
    lineage->high = std::max(lineage->high, lineage->turns[i].high);
    lineage->way += lineage->turns[i].way;
  }
  lineage->way += how;
  if (k < lineage->turns.size()) lineage->low = SIZE_MAX;
  lineage->turns.resize(k);
  if (n_tokens < lineage->n_tokens(k)) lineage->low = std::min(lineage->low, n_tokens);
  Error error;
  check(orrery_session_rewind_messages(session.get(), lineage->n_messages(k), &error), error, "rewind_messages");
  check(orrery_session_rewind(session.get(), std::min(n_tokens, lineage->n_tokens(k)), &error), error, "rewind");
}

class Soak {
 public:
  Soak(const char* policy, uint64_t seed) : policy_(policy), random_(seed) {
    orrery_runtime_options o = runtime_options();
    o.n_threads = 1;
    o.backend = "cpu";
    o.device_budget_bytes = uint64_t{32} << 20;
    o.reservoir_bytes = uint64_t{32} << 20;
    Error error;
    orrery_runtime* h = nullptr;
    check(orrery_runtime_create(&o, &h, &error), error, "orrery_runtime_create");
    runtime_.reset(h);
    TinyModel tiny;
    tiny.context = kContext;
    model_ = open_model(runtime_, dir_.write("tiny.gguf", tiny.build()));
    open().reset();  // the model's workspace comes with its first session, and stays
    idle_bytes_ = arena_used(runtime_);
    for (Held& held : held_) restart(&held);
  }

  Counts run(uint64_t n_turns) {
    const auto started = std::chrono::steady_clock::now();
    const uint64_t warm_up = std::max<uint64_t>(n_turns / 10, 12);
    while (counts_.turns < n_turns) {
      step(&held_[random_.below(kSessions)]);
      if (counts_.turns == warm_up) counts_.rss_start_mib = resident_mib();
      if (counts_.turns > warm_up && counts_.turns % 64 == 0) counts_.rss_peak_mib = std::max(counts_.rss_peak_mib, resident_mib());
    }
    for (Held& held : held_) {
      verify(held.lineage);
      held.session.reset();
    }
    if (arena_used(runtime_) != idle_bytes_) throw std::runtime_error("the arena is not empty when all sessions are freed");
    counts_.rss_end_mib = resident_mib();
    counts_.rss_peak_mib = std::max(counts_.rss_peak_mib, counts_.rss_end_mib);
    if (counts_.rss_start_mib == 0) counts_.rss_start_mib = counts_.rss_end_mib;
    counts_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
    return counts_;
  }

 private:
  struct Held {
    Session session;
    Lineage lineage;
  };

  Session open() {
    orrery_session_options o = session_options();
    o.n_context = kContext;
    o.chunk_tokens = 48;
    o.policy = policy_.c_str();
    const orrery_option by_prompt = {"rank", "attention"};  // these refuse a session without a head profile
    if (policy_ == "duoattention" || policy_ == "razorattention") o.policy_options = &by_prompt, o.n_policy_options = 1;
    // The least budget that the policy takes of these.
    orrery_session* h = nullptr;
    Error error;
    for (const float share : {share_, 0.4f, 0.6f, 0.8f, 1.0f}) {
      o.kv_budget_share = policy_ == "full" ? 1.0f : share;
      const orrery_status status = orrery_session_open(model_.get(), &o, &h, &error);
      share_ = share;
      if (status != ORRERY_INVALID_ARGUMENT || share == 1.0f) {
        check(status, error, "orrery_session_open");
        break;
      }
    }
    return Session(h);
  }

  void restart(Held* held) {
    held->session = open();
    held->lineage = {};
    held->lineage.by_messages = random_.below(2) == 1;
  }

  Turn another(bool by_messages) {
    Turn turn;
    turn.max_tokens = static_cast<uint32_t>(1 + random_.below(10));
    const uint64_t n = 1 + random_.below(24);
    for (uint64_t i = 0; i < n; ++i) {
      if (by_messages) turn.text += static_cast<char>('a' + random_.below(26));
      else turn.prompt.push_back(static_cast<int32_t>(kByte0 + 32 + random_.below(96)));
    }
    return turn;
  }

  void step(Held* held) {
    if (held->lineage.turns.size() >= kMostTurns || orrery_session_n_tokens(held->session.get()) + 60 > kContext) {
      verify(held->lineage);
      restart(held);
    }
    switch (random_.below(8)) {
      case 0: fork(*held, &held_[random_.below(kSessions)]); break;
      case 1: rewind(held); break;
      case 2: save_and_load(*held, &held_[random_.below(kSessions)]); break;
      case 3: cancel(held); break;
      default: break;
    }
    take(held->session, &held->lineage, another(held->lineage.by_messages));
    ++counts_.turns;
  }

  void fork(const Held& from, Held* to) {
    Session child = fork_of(from.session);
    ++counts_.forks;
    const Lineage lineage = from.lineage;
    if (to != &from) verify(to->lineage);
    to->session = std::move(child);
    to->lineage = lineage;
    to->lineage.way += 'f';
  }

  void rewind(Held* held) {
    verify(held->lineage);
    rewind_to(held->session, &held->lineage, random_.below(held->lineage.turns.size() + 1), 'r');
    ++counts_.rewinds;
  }

  // By a buffer, or by a file; into another session, a new one, or itself.
  void save_and_load(const Held& from, Held* to) {
    const Lineage lineage = from.lineage;
    Error error;
    const std::string path = dir_.file("saved");
    const bool by_file = random_.below(2) == 1;
    std::vector<unsigned char> bytes;
    if (by_file) check(orrery_session_save(from.session.get(), path.c_str(), &error), error, "orrery_session_save");
    else bytes = save(from.session);
    ++counts_.saves;
    if (to != &from) verify(to->lineage);
    if (random_.below(3) == 0) to->session = open();
    if (by_file) check(orrery_session_load(to->session.get(), path.c_str(), &error), error, "orrery_session_load");
    else check(orrery_session_load_buffer(to->session.get(), bytes.data(), bytes.size(), &error), error, "orrery_session_load_buffer");
    ++counts_.loads;
    to->lineage = lineage;
    to->lineage.way += by_file ? 'F' : 'b';
  }

  // A turn that is cancelled, somewhere, and taken back.
  void cancel(Held* held) {
    const Turn turn = another(held->lineage.by_messages);
    struct Countdown {
      uint64_t left;
      static int32_t hook(void* user, float*, size_t, const int32_t*, size_t) { return static_cast<Countdown*>(user)->left-- == 0; }
    } countdown{random_.below(4)};
    orrery_generate_options o = options_of(turn);
    o.max_tokens = 20;
    const uint64_t way = random_.below(3);
    if (way == 0) {
      o.logits_hook = &Countdown::hook;
      o.logits_user = &countdown;
    }
    {
      const Generation generation = begin(held->session, held->lineage, turn, o);
      uint64_t events = random_.below(6);
      if (way == 1) {
        pull(generation.get(), [&](const orrery_event&) {
          if (events-- == 0) orrery_cancel(generation.get());
        });
      } else if (way == 2) {  // freed where it stands
        for (orrery_event e = options(&orrery_event_init); events > 0 && e.type != ORRERY_EVENT_DONE; --events) {
          Error error;
          check(orrery_next(generation.get(), &e, &error), error, "orrery_next");
        }
      } else {
        pull(generation);
      }
    }
    rewind_to(held->session, &held->lineage, held->lineage.turns.size(), 'c');
    ++counts_.cancels;
  }

  void verify(const Lineage& lineage) {
    if (lineage.turns.empty()) return;
    size_t n_compared = 0;
    const size_t differs = replay(lineage, false, &n_compared);
    counts_.compared += n_compared;
    if (differs == lineage.turns.size()) return;
    const size_t wrong = replay(lineage, true, &n_compared);
    if (wrong == lineage.turns.size() && policy_ != "full") {
      ++counts_.again;
      return;
    }
    if (++counts_.wrong <= kMostTold) tell(lineage, std::min(wrong, lineage.turns.size() - 1));
  }

  // Of a fresh session: the first turn whose answer differs, or their number. same_calls: it rewinds and
  // loads where the lineage did.
  size_t replay(const Lineage& lineage, bool same_calls, size_t* n_compared) {
    const Session fresh = open();
    Lineage again;
    again.by_messages = lineage.by_messages;
    for (*n_compared = 0; *n_compared < lineage.turns.size();) {
      const Turn& turn = lineage.turns[*n_compared];
      if (same_calls) take_back(fresh, turn, again.n_tokens(again.turns.size()));
      Turn asked = turn;
      asked.answer.clear();
      asked.way.clear();
      take(fresh, &again, std::move(asked));
      ++*n_compared;
      if (again.turns.back().answer != turn.answer) return *n_compared - 1;
    }
    return lineage.turns.size();
  }

  // What the lineage's session lost before the turn, the fresh one loses, too.
  static void take_back(const Session& fresh, const Turn& turn, size_t n_tokens) {
    Error error;
    if (turn.way.find_first_of("bF") != turn.way.npos) {
      const std::vector<unsigned char> bytes = save(fresh);
      check(orrery_session_load_buffer(fresh.get(), bytes.data(), bytes.size(), &error), error, "orrery_session_load_buffer");
    }
    if (turn.way.find_first_of("rc") == turn.way.npos) return;
    check(orrery_session_rewind(fresh.get(), n_tokens, &error), error, "rewind");
    if (turn.high > n_tokens) {
      const std::vector<int32_t> others(turn.high - n_tokens, kByte0 + 'x');
      check(orrery_session_evaluate(fresh.get(), others.data(), others.size(), nullptr, &error), error, "evaluate");
      check(orrery_session_rewind(fresh.get(), n_tokens, &error), error, "rewind");
    }
    if (turn.low < n_tokens) check(orrery_session_rewind(fresh.get(), turn.low, &error), error, "rewind");
  }

  // How the session came to its wrong answer.
  void tell(const Lineage& lineage, size_t wrong) const {
    std::printf("%-16s wrong answer of turn %zu, by %s; tokens behind each turn, and what came before it:", policy_.c_str(), wrong,
                lineage.by_messages ? "messages" : "tokens");
    for (size_t i = 0; i <= wrong; ++i) std::printf(" %s>%zu", lineage.turns[i].way.c_str(), lineage.turns[i].n_tokens);
    std::printf("\n");
  }

  TempDir dir_;
  std::string policy_;
  Random random_;
  Runtime runtime_;
  Model model_;
  uint64_t idle_bytes_ = 0;
  float share_ = 0.25f;
  Held held_[kSessions];
  Counts counts_;
};

// The names in orrery_policies()'s table.
std::vector<std::string> policies() {
  size_t n = 0;
  Error error;
  check(orrery_policies(nullptr, 0, &n, &error), error, "orrery_policies");
  std::string json(n, '\0');
  check(orrery_policies(json.data(), n, &n, &error), error, "orrery_policies");
  std::vector<std::string> names;
  const std::string mark = "{\"name\": \"";
  for (size_t at = json.find(mark); at != json.npos; at = json.find(mark, at + 1)) {
    const size_t from = at + mark.size(), end = json.find('"', from);
    // Of options, the next member is another.
    if (json.compare(end, 12, "\", \"method\":") == 0) names.push_back(json.substr(from, end - from));
  }
  return names;
}

void print_row(const std::string& name, const Counts& c) {
  std::printf("%-16s %8llu %7llu %8llu %6llu %6llu %8llu %9llu %6llu %6llu %10.1f %8.1f %9.1f %8.1f\n", name.c_str(),
              static_cast<unsigned long long>(c.turns), static_cast<unsigned long long>(c.forks),
              static_cast<unsigned long long>(c.rewinds), static_cast<unsigned long long>(c.saves),
              static_cast<unsigned long long>(c.loads), static_cast<unsigned long long>(c.cancels),
              static_cast<unsigned long long>(c.compared), static_cast<unsigned long long>(c.again),
              static_cast<unsigned long long>(c.wrong), c.rss_start_mib, c.rss_end_mib, c.rss_peak_mib, c.seconds);
  std::fflush(stdout);
}

int soak(uint64_t n_turns, uint64_t seed, std::vector<std::string> names) {
  if (names.empty()) names = policies();
  if (names.empty()) return std::fprintf(stderr, "no policies\n"), 2;
  std::printf("%-16s %8s %7s %8s %6s %6s %8s %9s %6s %6s %10s %8s %9s %8s\n", "policy", "turns", "forks", "rewinds", "saves", "loads",
              "cancels", "compared", "again", "wrong", "RSS start", "RSS end", "RSS peak", "seconds");
  Counts all;
  bool failed = false;
  for (const std::string& name : names) {
    Counts c;
    try {
      c = Soak(name.c_str(), seed).run((n_turns + names.size() - 1) / names.size());
    } catch (const std::exception& e) {
      std::printf("%-16s %s\n", name.c_str(), e.what());
      failed = true;
      continue;
    }
    print_row(name, c);
    const bool grown = !kSanitized && c.rss_peak_mib > c.rss_start_mib + kMostGrowthMib;
    if (grown) std::printf("%-16s resident memory grew by more than %.0f MiB\n", name.c_str(), kMostGrowthMib);
    failed |= c.wrong > 0 || grown || c.compared == 0;
    all.turns += c.turns, all.forks += c.forks, all.rewinds += c.rewinds, all.saves += c.saves, all.loads += c.loads;
    all.cancels += c.cancels, all.compared += c.compared, all.again += c.again, all.wrong += c.wrong, all.seconds += c.seconds;
    if (all.rss_start_mib == 0) all.rss_start_mib = c.rss_start_mib;
    all.rss_end_mib = c.rss_end_mib, all.rss_peak_mib = std::max(all.rss_peak_mib, c.rss_peak_mib);
  }
  print_row("all", all);
  return failed ? 1 : 0;
}

}  // namespace
}  // namespace orrery::testing

int main(int n_args, char** args) {
  if (n_args < 2) return std::fprintf(stderr, "usage: soak TURNS [SEED [POLICY ...]]\n"), 2;
  const uint64_t turns = std::strtoull(args[1], nullptr, 10);
  const uint64_t seed = n_args > 2 ? std::strtoull(args[2], nullptr, 10) : 1;
  if (turns == 0) return std::fprintf(stderr, "TURNS is a number above 0\n"), 2;
  return orrery::testing::soak(turns, seed, std::vector<std::string>(args + std::min(n_args, 3), args + n_args));
}
