// Accesses that nothing orders, to one piece of memory, one of them a write: races.
//
// The executor runs a launch's blocks one after another and a block's warps in turns. Each piece of memory has a cell with the last plain
// write, the last reads and the last atomics; an access is compared with them. Two accesses are ordered if a barrier of the block lies
// between them, or, for lanes of one warp, a barrier of the warp; between blocks nothing orders them. Two atomics do not race, and two
// reads neither.
#pragma once

#include <cstdint>

namespace orrery::ptx {

// When and by whom. `epoch` grows with each block and each of its barriers, over the whole run.
struct Moment {
  uint32_t epoch, block_began, launch_began;  // epochs
  uint16_t warp_clock;                        // grows with each barrier of the warp
  uint8_t warp;
};

enum class Race : uint8_t { none, lanes, warps, blocks, read_only };

// Accesses of one kind: the last, and whether others came since the last barrier.
struct Accesses {
  uint32_t epoch;  // 0: never
  uint16_t clock;
  uint8_t warp, lane;  // lane 32: every lane
  uint8_t flags;
  uint8_t unused[3];
  enum : uint8_t { kByLanes = 1, kByWarps = 2, kByBlockBys = 4, kReadOnly = 8 };

  // The race of an access now with these.
  Race with(const Moment& now, uint8_t of_lane) const {
    if (epoch < now.launch_began) return Race::none;
    if (flags & kReadOnly) return Race::read_only;
    if (epoch < now.block_began || (flags & kByBlockBys)) return Race::blocks;
    if (epoch != now.epoch) return Race::none;
    if (warp != now.warp || (flags & kByWarps)) return Race::warps;
    return clock == now.warp_clock && (lane != of_lane || (flags & kByLanes)) ? Race::lanes : Race::none;
  }
  void note(const Moment& now, uint8_t by_lane, bool read_only) {
    if (epoch == now.epoch) {
      if (warp != now.warp) flags = static_cast<uint8_t>((flags | kByWarps) & ~kByLanes);
      else if (clock != now.warp_clock) flags = static_cast<uint8_t>(flags & ~kByLanes);
      else if (lane != by_lane) flags |= kByLanes;
    } else {
      if (epoch < now.launch_began) flags = 0;
      else if (epoch < now.block_began) flags |= kByBlockBys;
      flags = static_cast<uint8_t>(flags & ~(kByLanes | kByWarps));
    }
    if (by_lane == 32) flags |= kByLanes;
    if (read_only) flags |= kReadOnly;
    epoch = now.epoch, clock = now.warp_clock, warp = now.warp, lane = by_lane;
  }
};

struct Cell {
  Accesses writes, reads, atomics;
};

// The race of this access with those before it, which the cell then remembers. `lane` 32: every lane of the warp.
inline Race note_read(Cell* c, const Moment& now, uint8_t lane, bool read_only) {
  Race race = c->writes.with(now, lane);
  if (race == Race::none) race = c->atomics.with(now, lane);
  if (read_only && (c->writes.epoch >= now.launch_began || c->atomics.epoch >= now.launch_began)) race = Race::read_only;
  c->reads.note(now, lane, read_only);
  return race;
}
inline Race note_write(Cell* c, const Moment& now, uint8_t lane, bool atomic) {
  Race race = c->writes.with(now, lane);
  if (race == Race::none) race = c->reads.with(now, lane);
  if (race == Race::none && !atomic) race = c->atomics.with(now, lane);
  (atomic ? c->atomics : c->writes).note(now, lane, false);
  return race;
}

inline const char* describe(Race race) {
  switch (race) {
    case Race::none: break;
    case Race::lanes: return "races with another lane of the warp: no barrier of the warp lies between";
    case Race::warps: return "races with another warp of the block: no barrier of the block lies between";
    case Race::blocks: return "races with another block of the launch";
    case Race::read_only: return "read through ld.global.nc, and written by the same launch";
  }
  return "";
}

}  // namespace orrery::ptx
