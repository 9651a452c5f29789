// orrery demo: the bundled model reads a document of several thousand tokens and answers questions about it. The
// output shows the right answers and figures measured in this run. A wrong answer gives exit code 1, because a
// demonstration that cannot fail proves nothing.
#include "answer.h"
#include "api.h"
#include "bundled.h"
#include "command.h"
#include "json_file.h"
#include "settings.h"
#include "system/process.h"

namespace orrery::tool {
namespace {

constexpr uint32_t kContext = 8192;

struct Question {
  std::string question, answer;
};

std::vector<Question> read_questions(const Json& json, const std::string& path) {
  std::vector<Question> questions;
  try {
    for (const Json& entry : json.at("questions")) {
      questions.push_back({entry.at("question").get<std::string>(), entry.at("answer").get<std::string>()});
    }
  } catch (const Json::exception&) {
    throw Failure(kExitFailure, path + ": expected {\"questions\": [{\"question\": ..., \"answer\": ...}, ...]}");
  }
  if (questions.empty()) throw Failure(kExitFailure, path + ": holds no questions");
  return questions;
}

int demo(const Args& args, Output& out) {
  const auto path_of = [&](const char* option, const char* file) {
    const std::string* given = args.find(option);
    return given ? *given : bundled(file);
  };
  const std::string model_path = path_of("--model", kBundledModel);
  const std::string document_path = path_of("--document", kBundledDocument);
  const std::string questions_path = path_of("--questions", kBundledQuestions);
  std::string document = read_text(document_path);
  while (!document.empty() && document.back() == '\n') document.pop_back();
  const Json json = parse_json(read_text(questions_path), questions_path);
  const std::vector<Question> questions = read_questions(json, questions_path);

  orrery_runtime_options runtime = runtime_options(args);
  const SessionSettings session_settings(args);
  orrery_session_options wishes = session_settings.options();
  if (wishes.n_context == 0) wishes.n_context = kContext;
  orrery_plan_result plan;
  orrery_plan_result_init(&plan, sizeof plan);
  const orrery_model_options model = model_options(args);
  call([&](orrery_error* error) { return orrery_plan(File(model_path), &runtime, &model, &wishes, &plan, error); });

  const Interrupts interrupts;
  const Loaded loaded = load(model_path, args, interrupts);
  const Session session = open_session(loaded, wishes);
  const Vocab vocab(orrery_model_vocab(loaded.model.get()));
  const orrery_model_info info = model_info(loaded.model.get());
  orrery_runtime_info running;
  orrery_runtime_info_init(&running, sizeof running);
  call([&](orrery_error* error) { return orrery_runtime_get_info(loaded.runtime.get(), &running, error); });

  out.text(format("Model     %s: %s, %s parameters, %s, %s\n", info.name[0] ? info.name : kBundledModel, info.architecture,
                  human_count(info.n_parameters).c_str(), info.quantization, human_bytes(info.file_bytes).c_str()));
  out.write(format("Running   %s (%s), %d threads, KV cache %s, context %s\n", running.backend, running.path, running.n_threads,
                   kv_type_names(wishes.kv_type, plan.device_kv_type).c_str(), grouped(plan.n_context).c_str()));
  out.write(format("Document  %s tokens\n\n", grouped(tokenize(vocab.get(), document, 0).size()).c_str()));
  out.flush();

  if (json.contains("system")) add_message(session.get(), "system", json["system"].get<std::string>());
  orrery_generate_options options;
  orrery_generate_options_init(&options, sizeof options);
  options.max_tokens = 64;
  AnswerWishes stream;
  stream.stream = stream_to(out, std::string_view("Answer    ").size());
  size_t right = 0;
  for (size_t i = 0; i < questions.size(); ++i) {
    const Question& question = questions[i];
    out.text("Question  " + question.question + "\nAnswer    ");
    out.flush();
    add_message(session.get(), "user", i == 0 ? document + "\n\n" + question.question : question.question);
    const Generation generation = begin_answer(session.get(), options);
    const Answer answer = take_answer(generation.get(), stream);
    if (answer.interrupted()) {
      out.write("\n");
      return kExitInterrupted;
    }
    const bool correct = answer.text == question.answer;
    right += correct;
    out.text("\nExpected  " + question.answer + (correct ? "   right\n" : "   WRONG\n"));
    out.write("          " + speed_line(answer) + "\n\n");
    out.flush();
  }
  orrery_stats stats;
  orrery_stats_init(&stats, sizeof stats);
  call([&](orrery_error* error) { return orrery_session_stats(session.get(), &stats, error); });
  out.write(format("Speed     %s prompt tokens read at %.0f/s, %s tokens of answers at %.0f/s\n", grouped(stats.prompt_tokens).c_str(),
                   per_second(stats.prompt_tokens, stats.prefill_us), grouped(stats.generated_tokens).c_str(),
                   per_second(stats.generated_tokens, stats.decode_us)));
  const ResidentMemory memory = resident_memory();
  out.write(format("Answers   %zu of %zu right\n", right, questions.size()));
  out.write(format("Memory    planned %s in the arena, %s of it KV cache; %s of KV hold %s tokens\n",
                   human_bytes(plan.device_bytes).c_str(), human_bytes(plan.full_kv_bytes + plan.compressed_kv_bytes).c_str(),
                   human_bytes(stats.device_kv_used_bytes).c_str(), grouped(stats.n_tokens).c_str()));
  if (memory.peak > 0) {
    out.write(format("          resident %s, at most %s\n", human_bytes(memory.now).c_str(), human_bytes(memory.peak).c_str()));
  }
  return right == questions.size() ? kExitOk : kExitFailure;
}

}  // namespace

const Command& demo_command() {
  static const Command command = {
      "demo",
      "[options]",
      "the bundled model answers questions about a long text",
      "Reads the bundled document and asks questions about it, one of them about a fact that it does not contain. Prints\n"
      "each answer with the right answer. The exit code is 1 if an answer is wrong. Needs only the bundled files.\n",
      {{"Options",
        {{"--model", "FILE", "Another model (default: the bundled one)."},
         {"--document", "FILE", "Another text (default: the bundled one)."},
         {"--questions", "FILE", "Questions about the text: {\"system\": ..., \"questions\": [{\"question\", \"answer\"}, ...]}."}}},
       session_group(),
       runtime_group(),
       model_group()},
      "  orrery demo\n"
      "  orrery demo --kv-type q8_0 --threads 1\n",
      0,
      0,
      demo};
  return command;
}

}  // namespace orrery::tool
