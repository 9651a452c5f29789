// Sessions beside their computation: files, the parts of a prompt, and the first steps behind a prompt.
//
//     bench_sessions MODEL.gguf steps CONTEXT [SHARE=0.2] [STEPS=12] [ROUNDS=5] [POLICY[:OPTION=VALUE...]...]
//
// Prefills 64 tokens behind CONTEXT invented ones, and decodes, in sessions of full attention and of the policies (auto:steps=0 and
// auto), by turns. Prints each step's median in milliseconds, of all rounds, and the number of tokens from which a policy's decode takes
// less time in all than full attention.
//
//     bench_sessions MODEL.gguf parts CONTEXT [TOKENS=512]
//
// Prefills TOKENS tokens behind CONTEXT invented ones, in parts and in whole chunks, by turns. Prints the longest part and
// the time in all, in milliseconds.
//
//     bench_sessions MODEL.gguf reuse CONTEXT
//
// A conversation of CONTEXT tokens, computed. Then its answer is made again, its turn behind a quarter of the tokens is edited, the first
// branch goes on, and a new session asks the same. Prints the time to the first token, and the computed and restored tokens of each
// request: with kept prompts (reuse_prompts) and without, by turns. Without, the conversation's KV is invented, but for the first request.
//
//     bench_sessions MODEL.gguf folder FOLDER [TOKENS=4000]
//
// A prompt of TOKENS tokens, in a session that computes it, and in one that takes it from a folder of saved sessions. Prints the time to the
// first token of each, and of saving, in milliseconds. Entries lie in FOLDER, and are removed.
//
//     bench_sessions MODEL.gguf FOLDER [MIB=192] [ROUNDS=7]
//
// Saves and loads a session beside a copy of the same bytes, by turns.
// The session holds invented KV of MIB mebibytes. Copies: of a buffer to a new file, flushed (beside save); of a file to a buffer that has
// been touched (beside load). Prints the least and the median of each in milliseconds. Files lie in FOLDER, and are removed.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/engine/answer/generation.h"
#include "runtime/engine/folder/folder.h"
#include "runtime/engine/session/session.h"
#include "runtime/engine/session/session_file.h"
#include "runtime/os/os.h"

namespace {

using namespace orrery;

void check(const Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.message());
  std::exit(1);
}
template <class T>
T check(Result<T> result) {
  if (!result.ok()) check(result.take_status());
  return std::move(result).value();
}

struct Measured {
  const char* what;
  std::function<void()> work;
  std::vector<double> ms = {};
};

std::shared_ptr<engine::LanguageModel> open(const char* path, uint64_t part_us) {
  engine::RuntimeOptions runtime;
  runtime.backend = "cpu";
  runtime.n_threads = 2;
  runtime.prompt_part_us = part_us;
  return check(engine::LanguageModel::open(check(engine::Runtime::create(runtime)), std::string(path), {}));
}

void fill(Span<std::byte> page) {  // small halves
  uint32_t state = 1;
  for (size_t at = 0; at + 2 <= page.size(); at += 2) {
    state = state * 1664525u + 1013904223u;
    const auto half = static_cast<uint16_t>((state >> 16 & 0x83ff) | 0x2c00);
    std::memcpy(page.data() + at, &half, 2);
  }
}

int measure_parts(const char* path, uint32_t n_context, uint32_t n_tokens) {
  for (int round = 0; round < 3; ++round)
    for (const uint64_t part_us : {engine::RuntimeOptions().prompt_part_us, UINT64_MAX}) {
      const auto model = open(path, part_us);
      engine::SessionOptions options;
      options.n_context = n_context + n_tokens;
      const auto session = check(engine::Session::open(model, options));
      if (n_context > 0)
        check(session->sequence().assume_prompt(std::vector<int32_t>(n_context, 1), [](uint32_t, Span<std::byte> page) { fill(page); }));
      const std::vector<int32_t> tokens(n_tokens, 2);
      uint64_t longest = 0;
      size_t n_parts = 0;
      const uint64_t start = now_us();
      for (size_t done = 0; done < n_tokens; ++n_parts) {
        const uint32_t n = session->sequence().next_chunk(n_tokens - done);
        const uint64_t begin = now_us();
        if (check(session->sequence().prefill_part({tokens.data() + done, n}, nullptr, done + n == n_tokens, nullptr))) done += n;
        longest = std::max(longest, now_us() - begin);
      }
      std::printf("%-12s %zu parts, the longest %.0f ms, in all %.0f ms\n", part_us == UINT64_MAX ? "whole chunks" : "parts", n_parts,
                  static_cast<double>(longest) / 1000, static_cast<double>(now_us() - start) / 1000);
    }
  return 0;
}

struct FirstToken {
  double ms = 0;
  unsigned long long computed = 0, restored = 0;
};
// The answer's first token, behind this prompt.
FirstToken first_token(engine::Session* session, const std::vector<int32_t>& prompt) {
  const engine::SessionStats before = session->stats();
  engine::GenerateOptions options;
  options.max_tokens = 1;
  options.ignore_end = true;
  const uint64_t start = now_us();
  const auto generation = check(engine::Generation::proceed(session, prompt, options));
  FirstToken first;
  engine::Event event;
  do {
    check(generation->next(&event));
    if (event.type == engine::EventType::token) first.ms = static_cast<double>(now_us() - start) / 1000;
  } while (event.type != engine::EventType::done);
  first.computed = session->stats().prompt_tokens - before.prompt_tokens;
  first.restored = session->stats().restored_tokens - before.restored_tokens;
  return first;
}

int measure_reuse(const char* path, uint32_t n_tokens) {
  constexpr uint32_t kTurn = 64;
  const auto model = open(path, engine::RuntimeOptions().prompt_part_us);
  const auto behind = [](std::vector<int32_t> tokens, uint32_t n_kept, uint32_t n_new, uint32_t seed) {
    tokens.resize(n_kept);
    for (uint32_t i = 0; i < n_new; ++i) tokens.push_back(static_cast<int32_t>(300 + (i * i * 31 + i * 7 + seed) % 4000));
    return tokens;
  };
  const std::vector<int32_t> first = behind({}, 0, n_tokens, 1), edited = behind(first, n_tokens / 4, kTurn, 2),
                             on = behind(first, n_tokens, kTurn, 3);
  const auto session_of = [&](bool reuses) {
    engine::SessionOptions options;
    options.n_context = n_tokens + 2 * kTurn;
    options.reuse_prompts = reuses;
    return check(engine::Session::open(model, options));
  };
  const auto with = session_of(true), without = session_of(false);
  const FirstToken computed = first_token(with.get(), first);
  check(without->sequence().assume_prompt(first, [](uint32_t, Span<std::byte> page) { fill(page); }));
  const auto print = [](const char* what, const FirstToken& a, const FirstToken& b) {
    std::printf("%-28s with: %8.0f ms, %6llu computed, %6llu restored   without: %8.0f ms, %6llu computed\n", what, a.ms, a.computed,
                a.restored, b.ms, b.computed);
    std::fflush(stdout);
  };
  std::vector<std::vector<int32_t>> prompts = {first, edited, on};
  const char* const names[] = {"the answer again", "an edited turn", "back on the first branch"};
  for (size_t i = 0; i < prompts.size(); ++i) {
    const FirstToken kept = first_token(with.get(), prompts[i]);
    print(names[i], kept, first_token(without.get(), prompts[i]));
  }
  print("a new session", first_token(session_of(true).get(), first), computed);
  return 0;
}

int measure_folder(const char* path, const char* at, uint32_t n_tokens) {
  const auto model = open(path, engine::RuntimeOptions().prompt_part_us);
  const auto folder = check(engine::Folder::open(at, 0, "bench"));
  std::vector<int32_t> prompt;
  for (uint32_t i = 0; i < n_tokens; ++i) prompt.push_back(static_cast<int32_t>(300 + (i * i * 31 + i * 7) % 4000));
  engine::SessionOptions options;
  options.n_context = n_tokens + 64;
  options.folder = folder;
  const auto session = check(engine::Session::open(model, options));
  const FirstToken computed = first_token(session.get(), prompt);
  const uint64_t start = now_us();
  check(engine::SessionFile::save_to_folder(session.get(), *folder, "bench"));
  const double saving = static_cast<double>(now_us() - start) / 1000;
  std::printf("computed: %8.0f ms, %6llu tokens   saved: %8.0f ms\n", computed.ms, computed.computed, saving);
  for (int round = 0; round < 3; ++round) {
    const auto other = check(engine::Session::open(model, options));
    const FirstToken found = first_token(other.get(), prompt);
    std::printf("found:    %8.0f ms, %6llu computed, %6llu from the folder\n", found.ms, found.computed,
                static_cast<unsigned long long>(other->stats().folder_tokens));
  }
  check(folder->remove("bench"));
  return 0;
}

// Adds up medians: a row of figures, and from which token on the steps together take less than those of `full`.
void print_steps(const char* name, const std::vector<std::vector<double>>& ms, size_t n_shown, const std::vector<double>& full) {
  std::printf("%-16s", name);
  double sum = 0, of_full = 0;
  size_t gains = 0;  // 0: not within these steps
  for (size_t i = 0; i < ms.size(); ++i) {
    std::vector<double> sorted = ms[i];
    std::sort(sorted.begin(), sorted.end());
    const double x = sorted[sorted.size() / 2];
    if (i < n_shown) std::printf(" %6.1f", x);
    sum += x, of_full += full[i];
    if (sum >= of_full) gains = 0;
    else if (gains == 0) gains = i + 2;  // the prompt gives the first token
  }
  std::printf("  last %.1f ms; gains from token %zu on\n", ms.back()[ms.back().size() / 2], gains);
}

int measure_steps(const char* path, uint32_t n_context, double share, size_t n_shown, uint32_t rounds, std::vector<std::string> policies) {
  constexpr uint32_t kTurn = 64, kSteps = 96;
  const auto model = open(path, UINT64_MAX);
  if (policies.empty()) policies = {"auto:steps=0", "auto"};
  policies.insert(policies.begin(), "full");
  std::vector<std::unique_ptr<engine::Session>> sessions;
  for (const std::string& policy : policies) {
    engine::SessionOptions options;
    options.n_context = n_context + kTurn + kSteps;
    size_t colon = policy.find(':');
    options.policy = policy.substr(0, colon);
    while (colon != std::string::npos) {
      const size_t next = policy.find(':', colon + 1), equals = policy.find('=', colon);
      const size_t length = next == std::string::npos ? next : next - equals - 1;  // of the value
      options.policy_options.emplace_back(policy.substr(colon + 1, equals - colon - 1), policy.substr(equals + 1, length));
      colon = next;
    }
    if (options.compressed()) options.kv_share = share;
    sessions.push_back(check(engine::Session::open(model, options)));
    check(
        sessions.back()->sequence().assume_prompt(std::vector<int32_t>(n_context, 1), [](uint32_t, Span<std::byte> page) { fill(page); }));
  }
  std::vector<std::vector<std::vector<double>>> ms(policies.size(), std::vector<std::vector<double>>(kSteps));
  std::vector<int32_t> turn(kTurn);
  for (uint32_t i = 0; i < kTurn; ++i) turn[i] = static_cast<int32_t>(300 + i);
  for (uint32_t round = 0; round < rounds; ++round)
    for (size_t p = 0; p < policies.size(); ++p) {
      engine::Session& session = *sessions[p];
      session.sequence().truncate(n_context);
      check(session.prefill(turn, nullptr, nullptr));
      for (uint32_t i = 0; i < kSteps; ++i) {
        session.push_generated(static_cast<int32_t>(400 + i));
        const uint64_t start = now_us();
        check(session.decode());
        ms[p][i].push_back(static_cast<double>(now_us() - start) / 1000);
      }
    }
  std::vector<double> full;
  for (std::vector<double> step : ms[0]) {
    std::sort(step.begin(), step.end());
    full.push_back(step[step.size() / 2]);
  }
  for (size_t p = 0; p < policies.size(); ++p) print_steps(policies[p].c_str(), ms[p], n_shown, full);
  return 0;
}

// A saved session of about `mib`, opened again: the time to the first token's logits, and to those of the next.
int measure_restore(const char* path, const std::string& folder, uint32_t mib, uint32_t rounds) {
  const std::string saved = folder + "/bench-restored";
  const auto model = open(path, UINT64_MAX);
  const uint64_t page_bytes = engine::kv_format(model->description(), KvType::f16).page_bytes();
  for (const char* policy : {"full", "auto", "snapkv"}) {
    engine::SessionOptions options;
    options.n_context = static_cast<uint32_t>((uint64_t{mib} << 20) / page_bytes) * kPageTokens;
    options.policy = policy;
    if (options.compressed()) options.kv_share = .2;
    {
      const auto session = check(engine::Session::open(model, options));
      const std::vector<int32_t> tokens(options.n_context - 128, 1), turn(64, 2);
      check(session->sequence().assume_prompt(tokens, [](uint32_t, Span<std::byte> page) { fill(page); }));
      check(session->prefill(turn, nullptr, nullptr));
      for (int i = 0; i < 16; ++i) session->push_generated(400 + i), check(session->decode());
      check(engine::SessionFile::save_to_file(session.get(), saved));
    }
    using Pages = engine::SessionFile::Pages;
    std::vector<double> first[2], next[2];
    for (uint32_t round = 0; round < rounds; ++round)
      for (const Pages pages : {Pages::at_once, Pages::behind}) {
        const auto session = check(engine::Session::open(model, options));
        const uint64_t start = now_us();
        check(engine::SessionFile::load_from_file(session.get(), saved, engine::SessionFile::kWholeBytes, nullptr, pages));
        check(session->sequence().refresh_logits());
        first[pages == Pages::behind].push_back(static_cast<double>(now_us() - start) / 1000);
        session->push_generated(500);
        check(session->decode());
        next[pages == Pages::behind].push_back(static_cast<double>(now_us() - start) / 1000);
      }
    for (int behind = 0; behind < 2; ++behind) {
      for (auto* ms : {&first[behind], &next[behind]}) std::sort(ms->begin(), ms->end());
      std::printf("%-8s pages %-8s first token: least %6.1f, median %6.1f ms; the next: least %6.1f, median %6.1f ms\n", policy,
                  behind ? "behind" : "at once", first[behind][0], first[behind][rounds / 2], next[behind][0], next[behind][rounds / 2]);
    }
  }
  std::remove(saved.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3)
    return std::fprintf(stderr,
                        "usage: bench_sessions MODEL.gguf parts CONTEXT [TOKENS] | MODEL.gguf steps CONTEXT [...] | MODEL.gguf reuse "
                        "CONTEXT | MODEL.gguf folder FOLDER [TOKENS] | MODEL.gguf restore FOLDER [MIB] [ROUNDS] | MODEL.gguf FOLDER [MIB] "
                        "[ROUNDS]\n"),
           2;
  const auto number = [&](int i, int otherwise) { return static_cast<uint32_t>(argc > i ? std::atoi(argv[i]) : otherwise); };
  if (std::string(argv[2]) == "reuse") return measure_reuse(argv[1], number(3, 4096));
  if (std::string(argv[2]) == "restore" && argc > 3) return measure_restore(argv[1], argv[3], number(4, 192), std::max(number(5, 7), 1u));
  if (std::string(argv[2]) == "folder" && argc > 3) return measure_folder(argv[1], argv[3], number(4, 4000));
  if (std::string(argv[2]) == "parts") return measure_parts(argv[1], number(3, 0), number(4, 512));
  if (std::string(argv[2]) == "steps")
    return measure_steps(argv[1], number(3, 16000), argc > 4 ? std::atof(argv[4]) : .2, number(5, 12), number(6, 5),
                         {argv + std::min(argc, 7), argv + argc});
  const uint64_t wanted = uint64_t{number(3, 192)} << 20;
  const uint32_t rounds = number(4, 7);
  const std::string saved = std::string(argv[2]) + "/bench-saved", copied = std::string(argv[2]) + "/bench-copied";
  const auto model = open(argv[1], UINT64_MAX);
  engine::SessionOptions options;
  const uint64_t page_bytes = engine::kv_format(model->description(), options.kv_type).page_bytes();
  options.n_context = static_cast<uint32_t>(wanted / page_bytes) * kPageTokens;
  const auto session = check(engine::Session::open(model, options)), empty = check(engine::Session::open(model, options));
  const std::vector<int32_t> tokens(options.n_context, 1);
  check(session->sequence().assume_prompt(tokens, [](uint32_t, Span<std::byte> page) { fill(page); }));
  const uint64_t bytes = check(engine::SessionFile::size(session.get()));
  std::vector<std::byte> buffer(bytes);
  check(engine::SessionFile::save_to_file(session.get(), saved));

  const auto copy_out = [&] {
    auto file = check(os::AtomicFile::create(copied));
    check(file.write({buffer.data(), buffer.size()}));
    check(file.commit());
  };
  const auto copy_in = [&] {
    const auto file = check(os::InputFile::open(saved));
    check(file.read_at(0, {buffer.data(), buffer.size()}));
  };
  Measured all[] = {
      {"copy to a file, flushed", copy_out},
      {"save", [&] { check(engine::SessionFile::save_to_file(session.get(), saved)); }},
      {"copy from a file", copy_in},
      {"load, a session without tokens", [&] { check(engine::SessionFile::load_from_file(empty.get(), saved)); }},
      {"load, a session that holds others", [&] { check(engine::SessionFile::load_from_file(session.get(), saved)); }},
  };
  for (uint32_t round = 0; round < rounds; ++round)
    for (Measured& m : all) {
      empty->sequence().truncate(0);
      const uint64_t start = now_us();
      m.work();
      m.ms.push_back(static_cast<double>(now_us() - start) / 1000);
    }
  std::printf("%.1f MiB\n", static_cast<double>(bytes) / (1 << 20));
  for (Measured& m : all) {
    std::sort(m.ms.begin(), m.ms.end());
    std::printf("%-36s least %7.1f ms  median %7.1f ms\n", m.what, m.ms.front(), m.ms[m.ms.size() / 2]);
  }
  std::remove(saved.c_str());
  std::remove(copied.c_str());
}
