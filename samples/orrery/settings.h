// Options that several commands share, and their translation to the C ABI: running (threads, budget), loading, the
// session, the chat template (sampling.h holds the sampling). The group lists are the help text; one function or class below reads each
// group from Args.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api.h"
#include "command.h"
#include "system/terminal.h"

namespace orrery::tool {

OptionGroup runtime_group();   // --threads --backend --cpu-path --budget --link --verbose
OptionGroup model_group();     // --load --rope-*
OptionGroup session_group();   // --context --kv-type --device-kv-type --policy --kv-budget --head-profile --overflow --speculate
                               // --draft-model --lora --chunk
OptionGroup template_group();  // --template --template-name --tools --var --no-think

// The structs point into `args`, which must outlive them.
orrery_runtime_options runtime_options(const Args& args);
orrery_model_options model_options(const Args& args);
const char* kv_type_name(uint32_t kv_type);
// The ORRERY_KV_ value of "q8_0", or of "k:q8_0,v:q4_0". Errors use `what` as the value's name.
uint32_t parse_kv_type(const std::string& text, const std::string& what);
uint32_t kv_type_option(const Args& args, const char* name, uint32_t fallback);
std::string kv_type_names(uint32_t kv_type, uint32_t device_kv_type);  // "f16", or "f16, on the device in q8_0"

// "FILE[:SCALE]" of an adapter. Errors use `what` as the value's name.
std::pair<std::string, float> parse_lora(const std::string& text, const std::string& what);

// Owns the data that orrery_session_options points to.
class SessionSettings {
 public:
  explicit SessionSettings(const Args& args);
  orrery_session_options options() const;  // valid during the lifetime of this object

 private:
  orrery_session_options base_;
  std::string policy_;
  std::optional<File> draft_model_;
  std::vector<std::pair<std::unique_ptr<File>, float>> adapters_;  // with their scales
  std::optional<std::string> head_profile_;
  std::vector<std::pair<std::string, std::string>> policy_options_;
  mutable std::vector<orrery_option> pointers_;
  mutable std::vector<orrery_adapter_use> uses_;
};

// Owns the data that orrery_template_options points to.
class TemplateSettings {
 public:
  explicit TemplateSettings(const Args& args);
  orrery_template_options options() const;
  bool given() const { return has_source_ || !name_.empty() || !tools_.empty() || !variables_.empty(); }
  void set_tools(std::string json) { tools_ = std::move(json); }

 private:
  bool has_source_ = false;
  std::string source_, name_, tools_, variables_;
};

// Opens the model with a progress bar on a terminal. Ctrl-C cancels.
struct Loaded {
  Runtime runtime;
  Model model;
};
// Takes the library's log in place of --verbose.
struct LogSink {
  orrery_log_fn log;
  void* user;
  int32_t level;
};
Loaded load(const std::string& path, const Args& args, const Interrupts& interrupts, const LogSink* sink = nullptr);
// The path, unless its name says that it is no GGUF file: an address, or weights of another format. Failure then says what to do.
const std::string& model_file(const std::string& path);
// Opens the adapters, and the draft model, which the options name by their sources; the session keeps them.
Session open_session(const Loaded& loaded, const orrery_session_options& options);

}  // namespace orrery::tool
