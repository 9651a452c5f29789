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
  Trials(Session* session, const std::atomic<bool>* cancel, bool continues)
      : session_(*session), tokenizer_(session->model().tokenizer()), messages_(session->conversation().messages), cancel_(cancel),
        continues_(continues), n_messages_(messages_.size() - (continues ? 1 : 0)) {
    while (head_ < n_messages_ && (has_role(messages_[head_], "system") || has_role(messages_[head_], "developer"))) ++head_;
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
    for (size_t i = head_ + n_dropped + 1; i < n_messages_; ++i)
      if (has_role(messages_[i], "user")) cuts.push_back(i - head_);
    return cuts;
  }
  // The number of messages that an earlier prompt dropped. 0 if no turn begins after them, because the conversation has been cut back.
  size_t still_dropped() const {
    const size_t n_dropped = session_.conversation().n_dropped;
    return n_dropped < n_messages_ - head_ && has_role(messages_[head_ + n_dropped], "user") ? n_dropped : 0;
  }

  // prompt: the one without the first n_dropped messages after the leading ones. False: it has more than most_tokens().
  Result<bool> render(size_t n_dropped, Prompt* prompt) {
    std::vector<int32_t>* tokens = &prompt->tokens;
    ++n_renderings_;
    std::vector<Value> kept(messages_.begin(), messages_.begin() + static_cast<ptrdiff_t>(head_));
    kept.insert(kept.end(), messages_.begin() + static_cast<ptrdiff_t>(head_ + n_dropped),
                messages_.begin() + static_cast<ptrdiff_t>(n_messages_));
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
    prompt->end = text->bytes().substr(text->size() - std::min(text->size(), kEndBytes));
    if (continues_) {
      ORRERY_ASSIGN(prompt->answer, answer_parts(prompt->end));
      for (const AnswerPart& part : prompt->answer)
        text->append(part.text, part.is_mark ? text::Origin::chat_template : text::Origin::data);
    }

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
  // The last message as the model writes it behind a prompt with this end.
  Result<std::vector<AnswerPart>> answer_parts(std::string_view end) const {
    const Conversation& c = session_.conversation();
    const std::string content = content_of_last(c), reasoning = reasoning_of_last(c);
    ORRERY_ASSIGN(const text::format::ChatFormat* format, c.renderer->format());
    const text::format::ReasoningFormat& marks = format->reasoning;
    const text::format::Opening opening = text::format::opening(marks, end);
    const bool open = opening == text::format::Opening::open, reasons = marks.known() && !reasoning.empty();
    if (reasons && opening == text::format::Opening::closed)
      return option_error(Code::invalid_argument, "continue_last",
                          "continue_last: the last message has reasoning, and the chat template ends it in the prompt");
    std::vector<AnswerPart> parts;
    const auto add = [&parts](const std::string& text, bool is_mark) {
      if (!text.empty()) parts.push_back({text, is_mark});
    };
    if (reasons && !open) add(marks.open, true);
    if (reasons) add(reasoning, false);
    if (content.empty()) return parts;
    if (reasons || open) {
      add(marks.close + marks.after, true);
      if (marks.after.empty()) add("\n\n", true);
    }
    add(format->content_open, true);
    add(content, false);
    return parts;
  }

  static constexpr size_t kEndBytes = 256;  // longer than the marks of reasoning
  static Result<bool> too_long_or(Status status) {
    if (status.code() == Code::context_full) return false;
    return Result<bool>(std::move(status));
  }

  Session& session_;
  const Tokenizer& tokenizer_;
  const std::vector<Value>& messages_;
  const std::atomic<bool>* cancel_;
  const bool continues_;
  const size_t n_messages_;  // that the template renders
  size_t head_ = 0;          // number of leading system and developer messages
  uint32_t n_renderings_ = 0;
};

}  // namespace

Status check_can_continue(const Conversation& conversation) {
  if (conversation.messages.empty() || !has_role(conversation.messages.back(), "assistant"))
    return option_error(Code::invalid_argument, "continue_last", "continue_last: the conversation's last message is not the assistant's");
  const Value& message = conversation.messages.back();
  const Value *content = message.find("content"), *calls = message.find("tool_calls");
  if (content && !content->is_string() && !content->is_none())
    return option_error(Code::invalid_argument, "continue_last", "continue_last: the last message's content has parts, expected text");
  if (calls && calls->is_list() && !calls->as_items().empty())
    return option_error(Code::invalid_argument, "continue_last", "continue_last: the last message calls tools: expected text alone");
  return ok_status();
}

std::string content_of_last(const Conversation& conversation) {
  const Value* content = conversation.messages.back().find("content");
  return content && content->is_string() ? std::string(content->as_string()) : std::string();
}

std::string reasoning_of_last(const Conversation& conversation) {
  const Value* reasoning = conversation.messages.back().find("reasoning_content");
  return reasoning && reasoning->is_string() ? std::string(reasoning->as_string()) : std::string();
}

Result<Prompt> conversation_prompt(Session* session, uint32_t room, const std::atomic<bool>* cancel, bool continues) {
  Trials trials(session, cancel, continues);
  ORRERY_TRY(trials.prepare());
  const size_t limit = session->n_context();
  Prompt prompt;
  prompt.n_dropped = trials.still_dropped();
  ORRERY_ASSIGN(bool counted, trials.render(prompt.n_dropped, &prompt));
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
    Prompt shorter;
    ORRERY_ASSIGN(const bool middle_counted, trials.render(cuts[middle], &shorter));
    const bool fits = middle_counted && shorter.tokens.size() <= target;
    if (fits || middle + 1 == cuts.size()) {
      prompt = std::move(shorter);
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
