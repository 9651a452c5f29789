// The C ABI for C++ code: handles that free themselves, and calls that throw the library's error. sized() makes the two calls that a
// function with a caller's buffer takes: one for the size, one for the content.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "orrery_lab.h"

namespace orrery::server {

struct FreeHandle {
  void operator()(orrery_runtime* handle) const { orrery_runtime_free(handle); }
  void operator()(orrery_model* handle) const { orrery_model_free(handle); }
  void operator()(orrery_vocab* handle) const { orrery_vocab_free(handle); }
  void operator()(orrery_adapter* handle) const { orrery_adapter_free(handle); }
  void operator()(orrery_folder* handle) const { orrery_folder_free(handle); }
  void operator()(orrery_session* handle) const { orrery_session_free(handle); }
  void operator()(orrery_generation* handle) const { orrery_generation_free(handle); }
};
using Runtime = std::unique_ptr<orrery_runtime, FreeHandle>;
using Model = std::unique_ptr<orrery_model, FreeHandle>;
using Vocab = std::unique_ptr<orrery_vocab, FreeHandle>;
using Adapter = std::unique_ptr<orrery_adapter, FreeHandle>;
using Folder = std::unique_ptr<orrery_folder, FreeHandle>;
using Session = std::unique_ptr<orrery_session, FreeHandle>;
using Generation = std::unique_ptr<orrery_generation, FreeHandle>;

class ApiError : public std::runtime_error {
 public:
  explicit ApiError(const orrery_error& error)
      : std::runtime_error(error.message[0] ? error.message : orrery_status_name(error.status)), status(error.status) {}
  orrery_status status;
};

template <typename Function>
void call(Function function) {
  orrery_error error;
  orrery_error_init(&error, sizeof error);
  const orrery_status status = function(&error);
  if (status == ORRERY_OK) return;
  error.status = status;
  throw ApiError(error);
}

template <typename Handle, typename Function>
Handle make(Function function) {
  typename Handle::pointer handle = nullptr;
  call([&](orrery_error* error) { return function(&handle, error); });
  return Handle(handle);
}

template <typename Container, typename Function>
Container sized(Function function) {
  size_t n = 0;
  call([&](orrery_error* error) { return function(static_cast<typename Container::value_type*>(nullptr), size_t{0}, &n, error); });
  Container content(n, {});
  if (n > 0) call([&](orrery_error* error) { return function(content.data(), content.size(), &n, error); });
  content.resize(n);
  return content;
}

// A struct of the header with its defaults.
template <typename Struct>
Struct defaults(void (*init)(Struct*, size_t)) {
  Struct value;
  init(&value, sizeof value);
  return value;
}

inline std::vector<int32_t> tokenize(const orrery_vocab* vocab, const std::string& text, uint32_t flags) {
  return sized<std::vector<int32_t>>([&](int32_t* tokens, size_t capacity, size_t* n, orrery_error* error) {
    return orrery_tokenize(vocab, text.data(), text.size(), flags, tokens, capacity, n, error);
  });
}

inline std::string detokenize(const orrery_vocab* vocab, int32_t token) {
  return sized<std::string>([&](char* text, size_t capacity, size_t* n, orrery_error* error) {
    return orrery_detokenize(vocab, &token, 1, ORRERY_DETOKENIZE_SPECIAL, text, capacity, n, error);
  });
}

}  // namespace orrery::server
