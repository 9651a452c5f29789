// What a choice costs on the host: bench_sampler [VOCABULARY ...], 32,000, 151,936 and 262,144 tokens. For each kind of options,
// microseconds of a choice by the definition and by the row's shortlist, by turns, medians, without a mask and under one that bans every
// eleventh token and a tenth in one stretch; both ways choose the same tokens, or the program fails.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/engine/answer/sampler.h"
#include "tests/support/random_blocks.h"

namespace orrery::engine {
namespace {

struct Kind {
  const char* name;
  SamplingOptions options;
};

std::vector<Kind> kinds() {
  const auto of = [](float temperature, uint32_t top_k, float top_p, float min_p) {
    SamplingOptions o;
    o.temperature = temperature, o.top_k = top_k, o.top_p = top_p, o.min_p = min_p, o.seed = 7;
    return o;
  };
  std::vector<Kind> all = {{"greedy", of(0, 0, 1, 0)},
                           {"greedy, 5 log-probabilities", of(0, 0, 1, 0)},
                           {"temperature .7, top_p .95", of(0.7f, 0, 0.95f, 0)},
                           {"temperature .8, top_k 40, top_p .95", of(0.8f, 40, 0.95f, 0)},
                           {"temperature 1, min_p .05", of(1, 0, 1, 0.05f)},
                           {"temperature 1", of(1, 0, 1, 0)},
                           {"temperature 2, top_p .99: thousands are kept", of(2, 0, 0.99f, 0)}};
  all[1].options.n_logprobs = 5;
  return all;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<ptrdiff_t>(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// A language model's logits, more or less: normal ones with a deviation of 2, and a few far above.
std::vector<std::vector<float>> rows(size_t n_vocab) {
  orrery::testing::Random random(1);
  std::vector<std::vector<float>> all(8, std::vector<float>(n_vocab));
  for (std::vector<float>& row : all) {
    for (float& x : row) x = 2 * random.normal();
    for (int i = 0; i < 30; ++i) row[random.below(n_vocab)] += 12 * random.uniform();
  }
  return all;
}

bool measure(size_t n_vocab) {
  std::printf("\n%zu tokens\n%-48s %12s %12s %12s %12s\n", n_vocab, "options", "definition", "shortlist", "masked", "shortlist");
  const std::vector<std::vector<float>> logits = rows(n_vocab);
  const std::vector<int32_t> tokens;
  std::vector<uint32_t> mask((n_vocab + 31) / 32, ~0u);
  for (size_t i = 0; i < n_vocab; ++i)
    if (i % 11 == 0 || i / (n_vocab / 10) == 5) mask[i / 32] &= ~(1u << (i % 32));
  for (const Kind& kind : kinds()) {
    Sampler by_definition(kind.options, static_cast<int32_t>(n_vocab)), by_row(kind.options, static_cast<int32_t>(n_vocab));
    std::vector<double> us[4];
    for (size_t i = 0; i < 82; ++i) {
      const std::vector<float>& row = logits[i / 2 % logits.size()];
      for (Sampler* sampler : {&by_definition, &by_row}) sampler->set_mask(i % 2 ? Span<const uint32_t>(mask) : Span<const uint32_t>());
      const uint64_t start = now_us();
      Result<Choice> expected = by_definition.choose_of_all(row, tokens);
      const uint64_t between = now_us();
      Result<Choice> chosen = by_row.choose(row, tokens);
      const uint64_t end = now_us();
      us[i % 2 * 2].push_back(static_cast<double>(between - start)), us[i % 2 * 2 + 1].push_back(static_cast<double>(end - between));
      if (!expected.ok() || !chosen.ok() || expected->token != chosen->token) return false;
    }
    std::printf("%-48s %12.0f %12.0f %12.0f %12.0f\n", kind.name, median(us[0]), median(us[1]), median(us[2]), median(us[3]));
  }
  return true;
}

}  // namespace
}  // namespace orrery::engine

int main(int argc, char** argv) {
  std::vector<size_t> sizes = {32000, 151936, 262144};
  if (argc > 1) sizes.clear();
  for (int i = 1; i < argc; ++i) sizes.push_back(static_cast<size_t>(std::strtoul(argv[i], nullptr, 10)));
  std::printf("microseconds of a choice, medians of 41\n");
  for (const size_t n : sizes)
    if (!orrery::engine::measure(n)) {
      std::fprintf(stderr, "bench_sampler: the two ways differ\n");
      return 1;
    }
}
