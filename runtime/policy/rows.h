// Rows of options, and words of the table, that several methods share.
#pragma once

#include <iterator>

#include "runtime/policy/policy.h"

namespace orrery::policy {

inline constexpr OptionRow kTailRow = {"tail", "0",
                                       "slots for generated tokens; a full tail selects again. 0: a 32nd of the prompt, 16 to 256"};
inline constexpr OptionRow kRefreshRow = {"refresh", "1", "0: the first selection stays"};
inline constexpr OptionRow kCalibrationRow = {"calibration", "16", "queries that calibrate a session without a head profile"};
inline constexpr OptionRow kTopKRow = {"top_k", "1024", "keys in a calibration set, at most a quarter of the prompt"};

// A row with another default.
constexpr OptionRow with(OptionRow row, const char* value) {
  row.value = value;
  return row;
}

// An array of rows as a span.
template <class Rows>
constexpr Span<const OptionRow> all(const Rows& rows) {
  return {std::data(rows), std::size(rows)};
}

inline constexpr char kNeverRefreshed[] = "never; a full tail or a new prompt selects again";
inline constexpr char kLastQueries[] = "the last 64 positions' queries";
inline constexpr char kSelectionOnLink[] = "the selection, when it is made";
inline constexpr char kSelectionAndMissesOnLink[] = "the selection, when it is made; misses of every step";
inline constexpr char kSelectionAndWaitOnLink[] = "the selection, when it is made; misses of every step, which waits for them";

}  // namespace orrery::policy
