// RULER's kinds of task (Hsieh et al. 2024, section 3) in the demo model's language
// (samples/models/training/corpus.py): facts in templated sentences among sentences without facts. Our own random
// generator makes everything, so a seed means the same text on every machine.
#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "args.h"
#include "eval/sample.h"
#include "eval/words.h"
#include "system/failure.h"
#include "terminal/output.h"

namespace orrery::tool {
namespace {

using words::Pool;

// SplitMix64 (Steele et al. 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  size_t below(size_t n) { return static_cast<size_t>(((next() >> 32) * static_cast<uint64_t>(n)) >> 32); }
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }  // [0, 1)
  std::string pick(const Pool& pool) { return pool[below(pool.size())]; }
  template <typename T>
  void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

 private:
  uint64_t state_;
};

// Sentences that belong together, and the questions about them.
struct Fact {
  std::vector<std::string> lines;  // in the order of the text
  std::vector<double> slots;       // position of each line, 0 to 1; empty: anywhere
  std::string question, answer;
};

class Writer {
 public:
  explicit Writer(uint64_t seed) : random_(seed) {}
  Random& random() { return random_; }

  Fact number(bool code_too = true) {
    const std::string key = fresh(words::kKeywords);
    const std::string noun = code_too && random_.below(3) == 0 ? "access code" : "special magic number";
    const std::string sentence = "The " + noun + " for " + key + " is " + value(0) + ".";
    const std::string question =
        random_.below(2) ? "What is the " + noun + " for " + key + "?" : "Tell me the " + noun + " for " + key + ".";
    return {{sentence}, {}, question, sentence};
  }

  Fact several_numbers() {
    const std::string key = fresh(words::kKeywords);
    Fact fact;
    const size_t n = 2 + random_.below(2);
    for (size_t i = 0; i < n; ++i) {
      const std::string v = value(0);
      fact.lines.push_back("One of the special magic numbers for " + key + " is " + v + ".");
      fact.answer += (i ? ", " : "") + v;
    }
    fact.answer += ".";
    fact.question = "What are all the special magic numbers for " + key + "?";
    return fact;
  }

  Fact person() {
    const std::string n = fresh(words::kNames);
    switch (random_.below(4)) {
      case 0: {
        const std::string sentence = n + " lives in " + random_.pick(words::kCities) + ".";
        return {{sentence}, {}, "Where does " + n + " live?", sentence};
      }
      case 1: {
        const std::string object = random_.pick(words::kObjects), place = random_.pick(words::kPlaces);
        const std::string sentence = n + " keeps the " + object + " in the " + place + ".";
        return {{sentence},
                {},
                random_.below(2) ? "Where does " + n + " keep the " + object + "?" : "What does " + n + " keep in the " + place + "?",
                sentence};
      }
      case 2: {
        const std::string job = random_.pick(words::kJobs), city = random_.pick(words::kCities);
        const std::string sentence = n + " is a " + job + " from " + city + ".";
        if (random_.below(2)) return {{sentence}, {}, "What is " + n + "'s job?", n + " is a " + job + "."};
        return {{sentence}, {}, "Where is " + n + " from?", n + " is from " + city + "."};
      }
      default: {
        const std::string color = random_.pick(words::kColors), animal = random_.pick(words::kAnimals);
        const std::string sentence = n + " owns a " + color + " " + animal + ".";
        if (random_.below(2)) return {{sentence}, {}, "What animal does " + n + " own?", sentence};
        return {{sentence}, {}, "What color is the " + animal + " of " + n + "?", "The " + animal + " of " + n + " is " + color + "."};
      }
    }
  }

  Fact chain() {
    static constexpr size_t kLengths[] = {2, 3, 3, 4};
    const size_t n = kLengths[random_.below(4)];
    std::vector<std::string> names;
    while (names.size() < n) {
      std::string name;
      for (int i = 0; i < 3; ++i) name += "ABCDEFGHJKLMNPQRSTUVWXYZ"[random_.below(24)];
      if (used_.insert(name).second) names.push_back(name);
    }
    const std::string v = value(5);
    Fact fact;
    fact.lines.push_back("VAR " + names[0] + " = " + v + ".");
    for (size_t i = 1; i < n; ++i) fact.lines.push_back("VAR " + names[i] + " = VAR " + names[i - 1] + ".");
    if (random_.below(2)) {
      fact.question = "Which variables have the value " + v + "?";
      for (size_t i = 0; i < n; ++i) fact.answer += (i ? ", " : "") + names[i];
      fact.answer += ".";
    } else {
      const std::string& last = names[1 + random_.below(n - 1)];
      fact.question = "What is the value of VAR " + last + "?";
      fact.answer = "VAR " + last + " = " + v + ".";
    }
    return fact;
  }

  std::string filler() {
    const auto c = [&](const Pool& pool) { return random_.pick(pool); };
    using namespace words;
    // One statement per choice, because the compiler must not decide the order in which words are drawn.
    switch (random_.below(10)) {
      case 0: {
        const std::string animal = c(kAnimals), verb = c(kVerbs), adverb = c(kAdverbs), place = c(kPlaces);
        return "The " + animal + " " + verb + " nothing and walked " + adverb + " past the " + place + ".";
      }
      case 1: {
        const std::string day = c(kDays), weather = c(kWeather), place = c(kPlaces);
        return "On " + day + " there was " + weather + " over the " + place + ".";
      }
      case 2: {
        const std::string one = c(kJobs), other = c(kJobs), adverb = c(kAdverbs), weather = c(kWeather);
        return "A " + one + " and a " + other + " talked " + adverb + " about the " + weather + ".";
      }
      case 3: {
        const std::string place = c(kPlaces), color = c(kColors), animal = c(kAnimals);
        return "Nobody in the " + place + " noticed the " + color + " " + animal + ".";
      }
      case 4: {
        const std::string month = c(kMonths), place = c(kPlaces), job = c(kJobs), adverb = c(kAdverbs);
        return "In " + month + " the " + place + " stays open, and the " + job + " works " + adverb + ".";
      }
      case 5: {
        const std::string weather = c(kWeather), month = c(kMonths);
        return "Some say that the " + weather + " comes back every " + month + ".";
      }
      case 6: {
        const std::string job = c(kJobs), verb = c(kVerbs), color = c(kColors), object = c(kObjects);
        return "The " + job + " " + verb + " a " + color + " " + object + " and went home.";
      }
      case 7: {
        const std::string adverb = c(kAdverbs), animal = c(kAnimals), place = c(kPlaces);
        return "It was " + adverb + " said that the " + animal + " sleeps near the " + place + ".";
      }
      case 8: return "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again.";
      default: {
        const std::string one = c(kPlaces), other = c(kPlaces), weather = c(kWeather);
        return "Between the " + one + " and the " + other + " there is only " + weather + ".";
      }
    }
  }

 private:
  // A word of the pool that no fact of this text uses.
  std::string fresh(const Pool& pool) {
    std::vector<const char*> left;
    for (const char* word : pool) {
      if (!used_.count(word)) left.push_back(word);
    }
    if (left.empty()) throw Failure(kExitFailure, "the words for facts have run out");
    const std::string word = left[random_.below(left.size())];
    used_.insert(word);
    return word;
  }
  // A number that occurs nowhere else in this text. digits 0: three to six digits.
  std::string value(size_t digits) {
    static constexpr size_t kDigits[] = {3, 4, 4, 4, 5, 6};
    for (;;) {
      const size_t n = digits ? digits : kDigits[random_.below(6)];
      uint64_t least = 1;
      for (size_t i = 1; i < n; ++i) least *= 10;
      const std::string v = std::to_string(least + random_.below(static_cast<size_t>(least * 9)));
      if (used_.insert(v).second) return v;
    }
  }

  Random random_;
  std::set<std::string> used_;
};

struct TextLine {
  double slot;
  std::string text;
  size_t fact;  // index of the fact; kFiller: none
};
constexpr size_t kFiller = static_cast<size_t>(-1);

std::string join_lines(const std::vector<TextLine>& lines) {
  std::string text;
  for (const TextLine& line : lines) text += (text.empty() ? "" : " ") + line.text;
  return text;
}

std::vector<TextLine> place(Writer& writer, const std::vector<Fact>& facts) {
  std::vector<TextLine> lines;
  for (size_t f = 0; f < facts.size(); ++f) {
    std::vector<double> slots = facts[f].slots;
    while (slots.size() < facts[f].lines.size()) slots.push_back(writer.random().unit());
    std::sort(slots.begin(), slots.end());
    for (size_t i = 0; i < slots.size(); ++i) lines.push_back({slots[i], facts[f].lines[i], f});
  }
  return lines;
}

// Places the facts among fillers, as near below `length` tokens as whole sentences allow. The lines keep their order.
std::vector<TextLine> fill(Writer& writer, std::vector<TextLine> lines, const std::string& task, uint64_t length, const TokenCount& count) {
  const auto sort = [&] {
    std::stable_sort(lines.begin(), lines.end(), [](const TextLine& a, const TextLine& b) { return a.slot < b.slot; });
  };
  uint64_t used = 0;
  for (const TextLine& line : lines) used += count(" " + line.text);
  if (used > length) {
    throw UsageError(format("--lengths: %llu tokens cannot hold the %llu of the facts of task %s", static_cast<unsigned long long>(length),
                            static_cast<unsigned long long>(used), task.c_str()));
  }
  for (;;) {
    const std::string text = writer.filler();
    used += count(" " + text);
    if (used > length) break;
    lines.push_back({writer.random().unit(), text, kFiller});
  }
  sort();
  // The token count of a text may differ from the sum over its sentences.
  while (count(join_lines(lines)) > length) {
    const auto last = std::find_if(lines.rbegin(), lines.rend(), [](const TextLine& l) { return l.fact == kFiller; });
    if (last == lines.rend()) break;
    lines.erase(std::next(last).base());
  }
  return lines;
}

// For each fact, the mean position of its lines' first bytes in the text, 0 to 1.
std::vector<double> depths_of(const std::vector<TextLine>& lines, size_t n_facts) {
  std::vector<double> sum(n_facts, 0), n(n_facts, 0);
  const auto total = static_cast<double>(join_lines(lines).size());
  size_t at = 0;
  for (const TextLine& line : lines) {
    if (line.fact != kFiller) {
      sum[line.fact] += static_cast<double>(at) / total;
      n[line.fact] += 1;
    }
    at += line.text.size() + 1;
  }
  for (size_t f = 0; f < n_facts; ++f) sum[f] /= n[f];
  return sum;
}

// Number of facts for a text of this length: one per `tokens_each`, at least `least`, at most `most`.
size_t crowd(uint64_t length, uint64_t tokens_each, size_t least, size_t most) {
  return std::max<size_t>(least, std::min<size_t>(most, static_cast<size_t>(length / tokens_each)));
}

uint64_t mixed_seed(const std::string& task, uint64_t length, uint64_t index, uint64_t seed) {
  uint64_t h = 0xcbf29ce484222325u;  // FNV-1a
  const auto byte = [&](uint64_t b) { h = (h ^ b) * 0x100000001b3u; };
  for (const char c : task) byte(static_cast<unsigned char>(c));
  for (const uint64_t number : {length, index, seed}) {
    for (int i = 0; i < 64; i += 8) byte((number >> i) & 0xff);
  }
  return h;
}

}  // namespace

const std::vector<const char*>& task_names() {
  static const std::vector<const char*> names = {"single", "multi-key", "multi-value", "multi-query", "variables", "facts", "listing"};
  return names;
}

EvalSample make_sample(const std::string& task, uint64_t length, uint64_t index, uint64_t seed, uint32_t n_questions,
                       const TokenCount& count) {
  Writer writer(mixed_seed(task, length, index, seed));
  Random& random = writer.random();
  std::vector<Fact> facts;
  const auto add = [&](size_t n, auto make) {
    for (size_t i = 0; i < n; ++i) facts.push_back(make());
  };
  const auto number = [&] { return writer.number(); };
  const auto person = [&] { return writer.person(); };
  size_t per_question = 1;
  if (task == "single") {
    add(n_questions, number);
    // Spreads the needles over the depths, one per part of the text.
    std::vector<size_t> part(n_questions);
    std::iota(part.begin(), part.end(), size_t{0});
    random.shuffle(part);
    for (size_t i = 0; i < part.size(); ++i) {
      facts[i].slots = {(static_cast<double>(part[i]) + random.unit()) / n_questions};
    }
  } else if (task == "multi-key") {
    add(crowd(length, 40, n_questions, 60), number);
  } else if (task == "multi-value") {
    add(crowd(length, 200, n_questions, 20), [&] { return writer.several_numbers(); });
  } else if (task == "multi-query") {
    per_question = 3;
    const size_t n = crowd(length, 60, per_question * n_questions, 80);
    add(n / 2, number);
    add(n - n / 2, person);
  } else if (task == "variables") {
    add(crowd(length, 200, n_questions, 20), [&] { return writer.chain(); });
  } else if (task == "facts") {
    add(crowd(length, 40, n_questions, 80), person);
  } else if (task == "listing") {
    add(3 + random.below(3), [&] { return writer.number(false); });
    add(crowd(length, 100, 3, 30), person);
  } else {
    throw UsageError("no task is called '" + task + "'");
  }
  const std::vector<TextLine> lines = fill(writer, place(writer, facts), task, length, count);
  const std::vector<double> depths = depths_of(lines, facts.size());

  EvalSample sample;
  sample.id = format("%s/%llu/%llu", task.c_str(), static_cast<unsigned long long>(length), static_cast<unsigned long long>(index));
  sample.task = task;
  sample.length = length;
  sample.system = "You answer questions about the text.";
  sample.context = join_lines(lines);
  if (task == "listing") {
    EvalQuestion question{"Repeat every sentence about magic numbers, in order.", {""}, 0};
    size_t n = 0;
    for (const TextLine& line : lines) {
      if (line.text.find(" magic number") == std::string::npos) continue;
      question.answers[0] += (n++ ? " " : "") + line.text;
      question.depth += depths[line.fact];
    }
    question.depth /= static_cast<double>(n);
    sample.questions = {question};
    return sample;
  }
  std::vector<size_t> order(facts.size());
  std::iota(order.begin(), order.end(), size_t{0});
  random.shuffle(order);
  size_t next = 0;
  for (uint32_t i = 0; i < n_questions; ++i) {
    EvalQuestion question{"", {""}, 0};
    const size_t n = per_question == 1 ? 1 : 2 + random.below(per_question - 1);
    for (size_t k = 0; k < n; ++k, ++next) {
      const Fact& fact = facts[order[next]];
      question.question += (k ? " " : "") + fact.question;
      question.answers[0] += (k ? " " : "") + fact.answer;
      question.depth += depths[order[next]] / static_cast<double>(n);
    }
    sample.questions.push_back(question);
  }
  return sample;
}

}  // namespace orrery::tool
