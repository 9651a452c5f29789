// Split models: parts that contradict each other, are absent, or named wrongly; opened by any of them. The
// input is a recipe (recipe.h) over up to four parts of a small file.
//
// Bytes in front: how many parts; which one is opened, and how; what its name claims. A frame's first
// argument says which part it edits.
#include "runtime/gguf/gguf.h"
#include "tests/fuzz/frames.h"
#include "tests/fuzz/recipe.h"
#include "tests/support/temp_dir.h"

namespace {

using namespace orrery;
using namespace orrery::fuzz;
using namespace orrery::testing;

constexpr size_t kHead = 3;
constexpr size_t kMostFrames = 16;
// Beyond the recipe's own: the part is not written; it takes another's place.
constexpr uint8_t kLeaveOut = kEdits, kMisplace = kEdits + 1, kOperations = kEdits + 2;

FileParts part_of(uint32_t i, uint32_t n) {
  GgufBuilder b;
  if (i == 0) b.key("general.architecture", "llama").array("words", std::vector<std::string>{"a", "", "b"});
  b.tensor("a" + std::to_string(i), TensorType::f32, {8});
  b.tensor("b" + std::to_string(i), TensorType::q8_0, {32, 2});
  FileParts part = FileParts::take_apart(b.build());  // split keys would have it look for the others
  const auto add = [&](const char* name, gguf::ValueType type, const Bytes& value) {
    part.keys.push_back({name, static_cast<uint32_t>(type), value});
  };
  add("split.no", gguf::ValueType::u16, ByteWriter().put(static_cast<uint16_t>(i)).bytes);
  add("split.count", gguf::ValueType::u16, ByteWriter().put(static_cast<uint16_t>(n)).bytes);
  add("split.tensors.count", gguf::ValueType::i32, ByteWriter().put(static_cast<int32_t>(2 * n)).bytes);
  return part;
}

std::string name_of(uint32_t i, uint32_t n) {
  char name[64];
  std::snprintf(name, sizeof name, "m-%05u-of-%05u.gguf", i + 1, n);
  return name;
}

void use(const gguf::File& file, bool header_only) {
  uint64_t sum = 0;
  for (const gguf::Tensor& t : file.tensors()) {
    require(file.find_tensor(t.name) == &t, "a tensor is found by its name");
    require(t.part < file.n_parts() && t.n_elements > 0, "a tensor is in one of the parts");
    require((t.data == nullptr) == header_only, "data are there unless only the header was asked for");
    for (uint64_t i = 0; t.data && i < t.bytes; ++i) sum += static_cast<uint8_t>(t.data[i]);
  }
  for (uint64_t i = 0; i < file.n_keys(); ++i) require(file.find(file.key(i)) != nullptr, "a key is found by its name");
  uint8_t digest[16];
  file.fingerprint(false, digest);
  const volatile uint64_t sink = sum;
  (void)sink;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const TempDir dir;
  const Framed input = Framed::parse(data, size, kHead);
  const uint32_t n = 1 + input.head[0] % 4;
  std::vector<FileParts> parts;
  std::vector<std::string> names;
  for (uint32_t i = 0; i < n; ++i) {
    parts.push_back(part_of(i, n));
    names.push_back(name_of(i, n));
  }
  for (size_t i = 0; i < std::min(input.frames.size(), kMostFrames); ++i) {
    Reader r(input.frames[i].arguments.data(), input.frames[i].arguments.size());
    const uint32_t part = r.byte() % n;
    const uint8_t operation = input.frames[i].operation % kOperations;
    if (operation == kLeaveOut) names[part].clear();
    else if (operation == kMisplace) names[part] = name_of(r.byte() % 8, 1 + r.byte() % 8);
    else apply(static_cast<Edit>(operation), &r, &parts[part]);
  }
  std::vector<std::string> written;
  for (uint32_t i = 0; i < n; ++i)
    if (!names[i].empty()) written.push_back(dir.write(names[i], parts[i].build()));

  gguf::OpenOptions how;
  how.header_only = (input.head[1] & 4) != 0;
  how.load = (input.head[1] & 8) ? gguf::Load::read : gguf::Load::map;
  const std::string path = dir.file(name_of(input.head[1] & 3, n + input.head[2] % 3));
  Result<gguf::File> file = gguf::File::open(path, how);
  if (file.ok()) {
    use(*file, how.header_only);
  } else {
    const ErrorDetail& e = file.status().detail();
    require(e.code == Code::bad_model || e.code == Code::unsupported_quantization || e.code == Code::io,
            "parts that are wrong, or cannot be read", e.message.c_str());
    require(e.message.find("m-0") != std::string::npos && whole_utf8(e.message), "an error names the part", e.message.c_str());
  }
  for (const std::string& p : written) std::remove(p.c_str());
  return 0;
}

ORRERY_FRAMED_MUTATOR(kHead, kOperations)
