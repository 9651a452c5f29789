#include "runtime/engine/prompt.h"

#include <algorithm>
#include <string>
#include <string_view>

namespace orrery::engine {

namespace {

using text::Tokenizer;
using text::Value;

// Messages come from users, and may spell out a control token ("<|im_end|>").  A template prints them beside its own
// control tokens, and afterwards nobody can tell which is which.  So before rendering, a mark goes into each such
// spelling: a Unicode noncharacter that occurs in no message.  Behind the template the marks are taken out again, and
// where they stood the tokenizer may not see a control token.
class Guard {
 public:
  explicit Guard(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  Result<Value> mark(const Value& messages) {
    ORRERY_TRY(choose(messages));
    return copy(messages);
  }

  // Takes the marks out of `rendered`; their places, ascending, go to `barriers`.
  void unmark(std::string* rendered, std::vector<size_t>* barriers) const {
    if (!used_) return;
    std::string clean;
    clean.reserve(rendered->size());
    size_t from = 0;
    for (size_t at; (at = rendered->find(mark_, from)) != std::string::npos; from = at + mark_.size()) {
      clean.append(*rendered, from, at - from);
      barriers->push_back(clean.size());
    }
    clean.append(*rendered, from, std::string::npos);
    *rendered = std::move(clean);
  }

 private:
  // U+FDD0 .. U+FDEF, the first that no message holds.
  Status choose(const Value& messages) {
    for (char last = '\x90'; last <= '\xaf'; ++last) {
      mark_ = std::string("\xef\xb7") + last;
      if (!contains(messages)) return ok_status();
    }
    return error(Code::invalid_argument, "the conversation uses every Unicode noncharacter from U+FDD0 to U+FDEF");
  }
  bool contains(const Value& v) const {
    if (v.is_string()) return v.as_string().find(mark_) != std::string_view::npos;
    if (v.is_sequence())
      return std::any_of(v.as_items().begin(), v.as_items().end(), [&](const Value& item) { return contains(item); });
    if (v.is_map())
      return std::any_of(v.as_map().entries().begin(), v.as_map().entries().end(),
                         [&](const auto& entry) { return contains(entry.first) || contains(entry.second); });
    return false;
  }
  Value copy(const Value& v) {
    if (v.is_string()) return copy_string(v);
    if (v.is_sequence()) {
      std::vector<Value> items;
      items.reserve(v.as_items().size());
      for (const Value& item : v.as_items()) items.push_back(copy(item));
      return Value::list(std::move(items));
    }
    if (v.is_map()) {
      text::Map map;
      for (const auto& [key, value] : v.as_map().entries()) map.set(key, copy(value));
      return Value::map(std::move(map));
    }
    return v;
  }
  Value copy_string(const Value& v) {
    const std::string_view s = v.as_string();
    spans_.clear();
    tokenizer_.find_control(s, &spans_);
    if (spans_.empty()) return v;
    used_ = true;
    std::string marked;
    size_t from = 0;
    for (const text::TokenSpan& span : spans_) {
      // Behind the name's first character, so that the text still is whole UTF-8.
      size_t inside = span.begin + 1;
      while (inside < span.end && (static_cast<uint8_t>(s[inside]) & 0xc0) == 0x80) ++inside;
      marked.append(s, from, inside - from);
      marked += mark_;
      from = inside;
    }
    marked.append(s, from, std::string_view::npos);
    return Value::string(std::move(marked));
  }

  const Tokenizer& tokenizer_;
  std::string mark_;
  bool used_ = false;
  std::vector<text::TokenSpan> spans_;
};

bool has_role(const Value& message, std::string_view role) {
  const Value* r = message.find("role");
  return r && r->is_string() && r->as_string() == role;
}

// System messages at the start stay, whatever is dropped.
size_t n_system(const Conversation& c) {
  size_t n = 0;
  while (n < c.messages.size() && (has_role(c.messages[n], "system") || has_role(c.messages[n], "developer"))) ++n;
  return n;
}

Result<std::vector<int32_t>> tokenize(Session* session, size_t n_dropped) {
  Conversation& c = session->conversation();
  const Tokenizer& tokenizer = session->model().tokenizer();
  const size_t head = n_system(c);
  std::vector<Value> kept(c.messages.begin(), c.messages.begin() + static_cast<ptrdiff_t>(head));
  kept.insert(kept.end(), c.messages.begin() + static_cast<ptrdiff_t>(head + n_dropped), c.messages.end());

  Guard guard(tokenizer);
  ORRERY_ASSIGN(const Value marked, guard.mark(Value::list(std::move(kept))));
  ORRERY_ASSIGN(std::string rendered, c.renderer->render(marked));
  std::vector<size_t> barriers;
  guard.unmark(&rendered, &barriers);

  text::EncodeOptions options;
  options.add_bos = tokenizer.add_bos();
  options.parse_special = true;
  options.barriers = barriers;
  std::vector<int32_t> tokens;
  ORRERY_TRY(tokenizer.encode(rendered, options, &tokens));
  keep_held_ids(tokenizer, session->tokens(), &tokens);
  return tokens;
}

}  // namespace

Result<std::vector<int32_t>> conversation_prompt(Session* session, uint32_t room) {
  Conversation& c = session->conversation();
  if (!c.renderer) {
    ORRERY_ASSIGN(ChatRenderer renderer, ChatRenderer::make(session->model().vocabulary(), c.choice));
    c.renderer.emplace(std::move(renderer));
  }
  const size_t limit = session->n_context();
  const size_t head = n_system(c);
  c.n_dropped = std::min(c.n_dropped, c.messages.size() - head);
  ORRERY_ASSIGN(std::vector<int32_t> tokens, tokenize(session, c.n_dropped));
  const auto full = [&] {
    return memory_error(Code::context_full, tokens.size(), limit,
                        "the prompt of %zu tokens is longer than the session's context of %zu", tokens.size(), limit);
  };
  if (session->options().overflow == Overflow::stop) {
    if (tokens.size() > limit) return full();
    return tokens;
  }
  if (tokens.size() + room <= limit) return tokens;

  // Room is made a quarter of the context at a time, so that the turns that follow can reuse their prefix. A turn
  // goes from one user message to the next; the last one stays.
  const size_t target = limit - std::min<size_t>(limit, std::max<size_t>(room, limit / 4));
  size_t dropped = c.n_dropped;
  while (tokens.size() > target) {
    size_t next = head + dropped + 1;
    while (next < c.messages.size() && !has_role(c.messages[next], "user")) ++next;
    if (next >= c.messages.size()) break;
    dropped = next - head;
    ORRERY_ASSIGN(tokens, tokenize(session, dropped));
  }
  if (tokens.size() > limit) return full();
  c.n_dropped = dropped;
  return tokens;
}

void keep_held_ids(const Tokenizer& tokenizer, Span<const int32_t> held, std::vector<int32_t>* wanted) {
  size_t at = 0;   // everything before it is equal in both
  for (;;) {
    while (at < held.size() && at < wanted->size() && held[at] == (*wanted)[at]) ++at;
    if (at == held.size() || at == wanted->size()) return;
    size_t held_end = at, wanted_end = at;
    std::string held_bytes, wanted_bytes;
    for (; held_end < held.size() && !tokenizer.is_special(held[held_end]); ++held_end)
      tokenizer.append_piece(held[held_end], false, &held_bytes);
    for (; wanted_end < wanted->size() && !tokenizer.is_special((*wanted)[wanted_end]); ++wanted_end)
      tokenizer.append_piece((*wanted)[wanted_end], false, &wanted_bytes);
    if (held_bytes.empty() || held_bytes != wanted_bytes) return;
    const auto from = wanted->begin() + static_cast<ptrdiff_t>(at);
    const auto after = wanted->erase(from, wanted->begin() + static_cast<ptrdiff_t>(wanted_end));
    wanted->insert(after, held.begin() + at, held.begin() + held_end);
    at = held_end;
  }
}

}  // namespace orrery::engine
