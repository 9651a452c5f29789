// The samples of `orrery eval`: texts with questions and their right answers. generate.cpp makes samples of any
// length; files.cpp reads them from JSON lines.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "json_file.h"

namespace orrery::tool {

enum class Metric {
  exact,     // the normalised answer equals the right answer: our own tasks
  contains,  // the share of right answers that the answer contains: RULER's string match
  f1,        // F1 of the words against the nearest right answer: LongBench's metric for questions
  quote,     // the answer contains a right answer, where any white space counts as one space
  order,     // the share of right answers that the answer contains one behind another, in their order
  none       // the question has no right answer, as a summary: the distributions alone are compared
};

struct EvalQuestion {
  std::string question;
  // exact, f1, quote: any of them is right; contains, order: all are needed. Empty: no answer is right or wrong.
  std::vector<std::string> answers;
  double depth = -1;  // position of the answer in the text, 0 to 1, a mean over several; -1: unknown
};

struct EvalSample {
  std::string id, task;
  uint64_t length = 0;  // tokens of the text: as requested, or (for other files) rounded up to a power of two
  Metric metric = Metric::exact;
  std::string system;  // "": none
  std::string context;
  std::vector<EvalQuestion> questions;
  bool question_inside = false;  // the context ends with the question (RULER's files)
  // Where the sample decides for itself, whatever the evaluation says:
  bool question_after = false;          // the policy settles before it knows the question
  std::optional<bool> multi_turn = {};  // the questions are one conversation, or each is asked alone after the text
  bool has_right_answer(size_t question) const { return metric != Metric::none && !questions[question].answers.empty(); }
};

// The number of tokens of a text for the model.
using TokenCount = std::function<size_t(const std::string&)>;

const std::vector<const char*>& task_names();  // "single", "multi-key", ...

// Makes sample `index` of a task, with a text of `length` tokens (or a few less) and up to `n_questions` questions.
// Equal arguments and an equal tokenizer give the same sample on every machine. Throws UsageError if the length is
// too small.
EvalSample make_sample(const std::string& task, uint64_t length, uint64_t index, uint64_t seed, uint32_t n_questions,
                       const TokenCount& count);

// Reads the samples of a file, at most `most` (0: all). Each line is a JSON object in one of three layouts:
//   RULER      {"index", "input", "outputs": [...]}: all outputs are needed, the question is inside the input
//   LongBench  {"input", "context", "answers": [...], "dataset"}: the input is the question
//   SCBench    {"id", "context", "multi_turns": [{"input", "answer"}, ...]}: all answers of a turn are needed. The choices
//              of a turn ("options") stand under its question, and one right answer is enough
//   our own    as write_samples() writes
// Errors are Failures that name file and line.
std::vector<EvalSample> read_samples(const std::string& path, uint64_t most, const TokenCount& count);

Json sample_json(const EvalSample& sample);
enum class Layout { own, ruler, longbench, scbench };
// Writes a line per sample; RULER and LongBench have a line per question.
void write_samples(const std::string& path, const std::vector<EvalSample>& samples, Layout layout);

// A score from 0 to 1; 0 for Metric::none.
double score_answer(Metric metric, const std::vector<std::string>& right, const std::string& said);
const char* metric_name(Metric metric);
// Whether the pair says something about what a policy keeps. Right answers of one character are found by chance; an answer
// of full attention that was cut off is no whole quote.
bool counts_as_kept(Metric metric, const std::vector<std::string>& right, double full_score, bool full_cut);

// KL(p || q) of the softmax of two rows of logits (n), in nats, at least 0.
double kl_divergence(const float* p, const float* q, size_t n);
// The best of the logits (n) minus the second best: the log of how much likelier the likeliest token is than any other.
float top_margin(const float* logits, size_t n);

}  // namespace orrery::tool
