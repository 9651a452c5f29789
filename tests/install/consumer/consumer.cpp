// The same application in C++17: handles that free themselves, errors as exceptions.
#include <orrery.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>

namespace {

template <auto Free>
struct Freer {
  template <class T>
  void operator()(T* handle) const {
    Free(handle);
  }
};
using Runtime = std::unique_ptr<orrery_runtime, Freer<orrery_runtime_free>>;
using Model = std::unique_ptr<orrery_model, Freer<orrery_model_free>>;
using Session = std::unique_ptr<orrery_session, Freer<orrery_session_free>>;
using Generation = std::unique_ptr<orrery_generation, Freer<orrery_generation_free>>;

// Makes a handle by one of the ABI's constructors.
template <class Handle, class Function, class... Args>
Handle make(Function function, Args... args) {
  typename Handle::pointer raw = nullptr;
  orrery_error error;
  orrery_error_init(&error, sizeof error);
  if (function(args..., &raw, &error) != ORRERY_OK) throw std::runtime_error(error.message);
  return Handle(raw);
}

std::string answer(const char* model_path, const char* question) {
  orrery_session_options options;
  orrery_session_options_init(&options, sizeof options);
  options.n_context = 512;
  const auto runtime = make<Runtime>(orrery_runtime_create, nullptr);
  orrery_source file;
  orrery_source_init(&file, sizeof file);
  file.path = model_path;
  const auto model = make<Model>(orrery_model_open, runtime.get(), &file, nullptr);
  const auto session = make<Session>(orrery_session_open, model.get(), &options);
  orrery_error error;
  orrery_error_init(&error, sizeof error);
  if (orrery_session_add_message(session.get(), "user", question, &error) != ORRERY_OK) {
    throw std::runtime_error(error.message);
  }
  const auto generation = make<Generation>(orrery_generate, session.get(), nullptr);
  std::string text;
  const auto on_event = [](void* user, const orrery_event* event) -> int32_t {
    if (event->type == ORRERY_EVENT_TEXT) static_cast<std::string*>(user)->append(event->text, event->text_bytes);
    return 0;
  };
  if (orrery_run(generation.get(), on_event, &text, &error) != ORRERY_OK) throw std::runtime_error(error.message);
  return text;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  try {
    std::printf("%s\n", answer(argv[1], argv[2]).c_str());
  } catch (const std::exception& failure) {
    std::fprintf(stderr, "%s\n", failure.what());
    return 1;
  }
}
