// One sample under one policy: the questions asked, the answers scored, and beside it full attention's own answers
// forced through the same policy to compare the two distributions token by token.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "api.h"
#include "eval/sample.h"
#include "settings.h"

namespace orrery::tool {

// A policy with its parameters and budget; "full" has none.
struct EvalConfig {
  std::string policy;  // as written: "streaming:sinks=8"
  std::string budget;  // as written: "30%", "512MiB"; "": full
  std::string name;    // "streaming"
  std::vector<std::pair<std::string, std::string>> options;
  float share = 1;
  uint64_t bytes = 0;  // 0: by share
};

struct EvalMode {
  bool multi_turn = true;  // all questions in one conversation; else each alone behind the text
  bool aware = true;       // the question is part of the prompt behind which the policy settles
  uint32_t max_tokens = 128;
};

struct EvalAnswer {
  std::string text;
  std::vector<int32_t> tokens;  // with the one that ended it
  double score = 0;
  // Over full attention's answer tokens, each seen by both behind the same tokens:
  uint64_t compared = 0;  // how many
  uint64_t agreed = 0;    // where the likeliest token is the same
  double kl_sum = 0;      // KL(full || policy), nats
};

struct EvalRecord {
  // "refused: " (to open) or "failed: " (while answering) and the library's words; then the rest is empty.
  std::string error;
  std::vector<EvalAnswer> answers;                       // one for each question
  uint64_t prompt_tokens = 0, generated_tokens = 0;      // computed
  uint64_t prefill_us = 0, decode_us = 0;
  std::string device_kv_type;                            // "q8_0"
  uint64_t device_kv_bytes = 0, host_to_device_bytes = 0;
  uint64_t transfer_us = 0, stall_us = 0;                // of what was fetched while answering
  uint64_t n_checks = 0, n_triggers = 0, wanted_tokens = 0, missed_tokens = 0;   // as in orrery_stats
};
Json record_json(const EvalRecord& record);
EvalRecord record_from(const Json& json);  // throws Json::exception

// What full attention did with a sample.
struct EvalReference {
  std::vector<std::vector<int32_t>> prompts;  // of each question, whole
  std::vector<size_t> settled;                // tokens of it that are prefilled; the others are decoded
  std::vector<std::vector<int32_t>> answers;
  std::vector<std::vector<float>> logits;  // of each question: (n answer tokens, n_vocab)
};

class EvalRunner {
 public:
  EvalRunner(const Model& model, const TemplateSettings& chat, const orrery_session_options& session,
             const EvalMode& mode);

  // Tokens that a session needs for the sample.
  uint64_t context_needed(const EvalSample& sample) const;
  // Refuses samples that spell control tokens: nobody could tell them from the template's.
  void check(const EvalSample& sample) const;

  // Stands before the progress bar.
  void set_label(const std::string& label) { label_ = label; }

  // Full attention's record, and what the others are compared with.
  EvalRecord run_full(const EvalSample& sample, uint32_t n_context, EvalReference* reference) const;
  // A policy's. What it cannot do with its budget becomes the record's error; everything else throws.
  EvalRecord run_policy(const EvalSample& sample, const EvalConfig& config, uint32_t n_context,
                        const EvalReference& reference) const;

 private:
  struct Prompt {
    std::vector<int32_t> tokens;
    size_t settled;
  };
  struct Forcing;
  static int32_t on_logits(void* user, float* logits, size_t n_vocab, const int32_t* tokens, size_t n_tokens);

  EvalRecord ask(orrery_session* session, const EvalSample& sample, const EvalReference* against,
                 EvalReference* reference) const;
  void replay(orrery_session* session, const EvalReference& reference, size_t first, size_t last,
              std::vector<EvalAnswer>* answers) const;
  Session open(const EvalConfig* config, uint32_t n_context) const;
  std::vector<int32_t> render(const Json& messages) const;
  Prompt prompt(Json messages, const std::string& text_before, const std::string& question) const;
  std::vector<int32_t> generate(orrery_session* session, const Prompt& prompt, uint32_t max_tokens,
                                Forcing* forcing) const;
  void step_back(orrery_session* session, const Prompt& prompt) const;

  const Model& model_;
  const TemplateSettings& chat_;
  orrery_session_options session_;
  EvalMode mode_;
  Vocab vocab_;
  orrery_vocab_info info_;
  std::string label_ = "reading";
};

}  // namespace orrery::tool
