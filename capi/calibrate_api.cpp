// Head profiles: calibrates a model, and imports published profiles.
#include "capi/handles.h"
#include "runtime/engine/session/calibrate.h"
#include "runtime/policy/heads/gates.h"
#include "runtime/policy/heads/profile.h"

struct orrery_calibration {
  std::string profile, steps;  // JSON
};

namespace orrery::capi {

namespace {

Result<engine::CalibrationOptions> calibration_options(const orrery_calibrate_options* given) {
  orrery_calibrate_options o;
  ORRERY_TRY(read_options(given, &orrery_calibrate_options_init, "orrery_calibrate_options", &o));
  if (o.reserved != 0) return option_error(Code::unsupported, "reserved", "orrery_calibrate_options.reserved is not zero");
  engine::CalibrationOptions out;
  out.n_steps = o.n_steps;
  out.top_k = o.top_k;
  out.n_representatives = o.n_representatives;
  out.thresholds = {o.tau_sim, o.tau_stable};
  out.tau_drift = o.tau_drift;
  out.full_share = o.full_share;
  ORRERY_ASSIGN(out.kv_type, kv_type(o.kv_type));
  if (o.note) {
    ORRERY_TRY(about_option("note", check_utf8(o.note, "note")));
    out.note = o.note;
  }
  if (o.progress)
    out.progress = [fn = o.progress, user = o.progress_user](uint64_t done, uint64_t total) { return fn(user, done, total) == 0; };
  return out;
}

}  // namespace

}  // namespace orrery::capi

using namespace orrery;
using namespace orrery::capi;

extern "C" {

void orrery_calibrate_options_init(orrery_calibrate_options* options, size_t struct_size) {
  orrery_calibrate_options defaults = {};
  defaults.n_steps = 99;
  defaults.top_k = 1024;
  defaults.tau_sim = defaults.tau_stable = .5;
  defaults.tau_drift = -1;
  init_struct(options, struct_size, defaults);
}

orrery_status orrery_calibrate(orrery_model* model, const int32_t* tokens, const size_t* n_tokens, size_t n_texts,
                               const orrery_calibrate_options* options, orrery_calibration** calibration, orrery_error* error) {
  if (calibration) *calibration = nullptr;
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(model);
    ORRERY_REQUIRE(tokens);
    ORRERY_REQUIRE(n_tokens);
    ORRERY_REQUIRE(calibration);
    ORRERY_TRY(check_process(model->model->runtime()));
    const AccountScope scope(model->account);
    ORRERY_ASSIGN(const engine::CalibrationOptions o, calibration_options(options));
    std::vector<Span<const int32_t>> texts;
    for (size_t i = 0; i < n_texts; ++i) {
      if (n_tokens[i] > INT32_MAX)  // no array is so long
        return orrery::error(Code::invalid_argument, "text %zu has %zu tokens, calibration needs fewer", i, n_tokens[i]);
      texts.emplace_back(tokens, n_tokens[i]);
      tokens += n_tokens[i];
    }
    ORRERY_ASSIGN(const engine::CalibrationResult result, engine::calibrate(model->model, texts, o));
    auto handle = std::make_unique<orrery_calibration>();
    ORRERY_ASSIGN(handle->profile, policy::write_profile(result.profile));
    ORRERY_ASSIGN(handle->steps, engine::write_steps(result.steps));
    *calibration = handle.release();
    return ok_status();
  });
}

orrery_status orrery_calibration_profile(const orrery_calibration* calibration, char* json, size_t capacity, size_t* json_bytes,
                                         orrery_error* error) {
  if (json_bytes) *json_bytes = 0;
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(calibration);
    ORRERY_REQUIRE(json_bytes);
    return copy_out(calibration->profile.data(), calibration->profile.size(), json, capacity, json_bytes);
  });
}

orrery_status orrery_calibration_steps(const orrery_calibration* calibration, char* json, size_t capacity, size_t* json_bytes,
                                       orrery_error* error) {
  if (json_bytes) *json_bytes = 0;
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(calibration);
    ORRERY_REQUIRE(json_bytes);
    return copy_out(calibration->steps.data(), calibration->steps.size(), json, capacity, json_bytes);
  });
}

void orrery_calibration_free(orrery_calibration* calibration) { delete calibration; }

orrery_status orrery_head_profile_import(const char* profile_json, char* json, size_t capacity, size_t* json_bytes, orrery_error* error) {
  if (json_bytes) *json_bytes = 0;
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(profile_json);
    ORRERY_REQUIRE(json_bytes);
    ORRERY_ASSIGN(const policy::HeadProfile profile, policy::read_any_profile(profile_json));
    ORRERY_ASSIGN(const std::string text, policy::write_profile(profile));
    return copy_out(text.data(), text.size(), json, capacity, json_bytes);
  });
}

orrery_status orrery_head_profile_import_gates(const char* gates, double sparsity, char* json, size_t capacity, size_t* json_bytes,
                                               orrery_error* error) {
  if (json_bytes) *json_bytes = 0;
  return guarded(error, [&]() -> Status {
    ORRERY_REQUIRE(gates);
    ORRERY_REQUIRE(json_bytes);
    ORRERY_ASSIGN(const policy::HeadProfile profile, policy::import_gates(gates, sparsity));
    ORRERY_ASSIGN(const std::string text, policy::write_profile(profile));
    return copy_out(text.data(), text.size(), json, capacity, json_bytes);
  });
}

}  // extern "C"
