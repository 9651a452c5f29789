// The model that a command describes without running it: a file, or a published model's shape (--shape).
#pragma once

#include <string>

#include "args.h"

namespace orrery::tool {

class DescribedModel {
 public:
  // By the command's first word, or by --shape. Throws UsageError unless there is one of them, Failure if there is no such shape.
  explicit DescribedModel(const Args& args);
  ~DescribedModel();
  DescribedModel(const DescribedModel&) = delete;
  DescribedModel& operator=(const DescribedModel&) = delete;

  const std::string& path() const { return path_; }

  static Option option();  // --shape

 private:
  std::string path_;
  bool temporary_ = false;  // a shape's header, with a hole in place of the weights
};

}  // namespace orrery::tool
