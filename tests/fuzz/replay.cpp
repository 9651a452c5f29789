// Runs a fuzz target without a fuzzer, so that every ordinary test run covers what fuzzing has found.
//
// Arguments: pairs of a number of mutations and a directory.  Every file in it goes through
// LLVMFuzzerTestOneInput as it is, then with that many small mutations, whose choice depends on its name
// alone; by the target's own mutator, if it has one.  A target that finds a fault traps; no file at all is a
// failure.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/random_blocks.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
extern "C" __attribute__((weak)) size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed);
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);

namespace {

// Through memory of exactly its size: a sanitizer sees a read past the end.
void run(const std::vector<uint8_t>& input) {
  const std::unique_ptr<uint8_t[]> exact(new uint8_t[input.size()]);
  std::copy(input.begin(), input.end(), exact.get());
  LLVMFuzzerTestOneInput(exact.get(), input.size());
}

void mutate(orrery::testing::Random* random, std::vector<uint8_t>* input) {
  static constexpr uint8_t kLoud[] = {0x00, 0x01, 0x7F, 0x80, 0xFF, '"', '\\', '{', '}', '\n'};
  for (uint64_t n = 1 + random->below(4); n > 0 && !input->empty(); --n) {
    const uint64_t at = random->below(input->size());
    const uint64_t length = 1 + random->below(std::min<uint64_t>(16, input->size() - at));
    const auto from = input->begin() + static_cast<std::ptrdiff_t>(at);
    const auto to = from + static_cast<std::ptrdiff_t>(length);
    switch (random->below(5)) {
      case 0: *from = static_cast<uint8_t>(*from ^ (1u << random->below(8))); break;
      case 1: *from = kLoud[random->below(std::size(kLoud))]; break;
      case 2: std::fill(from, to, kLoud[random->below(std::size(kLoud))]); break;
      case 3: input->erase(from, to); break;
      default: {
        const std::vector<uint8_t> copy(from, to);
        input->insert(input->begin() + static_cast<std::ptrdiff_t>(random->below(input->size())), copy.begin(), copy.end());
      }
    }
  }
}

// One mutant of an input.
std::vector<uint8_t> mutant_of(const std::vector<uint8_t>& input, orrery::testing::Random* random) {
  std::vector<uint8_t> mutant = input;
  if (LLVMFuzzerCustomMutator == nullptr) {
    mutate(random, &mutant);
    return mutant;
  }
  mutant.resize(input.size() + 512);
  mutant.resize(LLVMFuzzerCustomMutator(mutant.data(), input.size(), mutant.size(), static_cast<unsigned>(random->bits())));
  return mutant;
}

}  // namespace

// What a target's mutator changes bytes by: the same bytes always become the same others.
size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most) {
  uint64_t seed = size + 1;
  for (size_t i = 0; i < size; ++i) seed = seed * 31 + data[i];
  orrery::testing::Random random(seed);
  std::vector<uint8_t> bytes(data, data + size);
  if (bytes.empty()) bytes.push_back(static_cast<uint8_t>(random.bits()));
  mutate(&random, &bytes);
  const size_t n = std::min(bytes.size(), most);
  std::copy_n(bytes.begin(), n, data);
  return n;
}

int main(int n_args, char** args) {
  int n_files = 0;
  for (int a = 2; a < n_args; a += 2) {
    const int n_mutations = std::atoi(args[a - 1]);
    std::vector<std::filesystem::path> paths;
    std::error_code failed;
    for (const auto& entry : std::filesystem::directory_iterator(args[a], failed))
      if (entry.is_regular_file()) paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());
    for (const std::filesystem::path& path : paths) {
      std::ifstream in(path, std::ios::binary);
      const std::vector<uint8_t> input((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
      std::printf("%s (%zu bytes)\n", path.filename().c_str(), input.size());
      std::fflush(stdout);  // the last line before a trap names the input
      run(input);
      uint64_t seed = 1;
      for (const char c : path.filename().string()) seed = seed * 31 + static_cast<uint8_t>(c);
      orrery::testing::Random random(seed);
      for (int i = 0; i < n_mutations; ++i) run(mutant_of(input, &random));
      ++n_files;
    }
  }
  std::printf("%d inputs\n", n_files);
  return n_files > 0 ? 0 : 1;
}
