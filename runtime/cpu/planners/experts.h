// The items of the products of some experts' slots.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "runtime/base/span.h"
#include "runtime/cpu/planners/matmul.h"

namespace orrery::cpu {

// An expert's slots, in a wave of products.
struct ExpertGroup {
  int32_t expert, first_slot, n_rows;
  int32_t input;       // the first of its inputs' rows
  int64_t first_item;  // of all products; ExpertsPlan sets it
};

// A product, as its planner sees it: every expert has a matrix of this shape.
struct ExpertShape {
  int64_t n_out = 0;           // rows of a matrix
  int64_t row_bytes = 0;       // of one of them, as it is stored
  bool in_bands = false;       // cut between bands
  bool decodes_short = false;  // groups of at most kShortPrompt rows take decode's kernel
  bool decodes = false;        // all of them do
};

// An item: outputs of rows, of one product of one group.
struct ExpertItem {
  size_t group = 0;
  bool decodes = false;  // takes decode's kernel, else prefill's
  MatmulItem part;       // rows count from the group's first
};

class ExpertsPlan {
 public:
  static constexpr size_t kMostProducts = 4;
  // At most kMostProducts products for each group, with every group's matrices of one product after those of the other. The groups stay as
  // long as the plan. tile_out, tile_rows: the shape of prefill's fastest tasks (Kernels).
  ExpertsPlan(Span<const ExpertShape> products, Span<ExpertGroup> groups, int64_t tile_out, int64_t tile_rows, int32_t n_threads);

  int64_t n_items() const { return n_items_; }
  ExpertItem item(int64_t i) const;
  int64_t bytes() const { return bytes_; }  // of all matrices, each once

 private:
  struct Cut {
    int64_t out_step, row_step;
    bool decodes;
  };
  Cut cut(const ExpertShape& product, const ExpertGroup& group) const;
  int64_t n_items_of(const ExpertShape& product, const ExpertGroup& group) const;
  int64_t count();

  std::array<ExpertShape, kMostProducts> products_;
  const size_t n_products_;
  const Span<ExpertGroup> groups_;
  int64_t tile_out_, tile_rows_, share_ = 0, bytes_ = 0, n_items_ = 0;  // share_: bytes that an item of decode's kernel reads
};

}  // namespace orrery::cpu
