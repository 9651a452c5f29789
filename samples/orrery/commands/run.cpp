// orrery run: one prompt, one answer, for scripts. The prompt is one user message through the chat template. With
// --raw, the prompt is the start of a text that the model continues. Text mode prints the answer alone; --json prints
// every detail.
#include "answer.h"
#include "api.h"
#include "command.h"
#include "json_file.h"
#include "sampling.h"
#include "settings.h"

namespace orrery::tool {
namespace {

// The prompt's parts, in order: --file, then --prompt or the words after the model.
std::string read_prompt(const Args& args, bool raw) {
  const std::vector<std::string>& words = args.words();
  const std::string* file = args.find("--file");
  const std::string* given = args.find("--prompt");
  if (given && words.size() > 1) throw UsageError("give the prompt once: --prompt, --file or -");
  std::string prompt = given ? *given : words.size() > 1 && words[1] != "-" ? words[1] : "";
  const bool from_stdin = !given && words.size() > 1 && words[1] == "-";
  if (from_stdin && file && *file == "-") throw UsageError("standard input can be read only once");
  if (!given && !file && words.size() < 2) throw UsageError("no prompt: give --prompt TEXT, --file FILE or -");
  const auto read = [&](const std::string& path) {
    std::string text = read_text(path);
    // In a message, a final newline has no meaning. In a raw prompt, every byte counts.
    if (!raw && !text.empty() && text.back() == '\n') text.pop_back();
    return text;
  };
  if (from_stdin) prompt = read("-");
  if (!file) return prompt;
  const std::string document = read(*file);
  if (!given && words.size() < 2) return document;
  return raw ? document + prompt : document + "\n\n" + prompt;
}

// JSON has no NaN or infinity. A banned token has probability 0.
Json number(float value) { return value > -1e30f && value < 1e30f ? Json(value) : Json(nullptr); }

Json answer_json(const Answer& answer, const orrery_vocab* vocab, bool top) {
  Json tokens = Json::array();
  for (const TokenRecord& token : answer.tokens) {
    Json entry = {{"id", token.id}, {"text", token.bytes}, {"logprob", number(token.logprob)}};
    if (top) {
      Json& alternatives = entry["top"] = Json::array();
      for (const orrery_token_logprob& other : token.top) {
        alternatives.push_back({{"id", other.token},
                                {"text", detokenize(vocab, &other.token, 1, ORRERY_DETOKENIZE_SPECIAL)},
                                {"logprob", number(other.logprob)}});
      }
    }
    tokens.push_back(std::move(entry));
  }
  Json calls = Json::array();
  for (const Answer::Call& call : answer.calls)
    calls.push_back({{"name", call.name}, {"id", call.id}, {"arguments", parse_json(call.arguments, "a call's arguments")}});
  const auto milliseconds = [](uint64_t us) { return static_cast<double>(us) / 1000; };
  return {{"text", answer.text},
          {"thinking", answer.thinking},
          {"calls", std::move(calls)},
          {"finish_reason", finish_name(answer.finish_reason)},
          {"complete", answer.complete},
          {"prompt_tokens", answer.prompt_tokens},
          {"generated_tokens", answer.generated_tokens},
          {"tokens", std::move(tokens)},
          {"timings",
           {{"first_token_ms", milliseconds(answer.first_token_us)},
            {"prefill_ms", milliseconds(answer.prefill_us)},
            {"decode_ms", milliseconds(answer.decode_us)},
            {"prefill_tokens_per_second", answer.prefill_rate()},
            {"decode_tokens_per_second", answer.decode_rate()}}}};
}

// "; 12 of 15 guessed tokens were right"; "" if nothing was guessed.
std::string guesses_line(const Session& session) {
  orrery_stats stats;
  orrery_stats_init(&stats, sizeof stats);
  call([&](orrery_error* error) { return orrery_session_stats(session.get(), &stats, error); });
  return stats.guessed_tokens == 0
             ? std::string()
             : "; " + grouped(stats.accepted_tokens) + " of " + counted(stats.guessed_tokens, "guessed token") + " were right";
}

int run(const Args& args, Output& out) {
  const bool raw = args.has("--raw"), json = args.has("--json");
  if (raw && args.has("--system")) throw UsageError("--system has no place in a --raw prompt");
  if (!raw && args.has("--special")) throw UsageError("--special is for --raw prompts");
  if (!json && args.has("--logprobs")) throw UsageError("--logprobs needs --json");
  const Sampling sampling(args, kGreedy);
  const TemplateSettings templates(args);
  if (raw && args.has("--split-thinking")) throw UsageError("--split-thinking is for answers to a message, not for --raw");
  if (raw && args.has("--begin")) throw UsageError("--begin is for answers to a message: a --raw prompt ends with the beginning");
  if (raw && templates.given()) throw UsageError("a --raw prompt has no chat template");
  const SessionSettings session_settings(args);
  const orrery_session_options session_wishes = session_settings.options();
  orrery_generate_options options = sampling.options();
  options.n_logprobs = static_cast<uint32_t>(args.integer("--logprobs", 0, 20, 0));
  const std::string prompt = read_prompt(args, raw);

  const std::string beginning = args.find("--begin") ? *args.find("--begin") : "";
  const Interrupts interrupts;
  const Loaded loaded = load(args.words()[0], args, interrupts);
  const Session session = open_session(loaded, session_wishes);
  const Vocab vocab(orrery_model_vocab(loaded.model.get()));
  Generation generation;
  if (raw) {
    const uint32_t flags =
        (vocab_info(vocab.get()).add_bos ? ORRERY_TOKENIZE_BOS : 0u) | (args.has("--special") ? ORRERY_TOKENIZE_SPECIAL : 0u);
    const std::vector<int32_t> tokens = tokenize(vocab.get(), prompt, flags);
    if (tokens.empty()) throw UsageError("the raw prompt is empty: there is nothing to continue");
    generation = begin_continuation(session.get(), tokens, options);
  } else {
    if (templates.given()) {
      const orrery_template_options wishes = templates.options();
      call([&](orrery_error* error) { return orrery_session_set_template(session.get(), &wishes, error); });
    }
    if (const std::string* system = args.find("--system")) add_message(session.get(), "system", *system);
    add_message(session.get(), "user", prompt);
    if (!beginning.empty()) add_message(session.get(), "assistant", beginning);
    options.continue_last = beginning.empty() ? 0 : 1;
    generation = begin_answer(session.get(), options);
  }
  AnswerWishes wishes;
  if (!json) wishes.stream = stream_to(out), out.text(beginning);
  wishes.tokens = json;
  Answer answer = take_answer(generation.get(), wishes);
  answer.text.insert(0, beginning);
  if (json) {
    out.text(dump_json(answer_json(answer, vocab.get(), options.n_logprobs > 0), 2) + "\n");
  } else if (!answer.calls.empty()) {  // a line for each call, after the text
    if (!answer.text.empty()) out.write("\n");
    for (const Answer::Call& call : answer.calls)
      out.text("{\"name\": \"" + call.name + "\", \"id\": \"" + call.id + "\", \"arguments\": " + call.arguments + "}\n");
  } else if (out.terminal() || !raw) {
    out.write("\n");  // a raw continuation on a pipe holds exactly the model's bytes
  }
  // A script that set a limit knows of it; a person may not see why the answer ends.
  if (!json && answer.finish_reason == ORRERY_FINISH_CONTEXT) note("the context is full: the answer ends here");
  if (!json && answer.finish_reason == ORRERY_FINISH_LENGTH && is_terminal(kStderr))
    note("the answer was cut at --max-tokens " + grouped(options.max_tokens));
  if (!json && options.grammar && !answer.complete && !answer.interrupted()) note("the answer is not whole: its form was cut short");
  if (args.has("--stats")) note(speed_line(answer) + guesses_line(session));
  return answer.interrupted() ? kExitInterrupted : kExitOk;
}

}  // namespace

const Command& run_command() {
  static const Command command = {
      "run",
      "MODEL.gguf [PROMPT | --prompt TEXT | --file FILE | -] [options]",
      "one prompt, one answer, for scripts",
      "Prints only the answer on standard output. The prompt is one user message, rendered by the model's chat template.\n"
      "With --file and --prompt together, the file's text comes first, then a blank line, then the prompt. With --raw, the\n"
      "prompt is tokenized as it is (after BOS, if the model expects BOS) and continued.\n",
      {{"Options",
        {{"--prompt", "TEXT", "The prompt."},
         {"--file", "FILE", "A file that holds the prompt, or the text that comes before it; - is standard input."},
         {"--system", "TEXT", "A system message first."},
         {"--begin", "TEXT", "The answer begins so, and the model goes on: '{\"name\": \"' for JSON, for example."},
         {"--raw", nullptr, "Continue the prompt as text: no chat template."},
         {"--special", nullptr, "With --raw: the name of a control token in the text becomes that token."},
         {"--json", nullptr, "Text, tokens with log-probabilities, finish reason, counts and timings as JSON."},
         {"--logprobs", "N", "With --json: the N likeliest alternatives of each token, at most 20."},
         {"--stats", nullptr, "Counts and speed on standard error."}}},
       sampling_group(kGreedy),
       grammar_group(),
       calls_group(),
       session_group(),
       template_group(),
       runtime_group(),
       model_group()},
      "  orrery run model.gguf --prompt 'Name three rivers.' --max-tokens 60\n"
      "  orrery run model.gguf --file report.txt --prompt 'Who wrote this?'\n"
      "  git diff | orrery run model.gguf - --system 'Review this change.'\n"
      "  orrery run model.gguf --prompt 'Describe Lisbon as JSON.' --schema city.json\n"
      "  orrery run model.gguf --prompt 'Is the sky blue?' --regex 'yes|no'\n"
      "  orrery run model.gguf --prompt 'Is it raining in Rome?' --tools tools.json\n"
      "  orrery run model.gguf --raw 'Once upon a time' --temperature 0.8 --seed 7 --max-tokens 100\n"
      "  orrery run model.gguf --prompt Hi --json --logprobs 5 | jq '.tokens[].logprob'\n",
      1,
      2,
      run};
  return command;
}

}  // namespace orrery::tool
