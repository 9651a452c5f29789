// The handles, buffers and callbacks that fuzz_calls.cpp juggles with, and what is known of each: which
// session a generation is of, and whether it is under way.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/fuzz/checks.h"
#include "tests/support/temp_dir.h"

namespace orrery::fuzz {

struct GenerationState {
  orrery_generation* handle = nullptr;
  size_t session = 0;  // slot that it was begun on
  bool finished = false;
  uint64_t session_life = 0;
};

// What a callback does when it is called: counts down to a cancel, and now and then calls the library itself.
struct Callbacks {
  uint32_t calls_left = UINT32_MAX;     // until it cancels
  orrery_session* look_at = nullptr;    // read inside the callback: BUSY, or an answer
  orrery_generation* cancel = nullptr;  // cancelled inside the callback
  bool spoil_logits = false;
  uint32_t n_calls = 0;

  int32_t called() {
    ++n_calls;
    if (look_at) {
      CheckedError error;
      orrery_stats stats = testing::options(&orrery_stats_init);
      const orrery_status s = error.check(orrery_session_stats(look_at, &stats, error.get()));
      require(s == ORRERY_OK || s == ORRERY_BUSY, "reading inside a callback is answered, or busy");
      require(error.check(orrery_session_rewind(look_at, 0, error.get())) == ORRERY_BUSY, "changing a session inside its callback is busy");
    }
    if (cancel && n_calls == 2) orrery_cancel(cancel);
    if (calls_left == 0) return 1;
    --calls_left;
    return 0;
  }
  static int32_t on_progress(void* user, uint64_t done, uint64_t total) {
    require(done <= total, "progress does not pass its total");
    return static_cast<Callbacks*>(user)->called();
  }
  static int32_t on_logits(void* user, float* logits, size_t n_vocab, const int32_t* tokens, size_t n_tokens) {
    require(n_tokens == 0 || tokens != nullptr, "tokens are there");
    if (static_cast<Callbacks*>(user)->spoil_logits)
      for (size_t i = 0; i < n_vocab; ++i) logits[i] = i % 2 ? 0.0f / (logits[i] - logits[i]) : 3e38f;
    return static_cast<Callbacks*>(user)->called();
  }
  static int32_t on_event(void* user, const orrery_event* event);
  static void on_log(void*, int32_t level, const char* message) {
    require(level >= ORRERY_LOG_ERROR && level <= ORRERY_LOG_TRACE, "a log level of the header's");
    require(whole_utf8(message), "a log line is whole UTF-8");
  }
};

inline void check_event(const orrery_event& e) {
  require(e.struct_size == sizeof e, "an event's struct_size is the caller's");
  require(e.type >= ORRERY_EVENT_PROGRESS && e.type <= ORRERY_EVENT_DONE, "an event's type is one of the header's");
  if (e.type == ORRERY_EVENT_TEXT) require(whole_utf8({e.text, e.text_bytes}), "a text event is whole UTF-8");
  if (e.type == ORRERY_EVENT_TOKEN) {
    require(e.token >= 0, "a token is one of the vocabulary's");
    require(e.n_top <= 20 && (e.n_top == 0 || e.top != nullptr), "as many alternatives as were asked for");
    for (uint32_t i = 1; i < e.n_top; ++i) require(e.top[i].logprob <= e.top[i - 1].logprob, "likeliest first");
  }
  if (e.type == ORRERY_EVENT_DONE)
    require(e.finish_reason >= ORRERY_FINISH_END && e.finish_reason <= ORRERY_FINISH_CANCELLED,
            "an answer ends for one of the header's reasons");
}

inline int32_t Callbacks::on_event(void* user, const orrery_event* event) {
  check_event(*event);
  return static_cast<Callbacks*>(user)->called();
}

// Handles by slot; an argument byte names one, and an empty slot is NULL.
struct CallTable {
  static constexpr size_t kFew = 2, kMany = 5;
  orrery_runtime* runtimes[kFew] = {};
  orrery_model* models[kFew] = {};
  orrery_vocab* vocabs[kFew] = {};
  orrery_session* sessions[kMany] = {};
  uint64_t lives[kMany] = {};  // which session a slot has held: counts up
  GenerationState generations[kMany];
  orrery_calibration* calibration = nullptr;
  std::vector<unsigned char> saved[kFew];
  Callbacks callbacks[kMany];  // of the generation in that slot

  CallTable() = default;
  CallTable(const CallTable&) = delete;
  CallTable& operator=(const CallTable&) = delete;
  ~CallTable() {
    for (auto& g : generations) orrery_generation_free(g.handle);
    for (auto* s : sessions) orrery_session_free(s);
    for (auto* v : vocabs) orrery_vocab_free(v);
    for (auto* m : models) orrery_model_free(m);
    for (auto* r : runtimes) orrery_runtime_free(r);
    orrery_calibration_free(calibration);
  }

  bool under_way(size_t session) const {
    for (const GenerationState& g : generations)
      if (g.handle && !g.finished && g.session == session && g.session_life == lives[session]) return true;
    return false;
  }
};

}  // namespace orrery::fuzz
