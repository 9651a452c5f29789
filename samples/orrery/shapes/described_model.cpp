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
                     " Expected NAME or NAME:TYPE; names: " + listed(shape_names()) + "; types: " + listed(shape_types()));
  }
  const std::string bytes = header->bytes();
  path_ = make_hollow_file(bytes, bytes.size() + header->data_bytes());
  if (path_.empty()) throw Failure(kExitFailure, std::string("a temporary file for the shape cannot be made: ") + std::strerror(errno));
  temporary_ = true;
}

DescribedModel::~DescribedModel() {
  if (temporary_) remove_file(path_);
}

Option DescribedModel::option() {
  return {"--shape", "NAME", "In place of a file: a published model by its shape, as qwen3.8-27b or gpt-oss-20b; with a type of weights behind a colon, "
                             "as qwen3-8b:Q8_0 (default: Q4_K_M). A wrong name lists all."};
}

}  // namespace orrery::tool
