// Accesses that nothing orders, to one piece of memory, one of them a write: races.
//
// The executor runs a launch's blocks one after another and a block's warps in turns, so an access finds, in the cell of each piece that it
// touches, the last write and the last reads before it. Two accesses are ordered if a barrier of the block lies between them, or, for lanes
// of one warp, a barrier of the warp; between blocks nothing orders them. Two atomics do not race.
#pragma once

#include <cstdint>

namespace orrery::ptx {

// When and by whom. `epoch` grows with each block and each of its barriers, over the whole run.
struct Moment {
  uint32_t epoch, block_began, launch_began;   // epochs
  uint16_t warp_clock;                         // grows with each barrier of the warp
  uint8_t warp;
};

struct Cell {
  uint32_t write_epoch, read_epoch;            // 0: never
  uint16_t write_clock, read_clock;
  uint8_t write_warp, write_lane, read_warp, read_lane;   // of the last
  uint8_t flags;
  uint8_t unused[3];
};
enum CellFlag : uint8_t {
  kAtomicWrite = 1,
  kReadByLanes = 2,    // since read_clock by several lanes of read_warp
  kReadByWarps = 4,    // since read_epoch by several warps
  kReadByBlocks = 8,   // since the launch began by several blocks
  kReadOnly = 16,      // since the launch began by an instruction that asks that nobody writes
};

enum class Race : uint8_t { none, lanes, warps, blocks, read_only };

// The race of this access with those before it, which the cell then remembers. `lane` 32: every lane of the warp.
inline Race note_read(Cell* c, const Moment& now, uint8_t lane, bool read_only, bool atomic = false) {
  Race race = Race::none;
  if (c->write_epoch >= now.launch_began && !(atomic && (c->flags & kAtomicWrite))) {
    if (read_only) race = Race::read_only;
    else if (c->write_epoch < now.block_began) race = Race::blocks;
    else if (c->write_epoch == now.epoch) {
      if (c->write_warp != now.warp) race = Race::warps;
      else if (c->write_clock == now.warp_clock && c->write_lane != lane) race = Race::lanes;
    }
  }
  if (c->read_epoch == now.epoch) {
    if (c->read_warp != now.warp) c->flags |= kReadByWarps, c->flags &= static_cast<uint8_t>(~kReadByLanes);
    else if (c->read_clock != now.warp_clock) c->flags &= static_cast<uint8_t>(~kReadByLanes);
    else if (c->read_lane != lane) c->flags |= kReadByLanes;
  } else {
    if (c->read_epoch < now.launch_began) c->flags &= kAtomicWrite;
    else if (c->read_epoch < now.block_began) c->flags |= kReadByBlocks;
    c->flags &= static_cast<uint8_t>(~(kReadByLanes | kReadByWarps));
  }
  if (lane == 32) c->flags |= kReadByLanes;
  if (read_only) c->flags |= kReadOnly;
  c->read_epoch = now.epoch, c->read_clock = now.warp_clock, c->read_warp = now.warp, c->read_lane = lane;
  return race;
}

inline Race note_write(Cell* c, const Moment& now, uint8_t lane, bool atomic) {
  Race race = Race::none;
  if (c->write_epoch >= now.launch_began && !(atomic && (c->flags & kAtomicWrite))) {
    if (c->write_epoch < now.block_began) race = Race::blocks;
    else if (c->write_epoch == now.epoch) {
      if (c->write_warp != now.warp) race = Race::warps;
      else if (c->write_clock == now.warp_clock && c->write_lane != lane) race = Race::lanes;
    }
  }
  if (c->read_epoch >= now.launch_began) {
    if (c->flags & kReadOnly) race = Race::read_only;
    else if (c->read_epoch < now.block_began || (c->flags & kReadByBlocks)) race = Race::blocks;
    else if (c->read_epoch == now.epoch) {
      if (c->read_warp != now.warp || (c->flags & kReadByWarps)) race = Race::warps;
      else if (c->read_clock == now.warp_clock && (c->read_lane != lane || (c->flags & kReadByLanes))) race = Race::lanes;
    }
  } else {
    c->flags = 0;
  }
  c->write_epoch = now.epoch, c->write_clock = now.warp_clock, c->write_warp = now.warp, c->write_lane = lane;
  c->flags = static_cast<uint8_t>(atomic ? c->flags | kAtomicWrite : c->flags & ~kAtomicWrite);
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
