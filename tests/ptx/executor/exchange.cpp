// What the lanes of a warp do together: shuffles, votes, reductions and barriers. The lanes that a mask names have come together when these
// functions run (execute.cpp).
#include <algorithm>

#include "tests/ptx/executor/lanes.h"

namespace orrery::ptx {

namespace {

enum class Shuffle { butterfly, up, down, index };

// shfl.sync d|p, a, b, c, mask: c holds the clamp in bits 0-4 and the mask of segments in bits 8-12.
template <Shuffle kMode>
void shuffle(Warp& w, const Instruction& i, uint32_t m) {
  const uint32_t *a = w.lanes<const uint32_t>(i.operand[2]), *b = w.lanes<const uint32_t>(i.operand[3]),
                 *c = w.lanes<const uint32_t>(i.operand[4]);
  uint32_t values[kLanes], inside = 0;
  for (unsigned l = 0; l < kLanes; ++l) {
    if (!(m >> l & 1)) continue;
    const int lane = static_cast<int>(l), by = static_cast<int>(b[l] & 31), segment = static_cast<int>(c[l] >> 8 & 31);
    const int clamp = static_cast<int>(c[l] & 31), first = lane & segment, last = first | (clamp & ~segment);
    int from = 0;
    bool in = false;
    switch (kMode) {
      case Shuffle::up: from = lane - by, in = from >= last; break;
      case Shuffle::down: from = lane + by, in = from <= last; break;
      case Shuffle::butterfly: from = lane ^ by, in = from <= last; break;
      case Shuffle::index: from = first | (by & ~segment), in = from <= last; break;
    }
    if (!in) from = lane;
    if (!(m >> from & 1)) w.fail(l, "shuffles a value of lane " + std::to_string(from) + ", which does not take part");
    values[l] = a[from];
    inside |= static_cast<uint32_t>(in) << l;
  }
  uint32_t* d = w.lanes<uint32_t>(i.operand[0]);
  for (unsigned l = 0; l < kLanes; ++l)
    if (m >> l & 1) d[l] = values[l];
  w.set_predicate(i.operand[1], inside, m);
}

void fill(Warp& w, const Instruction& i, uint32_t m, uint32_t value) {
  uint32_t* d = w.lanes<uint32_t>(i.operand[0]);
  for (unsigned l = 0; l < kLanes; ++l) d[l] = m >> l & 1 ? value : d[l];
}
void ballot(Warp& w, const Instruction& i, uint32_t m) { fill(w, i, m, w.predicate(i.operand[1]) & m); }
void any(Warp& w, const Instruction& i, uint32_t m) { w.set_predicate(i.operand[0], w.predicate(i.operand[1]) & m ? kAll : 0u, m); }
void all(Warp& w, const Instruction& i, uint32_t m) { w.set_predicate(i.operand[0], (~w.predicate(i.operand[1]) & m) == 0 ? kAll : 0u, m); }

struct Sum {
  uint32_t operator()(uint32_t a, uint32_t b) const { return a + b; }
};
struct Largest {
  uint32_t operator()(uint32_t a, uint32_t b) const { return std::max(a, b); }
};
template <class F>
void reduce(Warp& w, const Instruction& i, uint32_t m) {
  const uint32_t* a = w.lanes<const uint32_t>(i.operand[1]);
  uint32_t total = a[__builtin_ctz(m)];
  for (uint32_t rest = m & (m - 1); rest; rest &= rest - 1) total = F{}(total, a[__builtin_ctz(rest)]);
  fill(w, i, m, total);
}

void warp_barrier(Warp& w, const Instruction&, uint32_t m) {
  if (m == w.live) ++w.clock;  // a barrier of some lanes orders nothing here: the race detector knows whole warps
}

void commit(Warp& w, const Instruction&, uint32_t m) {
  for (unsigned l = 0; l < kLanes; ++l) w.open_group[l] += m >> l & 1;
}
void wait_group(Warp& w, const Instruction& i, uint32_t m) { w.deliver(i, m, w.lanes<const uint32_t>(i.operand[0])[0], false); }
void wait_all(Warp& w, const Instruction& i, uint32_t m) { w.deliver(i, m, 0, true); }

}  // namespace

void add_exchanges(Table* table) {
  Table& t = *table;
  const auto together = [&](const std::string& name, const std::string& operands, Execute f, uint8_t mask_at) {
    t[name] = {operands, Class::exchange, f, Flow::lanes_named, mask_at};
  };
  together("shfl.sync.bfly.b32", "w|p=wwww", shuffle<Shuffle::butterfly>, 5);
  together("shfl.sync.up.b32", "w|p=wwww", shuffle<Shuffle::up>, 5);
  together("shfl.sync.down.b32", "w|p=wwww", shuffle<Shuffle::down>, 5);
  together("shfl.sync.idx.b32", "w|p=wwww", shuffle<Shuffle::index>, 5);
  together("vote.sync.ballot.b32", "w=pw", ballot, 2);
  together("vote.sync.any.pred", "p=pw", any, 2);
  together("vote.sync.all.pred", "p=pw", all, 2);
  together("redux.sync.add.u32", "w=ww", reduce<Sum>, 2);
  together("redux.sync.max.u32", "w=ww", reduce<Largest>, 2);
  together("bar.warp.sync", "=w", warp_barrier, 0);
  t["bar.warp.sync"].traffic = Traffic::fence;
  t["bar.sync 0"] = {"=", Class::exchange, nullptr, Flow::barrier};
  t["cp.async.commit_group"] = {"=", Class::memory, commit, Flow::plain, 0, Traffic::commit};
  t["cp.async.wait_group"] = {"=w", Class::memory, wait_group, Flow::plain, 0, Traffic::wait};
  t["cp.async.wait_all"] = {"=", Class::memory, wait_all, Flow::plain, 0, Traffic::wait};
  t["bra"] = t["bra.uni"] = {"=", Class::control, nullptr, Flow::branch};
  t["ret"] = t["exit"] = {"=", Class::control, nullptr, Flow::exit};
}

}  // namespace orrery::ptx
