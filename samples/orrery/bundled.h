// The files that come with the tool: the demo model, its document and its questions.
#pragma once

#include <string>

namespace orrery::tool {

constexpr const char* kBundledModel = "demo-q8_0.gguf";
constexpr const char* kBundledDocument = "demo-document.txt";
constexpr const char* kBundledQuestions = "demo-questions.json";

// The path of a bundled file: beside an installed program, in the folder of the installation, or in the source tree of the
// build. Throws Failure that names the folders if none of them has it.
std::string bundled(const char* file);

}  // namespace orrery::tool
