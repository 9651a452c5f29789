#include "capi/handles.h"

#include <algorithm>
#include <cstddef>
#include <exception>
#include <stdexcept>

#include "runtime/text/unicode/utf8.h"

namespace orrery::capi {

static_assert(ORRERY_INVALID_ARGUMENT == static_cast<int>(Code::invalid_argument));
static_assert(ORRERY_OUT_OF_DEVICE_MEMORY == static_cast<int>(Code::out_of_device_memory));
static_assert(ORRERY_OUT_OF_PINNED_MEMORY == static_cast<int>(Code::out_of_pinned_memory));
static_assert(ORRERY_OUT_OF_HOST_MEMORY == static_cast<int>(Code::out_of_host_memory));
static_assert(ORRERY_CONTEXT_FULL == static_cast<int>(Code::context_full));
static_assert(ORRERY_CANCELLED == static_cast<int>(Code::cancelled));
static_assert(ORRERY_BAD_MODEL == static_cast<int>(Code::bad_model));
static_assert(ORRERY_UNSUPPORTED_ARCHITECTURE == static_cast<int>(Code::unsupported_architecture));
static_assert(ORRERY_UNSUPPORTED_QUANTIZATION == static_cast<int>(Code::unsupported_quantization));
static_assert(ORRERY_UNSUPPORTED_TEMPLATE == static_cast<int>(Code::unsupported_template));
static_assert(ORRERY_UNSUPPORTED == static_cast<int>(Code::unsupported));
static_assert(ORRERY_BUSY == static_cast<int>(Code::busy));
static_assert(ORRERY_DEVICE_LOST == static_cast<int>(Code::device_lost));
static_assert(ORRERY_IO == static_cast<int>(Code::io));
static_assert(ORRERY_BAD_SESSION == static_cast<int>(Code::bad_session));
static_assert(ORRERY_INTERNAL == static_cast<int>(Code::internal));

namespace {

void fill(orrery_error* out, const ErrorDetail* detail, int32_t code, const char* message, size_t bytes) noexcept {
  if (out == nullptr) return;
  orrery_error e;
  std::memset(&e, 0, sizeof e);
  e.status = code;
  if (detail) {
    e.native_code = detail->native_code;
    e.bytes_requested = detail->bytes_requested;
    e.bytes_available = detail->bytes_available;
    e.offset = detail->offset;
    e.line = detail->line;
    e.column = detail->column;
    std::strncpy(e.option, detail->option, sizeof e.option - 1);
  }
  const uint32_t given = out->struct_size;
  const size_t n = std::min<size_t>(given, sizeof e);
  // The message field of an older caller may be shorter.
  constexpr size_t kMessage = offsetof(orrery_error, message);
  if (n > kMessage) engine::copy_message({message, bytes}, {e.message, std::min(n - kMessage, sizeof e.message)});
  std::memcpy(out, &e, n);
  out->struct_size = given;
}

}  // namespace

bool usable(const orrery_error* error) noexcept { return error == nullptr || plausible_size(error->struct_size); }

void fill_struct(void* out, size_t struct_size, const void* defaults, size_t known_bytes) noexcept {
  if (out == nullptr) return;
  const uint32_t size = plausible_size(struct_size) ? static_cast<uint32_t>(struct_size) : 0;
  if (size > 0) {
    const size_t known = std::min<size_t>(size, known_bytes);
    std::memcpy(out, defaults, known);
    std::memset(static_cast<char*>(out) + known, 0, size - known);
  }
  if (size > 0 || struct_size >= sizeof size) std::memcpy(out, &size, sizeof size);
}

orrery_status report(const Status& status, orrery_error* error) noexcept {
  if (status.ok()) {
    fill(error, nullptr, ORRERY_OK, "", 0);
    return ORRERY_OK;
  }
  const ErrorDetail& d = status.detail();
  fill(error, &d, static_cast<int32_t>(d.code), d.message.c_str(), d.message.size());
  return static_cast<int32_t>(d.code);
}

orrery_status report_exception(orrery_error* error) noexcept {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    constexpr std::string_view text = "the system gave no memory";
    fill(error, nullptr, ORRERY_OUT_OF_HOST_MEMORY, text.data(), text.size());
    return ORRERY_OUT_OF_HOST_MEMORY;
  } catch (const std::length_error&) {
    constexpr std::string_view text = "a buffer longer than the system can address was asked for";
    fill(error, nullptr, ORRERY_OUT_OF_HOST_MEMORY, text.data(), text.size());
    return ORRERY_OUT_OF_HOST_MEMORY;
  } catch (const std::exception& e) {
    fill(error, nullptr, ORRERY_INTERNAL, e.what(), std::strlen(e.what()));
    return ORRERY_INTERNAL;
  } catch (...) {
    constexpr std::string_view text = "an exception of unknown type";
    fill(error, nullptr, ORRERY_INTERNAL, text.data(), text.size());
    return ORRERY_INTERNAL;
  }
}

// Of "o.stop" and "options->stop", what the header calls it.
Status null_argument(const char* name) {
  const std::string_view all = name;
  const char* const last = name + (all.find_last_of(".>") + 1);  // npos + 1 is 0
  return option_error(Code::invalid_argument, last == name ? "" : last, "%s is NULL", last);
}

Status check_process(const engine::Runtime& runtime) {
  if (runtime.in_its_process()) return ok_status();
  return error(Code::invalid_argument,
               "the runtime was made before fork(): a child process can free its parent's handles, and use its own");
}

Status check_struct(const void* given, uint32_t given_bytes, uint32_t known_bytes, const char* name) {
  if (!plausible_size(given_bytes))  // never set: reading up to it would leave the struct
    return error(Code::invalid_argument, "%s has a struct_size of %u: was it filled by its _init function?", name, given_bytes);
  const uint8_t* bytes = static_cast<const uint8_t*>(given);
  for (uint32_t i = known_bytes; given && i < given_bytes; ++i)
    if (bytes[i] != 0)
      return error(Code::unsupported, "%s sets a field at byte %u that this version (%s) does not know", name, i, orrery_version());
  return ok_status();
}

Result<engine::ModelSource> model_source(const orrery_source* source) {
  ORRERY_REQUIRE(source);
  orrery_source s;
  ORRERY_TRY(read_options(source, &orrery_source_init, "orrery_source", &s));
  if (s.reserved != 0) return option_error(Code::unsupported, "reserved", "orrery_source.reserved is not zero");
  if (s.kind > ORRERY_SOURCE_MEMORY)
    return option_error(Code::invalid_argument, "kind", "kind is %u, expected an ORRERY_SOURCE_ value", s.kind);
  const auto foreign = [&](const char* field) {
    return option_error(Code::invalid_argument, field, "%s is set, and a source of kind %s has none", field,
                        orrery_source_kind_name(s.kind));
  };
  if (s.kind != ORRERY_SOURCE_PATH && s.path) return foreign("path");
  if (s.kind != ORRERY_SOURCE_MEMORY && s.memory) return foreign("memory");
  if (s.kind != ORRERY_SOURCE_MEMORY && s.memory_bytes) return foreign("memory_bytes");
  if (s.kind != ORRERY_SOURCE_FD && s.fd_offset) return foreign("fd_offset");
  if (s.kind != ORRERY_SOURCE_FD && s.fd_bytes) return foreign("fd_bytes");
  engine::ModelSource out;
  switch (s.kind) {
    case ORRERY_SOURCE_PATH:
      ORRERY_REQUIRE(s.path);
      out.path = s.path;
      break;
    case ORRERY_SOURCE_FD:
      if (s.fd < 0) return option_error(Code::invalid_argument, "fd", "fd is %d, expected the number of an open file", s.fd);
      out.descriptor = s.fd;
      out.offset = s.fd_offset;
      out.bytes = s.fd_bytes;
      break;
    default:
      ORRERY_REQUIRE(s.memory);
      if (s.memory_bytes > SIZE_MAX)
        return option_error(Code::invalid_argument, "memory_bytes", "memory_bytes is %llu, more than an address space has",
                            static_cast<unsigned long long>(s.memory_bytes));
      out.memory = {static_cast<const std::byte*>(s.memory), static_cast<size_t>(s.memory_bytes)};
      out.from_memory = true;
  }
  return out;
}

Status check_utf8(std::string_view text, const char* name) {
  if (text::utf8_valid(text)) return ok_status();
  const char *p = text.data(), *end = p + text.size();
  for (text::CodePoint c; p < end; p += c.length)
    if ((c = text::utf8_decode(p, end)).value == text::kInvalidCodePoint) break;
  Status s = error(Code::invalid_argument, "%s is not UTF-8 at byte %td", name, p - text.data());
  s.detail().offset = static_cast<uint64_t>(p - text.data());
  return s;
}

SessionUse::SessionUse(engine::Session* session, For what) : session_(session), entered_(session->calls().try_enter()) {
  if (!entered_) status_ = error(Code::busy, "the session is in use by another call");
  else if (what == For::changing && session->calls().generating())
    status_ = error(Code::busy, "a generation of the session is under way: finish it or free it first");
}

SessionUse::~SessionUse() {
  if (entered_) session_->calls().leave();
}

}  // namespace orrery::capi

extern "C" {

void orrery_error_init(orrery_error* error, size_t struct_size) { orrery::capi::init_struct(error, struct_size); }

}  // extern "C"
