#include "shapes/described_model.h"

#include <cerrno>
#include <cstring>

#include "settings.h"
#include "shapes/shapes.h"
#include "system/failure.h"
#include "system/files.h"

namespace orrery::tool {
namespace {

std::string listed(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
  return list;
}

// A temporary file of a header, and of a hole in place of the weights.
std::string make_hollow_file(const GgufHeader& header) {
  const std::string bytes = header.bytes(), path = make_temporary_file();
  const int fd = path.empty() ? -1 : open_file(path, Access::append);
  const bool made = fd >= 0 && write_all(fd, bytes) && truncate_file(fd, bytes.size() + header.data_bytes());
  const int reason = errno;
  if (fd >= 0) close_file(fd);
  if (made) return path;
  if (!path.empty()) remove_file(path);
  throw Failure(kExitFailure, std::string("a temporary file for the shape cannot be made: ") + std::strerror(reason));
}

}  // namespace

DescribedModel::DescribedModel(const Args& args) {
  const std::string* const shape = args.find("--shape");
  if (!shape) {
    if (args.words().empty()) throw UsageError("too few words: expected a file, or --shape with the name of a published model");
    path_ = model_file(args.words()[0]);
    return;
  }
  if (!args.words().empty()) throw UsageError("--shape stands for a file: expected no file beside it");
  const std::optional<GgufHeader> header = shape_header(*shape);
  if (!header) {
    const std::string near = nearest(shape->substr(0, shape->find(':')), shape_names());
    throw UsageError("--shape " + *shape + ": there is no such shape" + (near.empty() ? "" : "; did you mean " + near + "?") +
                     "; expected NAME or NAME:TYPE; names: " + listed(shape_names()) + "; types: " + listed(shape_types()));
  }
  path_ = make_hollow_file(*header);
  temporary_ = true;
}

DescribedModel::~DescribedModel() {
  if (temporary_) remove_file(path_);
}

Option DescribedModel::option() {
  return {"--shape", "NAME",
          "In place of a file: a published model by its shape, as qwen3.8-27b or gpt-oss-20b; with a type of weights behind a colon, "
          "as qwen3-8b:Q8_0 (default: Q4_K_M). A wrong name lists all."};
}

}  // namespace orrery::tool
