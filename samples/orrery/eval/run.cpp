// See run.h. Every step goes through orrery_generate_tokens(). The prompt is the exact part that is prefilled; the
// policy settles after it. The logits hook forces known tokens that must be decoded, by leaving one token possible:
// the question in agnostic mode, and full attention's answer when two distributions are compared.
#include "eval/run.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "answer.h"
#include "terminal/progress.h"

namespace orrery::tool {
namespace {

// A policy may use a prompt's last queries when it settles, at most 64 of them. After a rewind or a load, this many
// tokens are computed again as a prompt, so the policy sees the same queries as in a fresh prompt, and no step computes
// them.
constexpr size_t kComputedAgain = 64;
// H2O adds up the attention of every query of the prompt. A session that loads the KV would compute the prompt again
// within its first step, and the step's time would count as decoding. So H2O reads the prompt itself.
constexpr std::string_view kReadsItself = "h2o";
constexpr uint32_t kSlack = 16;  // spare tokens after the last answer

size_t common_prefix(const std::vector<int32_t>& a, const std::vector<int32_t>& b) {
  const size_t n = std::min(a.size(), b.size());
  return static_cast<size_t>(std::mismatch(a.begin(), a.begin() + static_cast<ptrdiff_t>(n), b.begin()).first - a.begin());
}

Json message(const char* role, const std::string& content) { return {{"role", role}, {"content", content}}; }

std::string before_question(const EvalSample& sample) {
  return sample.questions[0].question.empty() ? sample.context : sample.context + "\n\n";
}

orrery_stats stats_of(const orrery_session* session) {
  orrery_stats stats;
  orrery_stats_init(&stats, sizeof stats);
  call([&](orrery_error* error) { return orrery_session_stats(session, &stats, error); });
  return stats;
}

Json opening(const EvalSample& sample) {
  Json messages = Json::array();
  if (!sample.system.empty()) messages.push_back(message("system", sample.system));
  return messages;
}

}  // namespace

// The hook's state: it forces the first tokens. After the question it keeps or compares logits.
struct EvalRunner::Forcing {
  std::vector<int32_t> forced;
  size_t n_question = 0;                         // number of forced tokens that belong to the question, not to an answer
  std::vector<float>* keep = nullptr;            // receives the logits of the answer's tokens,
  std::vector<float>* margin = nullptr;          // and this vector the margin of each token
  const std::vector<float>* against = nullptr;   // full attention's logits
  const std::vector<int32_t>* tokens = nullptr;  // and its tokens: the comparison ends at the first different token
  EvalAnswer* compared = nullptr;
  size_t step = 0;
  bool same = true;
};

int32_t EvalRunner::on_logits(void* user, float* logits, size_t n_vocab, const int32_t*, size_t) {
  auto& f = *static_cast<Forcing*>(user);
  const size_t step = f.step++;
  if (step >= f.n_question) {
    const size_t at = step - f.n_question;
    if (f.keep) {
      f.keep->insert(f.keep->end(), logits, logits + n_vocab);
      f.margin->push_back(top_margin(logits, n_vocab));
    }
    if (f.against && f.same && (at + 1) * n_vocab <= f.against->size()) {
      const float* full = f.against->data() + at * n_vocab;
      const auto chosen = std::max_element(logits, logits + n_vocab) - logits;
      f.compared->kl.push_back(static_cast<float>(kl_divergence(full, logits, n_vocab)));
      f.compared->agreed += chosen == std::max_element(full, full + n_vocab) - full;
      if (step >= f.forced.size()) f.same = chosen == (*f.tokens)[at];
    }
  }
  if (step < f.forced.size()) {
    const auto only = static_cast<size_t>(f.forced[step]);
    const float kept = logits[only];
    std::fill(logits, logits + n_vocab, -INFINITY);
    logits[only] = std::isfinite(kept) ? kept : 0.0f;
  }
  return 0;
}

EvalRunner::EvalRunner(const Loaded& loaded, const TemplateSettings& chat, const orrery_session_options& session, const EvalMode& mode)
    : loaded_(loaded), chat_(chat), session_(session), mode_(mode), vocab_(orrery_model_vocab(loaded.model.get())),
      info_(vocab_info(vocab_.get())) {}

// The messages as the model reads them, ready for its answer. For a model without a chat template, the messages are
// concatenated.
std::vector<int32_t> EvalRunner::render(const Json& messages) const {
  std::string text;
  const bool templated = info_.has_template || chat_.given();  // which writes its own BOS, or none
  if (templated) {
    const std::string json = dump_json(messages, -1);
    const orrery_template_options options = chat_.options();
    text = sized<std::string>([&](char* out, size_t capacity, size_t* n, orrery_error* error) {
      return orrery_render_chat(vocab_.get(), json.c_str(), &options, out, capacity, n, error);
    });
  } else {
    for (const Json& m : messages) text += m.at("content").get<std::string>() + "\n";
  }
  return tokenize(vocab_.get(), text, ORRERY_TOKENIZE_SPECIAL | (info_.add_bos && !templated ? ORRERY_TOKENIZE_BOS : 0u));
}

EvalRunner::Prompt EvalRunner::prompt(const EvalSample& sample, Json messages, const std::string& text_before,
                                      const std::string& question) const {
  Json without = messages;
  messages.push_back(message("user", text_before + question));
  Prompt prompt{render(messages), 0};
  prompt.settled = prompt.tokens.size();
  if (!mode_.aware || sample.question_after) {
    // The policy settles after the tokens that are equal with and without the question; at least one token.
    without.push_back(message("user", text_before));
    prompt.settled = std::max<size_t>(1, common_prefix(prompt.tokens, render(without)));
  }
  return prompt;
}

uint64_t EvalRunner::context_needed(const EvalSample& sample) const {
  Json messages = opening(sample);
  uint64_t most = 0;
  for (size_t i = 0; i < sample.questions.size(); ++i) {
    const bool first = i == 0 || !multi_turn(sample);
    Json asked = messages;
    asked.push_back(message("user", (first ? before_question(sample) : "") + sample.questions[i].question));
    const uint64_t turns = multi_turn(sample) ? i + 1 : 1;
    most = std::max<uint64_t>(most, render(asked).size() + turns * mode_.max_tokens + kSlack);
    if (multi_turn(sample)) {
      messages = asked;
      messages.push_back(message("assistant", ""));
    }
  }
  return most;
}

void EvalRunner::check(const EvalSample& sample) const {
  const auto refuse = [&](const std::string& text, const char* what) {
    for (const int32_t token : tokenize(vocab_.get(), text, ORRERY_TOKENIZE_SPECIAL)) {
      if (!(orrery_token_flags(vocab_.get(), token) & ORRERY_TOKEN_CONTROL)) continue;
      throw Failure(kExitFailure, "sample " + sample.id + ": its " + what + " spells the control token " +
                                      detokenize(vocab_.get(), &token, 1, ORRERY_DETOKENIZE_SPECIAL));
    }
  };
  refuse(sample.context, "text");
  refuse(sample.system, "system message");
  for (const EvalQuestion& question : sample.questions) refuse(question.question, "question");
}

Session EvalRunner::open(const EvalConfig* config, uint32_t n_context) const {
  orrery_session_options options = session_;
  options.n_context = n_context;
  options.policy = "full";
  std::vector<orrery_option> parameters;
  if (config) {
    for (const auto& [name, value] : config->options) parameters.push_back({name.c_str(), value.c_str()});
    options.policy = config->name.c_str();
    options.kv_budget_share = config->share;
    options.kv_budget_bytes = config->bytes;
    if (config->kv_type) options.kv_type = *config->kv_type;
    if (config->device_kv_type) options.device_kv_type = 1 + *config->device_kv_type;
    if (config->head_profile) options.head_profile = config->head_profile->c_str();
  }
  if (std::string_view(options.policy) == "full") options.device_kv_type = 0;  // the session's one copy of the KV is on the device
  options.policy_options = parameters.data();
  options.n_policy_options = static_cast<uint32_t>(parameters.size());
  return open_session(loaded_, options);
}

void EvalRunner::save(orrery_session* session, uint32_t kv_type, EvalReference* reference) const {
  reference->saved[kv_type] = sized<std::vector<uint8_t>>([&](uint8_t* bytes, size_t capacity, size_t* n, orrery_error* error) {
    return orrery_session_save_buffer(session, bytes, capacity, n, error);
  });
}

// A session under the config's policy that has read the first prompt, up to the tokens that are computed again.
Session EvalRunner::open_read(const EvalConfig& config, uint32_t n_context, EvalReference* reference) const {
  if (config.name == kReadsItself || reference->prompts.empty()) return open(&config, n_context);
  const uint32_t kv_type = config.kv_type.value_or(session_.kv_type);
  const size_t settled = reference->settled[0];
  if (reference->saved.find(kv_type) == reference->saved.end()) {
    EvalConfig full;
    full.kv_type = kv_type;
    full.name = "full";
    const Session reader = open(&full, n_context);
    const std::vector<int32_t>& prompt = reference->prompts[0];
    CancelOnInterrupt watcher([&] { orrery_session_cancel(reader.get()); });
    call([&](orrery_error* error) { return orrery_session_evaluate(reader.get(), prompt.data(), settled, nullptr, error); });
    save(reader.get(), kv_type, reference);
  }
  Session session = open(&config, n_context);  // the tool's runtime holds one session at a time
  const std::vector<uint8_t>& saved = reference->saved[kv_type];
  call([&](orrery_error* error) { return orrery_session_load_buffer(session.get(), saved.data(), saved.size(), error); });
  const size_t keep = settled - std::min(settled, kComputedAgain);
  call([&](orrery_error* error) { return orrery_session_rewind(session.get(), keep, error); });
  return session;
}

// The answer's tokens, including the token that ended it.
std::vector<int32_t> EvalRunner::generate(orrery_session* session, const Prompt& prompt, uint32_t max_tokens, Forcing* forcing) const {
  // A token that ends an answer may be among the forced tokens (a template's end of the question), so this code ends
  // the answer itself.
  const size_t n_forced = forcing->forced.size();
  orrery_generate_options options;
  orrery_generate_options_init(&options, sizeof options);
  options.max_tokens = static_cast<uint32_t>(std::max<size_t>(n_forced, forcing->n_question + max_tokens));
  options.ignore_end = 1;
  options.logits_hook = on_logits;
  options.logits_user = forcing;
  const std::vector<int32_t> settled(prompt.tokens.begin(), prompt.tokens.begin() + static_cast<ptrdiff_t>(prompt.settled));
  const Generation generation = begin_continuation(session, settled, options);
  CancelOnInterrupt watcher([&] { orrery_cancel(generation.get()); });
  ProgressBar bar(label_.c_str(), ProgressBar::Unit::tokens);
  std::vector<int32_t> answer;
  orrery_event event;
  orrery_event_init(&event, sizeof event);
  for (size_t n = 0;;) {
    call([&](orrery_error* error) { return orrery_next(generation.get(), &event, error); });
    if (event.type == ORRERY_EVENT_PROGRESS) bar.update(event.done, event.total);
    if (event.type == ORRERY_EVENT_DONE) {
      if (event.finish_reason == ORRERY_FINISH_CANCELLED) throw Failure(kExitInterrupted, "interrupted");
      return answer;
    }
    if (event.type != ORRERY_EVENT_TOKEN) continue;
    bar.erase();
    if (++n <= forcing->n_question) continue;
    answer.push_back(event.token);
    const bool ended = orrery_token_flags(vocab_.get(), event.token) & ORRERY_TOKEN_END_OF_GENERATION;
    if (n >= n_forced && ended) return answer;
  }
}

// Rewinds the session before a prompt that shares its start with the session's tokens but does not continue them.
void EvalRunner::step_back(orrery_session* session, const Prompt& prompt) const {
  const size_t keep = prompt.settled - std::min(prompt.settled, kComputedAgain);
  if (keep < orrery_session_n_tokens(session)) call([&](orrery_error* error) { return orrery_session_rewind(session, keep, error); });
}

EvalRecord EvalRunner::ask(orrery_session* session, const EvalSample& sample, const EvalReference* against,
                           EvalReference* reference) const {
  EvalRecord record;
  Json messages = opening(sample);
  for (size_t i = 0; i < sample.questions.size(); ++i) {
    const EvalQuestion& question = sample.questions[i];
    const bool first = i == 0 || !multi_turn(sample);
    const std::string before = first ? before_question(sample) : "";
    const Prompt asked = prompt(sample, messages, before, question.question);
    EvalAnswer answer;
    Forcing forcing;
    forcing.forced.assign(asked.tokens.begin() + static_cast<ptrdiff_t>(asked.settled), asked.tokens.end());
    forcing.n_question = forcing.forced.size();
    std::vector<float> logits;
    if (reference) {
      forcing.keep = &logits;
      forcing.margin = &answer.margin;
    }
    // A question without a right answer, asked alone, needs no answer of the policy: replay() compares the distributions.
    if (against && !sample.has_right_answer(i) && !multi_turn(sample)) {
      record.answers.emplace_back();
      continue;
    }
    if (first) step_back(session, asked);
    // While both conversations are equal, asking and comparing are one run.
    if (against && asked.tokens == against->prompts[i]) {
      forcing.against = &against->logits[i];
      forcing.tokens = &against->answers[i];
      forcing.compared = &answer;
    }
    answer.tokens = generate(session, asked, mode_.max_tokens, &forcing);
    size_t n_text = answer.tokens.size();
    if (n_text > 0 && (orrery_token_flags(vocab_.get(), answer.tokens[n_text - 1]) & ORRERY_TOKEN_END_OF_GENERATION)) --n_text;
    answer.cut = n_text == answer.tokens.size();
    answer.text = detokenize(vocab_.get(), answer.tokens.data(), n_text, 0);
    answer.score = score_answer(sample.metric, question.answers, answer.text);
    if (multi_turn(sample)) {
      messages.push_back(message("user", before + question.question));
      messages.push_back(message("assistant", answer.text));
    }
    if (reference) {
      answer.agreed = answer.tokens.size();  // full attention agrees with itself
      answer.kl.assign(answer.tokens.size(), 0.0f);
      reference->prompts.push_back(asked.tokens);
      reference->settled.push_back(asked.settled);
      reference->answers.push_back(answer.tokens);
      reference->logits.push_back(std::move(logits));
      if (i == 0) save(session, session_.kv_type, reference);
    }
    record.answers.push_back(std::move(answer));
  }
  return record;
}

// What the session did since `before`.
void EvalRunner::take_stats(const orrery_session* session, uint32_t kv_type, const orrery_stats& before, EvalRecord* out) const {
  EvalRecord& record = *out;
  const orrery_stats stats = stats_of(session);
  record.prompt_tokens = stats.prompt_tokens;
  record.generated_tokens = stats.generated_tokens;
  record.prefill_us = stats.prefill_us;
  record.decode_us = stats.decode_us;
  record.kv_type = kv_type_name(kv_type);
  record.device_kv_type = kv_type_name(stats.device_kv_type);
  record.device_kv_bytes = stats.device_kv_bytes;
  record.host_to_device_bytes = stats.host_to_device_bytes - before.host_to_device_bytes;  // without what was loaded
  record.transfer_us = stats.transfer_us;
  record.stall_us = stats.stall_us;
  record.n_checks = stats.n_checks;
  record.n_triggers = stats.n_triggers;
  record.wanted_tokens = stats.wanted_tokens;
  record.missed_tokens = stats.missed_tokens;
}

// Full attention's conversation from question `first` to before `last`. The answers are forced through the session's
// decode steps.
void EvalRunner::replay(orrery_session* session, const EvalReference& reference, size_t first, size_t last,
                        std::vector<EvalAnswer>* answers) const {
  for (size_t i = first; i < last; ++i) {
    const Prompt asked{reference.prompts[i], reference.settled[i]};
    if (i == first) step_back(session, asked);
    EvalAnswer& answer = (*answers)[i];
    answer.agreed = 0;
    answer.kl.clear();
    Forcing forcing;
    forcing.forced.assign(asked.tokens.begin() + static_cast<ptrdiff_t>(asked.settled), asked.tokens.end());
    forcing.n_question = forcing.forced.size();
    forcing.forced.insert(forcing.forced.end(), reference.answers[i].begin(), reference.answers[i].end());
    forcing.against = &reference.logits[i];
    forcing.compared = &answer;
    if (!reference.answers[i].empty()) generate(session, asked, 0, &forcing);
  }
}

EvalRecord EvalRunner::run_full(const EvalSample& sample, uint32_t n_context, EvalReference* reference) const {
  *reference = EvalReference();
  const Session session = open(nullptr, n_context);
  const orrery_stats before = stats_of(session.get());
  EvalRecord record = ask(session.get(), sample, nullptr, reference);
  take_stats(session.get(), session_.kv_type, before, &record);
  return record;
}

EvalRecord EvalRunner::run_policy(const EvalSample& sample, const EvalConfig& config, uint32_t n_context, EvalReference* given) const {
  const EvalReference& reference = *given;
  Session session;
  try {
    session = open_read(config, n_context, given);
    const orrery_stats before = stats_of(session.get());
    const uint32_t kv_type = config.kv_type.value_or(session_.kv_type);
    EvalRecord record = ask(session.get(), sample, &reference, nullptr);
    take_stats(session.get(), kv_type, before, &record);
    // If an answer differed, the comparison runs again along full attention's answer.
    const size_t n = record.answers.size();
    const auto same = [&](size_t i) { return record.answers[i].tokens == reference.answers[i]; };
    if (multi_turn(sample)) {
      bool all = true;
      for (size_t i = 0; i < n; ++i) all = all && same(i);
      if (!all) replay(session.get(), reference, 0, n, &record.answers);
    } else {
      for (size_t i = 0; i < n; ++i) {
        if (!same(i)) replay(session.get(), reference, i, i + 1, &record.answers);
      }
    }
    if (record.generated_tokens == 0) take_stats(session.get(), kv_type, before, &record);  // nothing but comparisons
    return record;
  } catch (const ApiError& error) {
    switch (error.status()) {
      case ORRERY_INVALID_ARGUMENT:
      case ORRERY_UNSUPPORTED:
      case ORRERY_OUT_OF_DEVICE_MEMORY:
      case ORRERY_OUT_OF_PINNED_MEMORY:
      case ORRERY_OUT_OF_HOST_MEMORY: {
        EvalRecord refused;
        refused.error = std::string(session ? "failed: " : "refused: ") + error.what();
        return refused;
      }
      default: throw;
    }
  }
}

Json record_json(const EvalRecord& record) {
  if (!record.error.empty()) return {{"error", record.error}};
  Json answers = Json::array();
  for (const EvalAnswer& answer : record.answers) {
    answers.push_back({{"text", answer.text},
                       {"tokens", answer.tokens},
                       {"score", answer.score},
                       {"cut", answer.cut},
                       {"agreed", answer.agreed},
                       {"kl", answer.kl},
                       {"margin", answer.margin}});
  }
  return {{"answers", answers},
          {"prompt_tokens", record.prompt_tokens},
          {"generated_tokens", record.generated_tokens},
          {"prefill_us", record.prefill_us},
          {"decode_us", record.decode_us},
          {"kv_type", record.kv_type},
          {"device_kv_type", record.device_kv_type},
          {"device_kv_bytes", record.device_kv_bytes},
          {"host_to_device_bytes", record.host_to_device_bytes},
          {"transfer_us", record.transfer_us},
          {"stall_us", record.stall_us},
          {"n_checks", record.n_checks},
          {"n_triggers", record.n_triggers},
          {"wanted_tokens", record.wanted_tokens},
          {"missed_tokens", record.missed_tokens}};
}

EvalRecord record_from(const Json& json) {
  EvalRecord record;
  if (json.contains("error")) {
    record.error = json.at("error").get<std::string>();
    return record;
  }
  for (const Json& entry : json.at("answers")) {
    EvalAnswer answer;
    answer.text = entry.at("text").get<std::string>();
    answer.tokens = entry.at("tokens").get<std::vector<int32_t>>();
    answer.score = entry.at("score").get<double>();
    answer.cut = entry.at("cut").get<bool>();
    answer.agreed = entry.at("agreed").get<uint64_t>();
    answer.kl = entry.at("kl").get<std::vector<float>>();
    answer.margin = entry.at("margin").get<std::vector<float>>();
    record.answers.push_back(std::move(answer));
  }
  record.prompt_tokens = json.at("prompt_tokens").get<uint64_t>();
  record.generated_tokens = json.at("generated_tokens").get<uint64_t>();
  record.prefill_us = json.at("prefill_us").get<uint64_t>();
  record.decode_us = json.at("decode_us").get<uint64_t>();
  record.kv_type = json.at("kv_type").get<std::string>();
  record.device_kv_type = json.at("device_kv_type").get<std::string>();
  record.device_kv_bytes = json.at("device_kv_bytes").get<uint64_t>();
  record.host_to_device_bytes = json.at("host_to_device_bytes").get<uint64_t>();
  record.transfer_us = json.at("transfer_us").get<uint64_t>();
  record.stall_us = json.at("stall_us").get<uint64_t>();
  record.n_checks = json.at("n_checks").get<uint64_t>();
  record.n_triggers = json.at("n_triggers").get<uint64_t>();
  record.wanted_tokens = json.at("wanted_tokens").get<uint64_t>();
  record.missed_tokens = json.at("missed_tokens").get<uint64_t>();
  return record;
}

}  // namespace orrery::tool
