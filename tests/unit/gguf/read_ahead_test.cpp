// Tests runtime/gguf/read_ahead.h: it ends at any time, and changes nothing that is read.
#include "runtime/gguf/read_ahead.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "tests/support/gguf_builder.h"
#include "tests/support/random_blocks.h"
#include "tests/support/temp_dir.h"

namespace orrery::gguf::read_ahead_test {
namespace {

using namespace orrery::testing;

TEST(ReadAhead, EndsAtAnyTimeAndChangesNothing) {
  const TempDir dir;
  const uint64_t n = 5 << 20;  // 10 MB of F16: two requests
  const std::vector<std::byte> values[2] = {random_blocks(TensorType::f16, n, 1, 1.0f), random_blocks(TensorType::f16, n, 2, 1.0f)};
  GgufBuilder b;
  b.tensor("first", TensorType::f16, {n}, values[0]).tensor("second", TensorType::f16, {n}, values[1]);
  const std::string path = dir.write("m.gguf", b.build());
  for (const Load load : {Load::map, Load::read}) {
    const File file = File::open(path, {load, false}).value();
    EXPECT_EQ(file.is_mapped(), load == Load::map);
    std::vector<const Tensor*> tensors;
    for (const Tensor& t : file.tensors()) tensors.push_back(&t);
    for (size_t begun = 0; begun <= tensors.size(); ++begun) {
      ReadAhead ahead(file, tensors);
      for (size_t i = 0; i < begun; ++i) ahead.begin(i);
    }
    file.prefetch(*tensors[1], n, uint64_t{1} << 40);  // beyond the file's end
    for (size_t i = 0; i < tensors.size(); ++i) EXPECT_EQ(std::memcmp(tensors[i]->data, values[i].data(), values[i].size()), 0);
    ReadAhead none(file, {});
  }
}

}  // namespace
}  // namespace orrery::gguf::read_ahead_test
