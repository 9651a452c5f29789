#include "runtime/engine/answer/prompt.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "runtime/text/pace.h"

namespace orrery::engine {

namespace {

using text::Tokenizer;
using text::Value;

Status was_cancelled() { return error(Code::cancelled, "making the prompt was cancelled"); }

// Calls visit(string) for the strings of a value, keys of maps included, until one call returns false.
template <class F>
bool all_strings(const Value& v, const F& visit) {
  if (v.is_string()) return visit(v);
  if (v.is_sequence())
    return std::all_of(v.as_items().begin(), v.as_items().end(), [&](const Value& item) { return all_strings(item, visit); });
  if (v.is_map())
    return std::all_of(v.as_map().entries().begin(), v.as_map().entries().end(), [&](const auto& entry) {
      return all_strings(entry.first, visit) && all_strings(entry.second, visit);
    });
  return true;
}

// Messages come from users and may spell out a control token ("<|im_end|>"). A template prints its own control tokens in the same text, and
// the two cannot be told apart afterwards. So a mark goes into each such spelling before rendering: a Unicode noncharacter that occurs in
// no message. After rendering the marks are removed, and the tokenizer finds no control token at their places.
//
// Most conversations spell no control token: their messages pass unchanged after one pass over the text.
class Guard {
 public:
  Guard(const Tokenizer& tokenizer, const std::atomic<bool>* cancel) : tokenizer_(tokenizer), cancel_(cancel) {}

  // Marks the messages in place; those that spell no control token keep their bodies.
  Status mark(std::vector<Value>* messages) {
    std::vector<size_t> spelling;
    for (size_t i = 0; i < messages->size(); ++i)
      if (!all_strings((*messages)[i], [&](const Value& s) { return !spells_control(s.as_string()) && !text::is_cancelled(cancel_); }))
        spelling.push_back(i);
    if (text::is_cancelled(cancel_)) return was_cancelled();
    if (spelling.empty()) return ok_status();
    ORRERY_TRY(choose(*messages));
    for (const size_t i : spelling) (*messages)[i] = copy((*messages)[i]);
    return text::is_cancelled(cancel_) ? was_cancelled() : ok_status();
  }

  // Removes the marks from `rendered`. barriers: their places, ascending.
  void unmark(std::string* rendered, std::vector<size_t>* barriers) const {
    if (mark_.empty()) return;
    size_t to = 0, from = 0;
    for (size_t at; (at = rendered->find(mark_, from)) != std::string::npos; from = at + mark_.size()) {
      std::copy(rendered->begin() + static_cast<ptrdiff_t>(from), rendered->begin() + static_cast<ptrdiff_t>(at),
                rendered->begin() + static_cast<ptrdiff_t>(to));
      to += at - from;
      barriers->push_back(to);
    }
    rendered->erase(to, from - to);
  }
  // The most bytes that marks add to a text: one mark for each byte.
  size_t mark_bytes(size_t text_bytes) const { return text_bytes * mark_.size(); }

 private:
  static constexpr size_t kWindowBytes = 64 << 10;   // bytes searched between two checks of the flag

  // Calls visit(span) for the control tokens that `s` spells, window by window, until it returns false.
  template <class F>
  void for_each_control(std::string_view s, const F& visit) {
    const size_t overlap = tokenizer_.longest_token_bytes();
    for (size_t from = 0; from < s.size() && !text::is_cancelled(cancel_); from += kWindowBytes) {
      spans_.clear();
      tokenizer_.find_control(s.substr(from, kWindowBytes + overlap), &spans_);
      for (const text::TokenSpan& span : spans_) {
        if (span.begin >= kWindowBytes) break;   // it belongs to the next window
        if (!visit(text::TokenSpan{from + span.begin, from + span.end, span.id})) return;
      }
    }
  }
  bool spells_control(std::string_view s) {
    bool found = false;
    for_each_control(s, [&](const text::TokenSpan&) { return !(found = true); });
    return found;
  }
  // The first of U+FDD0 .. U+FDEF that no message contains.
  Status choose(const std::vector<Value>& messages) {
    uint32_t used = 0;
    for (const Value& message : messages)
      all_strings(message, [&](const Value& v) {
        const std::string_view s = v.as_string();
        for (size_t from = 0; from < s.size() && !text::is_cancelled(cancel_); from += kWindowBytes) {
          const std::string_view window = s.substr(from, kWindowBytes + 2);
          for (size_t at = 0; (at = window.find("\xef\xb7", at)) != window.npos; at += 2) {
            const uint8_t last = at + 2 < window.size() ? static_cast<uint8_t>(window[at + 2]) : 0;
            if (last >= 0x90 && last <= 0xaf) used |= 1u << (last - 0x90);
          }
        }
        return !text::is_cancelled(cancel_);
      });
    for (uint32_t i = 0; i < 32; ++i) {
      if (used & (1u << i)) continue;
      mark_ = {'\xef', '\xb7', static_cast<char>(0x90 + i)};
      return ok_status();
    }
    return error(Code::invalid_argument, "the conversation uses every Unicode noncharacter from U+FDD0 to U+FDEF");
  }
  Value copy(const Value& v) {
    if (text::is_cancelled(cancel_)) return v;
    if (v.is_string()) return copy_string(v);
    if (v.is_sequence()) {
      std::vector<Value> items;
      items.reserve(v.as_items().size());
      for (const Value& item : v.as_items()) items.push_back(copy(item));
      return Value::list(std::move(items));
    }
    if (v.is_map()) {
      text::Map map;
      for (const auto& [key, value] : v.as_map().entries()) map.set(copy(key), copy(value));
      return Value::map(std::move(map));
    }
    return v;
  }
  Value copy_string(const Value& v) {
    const std::string_view s = v.as_string();
    std::string marked;
    size_t from = 0;
    for_each_control(s, [&](const text::TokenSpan& span) {
      // After the first character, so that the text stays whole UTF-8.
      size_t inside = span.begin + 1;
      while (inside < span.end && (static_cast<uint8_t>(s[inside]) & 0xc0) == 0x80) ++inside;
      marked.append(s, from, inside - from);
      marked += mark_;
      from = inside;
      return true;
    });
    if (from == 0 || text::is_cancelled(cancel_)) return v;   // the text may be long
    marked.append(s, from, std::string_view::npos);
    return Value::string(std::move(marked));
  }

  const Tokenizer& tokenizer_;
  const std::atomic<bool>* cancel_;
  std::string mark_;   // empty: no message needs one
  std::vector<text::TokenSpan> spans_;
};

bool has_role(const Value& message, std::string_view role) {
  const Value* r = message.find("role");
  return r && r->is_string() && r->as_string() == role;
}

// Renders and tokenizes the prompt without some of the oldest messages, any number of times.
class Trials {
 public:
  Trials(Session* session, const std::atomic<bool>* cancel)
      : session_(*session), tokenizer_(session->model().tokenizer()), cancel_(cancel), guard_(tokenizer_, cancel) {
    const std::vector<Value>& all = session_.conversation().messages;
    while (head_ < all.size() && (has_role(all[head_], "system") || has_role(all[head_], "developer"))) ++head_;
  }

  Status prepare() {
    Conversation& c = session_.conversation();
    if (!c.renderer) {
      ORRERY_ASSIGN(ChatRenderer renderer, ChatRenderer::make(session_.model().vocabulary(), c.choice));
      c.renderer.emplace(std::move(renderer));
    }
    messages_ = c.messages;
    return guard_.mark(&messages_);
  }

  // The numbers of messages beyond n_dropped that can be dropped without cutting a turn, ascending. The last turn stays.
  std::vector<size_t> cuts_behind(size_t n_dropped) const {
    std::vector<size_t> cuts;
    for (size_t i = head_ + n_dropped + 1; i < messages_.size(); ++i)
      if (has_role(messages_[i], "user")) cuts.push_back(i - head_);
    return cuts;
  }
  // The number of messages that an earlier prompt dropped. 0 if no turn begins after them, because the conversation has been cut back.
  size_t still_dropped() const {
    const size_t n_dropped = session_.conversation().n_dropped;
    return n_dropped < messages_.size() - head_ && has_role(messages_[head_ + n_dropped], "user") ? n_dropped : 0;
  }

  // tokens: the prompt without the first n_dropped messages after the leading ones. False: it has more than most_tokens().
  Result<bool> render(size_t n_dropped, std::vector<int32_t>* tokens) {
    ++n_renderings_;
    std::vector<Value> kept(messages_.begin(), messages_.begin() + static_cast<ptrdiff_t>(head_));
    kept.insert(kept.end(), messages_.begin() + static_cast<ptrdiff_t>(head_ + n_dropped), messages_.end());
    const size_t most = most_tokens(), most_bytes = text_bytes(most);
    text::TemplateLimits limits;
    limits.cancel = cancel_;
    limits.max_output_bytes = std::min<uint64_t>(limits.max_output_bytes, most_bytes + guard_.mark_bytes(most_bytes));
    auto text = session_.conversation().renderer->render(Value::list(std::move(kept)), limits);
    if (!text.ok()) return too_long_or(text.take_status());
    std::string rendered = std::move(text).value();
    std::vector<size_t> barriers;
    guard_.unmark(&rendered, &barriers);

    text::EncodeOptions options;
    options.add_bos = tokenizer_.add_bos();
    options.parse_special = true;
    options.barriers = barriers;
    options.max_tokens = most;
    options.cancel = cancel_;
    tokens->clear();
    if (Status status = tokenizer_.encode(rendered, options, tokens); !status.ok()) return too_long_or(std::move(status));
    keep_held_ids(tokenizer_, session_.tokens(), tokens);
    return true;
  }

  size_t most_tokens() const { return size_t{session_.n_context()} * kCounted; }
  uint32_t n_renderings() const { return n_renderings_; }

 private:
  // A prompt's tokens are counted up to this number of contexts, so that an error can tell by how much it is too long.
  static constexpr size_t kCounted = 2;

  // A text longer than this has more than n_tokens tokens. Vocabularies that skip text of any length (white space above all) have no such
  // bound: for them it is eight times the bytes of n_tokens longest tokens, plus a megabyte.
  size_t text_bytes(size_t n_tokens) const {
    return std::min(tokenizer_.max_text_bytes(n_tokens), 8 * n_tokens * tokenizer_.longest_token_bytes() + (size_t{1} << 20));
  }
  static Result<bool> too_long_or(Status status) {
    if (status.code() == Code::context_full) return false;
    return Result<bool>(std::move(status));
  }

  Session& session_;
  const Tokenizer& tokenizer_;
  const std::atomic<bool>* cancel_;
  Guard guard_;
  size_t head_ = 0;               // number of leading system and developer messages
  std::vector<Value> messages_;   // marked
  uint32_t n_renderings_ = 0;
};

}  // namespace

Result<Prompt> conversation_prompt(Session* session, uint32_t room, const std::atomic<bool>* cancel) {
  Trials trials(session, cancel);
  ORRERY_TRY(trials.prepare());
  const size_t limit = session->n_context();
  Prompt prompt;
  prompt.n_dropped = trials.still_dropped();
  ORRERY_ASSIGN(bool counted, trials.render(prompt.n_dropped, &prompt.tokens));
  const auto finish = [&]() -> Result<Prompt> {
    prompt.n_renderings = trials.n_renderings();
    if (!counted)
      return memory_error(Code::context_full, trials.most_tokens() + 1, limit,
                          "the prompt has more than %zu tokens, the session's context %zu", trials.most_tokens(), limit);
    if (prompt.tokens.size() > limit)
      return memory_error(Code::context_full, prompt.tokens.size(), limit,
                          "the prompt of %zu tokens is longer than the session's context of %zu", prompt.tokens.size(), limit);
    return std::move(prompt);
  };
  if (session->options().overflow == Overflow::stop || (counted && prompt.tokens.size() + room <= limit)) return finish();

  // Dropping frees a quarter of the context at once, so that the next turns can reuse their prefix.
  const size_t target = limit - std::min<size_t>(limit, std::max<size_t>(room, limit / 4));
  const std::vector<size_t> cuts = trials.cuts_behind(prompt.n_dropped);
  for (size_t first = 0, last = cuts.size(); first < last;) {   // cuts[first - 1] drops too few messages, cuts[last] drops enough
    const size_t middle = first + (last - first) / 2;
    std::vector<int32_t> tokens;
    ORRERY_ASSIGN(const bool middle_counted, trials.render(cuts[middle], &tokens));
    const bool fits = middle_counted && tokens.size() <= target;
    if (fits || middle + 1 == cuts.size()) {
      prompt.tokens = std::move(tokens);
      prompt.n_dropped = cuts[middle];
      counted = middle_counted;
    }
    if (fits)
      last = middle;
    else
      first = middle + 1;
  }
  return finish();
}

void keep_held_ids(const Tokenizer& tokenizer, Span<const int32_t> held, std::vector<int32_t>* wanted) {
  // Reads tokens byte by byte, from `at` up to a special token or the end.
  struct Stretch {
    const Tokenizer& tokenizer;
    Span<const int32_t> tokens;
    size_t at;                  // index after the token of `bytes`
    std::string_view bytes = {};
    bool fill() {
      while (bytes.empty() && at < tokens.size() && !tokenizer.is_special(tokens[at])) bytes = tokenizer.token_bytes(tokens[at++]);
      return !bytes.empty();
    }
  };
  size_t in_held = 0, in_wanted = 0;   // held[0..in_held) spells wanted[0..in_wanted)
  bool other_split = false;
  for (;;) {
    while (in_held < held.size() && in_wanted < wanted->size() && held[in_held] == (*wanted)[in_wanted]) ++in_held, ++in_wanted;
    if (in_held == held.size() || in_wanted == wanted->size()) break;
    Stretch a{tokenizer, held, in_held}, b{tokenizer, *wanted, in_wanted};
    bool equal = a.fill() && b.fill();
    while (equal && a.fill() && b.fill()) {
      const size_t n = std::min(a.bytes.size(), b.bytes.size());
      equal = a.bytes.substr(0, n) == b.bytes.substr(0, n);
      a.bytes.remove_prefix(n), b.bytes.remove_prefix(n);
    }
    if (!equal || a.fill() || b.fill()) break;
    in_held = a.at, in_wanted = b.at;
    other_split = true;
  }
  if (!other_split) return;
  std::vector<int32_t> kept(held.begin(), held.begin() + in_held);
  kept.insert(kept.end(), wanted->begin() + static_cast<ptrdiff_t>(in_wanted), wanted->end());
  *wanted = std::move(kept);
}

}  // namespace orrery::engine
