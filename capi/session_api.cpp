// Sessions: one sequence, its KV and its conversation.
#include <algorithm>
#include <iterator>

#include "capi/handles.h"
#include "runtime/engine/session/session_file.h"
#include "runtime/policy/heads/profile.h"
#include "runtime/text/json/json.h"

namespace orrery::capi {

namespace {
constexpr uint32_t kKvNumbers[] = {ORRERY_KV_F32, ORRERY_KV_F16, ORRERY_KV_Q8_0, ORRERY_KV_Q4_0, ORRERY_KV_K8V4};  // by KvType
static_assert(std::size(kKvNumbers) == kKvTypeCount);
}  // namespace

Result<KvType> kv_type(uint32_t given) {
  const uint32_t* const found = std::find(std::begin(kKvNumbers), std::end(kKvNumbers), given);
  if (found == std::end(kKvNumbers))
    return option_error(Code::invalid_argument, "kv_type", "kv_type is %u, expected an ORRERY_KV_ value", given);
  return static_cast<KvType>(found - kKvNumbers);
}

uint32_t kv_type_number(KvType type) { return kKvNumbers[static_cast<size_t>(type)]; }

Result<engine::Adapters> adapters_of(const orrery_adapter_use* adapters, size_t n) {
  if (n > 0) ORRERY_REQUIRE(adapters);
  if (n > engine::kMostAdapters)
    return option_error(Code::invalid_argument, "adapters", "%zu adapters were given, expected at most %zu", n, engine::kMostAdapters);
  std::vector<engine::AdapterChoice> choices;
  for (size_t i = 0; i < n; ++i) {
    const orrery_adapter_use& use = adapters[i];
    if (use.reserved != 0) return option_error(Code::unsupported, "adapters", "adapter %zu: reserved is not zero", i);
    if ((use.adapter == nullptr) == (use.source == nullptr))
      return option_error(Code::invalid_argument, "adapters", "adapter %zu has %s: expected either an open adapter or a source", i,
                          use.adapter ? "an open adapter and a source" : "neither an open adapter nor a source");
    engine::AdapterChoice choice;
    choice.scale = use.scale;
    if (use.adapter) {
      choice.adapter = use.adapter->adapter;
      ORRERY_TRY(check_process(choice.adapter->model().runtime()));
    } else {
      auto source = about_option("adapters", model_source(use.source));
      ORRERY_ASSIGN(engine::ModelSource from, std::move(source));
      choice.source = std::make_shared<const engine::ModelSource>(std::move(from));
    }
    choices.push_back(std::move(choice));
  }
  return engine::AdapterSet::make(choices);
}

Result<engine::SessionOptions> session_options(const orrery_session_options* given) {
  orrery_session_options o;
  ORRERY_TRY(read_options(given, &orrery_session_options_init, "orrery_session_options", &o));
  engine::SessionOptions out;
  out.n_context = o.n_context;
  if (o.policy) {
    ORRERY_TRY(about_option("policy", check_utf8(o.policy, "policy")));
    out.policy = o.policy;
  } else if (o.kv_budget_bytes != 0 || o.kv_budget_share != 1.0f) {
    out.policy = "auto";
  } else {
    out.automatic = true;
  }
  out.kv_budget_bytes = o.kv_budget_bytes;
  out.kv_share = static_cast<double>(o.kv_budget_share);
  if (o.n_policy_options > 0) ORRERY_REQUIRE(o.policy_options);
  for (uint32_t i = 0; i < o.n_policy_options; ++i) {
    const orrery_option& option = o.policy_options[i];
    if (option.name == nullptr || option.value == nullptr)
      return option_error(Code::invalid_argument, "policy_options", "policy option %u has no name or no value", i);
    ORRERY_TRY(about_option("policy_options", check_utf8(option.name, ("the name of policy option " + std::to_string(i)).c_str())));
    ORRERY_TRY(about_option("policy_options", check_utf8(option.value, ("the value of policy option " + std::to_string(i)).c_str())));
    out.policy_options.emplace_back(option.name, option.value);
  }
  out.chunk_tokens = o.chunk_tokens;
  ORRERY_ASSIGN(out.kv_type, kv_type(o.kv_type));
  if (o.device_kv_type != 0) {
    auto type = kv_type(o.device_kv_type - 1);
    if (!type.ok())
      return option_error(Code::invalid_argument, "device_kv_type", "device_kv_type is %u, expected 0 or 1 + an ORRERY_KV_ value",
                          o.device_kv_type);
    out.device_kv_type = type.value();
  }
  if (o.head_profile) {
    ORRERY_ASSIGN(policy::HeadProfile profile, about_option("head_profile", policy::read_any_profile(o.head_profile)));
    out.head_profile = std::make_shared<const policy::HeadProfile>(std::move(profile));
  }
  if (o.overflow > ORRERY_OVERFLOW_DROP_OLDEST)
    return option_error(Code::invalid_argument, "overflow", "overflow is %u, expected an ORRERY_OVERFLOW_ value", o.overflow);
  out.overflow = o.overflow == ORRERY_OVERFLOW_STOP ? engine::Overflow::stop : engine::Overflow::drop_oldest;
  if (o.speculate > ORRERY_SPECULATE_MTP)
    return option_error(Code::invalid_argument, "speculate", "speculate is %u, expected an ORRERY_SPECULATE_ value", o.speculate);
  out.speculate = o.speculate == ORRERY_SPECULATE_OFF      ? engine::Speculate::off
                  : o.speculate == ORRERY_SPECULATE_NGRAM  ? engine::Speculate::ngram
                  : o.speculate == ORRERY_SPECULATE_POLICY ? engine::Speculate::policy
                  : o.speculate == ORRERY_SPECULATE_DRAFT  ? engine::Speculate::draft
                                                           : engine::Speculate::mtp;
  out.speculate_tokens = o.speculate_tokens;
  if (o.draft_model) {
    out.draft_model = o.draft_model->model;
    ORRERY_TRY(check_process(out.draft_model->runtime()));
  }
  if (o.draft_source) {
    auto draft = about_option("draft_source", model_source(o.draft_source));
    ORRERY_ASSIGN(engine::ModelSource source, std::move(draft));
    out.draft_source = std::make_shared<const engine::ModelSource>(std::move(source));
  }
  ORRERY_ASSIGN(out.adapters, adapters_of(o.adapters, o.n_adapters));
  if (o.reuse_prompts > 1)
    return option_error(Code::invalid_argument, "reuse_prompts", "reuse_prompts is %u, expected 0 or 1", o.reuse_prompts);
  out.reuse_prompts = o.reuse_prompts == 1;
  if (o.load_behind > 1) return option_error(Code::invalid_argument, "load_behind", "load_behind is %u, expected 0 or 1", o.load_behind);
  out.load_behind = o.load_behind == 1;
  if (o.folder) out.folder = o.folder->folder;
  if (o.reserved != 0) return option_error(Code::unsupported, "reserved", "orrery_session_options.reserved is not zero");
  return out;
}

namespace {

// Holds the session, and runs f(session) -> Status.
template <class F>
orrery_status with_session(const orrery_session* handle, SessionUse::For what, orrery_error* error, F f) noexcept {
  return guarded(error, [&]() -> Status {
    if (handle == nullptr) return null_argument("session");
    const AccountScope scope(handle->account);
    const std::shared_ptr<engine::Session> session = handle->session;  // a callback may free the handle
    ORRERY_TRY(check_process(session->model().runtime()));
    SessionUse use(session.get(), what);
    ORRERY_TRY(use.take_status());
    return f(session.get());
  });
}

constexpr auto kReading = SessionUse::For::reading;
constexpr auto kChanging = SessionUse::For::changing;

Status add_message(engine::Session* session, text::Value message) {
  const text::Value* role = message.find("role");
  if (role == nullptr || !role->is_string() || role->as_string().empty())
    return error(Code::invalid_argument, "the message has no \"role\"");
  session->conversation().messages.push_back(std::move(message));
  return ok_status();
}

}  // namespace
}  // namespace orrery::capi

using namespace orrery;
using namespace orrery::capi;

namespace {

void add_resident_stats(const engine::Resident& resident, orrery_stats* out) {
  const policy::Report report = resident.report();
  const kv::Refills::Stats refills = resident.refill_stats();
  const uint64_t fetched = refills.bytes + resident.bytes_in_place();
  out->host_to_device_bytes += resident.settled_bytes() + fetched;
  out->n_settled = report.n_settled;
  out->settle_us = resident.settle_us();
  out->refill_bytes = fetched;
  out->transfer_us = refills.transfer_us;
  out->stall_us = refills.stall_us;
  out->n_checks = report.n_checks;
  out->n_triggers = report.n_triggers;
  out->wanted_tokens = report.wanted_tokens;
  out->missed_tokens = report.missed_tokens;
}

}  // namespace

extern "C" {

uint64_t orrery_kv_type_bytes(uint32_t type, uint32_t key_dim, uint32_t value_dim) {
  auto known = kv_type(type);
  if (!known.ok() || (in_blocks(*known) && (key_dim % 32 != 0 || value_dim % 32 != 0))) return 0;
  return key_bytes(*known, key_dim) + value_bytes(*known, value_dim);
}

void orrery_session_options_init(orrery_session_options* options, size_t struct_size) {
  orrery_session_options defaults = {};
  defaults.kv_budget_share = 1.0f;
  defaults.reuse_prompts = 1;
  init_struct(options, struct_size, defaults);
}

orrery_status orrery_session_open(orrery_model* model, const orrery_session_options* options, orrery_session** session,
                                  orrery_error* error) {
  if (session) *session = nullptr;
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(model);
    ORRERY_REQUIRE(session);
    ORRERY_TRY(check_process(model->model->runtime()));
    ORRERY_ASSIGN(const engine::SessionOptions o, session_options(options));
    return make_handle(session, [&](orrery_session* handle) -> Status {
      ORRERY_ASSIGN(handle->session, engine::Session::open(model->model, o));
      return ok_status();
    });
  });
}

void orrery_session_free(orrery_session* session) {
  if (session) free_handle(session, session->session->model().runtime());
}

void orrery_session_cancel(orrery_session* session) {
  // In a child of fork() the mutex may stay locked.
  if (session && session->session->model().runtime().in_its_process()) session->session->calls().stop_running();
}

// The conversation ----------------------------------------------------------------------------------------

orrery_status orrery_session_add_message(orrery_session* session, const char* role, const char* content, orrery_error* error) {
  return with_session(session, kChanging, error, [&](engine::Session* s) -> Status {
    ORRERY_REQUIRE(role);
    ORRERY_REQUIRE(content);
    ORRERY_TRY(check_utf8(role, "role"));
    ORRERY_TRY(check_utf8(content, "content"));
    text::Map message;
    message.set("role", text::Value::string(role));
    message.set("content", text::Value::string(content));
    return add_message(s, text::Value::map(std::move(message)));
  });
}

orrery_status orrery_session_add_message_json(orrery_session* session, const char* message_json, orrery_error* error) {
  return with_session(session, kChanging, error, [&](engine::Session* s) -> Status {
    ORRERY_REQUIRE(message_json);
    ORRERY_ASSIGN(text::Value message, text::parse_json(message_json));
    if (!message.is_map()) return orrery::error(Code::invalid_argument, "message_json is not a JSON object");
    return add_message(s, std::move(message));
  });
}

size_t orrery_session_n_messages(const orrery_session* session) {
  size_t n = 0;
  with_session(session, kReading, nullptr, [&](engine::Session* s) -> Status {
    n = s->conversation().messages.size();
    return ok_status();
  });
  return n;
}

orrery_status orrery_session_message(const orrery_session* session, size_t i, char* json, size_t capacity, size_t* json_bytes,
                                     orrery_error* error) {
  if (json_bytes) *json_bytes = 0;
  return with_session(session, kReading, error, [&](engine::Session* s) -> Status {
    ORRERY_REQUIRE(json_bytes);
    const auto& messages = s->conversation().messages;
    if (i >= messages.size()) return orrery::error(Code::invalid_argument, "message %zu: the conversation has %zu", i, messages.size());
    ORRERY_ASSIGN(const std::string text, text::dump_json(messages[i]));
    return copy_out(text.data(), text.size(), json, capacity, json_bytes);
  });
}

orrery_status orrery_session_set_template(orrery_session* session, const orrery_template_options* options, orrery_error* error) {
  return with_session(session, kChanging, error, [&](engine::Session* s) -> Status {
    ORRERY_ASSIGN(engine::TemplateChoice choice, template_choice(options));
    ORRERY_ASSIGN(auto renderer, engine::ChatRenderer::make(s->model().vocabulary(), choice));
    s->conversation().choice = std::move(choice);
    s->conversation().renderer.emplace(std::move(renderer));
    return ok_status();
  });
}

orrery_status orrery_session_rewind_messages(orrery_session* session, size_t n_messages, orrery_error* error) {
  return with_session(session, kChanging, error, [&](engine::Session* s) -> Status {
    auto& messages = s->conversation().messages;
    if (n_messages > messages.size())
      return orrery::error(Code::invalid_argument, "cannot rewind to %zu messages: the conversation has %zu", n_messages, messages.size());
    messages.resize(n_messages);
    if (n_messages < s->conversation().n_dropped) s->conversation().n_dropped = 0;  // the dropped messages are gone
    return ok_status();
  });
}

// Tokens --------------------------------------------------------------------------------------------------

size_t orrery_session_n_tokens(const orrery_session* session) { return session ? session->session->n_computed() : 0; }

orrery_status orrery_session_tokens(const orrery_session* session, int32_t* tokens, size_t capacity, size_t* n_tokens,
                                    orrery_error* error) {
  if (n_tokens) *n_tokens = 0;
  return with_session(session, kReading, error, [&](engine::Session* s) -> Status {
    ORRERY_REQUIRE(n_tokens);
    return copy_out(s->tokens().data(), s->n_computed(), tokens, capacity, n_tokens);
  });
}

orrery_status orrery_session_rewind(orrery_session* session, size_t n_tokens, orrery_error* error) {
  return with_session(session, kChanging, error, [&](engine::Session* s) -> Status {
    if (n_tokens > s->n_computed())
      return orrery::error(Code::invalid_argument, "cannot rewind to %zu tokens: the session holds %u", n_tokens, s->n_computed());
    const engine::Calls::Stoppable call(&s->calls());
    return s->rewind(static_cast<uint32_t>(n_tokens), Cancel(call.flag()));
  });
}

orrery_status orrery_session_set_adapters(orrery_session* session, const orrery_adapter_use* adapters, size_t n_adapters,
                                          orrery_error* error) {
  return with_session(session, kChanging, error, [&](engine::Session* s) -> Status {
    ORRERY_ASSIGN(engine::Adapters set, adapters_of(adapters, n_adapters));
    return s->set_adapters(std::move(set));
  });
}

orrery_status orrery_session_fork(orrery_session* session, orrery_session** fork, orrery_error* error) {
  if (fork) *fork = nullptr;
  return with_session(session, kChanging, error, [&](engine::Session* s) -> Status {
    ORRERY_REQUIRE(fork);
    return make_handle(fork, [&](orrery_session* handle) -> Status {
      const engine::Calls::Stoppable call(&s->calls());
      ORRERY_ASSIGN(handle->session, s->fork(Cancel(call.flag())));
      return ok_status();
    });
  });
}

// Save and load -------------------------------------------------------------------------------------------

orrery_status orrery_session_save(orrery_session* session, const char* path, orrery_error* error) {
  return with_session(session, kChanging, error, [&](engine::Session* s) -> Status {
    ORRERY_REQUIRE(path);
    const engine::Calls::Stoppable call(&s->calls());
    return engine::SessionFile::save_to_file(s, path, call.flag());
  });
}

orrery_status orrery_session_load(orrery_session* session, const char* path, orrery_error* error) {
  return with_session(session, kChanging, error, [&](engine::Session* s) -> Status {
    ORRERY_REQUIRE(path);
    const engine::Calls::Stoppable call(&s->calls());
    using Pages = engine::SessionFile::Pages;
    return engine::SessionFile::load_from_file(s, path, engine::SessionFile::kWholeBytes, call.flag(),
                                               s->options().load_behind ? Pages::behind : Pages::at_once);
  });
}

orrery_status orrery_session_save_buffer(orrery_session* session, void* bytes, size_t capacity, size_t* n_bytes, orrery_error* error) {
  if (n_bytes) *n_bytes = 0;
  return with_session(session, kChanging, error, [&](engine::Session* s) -> Status {
    ORRERY_REQUIRE(n_bytes);
    const engine::Calls::Stoppable call(&s->calls());
    ORRERY_ASSIGN(const uint64_t needed, engine::SessionFile::size(s, call.flag()));
    *n_bytes = needed;
    if (bytes == nullptr) return ok_status();
    if (capacity < needed)
      return memory_error(Code::invalid_argument, needed, capacity, "the buffer holds %zu bytes, %llu are needed", capacity,
                          static_cast<unsigned long long>(needed));
    std::byte* at = static_cast<std::byte*>(bytes);
    return engine::SessionFile::save(
        s,
        [&](Span<const std::byte> piece) {
          if (!piece.empty()) std::memcpy(at, piece.data(), piece.size());
          at += piece.size();
          return ok_status();
        },
        call.flag());
  });
}

orrery_status orrery_session_load_buffer(orrery_session* session, const void* bytes, size_t n_bytes, orrery_error* error) {
  return with_session(session, kChanging, error, [&](engine::Session* s) -> Status {
    ORRERY_REQUIRE(bytes);
    const engine::Calls::Stoppable call(&s->calls());
    return engine::SessionFile::load(s, {static_cast<const std::byte*>(bytes), n_bytes}, "session buffer", call.flag());
  });
}

// A folder of saved sessions --------------------------------------------------------------------------------

orrery_status orrery_folder_open(const char* path, uint64_t max_bytes, orrery_folder** folder, orrery_error* error) {
  if (folder) *folder = nullptr;
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(path);
    ORRERY_REQUIRE(folder);
    return make_handle(folder, [&](orrery_folder* handle) -> Status {
      ORRERY_ASSIGN(handle->folder, engine::Folder::open(path, max_bytes, orrery_version()));
      return ok_status();
    });
  });
}

void orrery_folder_free(orrery_folder* folder) { delete folder; }

orrery_status orrery_folder_save(orrery_folder* folder, orrery_session* session, const char* name, orrery_error* error) {
  return with_session(session, kChanging, error, [&](engine::Session* s) -> Status {
    ORRERY_REQUIRE(folder);
    if (name) ORRERY_TRY(engine::Folder::check_name(name, true));
    const engine::Calls::Stoppable call(&s->calls());
    return engine::SessionFile::save_to_folder(s, *folder->folder, name ? name : "", call.flag());
  });
}

orrery_status orrery_folder_load(orrery_folder* folder, orrery_session* session, const char* name, orrery_error* error) {
  return with_session(session, kChanging, error, [&](engine::Session* s) -> Status {
    ORRERY_REQUIRE(folder);
    ORRERY_REQUIRE(name);
    const engine::Calls::Stoppable call(&s->calls());
    using Pages = engine::SessionFile::Pages;
    return engine::SessionFile::load_from_folder(s, *folder->folder, name, call.flag(),
                                                 s->options().load_behind ? Pages::behind : Pages::at_once);
  });
}

orrery_status orrery_folder_remove(orrery_folder* folder, const char* name, orrery_error* error) {
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(folder);
    ORRERY_REQUIRE(name);
    return folder->folder->remove(name);
  });
}

orrery_status orrery_folder_list(const orrery_folder* folder, char* json, size_t capacity, size_t* json_bytes, orrery_error* error) {
  if (json_bytes) *json_bytes = 0;
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(folder);
    ORRERY_REQUIRE(json_bytes);
    ORRERY_ASSIGN(const std::string text, folder->folder->list());
    return copy_out(text.data(), text.size(), json, capacity, json_bytes);
  });
}

// Numbers -------------------------------------------------------------------------------------------------

orrery_status orrery_session_evaluate(orrery_session* session, const int32_t* tokens, size_t n_tokens, float* logits, orrery_error* error) {
  return with_session(session, kChanging, error, [&](engine::Session* s) -> Status {
    if (n_tokens == 0) return ok_status();
    ORRERY_REQUIRE(tokens);
    const int32_t n_vocab = s->model().description().n_vocab;
    for (size_t i = 0; i < n_tokens; ++i)
      if (tokens[i] < 0 || tokens[i] >= n_vocab)
        return orrery::error(Code::invalid_argument, "token %zu is %d, the vocabulary has %d", i, tokens[i], n_vocab);
    ORRERY_TRY(s->resume());
    const engine::Calls::Stoppable call(&s->calls());
    return s->prefill({tokens, n_tokens}, call.flag(), logits);
  });
}

orrery_status orrery_session_logits(const orrery_session* session, float* logits, size_t n, orrery_error* error) {
  return with_session(session, kReading, error, [&](engine::Session* s) -> Status {
    ORRERY_REQUIRE(logits);
    if (!s->sequence().has_logits()) return orrery::error(Code::invalid_argument, "the session has computed no token since it changed");
    if (n != s->sequence().n_logits())
      return orrery::error(Code::invalid_argument, "n is %zu, the vocabulary has %zu", n, s->sequence().n_logits());
    ORRERY_TRY(s->sequence().fetch_logits());
    std::memcpy(logits, s->logits().data(), n * sizeof(float));
    return ok_status();
  });
}

orrery_status orrery_session_embedding(const orrery_session* session, float* embedding, size_t n, orrery_error* error) {
  return with_session(session, kReading, error, [&](engine::Session* s) -> Status {
    ORRERY_REQUIRE(embedding);
    if (!s->sequence().has_logits()) return orrery::error(Code::invalid_argument, "the session has computed no token since it changed");
    if (n != s->sequence().n_embedding())
      return orrery::error(Code::invalid_argument, "n is %zu, the embedding has %zu", n, s->sequence().n_embedding());
    ORRERY_TRY(s->sequence().fetch_logits());
    std::memcpy(embedding, s->sequence().embedding().data(), n * sizeof(float));
    return ok_status();
  });
}

void orrery_stats_init(orrery_stats* stats, size_t struct_size) { init_struct(stats, struct_size); }

orrery_status orrery_session_stats(const orrery_session* session, orrery_stats* stats, orrery_error* error) {
  return with_session(session, kReading, error, [&](engine::Session* s) -> Status {
    ORRERY_REQUIRE(stats);
    const engine::SessionStats& from = s->stats();
    orrery_stats out;
    orrery_stats_init(&out, sizeof out);
    out.n_context = s->n_context();
    out.n_tokens = s->n_computed();
    out.policy = s->policy();
    out.kv_share = static_cast<float>(s->kv_share());
    out.selects_again = s->sequence().selects_again();
    out.parked = s->sequence().parked();
    out.prompt_tokens = from.prompt_tokens;
    out.reused_tokens = from.reused_tokens;
    out.generated_tokens = from.generated_tokens;
    out.guessed_tokens = from.guessed_tokens;
    out.accepted_tokens = from.accepted_tokens;
    out.restored_tokens = from.restored_tokens;
    out.folder_tokens = from.folder_tokens;
    out.prefill_us = from.prefill_us;
    out.decode_us = from.decode_us;
    out.device_kv_bytes = s->kv_bytes();
    out.device_kv_used_bytes = s->kv_used_bytes();
    out.shared_kv_bytes = s->sequence().shared_bytes();
    out.reservoir_bytes = s->reservoir_bytes();
    out.reservoir_mode =
        out.reservoir_bytes > 0 && s->model().runtime().reservoir().pinned() ? ORRERY_RESERVOIR_PINNED : ORRERY_RESERVOIR_PAGEABLE;
    out.device_kv_type = kv_type_number(s->options().resident_type(s->model().description()));
    out.workspace_bytes = s->model().workspace_bytes();
    out.host_to_device_bytes = from.host_to_device_bytes;
    out.device_to_host_bytes = from.device_to_host_bytes;
    if (s->resident()) add_resident_stats(*s->resident(), &out);
    const AccountUsage usage = session->account.usage();
    out.host_bytes = usage.bytes;
    out.host_peak_bytes = usage.peak_bytes;
    return write_struct(out, stats, "orrery_stats");
  });
}

void orrery_head_roles_init(orrery_head_roles* roles, size_t struct_size) { init_struct(roles, struct_size); }

orrery_status orrery_session_head_roles(const orrery_session* session, orrery_head_roles* roles, orrery_error* error) {
  return with_session(session, kReading, error, [&](engine::Session* s) -> Status {
    ORRERY_REQUIRE(roles);
    orrery_head_roles out;
    orrery_head_roles_init(&out, sizeof out);
    if (s->resident()) {
      const policy::Report report = s->resident()->report();
      out.n_anchor_heads = report.roles.anchor;
      out.n_volatile_heads = report.roles.volatile_heads;
      out.n_pivot_heads = report.roles.pivot;
      out.n_satellite_heads = report.roles.satellite;
      out.n_demoted_heads = report.n_demoted;
    }
    return write_struct(out, roles, "orrery_head_roles");
  });
}

orrery_status orrery_session_residency(const orrery_session* session, uint32_t* tokens, size_t capacity, size_t* n, orrery_error* error) {
  if (n) *n = 0;
  return with_session(session, kReading, error, [&](engine::Session* s) -> Status {
    ORRERY_REQUIRE(n);
    const model::Description& h = s->model().description();
    std::vector<uint32_t> held(static_cast<size_t>(h.kv().n_layers()) * static_cast<size_t>(h.kv().n_kv_heads));
    for (size_t head = 0; head < held.size(); ++head) held[head] = s->sequence().held_tokens(static_cast<uint32_t>(head));
    return copy_out(held.data(), held.size(), tokens, capacity, n);
  });
}

}  // extern "C"
