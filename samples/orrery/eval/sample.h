// What `orrery eval` asks about: texts with questions and their right answers. They are generated at any length
// (eval_generate.cpp) or read from JSON lines (eval_files.cpp).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "json_file.h"

namespace orrery::tool {

enum class Metric {
  exact,     // the normalised answer is the right one: our own tasks
  contains,  // share of the right answers that stand in the answer: RULER's string match
  f1         // F1 of the words, of the nearest right answer: LongBench's for questions
};

struct EvalQuestion {
  std::string question;
  std::vector<std::string> answers;  // exact, f1: any of them is right; contains: all are wanted
  double depth = -1;                 // where in the text the answer stands, 0 to 1, mean of several; -1: unknown
};

struct EvalSample {
  std::string id, task;
  uint64_t length = 0;  // tokens of the text: what was asked for, or (files of others) rounded up to a power of two
  Metric metric = Metric::exact;
  std::string system;   // "": none
  std::string context;
  std::vector<EvalQuestion> questions;
  bool question_inside = false;  // the context ends with the question (RULER's files)
};

// Tokens that a text has for the model.
using TokenCount = std::function<size_t(const std::string&)>;

const std::vector<const char*>& task_names();  // "single", "multi-key", ...

// The sample `index` of a task, with a text of `length` tokens (a few less) and up to `n_questions` questions. The
// same on every machine for the same arguments and tokenizer. Throws UsageError where the length cannot hold it.
EvalSample make_sample(const std::string& task, uint64_t length, uint64_t index, uint64_t seed,
                       uint32_t n_questions, const TokenCount& count);

// The samples of a file, at most `most` (0: all), one JSON object a line, each line in one of three layouts:
//   RULER      {"index", "input", "outputs": [...]}: all outputs are wanted, the question is inside the input
//   LongBench  {"input", "context", "answers": [...], "dataset"}: the input is the question
//   our own    what write_samples() writes
// What is wrong throws Failure with file and line.
std::vector<EvalSample> read_samples(const std::string& path, uint64_t most, const TokenCount& count);

Json sample_json(const EvalSample& sample);
void write_samples(const std::string& path, const std::vector<EvalSample>& samples);

// 0 to 1.
double score_answer(Metric metric, const std::vector<std::string>& right, const std::string& said);
const char* metric_name(Metric metric);

// KL(p || q) of the softmax of two rows of logits (n), in nats, at least 0.
double kl_divergence(const float* p, const float* q, size_t n);

}  // namespace orrery::tool
