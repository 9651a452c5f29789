#include "runtime/engine/answer/prompt.h"

#include <algorithm>
#include <string>
#include <string_view>

namespace orrery::engine {

namespace {

using text::Tokenizer;
using text::Value;

bool has_role(const Value& message, std::string_view role) {
  const Value* r = message.find("role");
  return r && r->is_string() && r->as_string() == role;
}

// The bytes of a message's content.
void add_bytes(const Value& v, uint64_t* bytes) {
  if (v.is_string()) *bytes += v.as_string().size();
  if (v.is_list())
    for (const Value& item : v.as_items()) add_bytes(item, bytes);
  if (v.is_map())
    for (const auto& entry : v.as_map().entries()) add_bytes(entry.second, bytes);
}

// Renders and tokenizes the prompt without some of the oldest messages, any number of times.
class Trials {
 public:
  Trials(Session* session, const std::atomic<bool>* cancel)
      : session_(*session), tokenizer_(session->model().tokenizer()), messages_(session->conversation().messages), cancel_(cancel) {
    while (head_ < messages_.size() && (has_role(messages_[head_], "system") || has_role(messages_[head_], "developer"))) ++head_;
  }

  Status prepare() {
    Conversation& c = session_.conversation();
    if (!c.renderer) {
      ORRERY_ASSIGN(ChatRenderer renderer, ChatRenderer::make(session_.model().vocabulary(), c.choice));
      c.renderer.emplace(std::move(renderer));
    }
    return ok_status();
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
    const size_t most = most_tokens();
    text::TemplateLimits limits;
    limits.cancel = cancel_;
    limits.max_output_bytes = std::min<uint64_t>(limits.max_output_bytes, text_bytes(most));
    auto text = session_.conversation().renderer->render(Value::list(kept), limits);
    if (!text.ok() && text.status().code() == Code::unsupported_template) {
      // A conversation that cannot fit may reach the limits of rendering before it reaches those of the text.
      uint64_t bytes = 0;
      for (const Value& message : kept) add_bytes(message, &bytes);
      if (bytes > limits.max_output_bytes) return false;
    }
    if (!text.ok()) return too_long_or(text.take_status());

    text::EncodeOptions options;  // no BOS but the template's own: models were trained on what their templates write
    options.parse_special = true;
    options.max_tokens = most;
    options.cancel = cancel_;
    tokens->clear();
    if (Status status = tokenizer_.encode(text->view(), options, tokens); !status.ok()) return too_long_or(std::move(status));
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
  const std::vector<Value>& messages_;
  const std::atomic<bool>* cancel_;
  size_t head_ = 0;  // number of leading system and developer messages
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
  for (size_t first = 0, last = cuts.size(); first < last;) {  // cuts[first - 1] drops too few messages, cuts[last] drops enough
    const size_t middle = first + (last - first) / 2;
    std::vector<int32_t> tokens;
    ORRERY_ASSIGN(const bool middle_counted, trials.render(cuts[middle], &tokens));
    const bool fits = middle_counted && tokens.size() <= target;
    if (fits || middle + 1 == cuts.size()) {
      prompt.tokens = std::move(tokens);
      prompt.n_dropped = cuts[middle];
      counted = middle_counted;
    }
    if (fits) last = middle;
    else first = middle + 1;
  }
  return finish();
}

void keep_held_ids(const Tokenizer& tokenizer, Span<const int32_t> held, std::vector<int32_t>* wanted) {
  // Reads tokens byte by byte, from `at` up to a special token or the end.
  struct Stretch {
    const Tokenizer& tokenizer;
    Span<const int32_t> tokens;
    size_t at;  // index after the token of `bytes`
    std::string_view bytes = {};
    bool fill() {
      while (bytes.empty() && at < tokens.size() && !tokenizer.is_special(tokens[at])) bytes = tokenizer.token_bytes(tokens[at++]);
      return !bytes.empty();
    }
  };
  size_t in_held = 0, in_wanted = 0;  // held[0..in_held) spells wanted[0..in_wanted)
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
