// Samples in files of JSON lines: reads and writes the layouts of RULER, LongBench and SCBench, and our own.
#include <algorithm>

#include "eval/sample.h"
#include "system/failure.h"
#include "system/files.h"
#include "system/write_file.h"
#include "terminal/output.h"

namespace orrery::tool {
namespace {

constexpr size_t kMostQuestions = 4096, kMostAnswers = 4096;

// One line of a file, with the errors that name it.
class Line {
 public:
  Line(const std::string& path, size_t number, const std::string& text)
      : name_(path + ", line " + std::to_string(number)), json_(parse_json(text, name_)) {
    if (!json_.is_object()) fail("it is not a JSON object");
  }
  [[noreturn]] void fail(const std::string& what) const { throw Failure(kExitFailure, name_ + ": " + what); }
  const Json& json() const { return json_; }

  std::string text(const Json& object, const char* key) const {
    const auto it = object.find(key);
    if (it == object.end()) fail(std::string("it has no \"") + key + "\"");
    if (!it->is_string()) fail(std::string("\"") + key + "\" is not a string");
    return it->get<std::string>();
  }
  std::string text_or(const Json& object, const char* key, const std::string& fallback) const {
    const auto it = object.find(key);
    return it == object.end() || it->is_null() ? fallback : text(object, key);
  }
  bool flag(const char* key) const {
    const auto it = json_.find(key);
    if (it == json_.end()) return false;
    if (!it->is_boolean()) fail(std::string("\"") + key + "\" is neither true nor false");
    return it->get<bool>();
  }
  // Strings; numbers are taken as they are written.
  std::vector<std::string> answers(const Json& object, const char* key) const {
    const Json& list = object.at(key);
    if (!list.is_array() || list.empty()) fail(std::string("\"") + key + "\" is not a list of answers");
    if (list.size() > kMostAnswers) fail(format("more than %zu answers", kMostAnswers));
    std::vector<std::string> found;
    for (const Json& answer : list) {
      if (!answer.is_string() && !answer.is_number()) fail(std::string("an answer in \"") + key + "\" is no text");
      found.push_back(answer.is_string() ? answer.get<std::string>() : answer.dump());
    }
    return found;
  }

 private:
  std::string name_;
  Json json_;
};

// A sample's identifier in any form: a number or a string.
std::string id_of(const Json& json, const std::string& stem, size_t number) {
  for (const char* key : {"id", "index", "_id"}) {
    const auto it = json.find(key);
    if (it == json.end()) continue;
    if (it->is_string()) return it->get<std::string>();
    if (it->is_number_integer()) return stem + "/" + it->dump();
  }
  return stem + "/" + std::to_string(number);
}

Metric metric_of(const Line& line) {
  const std::string name = line.text_or(line.json(), "metric", "exact");
  for (const Metric metric : {Metric::exact, Metric::contains, Metric::f1, Metric::quote, Metric::order, Metric::none}) {
    if (name == metric_name(metric)) return metric;
  }
  line.fail("\"metric\" is '" + name + "', not exact, contains, f1, quote, order or none");
}

void read_own(const Line& line, EvalSample* sample) {
  const Json& json = line.json();
  sample->task = line.text_or(json, "task", sample->task);
  sample->context = line.text(json, "context");
  sample->system = line.text_or(json, "system", "");
  sample->metric = metric_of(line);
  sample->question_inside = line.flag("question_inside");
  sample->question_after = line.flag("question_after");
  const std::string turns = line.text_or(json, "turns", "");
  if (turns == "multi" || turns == "single") {
    sample->multi_turn = turns == "multi";
  } else if (!turns.empty()) {
    line.fail("\"turns\" is '" + turns + "', not multi or single");
  }
  if (sample->question_inside && sample->question_after) line.fail("the question is both inside the text and after it");
  const Json& questions = json.at("questions");
  if (!questions.is_array() || questions.empty()) line.fail("\"questions\" is not a list of questions");
  if (questions.size() > kMostQuestions) line.fail(format("more than %zu questions", kMostQuestions));
  for (const Json& entry : questions) {
    if (!entry.is_object()) line.fail("a question is not a JSON object");
    EvalQuestion question;
    question.question = line.text(entry, "question");
    if (entry.contains("answers")) {
      if (!entry.at("answers").is_null()) question.answers = line.answers(entry, "answers");
    } else if (entry.contains("answer") || sample->metric != Metric::none) {
      question.answers = {line.text(entry, "answer")};
    }
    const auto depth = entry.find("depth");
    if (depth != entry.end() && !depth->is_null()) {
      if (!depth->is_number() || !(depth->get<double>() >= 0 && depth->get<double>() <= 1))
        line.fail("\"depth\" is not a number from 0 to 1");
      question.depth = depth->get<double>();
    }
    sample->questions.push_back(question);
  }
}

void read_scbench(const Line& line, EvalSample* sample) {
  const Json& json = line.json();
  sample->context = line.text(json, "context");
  sample->metric = Metric::contains;
  const Json& turns = json.at("multi_turns");
  if (!turns.is_array() || turns.empty()) line.fail("\"multi_turns\" is not a list of turns");
  if (turns.size() > kMostQuestions) line.fail(format("more than %zu turns", kMostQuestions));
  for (const Json& turn : turns) {
    if (!turn.is_object()) line.fail("a turn is not a JSON object");
    EvalQuestion question;
    question.question = line.text(turn, "input");
    if (turn.contains("options") && !turn.at("options").is_null()) {
      sample->metric = Metric::f1;
      char letter = 'A';
      for (const std::string& option : line.answers(turn, "options")) question.question += std::string("\n") + letter++ + ". " + option;
    }
    const auto answer = turn.find("answer");
    if (answer == turn.end()) line.fail("a turn has no \"answer\"");
    if (answer->is_array()) {
      question.answers = line.answers(turn, "answer");
    } else {
      question.answers = {answer->is_number() ? answer->dump() : line.text(turn, "answer")};
    }
    sample->questions.push_back(question);
  }
}

EvalSample read_sample(const Line& line, const std::string& stem, size_t number, const TokenCount& count) {
  const Json& json = line.json();
  EvalSample sample;
  sample.id = id_of(json, stem, number);
  sample.task = stem;
  if (json.contains("questions")) {
    read_own(line, &sample);
  } else if (json.contains("multi_turns")) {
    read_scbench(line, &sample);
  } else if (json.contains("outputs")) {
    sample.metric = Metric::contains;
    sample.context = line.text(json, "input");
    sample.question_inside = true;
    sample.questions = {{"", line.answers(json, "outputs"), -1}};
  } else if (json.contains("answers")) {
    sample.metric = Metric::f1;
    sample.task = line.text_or(json, "dataset", stem);
    sample.context = line.text(json, "context");
    sample.questions = {{line.text(json, "input"), line.answers(json, "answers"), -1}};
  } else {
    line.fail("it has neither \"questions\" (ours), \"multi_turns\" (SCBench), \"outputs\" (RULER) nor \"answers\" (LongBench)");
  }
  if (sample.context.empty()) line.fail("the text is empty");
  // Our own samples state their length. For other files the tokens are counted, and samples of about one size are
  // reported together.
  const auto length = json.find("length");
  if (json.contains("questions") && length != json.end()) {
    if (!length->is_number_unsigned()) line.fail("\"length\" is not a number of tokens");
    sample.length = length->get<uint64_t>();
  } else {
    const size_t tokens = count(sample.context);
    for (sample.length = 1; sample.length < tokens;) sample.length *= 2;
  }
  return sample;
}

}  // namespace

std::vector<EvalSample> read_samples(const std::string& path, uint64_t most, const TokenCount& count) {
  const std::string content = read_text(path);
  std::string stem = path.substr(folder_of(path).size());
  if (stem.size() > 6 && stem.compare(stem.size() - 6, 6, ".jsonl") == 0) stem.resize(stem.size() - 6);
  std::vector<EvalSample> samples;
  size_t begin = 0, number = 0;
  while (begin < content.size() && (most == 0 || samples.size() < most)) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    const std::string text = content.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    samples.push_back(read_sample(Line(path, number, text), stem, number, count));
  }
  if (samples.empty()) throw Failure(kExitFailure, path + ": holds no samples");
  return samples;
}

Json sample_json(const EvalSample& sample) {
  Json questions = Json::array();
  for (const EvalQuestion& question : sample.questions) {
    Json entry = {{"question", question.question}, {"answers", question.answers.empty() ? Json() : Json(question.answers)}};
    if (question.depth >= 0) entry["depth"] = question.depth;
    questions.push_back(entry);
  }
  Json json = {{"id", sample.id},         {"task", sample.task},      {"length", sample.length}, {"metric", metric_name(sample.metric)},
               {"system", sample.system}, {"context", sample.context}};
  if (sample.question_inside) json["question_inside"] = true;
  if (sample.question_after) json["question_after"] = true;
  if (sample.multi_turn) json["turns"] = *sample.multi_turn ? "multi" : "single";
  json["questions"] = questions;
  return json;
}

namespace {

Json ruler_json(const EvalSample& sample, size_t number, const EvalQuestion& question) {
  const std::string text = sample.question_inside ? sample.context : sample.context + "\n\n" + question.question;
  return {{"index", number}, {"input", text}, {"outputs", question.answers}, {"length", sample.length}};
}

Json longbench_json(const EvalSample& sample, const EvalQuestion& question) {
  return {{"input", question.question}, {"context", sample.context}, {"answers", question.answers}, {"length", sample.length},
          {"dataset", sample.task},     {"language", "en"},          {"all_classes", Json()},       {"_id", sample.id}};
}

Json scbench_json(const EvalSample& sample) {
  Json turns = Json::array();
  for (const EvalQuestion& question : sample.questions) {
    Json answer = question.answers;
    if (question.answers.size() == 1) answer = question.answers[0];
    turns.push_back({{"input", question.question}, {"answer", answer}});
  }
  return {{"id", sample.id}, {"context", sample.context}, {"multi_turns", turns}};
}

}  // namespace

void write_samples(const std::string& path, const std::vector<EvalSample>& samples, Layout layout) {
  std::string text;
  size_t number = 0;
  const auto add = [&](const Json& json) { text += dump_json(json, -1) + "\n"; };
  for (const EvalSample& sample : samples) {
    if (layout == Layout::own) add(sample_json(sample));
    if (layout == Layout::scbench) add(scbench_json(sample));
    for (const EvalQuestion& question : sample.questions) {
      if (layout == Layout::ruler) add(ruler_json(sample, number++, question));
      if (layout == Layout::longbench) add(longbench_json(sample, question));
    }
  }
  write_file(path, text);
}

}  // namespace orrery::tool
