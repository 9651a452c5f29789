// See path.h.
#include "tests/ptx/executor/path.h"

#include <algorithm>
#include <cstring>

namespace orrery::ptx {

namespace {

constexpr int32_t kRegisterBytes = 2 * kLanes;  // of the narrowest register: operands are multiples of it

}  // namespace

Path::Path(const Kernel& kernel) : kernel_(kernel), uses_(kernel.code.size()) {
  const uint32_t n_registers = kernel.register_bytes / kRegisterBytes;
  const auto note = [&](std::vector<uint32_t>* to, char letter, int32_t operand) {
    if (operand < 0) return;  // a constant
    to->push_back(letter == 'p' ? n_registers + static_cast<uint32_t>(operand) : static_cast<uint32_t>(operand / kRegisterBytes));
  };
  for (size_t at = 0; at < kernel.code.size(); ++at) {
    const Instruction& i = kernel.code[at];
    Use& use = uses_[at];
    note(&use.reads, 'p', i.guard);
    if (i.form) {
      unsigned k = 0;
      bool writes = true;
      for (const char* letter = i.form; *letter; ++letter) {
        if (*letter == '=') writes = false;
        else if (*letter != '|') note(writes ? &use.writes : &use.reads, *letter, i.operand[k++]);
      }
    } else if (i.traffic != Traffic::none) {
      const bool loads = i.traffic == Traffic::load || i.traffic == Traffic::atomic;
      if (i.traffic != Traffic::copy)
        for (unsigned k = 0; k < i.n_values; ++k) note(loads ? &use.writes : &use.reads, 'w', i.operand[k]);
      note(&use.reads, 'w', i.operand[kAddress]);
      if (i.traffic == Traffic::atomic) note(&use.reads, 'w', i.operand[kAdded]);
      if (i.traffic == Traffic::copy) note(&use.reads, 'w', i.operand[kFromAddress]), note(&use.reads, 'w', i.operand[kFromBytes]);
    }
  }
}

void Path::begin(const Latencies& latencies, unsigned n_warps) {
  latencies_ = latencies;
  turn_ = std::max(1u, (n_warps + 3) / 4);  // of four schedulers
  Stretch none;
  none.ready.resize(kernel_.register_bytes / kRegisterBytes + kernel_.n_predicates + 1);
  warps_.assign(n_warps, none);
}

Path::Length Path::end(const Stretch& s) const {
  Length out = s.begin;
  out.cycles += s.n * turn_;
  return std::max(out, s.last);
}

void Path::executed(unsigned warp, uint32_t at, bool acts, bool link) {
  const Instruction& i = kernel_.code[at];
  const Use& use = uses_[at];
  Stretch& s = warps_[warp];
  Length begins = s.begin;
  begins.cycles += s.n * turn_;
  for (const uint32_t r : use.reads) begins = std::max(begins, s.ready[r]);
  if (i.counted == Class::move) {  // a name to the compiler: nothing waits for it
    if (acts)
      for (const uint32_t r : use.writes) s.ready[r] = begins;
    return;
  }
  ++s.n;
  if (!acts) {
    s.last = std::max(s.last, begins);
    if (i.flow == Flow::branch) part(&s, latencies_.branch);
    return;
  }
  uint64_t takes = 0;
  Length there = begins;
  switch (i.counted) {
    case Class::integer:
    case Class::single:
    case Class::twice:
    case Class::half: takes = latencies_.arithmetic; break;
    case Class::convert: takes = latencies_.convert; break;
    case Class::exchange: takes = i.traffic == Traffic::fence ? 0 : latencies_.exchange; break;
    case Class::product: takes = latencies_.product; break;
    case Class::move:
    case Class::control:
    case Class::kCount: break;
    case Class::memory:
      switch (i.traffic) {
        case Traffic::none:
        case Traffic::store:
        case Traffic::fence: break;
        case Traffic::load:
        case Traffic::atomic:
        case Traffic::copy:
          if (i.traffic != Traffic::copy && i.space != Space::global && i.space != Space::generic) {
            takes = i.space == Space::parameter ? latencies_.arithmetic : latencies_.shared;
          } else {
            takes = link ? latencies_.link : latencies_.global;
            ++there.rounds;
          }
          break;
        case Traffic::commit: s.groups.push_back(s.copies), s.copies = {}; break;
        case Traffic::wait: {
          uint32_t under_way = 0;
          if (i.form[0] == '=' && i.form[1] == 'w') std::memcpy(&under_way, &kernel_.constants[static_cast<size_t>(~i.operand[0])], 4);
          const size_t n = s.groups.size(), kept = std::min<size_t>(n, under_way);
          for (size_t g = 0; g < n - kept; ++g) begins = std::max(begins, s.groups[g]);
          s.groups.erase(s.groups.begin(), s.groups.end() - static_cast<std::ptrdiff_t>(kept));
          break;
        }
      }
      break;
  }
  there.cycles += takes;
  if (i.traffic == Traffic::copy) s.copies = std::max(s.copies, there);
  for (const uint32_t r : use.writes) s.ready[r] = there;
  s.last = std::max(s.last, begins);
  if (i.flow == Flow::branch) part(&s, latencies_.branch);
  if (i.traffic == Traffic::wait || i.traffic == Traffic::fence) part(&s, 0);
}

// Instructions in front of here and those behind stay on their side.
void Path::part(Stretch* s, uint64_t cycles) const {
  s->begin = end(*s);
  s->begin.cycles += cycles;
  s->n = 0;
}

void Path::meet() {
  Length all = length();
  all.cycles += latencies_.barrier;
  for (Stretch& s : warps_) s.begin = all, s.n = 0;
}

Path::Length Path::length() const {
  Length out;
  for (const Stretch& s : warps_) out = std::max(out, end(s));
  return out;
}

}  // namespace orrery::ptx
