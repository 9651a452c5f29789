// A warp's accesses to memory: bounds, alignment, bytes that nobody has written, copies under way, races; and what they cost.
#include <algorithm>
#include <cstdio>

#include "tests/ptx/executor/machine.h"

namespace orrery::ptx {

namespace {

std::string hex(uint64_t a) {
  char text[32];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(a));
  return text;
}

template <class F>
void for_set(uint32_t mask, const F& f) {
  for (; mask != 0; mask &= mask - 1) f(static_cast<unsigned>(__builtin_ctz(mask)));
}

// The first of `bytes` bytes that is not written and that the kernel uses; `bytes` if all are.
unsigned first_unwritten(const uint8_t* written, unsigned bytes, uint32_t used) {
  uint64_t eight;
  unsigned i = 0;
  for (; i + 8 <= bytes; i += 8) {
    std::memcpy(&eight, written + i, 8);
    if (eight != 0x0101010101010101u) break;
  }
  for (; i < bytes; ++i)
    if (written[i] != 1 && (used >> i & 1)) return i;
  return bytes;
}

// How many pieces of 32 bytes the lanes touch. `seen`, room for 2 * kLanes, gets their numbers.
unsigned count_sectors(uint32_t mask, const uint64_t* address, unsigned bytes, uint64_t* seen) {
  unsigned n = 0;
  for_set(mask, [&](unsigned l) {
    for (uint64_t s = address[l] / 32; s <= (address[l] + bytes - 1) / 32; ++s) {
      unsigned k = n;
      while (k > 0 && seen[k - 1] != s) --k;  // the last ones first
      if (k == 0) seen[n++] = s;
    }
  });
  return n;
}

// Counts passes over the banks. Of 8 bytes a lane, half a warp goes at a time; of 16, a quarter.
void count_passes(uint32_t mask, const uint64_t* address, unsigned bytes, Counters* counters) {
  const unsigned lanes = bytes <= 4 ? 32 : bytes == 8 ? 16 : 8;
  for (unsigned first = 0; first < kLanes; first += lanes) {
    uint32_t words[32][32];
    uint8_t n[32] = {};
    unsigned most = 0;
    for (unsigned l = first; l < first + lanes; ++l) {
      if (!(mask >> l & 1)) continue;
      for (uint64_t a = address[l] / 4; a <= (address[l] + bytes - 1) / 4; ++a) {
        const unsigned bank = a % 32;
        unsigned k = 0;
        while (k < n[bank] && words[bank][k] != a) ++k;
        if (k == n[bank] && k < 32) words[bank][n[bank]++] = static_cast<uint32_t>(a);
        most = std::max<unsigned>(most, n[bank]);
      }
    }
    counters->shared_passes += most;
    if (most > 1) counters->bank_conflicts += most - 1;
  }
  ++counters->shared_requests;
}

}  // namespace

void Warp::report(const Instruction& instruction, unsigned lane, const std::string& what) const {
  const Settings& settings = block->settings();
  if (!settings.report) return;
  Fault fault;
  fault.kernel = block->kernel.name, fault.file = block->kernel.file, fault.line = instruction.line;
  const Dim3 b = block->index;
  fault.what = "block (" + std::to_string(b.x) + ", " + std::to_string(b.y) + ", " + std::to_string(b.z) + "), " +
               (lane < kLanes ? "thread " + std::to_string(index * kLanes + lane) : "warp " + std::to_string(index)) + ": " + what;
  settings.report(fault);
}

void Warp::access_shared(const Instruction& instruction, uint32_t mask, const uint64_t* address, unsigned bytes, const Access& how,
                         std::byte** at) {
  Block& b = *block;
  const uint64_t window = b.shared.size();
  const unsigned granule = b.kernel.granule;
  Moment now = b.now(*this);
  now.launch_began = now.block_began;  // what other blocks did to their shared memory is past
  if (!how.delivers) count_passes(mask, address, bytes, &b.counters);
  for_set(mask, [&](unsigned l) {
    const uint64_t a = address[l];
    if (a + bytes > window)
      fail(l, std::to_string(bytes) + " bytes at " + hex(a) + " of a shared memory of " + std::to_string(window) + " bytes");
    if (a % bytes != 0) fail(l, std::to_string(bytes) + " bytes at " + hex(a) + " of shared memory, which is not aligned to them");
    const uint8_t* bytes_at = &b.shared_state[a];
    if (!how.delivers) {
      const bool needs_value = !how.write || how.atomic;
      for (unsigned k = 0; k < bytes; ++k) {
        if (bytes_at[k] == Block::kUnderWay)
          fail(l, std::string(needs_value ? "reads" : "writes") + " shared memory at " + hex(a + k) + ", where cp.async is still to write");
      }
      if (needs_value)
        if (const unsigned k = first_unwritten(bytes_at, bytes, how.used_bytes); k < bytes)
          fail(l, "reads shared memory at " + hex(a + k) + ", which nobody has written");
    }
    if (b.settings().races) {
      const uint8_t lane = how.every_lane ? 32 : static_cast<uint8_t>(l);
      for (uint64_t piece = a / granule; piece * granule < a + bytes; ++piece) {
        Cell* cell = &b.shared_cells[piece];
        const Race race = how.write ? note_write(cell, now, lane, how.atomic) : note_read(cell, now, lane, false);
        if (race != Race::none && b.is_new_race(instruction))
          report(instruction, l,
                 std::string(how.write ? "write" : "read") + " of shared memory at " + hex(piece * granule) + " " + describe(race));
      }
    }
    at[l] = b.shared.data() + a;
  });
  if (how.write)
    for_set(mask,
            [&](unsigned l) { std::memset(&b.shared_state[address[l]], how.asynchronous ? Block::kUnderWay : Block::kWritten, bytes); });
}

void Warp::access_global(const Instruction& instruction, uint32_t mask, const uint64_t* address, unsigned bytes, const Access& how,
                         std::byte** at) {
  Block& b = *block;
  const unsigned granule = b.kernel.granule;
  const Moment now = b.now(*this);
  uint64_t seen[2 * kLanes];
  const unsigned sectors = count_sectors(mask, address, bytes, seen), asked = bytes * static_cast<unsigned>(__builtin_popcount(mask));
  if (how.write) b.counters.written_bytes += asked, b.counters.written_sectors += sectors;
  if (!how.write || how.atomic) b.counters.read_bytes += asked, b.counters.read_sectors += sectors;
  if (b.counters.notes_sectors) b.counters.sectors.insert(b.counters.sectors.end(), seen, seen + sectors);
  for_set(mask, [&](unsigned l) {
    const uint64_t a = address[l];
    const unsigned n = how.read_bytes ? how.read_bytes[l] : bytes;
    if (a % bytes != 0) fail(l, std::to_string(bytes) + " bytes at " + hex(a) + ", which is not aligned to them");
    if (!recent || !recent->contains(a, n)) {
      recent = b.executor.memory().find(a);
      if (!recent) {
        const Region* below = b.executor.memory().below(a);
        fail(l, std::string(how.write ? "writes " : "reads ") + std::to_string(n) + " bytes at " + hex(a) +
                    (below && a - below->end < 1 << 20 ? ", " + std::to_string(a - below->end) + " bytes behind an allocation of " +
                                                             std::to_string(below->end - below->begin) + " bytes"
                                                       : ", outside every allocation"));
      }
      if (!recent->contains(a, n))
        fail(l, std::string(how.write ? "writes " : "reads ") + std::to_string(bytes) + " bytes at " + hex(a) +
                    ", beyond the end of an allocation of " + std::to_string(recent->end - recent->begin) + " bytes");
    }
    if (recent->tracked && (!how.write || how.atomic) && !how.copies)
      if (const unsigned k = first_unwritten(recent->written_at(a), bytes, how.used_bytes); k < bytes)
        fail(l, "reads byte " + std::to_string(a + k - recent->begin) + " of an allocation of " +
                    std::to_string(recent->end - recent->begin) + " bytes, which nobody has written");
    if (b.settings().races) {
      for (uint64_t piece = a; piece < a + n; piece += granule) {
        Cell* cell = recent->cell(piece, granule);
        const uint8_t lane = static_cast<uint8_t>(l);
        const Race race = how.write ? note_write(cell, now, lane, how.atomic) : note_read(cell, now, lane, how.read_only);
        if (race != Race::none && b.is_new_race(instruction))
          report(instruction, l,
                 std::string(how.write ? "write" : "read") + " of byte " + std::to_string(piece - recent->begin) + " of an allocation of " +
                     std::to_string(recent->end - recent->begin) + " bytes " + describe(race));
      }
    }
    if (l == static_cast<unsigned>(__builtin_ctz(mask)) && recent->host) b.counters.link_bytes += 32 * sectors;
    if (recent->tracked && how.write) std::memset(recent->written_at(a), 1, bytes);
    if (how.write && b.executor.replaced) {
      b.executor.replaced->push_back({a, static_cast<uint8_t>(bytes), {}});
      std::memcpy(b.executor.replaced->back().before, reinterpret_cast<const std::byte*>(a), bytes);
    }
    at[l] = reinterpret_cast<std::byte*>(a);
  });
}

void Warp::access(const Instruction& instruction, Space space, uint32_t mask, const uint64_t* address, unsigned bytes, Access how,
                  std::byte** at) {
  how.used_bytes = instruction.used_bytes;
  switch (space) {
    case Space::shared: return access_shared(instruction, mask, address, bytes, how, at);
    case Space::global: return access_global(instruction, mask, address, bytes, how, at);
    case Space::parameter:
      for_set(mask, [&](unsigned l) {
        if (address[l] + bytes > block->launch.parameters.size() || address[l] % bytes != 0) fail(l, "a parameter at " + hex(address[l]));
        at[l] = const_cast<std::byte*>(block->launch.parameters.data()) + address[l];
      });
      return;
    case Space::local: {
      const uint64_t each = local.size() / kLanes;
      for_set(mask, [&](unsigned l) {
        const uint64_t a = address[l];
        if (a + bytes > each)
          fail(l, std::to_string(bytes) + " bytes at " + hex(a) + " of a local memory of " + std::to_string(each) + " bytes");
        if (a % bytes != 0) fail(l, std::to_string(bytes) + " bytes at " + hex(a) + " of local memory, which is not aligned to them");
        uint8_t* written = &local_written[l * each + a];
        if (!how.write)
          if (const unsigned k = first_unwritten(written, bytes, how.used_bytes); k < bytes)
            fail(l, "reads local memory at " + hex(a + k) + ", which the thread has not written");
        if (how.write) std::memset(written, 1, bytes);
        at[l] = local.data() + l * each + a;
      });
      return;
    }
    case Space::generic: {
      uint32_t shared = 0, in_local = 0;
      uint64_t within[kLanes];
      for_set(mask, [&](unsigned l) {
        within[l] = address[l] % kWindowBytes;
        if (address[l] - kSharedWindow < kWindowBytes) shared |= 1u << l;
        else if (address[l] - kLocalWindow < kWindowBytes) in_local |= 1u << l;
      });
      if (shared) access(instruction, Space::shared, shared, within, bytes, how, at);
      if (in_local) access(instruction, Space::local, in_local, within, bytes, how, at);
      if (const uint32_t rest = mask & ~shared & ~in_local) access(instruction, Space::global, rest, address, bytes, how, at);
      return;
    }
  }
}

void Warp::deliver(const Instruction& instruction, uint32_t mask, uint32_t under_way, bool all) {
  const auto due = [&](const Copy& c) { return (mask >> c.lane & 1) && (all || c.group + under_way < open_group[c.lane]); };
  for (const Copy& c : copies) {
    if (!due(c)) continue;
    uint64_t to[kLanes];
    std::byte* at[kLanes];
    to[c.lane] = c.to;
    Access how;
    how.write = how.delivers = true;
    access_shared(instruction, 1u << c.lane, to, 16, how, at);
    std::memset(at[c.lane], 0, 16);
    if (c.bytes == 0) continue;
    std::memcpy(at[c.lane], reinterpret_cast<const std::byte*>(c.from), c.bytes);
    Region* source = block->executor.memory().find(c.from);
    if (source && source->tracked) std::memcpy(&block->shared_state[c.to], source->written_at(c.from), c.bytes);
  }
  copies.erase(std::remove_if(copies.begin(), copies.end(), due), copies.end());
}

}  // namespace orrery::ptx
