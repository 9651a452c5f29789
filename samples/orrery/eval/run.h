// One sample under one policy: asks the questions and scores the answers. Full attention's own answers are then
// forced through the same policy, to compare the two distributions token by token.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "api.h"
#include "eval/sample.h"
#include "settings.h"

namespace orrery::tool {

// A policy with its options, budget, KV types and head profile: everything that tells one row of a table from another.
struct EvalConfig {
  std::string policy;  // as written: "streaming:sinks=8"
  std::string budget;  // as written: "30%", "512MiB"; "": full
  std::string name;    // "streaming"
  std::vector<std::pair<std::string, std::string>> options;
  float share = 1;
  uint64_t bytes = 0;  // 0: the budget is a share
  // As in orrery_session_options; without a value, those of the whole evaluation apply.
  std::optional<uint32_t> kv_type = {}, device_kv_type = {};
  std::optional<std::string> head_profile = {};  // JSON
};

struct EvalMode {
  bool multi_turn = true;  // all questions in one conversation; otherwise each question alone after the text
  bool aware = true;       // the question is part of the prompt, so the policy settles after it
  uint32_t max_tokens = 128;
};

struct EvalAnswer {
  std::string text;
  std::vector<int32_t> tokens;  // including the token that ended the answer
  double score = 0;
  bool cut = false;  // the answer reached the largest number of tokens and did not end by itself
  // Over full attention's answer tokens, with the same preceding tokens for both:
  std::vector<float> kl;  // KL(full || policy) of each token, nats
  uint64_t agreed = 0;    // tokens whose likeliest token is the same
  // Of full attention's own answers: the best logit minus the second best, for each token. A small margin is a near tie.
  std::vector<float> margin;
};

struct EvalRecord {
  // "refused: " (the session could not be opened) or "failed: " (while answering), then the library's message. All
  // other members are then empty.
  std::string error;
  std::vector<EvalAnswer> answers;                   // one per question
  uint64_t prompt_tokens = 0, generated_tokens = 0;  // computed
  uint64_t prefill_us = 0, decode_us = 0;
  std::string kv_type, device_kv_type;  // "q8_0"; of the whole KV, and of its part on the device
  uint64_t device_kv_bytes = 0, host_to_device_bytes = 0;
  uint64_t transfer_us = 0, stall_us = 0;                                       // of refills during answers
  uint64_t n_checks = 0, n_triggers = 0, wanted_tokens = 0, missed_tokens = 0;  // as in orrery_stats
};
Json record_json(const EvalRecord& record);
EvalRecord record_from(const Json& json);  // throws Json::exception

// Full attention's run of a sample.
struct EvalReference {
  std::vector<std::vector<int32_t>> prompts;  // whole prompt of each question
  std::vector<size_t> settled;                // number of its tokens that are prefilled; the rest is decoded
  std::vector<std::vector<int32_t>> answers;
  std::vector<std::vector<float>> logits;  // per question: (n answer tokens, n_vocab)
  // The KV of the first prompt, as orrery_session_save_buffer() writes it, for each KV type. A policy's session loads it:
  // the prompt is computed once for all rows. Prompt tokens attend to everything, so the KV is the same under any policy.
  std::map<uint32_t, std::vector<uint8_t>> saved;
};

class EvalRunner {
 public:
  EvalRunner(const Loaded& loaded, const TemplateSettings& chat, const orrery_session_options& session, const EvalMode& mode);

  // Number of tokens that a session needs for the sample.
  uint64_t context_needed(const EvalSample& sample) const;
  // Refuses samples that spell control tokens, because they could not be told from the template's tokens.
  void check(const EvalSample& sample) const;

  // The text before the progress bar.
  void set_label(const std::string& label) { label_ = label; }

  // Full attention's record, and the reference for the policies.
  EvalRecord run_full(const EvalSample& sample, uint32_t n_context, EvalReference* reference) const;
  // A policy's record. If the policy cannot work with its budget, the record holds the error. Every other failure is
  // thrown.
  EvalRecord run_policy(const EvalSample& sample, const EvalConfig& config, uint32_t n_context, EvalReference* reference) const;

 private:
  struct Prompt {
    std::vector<int32_t> tokens;
    size_t settled;
  };
  struct Forcing;
  static int32_t on_logits(void* user, float* logits, size_t n_vocab, const int32_t* tokens, size_t n_tokens);

  EvalRecord ask(orrery_session* session, const EvalSample& sample, const EvalReference* against, EvalReference* reference) const;
  void take_stats(const orrery_session* session, uint32_t kv_type, const orrery_stats& before, EvalRecord* out) const;
  void save(orrery_session* session, uint32_t kv_type, EvalReference* reference) const;
  void replay(orrery_session* session, const EvalReference& reference, size_t first, size_t last, std::vector<EvalAnswer>* answers) const;
  Session open(const EvalConfig* config, uint32_t n_context) const;
  std::vector<int32_t> render(const Json& messages) const;
  bool multi_turn(const EvalSample& sample) const { return sample.multi_turn.value_or(mode_.multi_turn); }
  Prompt prompt(const EvalSample& sample, Json messages, const std::string& text_before, const std::string& question) const;
  Session open_read(const EvalConfig& config, uint32_t n_context, EvalReference* reference) const;
  std::vector<int32_t> generate(orrery_session* session, const Prompt& prompt, uint32_t max_tokens, Forcing* forcing) const;
  void step_back(orrery_session* session, const Prompt& prompt) const;

  const Loaded& loaded_;
  const TemplateSettings& chat_;
  orrery_session_options session_;
  EvalMode mode_;
  Vocab vocab_;
  orrery_vocab_info info_;
  std::string label_ = "reading";
};

}  // namespace orrery::tool
