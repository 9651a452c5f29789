// Inputs that are lists: a few bytes in front, then frames of an operation, a length and so many bytes of its
// arguments. Fuzzers change such inputs well when they know that: a mutation adds, drops, doubles, moves or
// edits whole frames, and what follows stays what it was.
//
// A target whose input is framed defines libFuzzer's mutator by ORRERY_FRAMED_MUTATOR(bytes in front,
// operations). Any bytes at all are a valid input: a length that reaches behind the end is cut there.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "tests/support/random_blocks.h"

namespace orrery::fuzz {

struct Frame {
  uint8_t operation = 0;
  std::vector<uint8_t> arguments;  // at most 255 bytes
};

struct Framed {
  std::vector<uint8_t> head;
  std::vector<Frame> frames;

  static Framed parse(const uint8_t* data, size_t size, size_t head_bytes) {
    Framed out;
    out.head.assign(data, data + std::min(size, head_bytes));
    out.head.resize(head_bytes);
    for (size_t at = head_bytes; at < size;) {
      Frame frame;
      frame.operation = data[at++];
      const size_t length = at < size ? std::min<size_t>(data[at], size - at - 1) : 0;
      at = std::min(at + 1, size);
      frame.arguments.assign(data + at, data + at + length);
      at += length;
      out.frames.push_back(std::move(frame));
    }
    return out;
  }

  std::vector<uint8_t> bytes() const {
    std::vector<uint8_t> out = head;
    for (const Frame& frame : frames) {
      out.push_back(frame.operation);
      out.push_back(static_cast<uint8_t>(frame.arguments.size()));
      out.insert(out.end(), frame.arguments.begin(), frame.arguments.end());
    }
    return out;
  }
};

// Mutates the bytes in place, within `most`; gives their number. libFuzzer's LLVMFuzzerMutate().
using MutateBytes = size_t (*)(uint8_t* data, size_t size, size_t most);

class FramedMutator {
 public:
  FramedMutator(size_t head_bytes, uint8_t n_operations, MutateBytes mutate_bytes)
      : head_bytes_(head_bytes), n_operations_(n_operations), mutate_(mutate_bytes) {}

  size_t mutate(uint8_t* data, size_t size, size_t most, unsigned seed) const {
    testing::Random random(seed);
    Framed input = Framed::parse(data, size, head_bytes_);
    for (uint64_t n = 1 + random.below(3); n > 0; --n) change(&input, &random);
    return store(input, data, most);
  }

  // The front frames of one, the back frames of the other.
  size_t cross(const Framed& a, const Framed& b, uint8_t* out, size_t most, unsigned seed) const {
    testing::Random random(seed);
    Framed child = a;
    const auto cut = [&](const Framed& f) { return static_cast<std::ptrdiff_t>(random.below(f.frames.size() + 1)); };
    child.frames.erase(child.frames.begin() + cut(a), child.frames.end());
    child.frames.insert(child.frames.end(), b.frames.begin() + cut(b), b.frames.end());
    return store(child, out, most);
  }

 private:
  void change(Framed* input, testing::Random* random) const {
    std::vector<Frame>& frames = input->frames;
    const auto any = [&](size_t more) { return static_cast<size_t>(random->below(frames.size() + more)); };
    const auto at = [&](size_t i) { return frames.begin() + static_cast<std::ptrdiff_t>(i); };
    if (frames.empty() || random->below(4) == 0) {
      frames.insert(at(any(1)), fresh(random));
      return;
    }
    const size_t i = any(0);
    switch (random->below(7)) {
      case 0: frames.erase(at(i)); break;
      case 1: {
        const Frame copy = frames[i];
        frames.insert(at(any(1)), copy);
        break;
      }
      case 2: std::swap(frames[i], frames[any(0)]); break;
      case 3: frames[i].operation = static_cast<uint8_t>(random->below(n_operations_)); break;
      case 4:
        if (!input->head.empty()) input->head[random->below(input->head.size())] = static_cast<uint8_t>(random->bits());
        break;
      default: edit(&frames[i].arguments);
    }
  }

  void edit(std::vector<uint8_t>* bytes) const {
    const size_t most = std::min<size_t>(255, bytes->size() + 16);
    const size_t size = bytes->size();
    bytes->resize(most);
    bytes->resize(std::min(mutate_(bytes->data(), size, most), most));
  }

  Frame fresh(testing::Random* random) const {
    Frame frame;
    frame.operation = static_cast<uint8_t>(random->below(n_operations_));
    frame.arguments.resize(random->below(12));
    // Small numbers name slots, keys and tensors.
    for (uint8_t& byte : frame.arguments) byte = static_cast<uint8_t>(random->below(2) ? random->below(8) : random->bits());
    return frame;
  }

  static size_t store(const Framed& input, uint8_t* data, size_t most) {
    const std::vector<uint8_t> bytes = input.bytes();
    const size_t n = std::min(bytes.size(), most);
    std::copy_n(bytes.begin(), n, data);
    return n;
  }

  size_t head_bytes_;
  uint8_t n_operations_;
  MutateBytes mutate_;
};

}  // namespace orrery::fuzz

// libFuzzer's; in ordinary builds the replay's (replay.cpp).
extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t most);
#define ORRERY_FRAMED_MUTATOR(head_bytes, n_operations)                                                                                    \
  extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {                                      \
    return orrery::fuzz::FramedMutator(head_bytes, n_operations, LLVMFuzzerMutate).mutate(data, size, most, seed);                         \
  }                                                                                                                                        \
  extern "C" size_t LLVMFuzzerCustomCrossOver(const uint8_t* a, size_t a_size, const uint8_t* b, size_t b_size, uint8_t* out, size_t most, \
                                              unsigned seed) {                                                                             \
    using orrery::fuzz::Framed;                                                                                                            \
    return orrery::fuzz::FramedMutator(head_bytes, n_operations, LLVMFuzzerMutate)                                                         \
        .cross(Framed::parse(a, a_size, head_bytes), Framed::parse(b, b_size, head_bytes), out, most, seed);                               \
  }
