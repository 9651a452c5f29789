// Scores answers with each benchmark's own metric.
#include <algorithm>
#include <cmath>
#include <map>

#include "eval/sample.h"

namespace orrery::tool {
namespace {

// Lower case for ASCII alone; other characters stay unchanged.
std::string lower(const std::string& text) {
  std::string out = text;
  for (char& c : out) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return out;
}

bool is_punctuation(char c) { return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~'); }

// The words in lower case, split at white space. `punctuation_parts`: punctuation separates words; otherwise it is
// removed.
std::vector<std::string> words_of(const std::string& text, bool punctuation_parts) {
  std::vector<std::string> found(1);
  for (const char c : lower(text)) {
    const bool space = c == ' ' || (c >= '\t' && c <= '\r');
    if (space || (is_punctuation(c) && punctuation_parts)) {
      if (!found.back().empty()) found.emplace_back();
    } else if (!is_punctuation(c)) {
      found.back() += c;
    }
  }
  if (found.back().empty()) found.pop_back();
  return found;
}

// LongBench's qa_f1_score (after SQuAD's): lower case, no punctuation, no articles, bags of words.
double f1(const std::string& right, const std::string& said) {
  const auto bag = [](const std::string& text) {
    std::vector<std::string> words = words_of(text, false);
    words.erase(std::remove_if(words.begin(), words.end(), [](const std::string& w) { return w == "a" || w == "an" || w == "the"; }),
                words.end());
    return words;
  };
  const std::vector<std::string> wanted = bag(right), found = bag(said);
  std::map<std::string, size_t> left;
  for (const std::string& word : wanted) ++left[word];
  size_t common = 0;
  for (const std::string& word : found) {
    const auto it = left.find(word);
    if (it == left.end() || it->second == 0) continue;
    --it->second;
    ++common;
  }
  if (common == 0) return 0;
  const double precision = static_cast<double>(common) / static_cast<double>(found.size());
  const double recall = static_cast<double>(common) / static_cast<double>(wanted.size());
  return 2 * precision * recall / (precision + recall);
}

// Any run of white space becomes one space; none at the ends.
std::string spaced(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c != ' ' && !(c >= '\t' && c <= '\r')) {
      out += c;
    } else if (!out.empty() && out.back() != ' ') {
      out += ' ';
    }
  }
  if (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

// The most right answers whose first places in `said` ascend.
size_t in_order(const std::vector<std::string>& right, const std::string& said) {
  std::vector<size_t> last;  // last[i]: the lowest place at which i + 1 answers in order can end
  for (const std::string& answer : right) {
    const size_t place = said.find(answer);
    if (place == std::string::npos) continue;
    const auto at = std::lower_bound(last.begin(), last.end(), place);
    if (at == last.end()) {
      last.push_back(place);
    } else {
      *at = place;
    }
  }
  return last.size();
}

}  // namespace

const char* metric_name(Metric metric) {
  switch (metric) {
    case Metric::exact: return "exact";
    case Metric::contains: return "contains";
    case Metric::f1: return "f1";
    case Metric::quote: return "quote";
    case Metric::order: return "order";
    case Metric::none: return "none";
  }
  return "exact";
}

double score_answer(Metric metric, const std::vector<std::string>& right, const std::string& said) {
  if (right.empty() || metric == Metric::none) return 0;
  if (metric == Metric::order) return static_cast<double>(in_order(right, said)) / static_cast<double>(right.size());
  if (metric == Metric::contains) {
    const std::string text = lower(said);
    size_t found = 0;
    for (const std::string& answer : right) found += text.find(lower(answer)) != std::string::npos;
    return static_cast<double>(found) / static_cast<double>(right.size());
  }
  double best = 0;
  for (const std::string& answer : right) {
    if (metric == Metric::f1) {
      best = std::max(best, f1(answer, said));
    } else if (metric == Metric::quote) {
      if (spaced(said).find(spaced(answer)) != std::string::npos) best = 1;
    } else if (words_of(answer, true) == words_of(said, true)) {
      best = 1;
    }
  }
  return best;
}

bool counts_as_kept(Metric metric, const std::vector<std::string>& right, double full_score, bool full_cut) {
  if (metric == Metric::none || full_score <= 0) return false;
  if (full_cut && (metric == Metric::exact || metric == Metric::f1)) return false;
  return std::all_of(right.begin(), right.end(), [](const std::string& answer) { return spaced(answer).size() > 1; });
}

double kl_divergence(const float* p, const float* q, size_t n) {
  const auto log_sum = [n](const float* row) {
    const double most = static_cast<double>(*std::max_element(row, row + n));
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(row[i]) - most);
    return most + std::log(sum);
  };
  const double log_p = log_sum(p), log_q = log_sum(q);
  double kl = 0;
  for (size_t i = 0; i < n; ++i) {
    const double lp = static_cast<double>(p[i]) - log_p, lq = static_cast<double>(q[i]) - log_q;
    const double weight = std::exp(lp);
    if (weight > 0) kl += weight * (lp - lq);
  }
  return std::max(0.0, kl);  // only rounding gives a negative value
}

float top_margin(const float* logits, size_t n) {
  float best = -INFINITY, second = -INFINITY;
  for (size_t v = 0; v < n; ++v) {
    second = std::max(second, std::min(best, logits[v]));
    best = std::max(best, logits[v]);
  }
  return best - second;
}

}  // namespace orrery::tool
