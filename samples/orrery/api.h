// The C ABI for C++ code: handles that free themselves, and calls that throw the library's error. Every call goes
// through call(), which passes a fresh orrery_error. Strings and arrays whose size is queried first go through
// sized(). Nothing else of the library is wrapped: the commands call orrery.h directly.
#pragma once

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "orrery_lab.h"
#include "system/failure.h"
#include "terminal/output.h"

namespace orrery::tool {

struct FreeHandle {
  void operator()(orrery_runtime* handle) const { orrery_runtime_free(handle); }
  void operator()(orrery_model* handle) const { orrery_model_free(handle); }
  void operator()(orrery_vocab* handle) const { orrery_vocab_free(handle); }
  void operator()(orrery_adapter* handle) const { orrery_adapter_free(handle); }
  void operator()(orrery_folder* handle) const { orrery_folder_free(handle); }
  void operator()(orrery_session* handle) const { orrery_session_free(handle); }
  void operator()(orrery_generation* handle) const { orrery_generation_free(handle); }
  void operator()(orrery_matcher* handle) const { orrery_matcher_free(handle); }
};
using Runtime = std::unique_ptr<orrery_runtime, FreeHandle>;
using Model = std::unique_ptr<orrery_model, FreeHandle>;
using Vocab = std::unique_ptr<orrery_vocab, FreeHandle>;
using Adapter = std::unique_ptr<orrery_adapter, FreeHandle>;
using Folder = std::unique_ptr<orrery_folder, FreeHandle>;
using Session = std::unique_ptr<orrery_session, FreeHandle>;
using Generation = std::unique_ptr<orrery_generation, FreeHandle>;
using Matcher = std::unique_ptr<orrery_matcher, FreeHandle>;

// A call of the library that did not return ORRERY_OK.
class ApiError : public Failure {
 public:
  explicit ApiError(const orrery_error& error) : Failure(exit_code(error.status), text(error)), status_(error.status) {}
  orrery_status status() const { return status_; }

  // The library's message, in the words of the command line, after the option at fault unless the message has it. Exact byte counts are hard
  // to read, so a refused allocation has them in GiB or MiB.
  static std::string text(const orrery_error& error) {
    std::string text = error.message[0] ? as_options(error.message) : orrery_status_name(error.status);
    const std::string_view option = option_of(error.option);
    if (!option.empty() && text.find(option) == text.npos) text = std::string(option) + ": " + text;
    const bool memory = error.status == ORRERY_OUT_OF_DEVICE_MEMORY || error.status == ORRERY_OUT_OF_PINNED_MEMORY ||
                        error.status == ORRERY_OUT_OF_HOST_MEMORY;
    return memory ? in_units(text) : text;
  }

  // Numbers of bytes in a message about memory: those from 100,000 on that are no number of tokens.
  static std::string in_units(std::string_view message) {
    std::string words;
    while (!message.empty()) {
      size_t n = 0;  // of the digits at the front
      while (n < message.size() && std::isdigit(static_cast<unsigned char>(message[n]))) ++n;
      const std::string_view number = message.substr(0, std::max<size_t>(n, 1)), behind = message.substr(number.size());
      const bool word =
          !words.empty() && (std::isalnum(static_cast<unsigned char>(words.back())) || words.back() == '.' || words.back() == '/');
      const bool bytes = n >= 6 && n < 20 && !word && behind.compare(0, 6, " token") != 0;
      message.remove_prefix(number.size());
      words += bytes ? human_bytes(std::stoull(std::string(number))) : std::string(number);
      if (bytes && behind.compare(0, 6, " bytes") == 0) message.remove_prefix(6);
    }
    return words;
  }

  // The library names members of its structs; people at a command line know options. The first kMembers names are members alone; the others
  // are words, too, which a message may mean.
  using Name = std::pair<std::string_view, std::string_view>;
  static constexpr Name kNames[] = {{"n_context", "--context"},
                                    {"device_budget_bytes", "--budget"},
                                    {"kv_type", "--kv-type"},
                                    {"device_kv_type", "--device-kv-type"},
                                    {"kv_budget_bytes", "--kv-budget"},
                                    {"kv_budget_share", "--kv-budget"},
                                    {"chunk_tokens", "--chunk"},
                                    {"speculate", "--speculate"},
                                    {"n_threads", "--threads"},
                                    {"max_tokens", "--max-tokens"},
                                    {"rope_scale", "--rope-scale"},
                                    {"rope_scaling", "--rope-scaling"},
                                    {"experts_on_device", "--experts-on-device"},
                                    {"host_computes", "--host-computes"},
                                    {"layers_on_device", "--layers-on-device"},
                                    {"columns_on_device", "--columns-on-device"},
                                    {"sessions_bytes", "--sessions-memory"},
                                    {"rope_base", "--rope-base"},
                                    {"rope_original_context", "--rope-original-context"},
                                    {"cpu_path", "--cpu-path"},
                                    {"reservoir_mode", "--reservoir"},
                                    {"policy_options", "--policy-option"},
                                    {"head_profile", "--head-profile"},
                                    {"draft_model", "--draft-model"},
                                    {"draft_source", "--draft-model"},
                                    {"template_name", "--template-name"},
                                    {"template_source", "--template"},
                                    {"tools_json", "--tools"},
                                    {"n_dimensions", "--dimensions"},
                                    {"truncate", "--truncate"},
                                    {"orrery_embed", "orrery embed"},
                                    {"tool_name", "--tool-choice"},
                                    {"max_reasoning_tokens", "--max-thinking"},
                                    {"split_reasoning", "--split-thinking"},
                                    {"logit_bias", "--bias"},
                                    {"penalty_tokens", "--penalty-tokens"},
                                    {"top_k", "--top-k"},
                                    {"top_p", "--top-p"},
                                    {"min_p", "--min-p"},
                                    {"repetition_penalty", "--repeat-penalty"},
                                    {"frequency_penalty", "--frequency-penalty"},
                                    {"presence_penalty", "--presence-penalty"},
                                    {"adapters", "--lora"},
                                    {"backend", "--backend"},
                                    {"device", "--device"},
                                    {"policy", "--policy"},
                                    {"load", "--load"},
                                    {"overflow", "--overflow"},
                                    {"stop", "--stop"},
                                    {"temperature", "--temperature"}};
  static constexpr size_t kMembers = std::size(kNames) - 8;

  // The option of the command line that sets a member; "": none does.
  static std::string_view option_of(std::string_view member) {
    for (const auto& [name, option] : kNames)
      if (name == member) return option;
    return {};
  }

  static std::string as_options(std::string_view message) {
    std::string words;
    while (!message.empty()) {
      size_t n = 0;  // of the name at the front
      while (n < message.size() && (std::isalnum(static_cast<unsigned char>(message[n])) || message[n] == '_')) ++n;
      std::string_view word = message.substr(0, std::max<size_t>(n, 1));
      message.remove_prefix(word.size());
      const bool in_a_path = (!words.empty() && (words.back() == '/' || words.back() == '.' || words.back() == '-')) ||
                             (message.size() > 1 && (message[0] == '/' || message[0] == '-' || (message[0] == '.' && message[1] != ' ')));
      const auto* member = std::find_if(kNames, kNames + kMembers, [&](const Name& name) { return name.first == word; });
      words += member != kNames + kMembers && !in_a_path ? member->second : word;
    }
    return words;
  }

  static ExitCode exit_code(orrery_status status) {
    switch (status) {
      case ORRERY_INVALID_ARGUMENT: return kExitUsage;
      case ORRERY_OUT_OF_DEVICE_MEMORY:
      case ORRERY_OUT_OF_PINNED_MEMORY:
      case ORRERY_OUT_OF_HOST_MEMORY:
      case ORRERY_CONTEXT_FULL: return kExitDoesNotFit;
      case ORRERY_BAD_MODEL:
      case ORRERY_UNSUPPORTED_ARCHITECTURE:
      case ORRERY_UNSUPPORTED_QUANTIZATION:
      case ORRERY_UNSUPPORTED_TEMPLATE:
      case ORRERY_UNSUPPORTED: return kExitBadModel;
      case ORRERY_CANCELLED: return kExitInterrupted;
      default: return kExitFailure;
    }
  }

 private:
  orrery_status status_;
};

// call([&](orrery_error* error) { return orrery_session_save(session, path, error); })
template <typename Function>
void call(Function function) {
  orrery_error error;
  orrery_error_init(&error, sizeof error);
  const orrery_status status = function(&error);
  if (status == ORRERY_OK) return;
  error.status = status;
  throw ApiError(error);
}

// Queries the size, then the content: function(data, capacity, &n, error).
template <typename Container, typename Function>
Container sized(Function function) {
  size_t n = 0;
  call([&](orrery_error* error) { return function(static_cast<typename Container::value_type*>(nullptr), size_t{0}, &n, error); });
  Container content(n, {});
  if (n > 0) call([&](orrery_error* error) { return function(content.data(), content.size(), &n, error); });
  content.resize(n);
  return content;
}

// A handle from a call that creates one: make<Session>([&](orrery_session** out, orrery_error* error) { ... }).
template <typename Handle, typename Function>
Handle make(Function function) {
  typename Handle::pointer handle = nullptr;
  call([&](orrery_error* error) { return function(&handle, error); });
  return Handle(handle);
}

// A file as the library takes it: orrery_plan(File(path), ...).
class File {
 public:
  explicit File(std::string path) : path_(std::move(path)) {
    orrery_source_init(&source_, sizeof source_);
    source_.path = path_.c_str();
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  operator const orrery_source*() const { return &source_; }

 private:
  std::string path_;
  orrery_source source_;
};

inline Vocab open_vocab(const std::string& path) {
  return make<Vocab>([&](orrery_vocab** out, orrery_error* error) { return orrery_vocab_open(File(path), out, error); });
}

inline std::vector<int32_t> tokenize(const orrery_vocab* vocab, const std::string& text, uint32_t flags) {
  return sized<std::vector<int32_t>>([&](int32_t* tokens, size_t capacity, size_t* n, orrery_error* error) {
    return orrery_tokenize(vocab, text.data(), text.size(), flags, tokens, capacity, n, error);
  });
}

inline std::string detokenize(const orrery_vocab* vocab, const int32_t* tokens, size_t n_tokens, uint32_t flags) {
  return sized<std::string>([&](char* text, size_t capacity, size_t* n, orrery_error* error) {
    return orrery_detokenize(vocab, tokens, n_tokens, flags, text, capacity, n, error);
  });
}

inline orrery_vocab_info vocab_info(const orrery_vocab* vocab) {
  orrery_vocab_info info;
  orrery_vocab_info_init(&info, sizeof info);
  call([&](orrery_error* error) { return orrery_vocab_get_info(vocab, &info, error); });
  return info;
}

inline orrery_model_info model_info(const orrery_model* model) {
  orrery_model_info info;
  orrery_model_info_init(&info, sizeof info);
  call([&](orrery_error* error) { return orrery_model_get_info(model, &info, error); });
  return info;
}

inline std::string inspect(const std::string& path) {
  return sized<std::string>(
      [&](char* json, size_t capacity, size_t* n, orrery_error* error) { return orrery_inspect(File(path), json, capacity, n, error); });
}

inline std::string policies() {
  return sized<std::string>(
      [](char* json, size_t capacity, size_t* n, orrery_error* error) { return orrery_policies(json, capacity, n, error); });
}

inline std::string message_json(const orrery_session* session, size_t i) {
  return sized<std::string>([&](char* json, size_t capacity, size_t* n, orrery_error* error) {
    return orrery_session_message(session, i, json, capacity, n, error);
  });
}

}  // namespace orrery::tool
