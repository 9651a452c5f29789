// The expression half of the parser: reads tokens, reports errors, bounds nesting, and parses expressions by
// recursive descent with the grammar's own precedences. jinja/syntax/parser.cpp derives statements from it.
//
// Each parse_ function consumes its construct. It returns false after recording the first error.
#pragma once

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/os/stack_room.h"
#include "runtime/text/jinja/syntax/ast.h"
#include "runtime/text/jinja/syntax/functions.h"

namespace orrery::text::jinja {

constexpr uint32_t kMaxNesting = 150;  // of syntax while parsing
constexpr uint32_t kMaxHeight = 250;   // of an expression's tree

class ExpressionParser {
 protected:
  explicit ExpressionParser(std::vector<Token> tokens) : tokens_(std::move(tokens)), program_(std::make_shared<Program>()) {
    for (const char* name : {"loop", "caller", "varargs", "kwargs"}) intern(name);
  }

  struct Unknown {
    Position at;
    std::string message;
    bool inner;  // found in a scope inside the nearest `if`, so it must exist after all
  };
  // Forgives the unknown names found since an `if` began with `from` of them.
  void forgive(size_t from) {
    const auto start = unknown_.begin() + static_cast<std::ptrdiff_t>(from);
    unknown_.erase(std::remove_if(start, unknown_.end(), [](const Unknown& u) { return !u.inner; }), unknown_.end());
  }
  void make_inner(size_t from) {
    for (size_t i = from; i < unknown_.size(); ++i) unknown_[i].inner = true;
  }

  // --- tokens ---
  const Token& cur() const { return tokens_[pos_]; }
  const Token& next() const { return tokens_[std::min(pos_ + 1, tokens_.size() - 1)]; }
  void advance() {
    if (pos_ + 1 < tokens_.size()) ++pos_;
  }
  bool at(TokenType type) const { return cur().type == type; }
  bool at_name(std::string_view name) const { return at(TokenType::name) && cur().text == name; }
  bool skip(TokenType type) {
    if (!at(type)) return false;
    advance();
    return true;
  }
  bool skip_name(std::string_view name) {
    if (!at_name(name)) return false;
    advance();
    return true;
  }
  bool fail(Position where, const std::string& message) {
    status_ = template_error(where, message);
    return false;
  }
  std::string found() const { return at(TokenType::name) ? "'" + cur().text + "'" : std::string(describe(cur().type)); }
  bool expect(TokenType type) {
    if (skip(type)) return true;
    return fail(cur().at, std::string("expected ") + describe(type) + ", found " + found());
  }
  bool expect_name(std::string_view name) {
    if (skip_name(name)) return true;
    return fail(cur().at, "expected '" + std::string(name) + "', found " + found());
  }
  bool take_name(std::string* out) {
    if (!at(TokenType::name)) return fail(cur().at, "expected a name, found " + found());
    *out = cur().text;
    advance();
    return true;
  }

  NameId intern(const std::string& name) {
    const auto [it, fresh] = ids_.emplace(name, static_cast<NameId>(program_->names.size()));
    if (fresh) program_->names.push_back(name);
    return it->second;
  }

  // Adds one level of nesting during its lifetime.
  struct Nested {
    explicit Nested(ExpressionParser* p) : parser(p) { ++parser->nesting_; }
    ~Nested() { --parser->nesting_; }
    bool ok() const { return parser->nesting_ <= kMaxNesting || parser->fail(parser->cur().at, "the template is nested too deeply"); }
    ExpressionParser* parser;
  };

  // Continues on a new stack if this one is nearly full.
  template <class F>
  __attribute__((noinline)) bool elsewhere(const F& parse) {
    bool done = false;
    const auto body = [&] { done = parse(); };
    Status status = stack_.on_new_stack(body);
    if (status.ok()) return done;
    status_ = std::move(status);
    return false;
  }

  ExprPtr make(ExprKind kind, Position where) const {
    ExprPtr e(new Expr);
    e->kind = kind;
    e->at = where;
    return e;
  }
  // Called when all children of `e` are in place.
  bool finish(ExprPtr e, ExprPtr* out) {
    uint32_t below = 0;
    const auto see = [&below](const ExprPtr& child) {
      if (child) below = std::max(below, child->height);
    };
    see(e->a), see(e->b), see(e->c);
    for (const ExprPtr& child : e->items) see(child);
    for (const ExprPtr& child : e->call.positional) see(child);
    for (const auto& keyword : e->call.keywords) see(keyword.second);
    see(e->call.star), see(e->call.double_star);
    e->height = below + 1;
    if (e->height > kMaxHeight) return fail(e->at, "the expression is nested too deeply");
    *out = std::move(e);
    return true;
  }

  // --- expressions ---

  bool parse_expression(ExprPtr* out) { return parse_condition(out); }

  bool parse_tuple(ExprPtr* out, bool with_condition = true, std::string_view end = {}, bool parentheses = false) {
    const Position where = cur().at;
    std::vector<ExprPtr> items;
    bool comma = false;
    while (true) {
      if (at(TokenType::variable_end) || at(TokenType::block_end) || at(TokenType::rparen) || (!end.empty() && at_name(end))) break;
      ExprPtr item;
      ORRERY_JINJA_TRY(with_condition ? parse_condition(&item) : parse_or(&item));
      items.push_back(std::move(item));
      if (!skip(TokenType::comma)) break;
      comma = true;
    }
    if (!comma && !items.empty()) {
      *out = std::move(items[0]);
      return true;
    }
    if (!comma && !parentheses) return fail(where, "expected an expression, found " + found());
    ExprPtr e = make(ExprKind::tuple, where);
    e->items = std::move(items);
    return finish(std::move(e), out);
  }

  bool parse_condition(ExprPtr* out) {
    if (stack_.low()) return elsewhere([&] { return parse_condition(out); });
    Nested nested(this);
    ORRERY_JINJA_TRY(nested.ok());
    const Position where = cur().at;
    const size_t unknown_before = unknown_.size();
    ExprPtr value;
    ORRERY_JINJA_TRY(parse_or(&value));
    while (skip_name("if")) {
      ExprPtr e = make(ExprKind::condition, where);
      e->b = std::move(value);
      ORRERY_JINJA_TRY(parse_or(&e->a));
      if (skip_name("else")) ORRERY_JINJA_TRY(parse_condition(&e->c));
      ORRERY_JINJA_TRY(finish(std::move(e), &value));
      forgive(unknown_before);
    }
    *out = std::move(value);
    return true;
  }

  // Parses operands joined by the name `word` into one flat node.
  bool parse_logic(ExprKind kind, std::string_view word, bool (ExpressionParser::*operand)(ExprPtr*), ExprPtr* out) {
    const Position where = cur().at;
    ExprPtr first;
    ORRERY_JINJA_TRY((this->*operand)(&first));
    if (!at_name(word)) {
      *out = std::move(first);
      return true;
    }
    ExprPtr e = make(kind, where);
    e->items.push_back(std::move(first));
    while (skip_name(word)) {
      ExprPtr item;
      ORRERY_JINJA_TRY((this->*operand)(&item));
      e->items.push_back(std::move(item));
    }
    return finish(std::move(e), out);
  }
  bool parse_or(ExprPtr* out) { return parse_logic(ExprKind::or_, "or", &ExpressionParser::parse_and, out); }
  bool parse_and(ExprPtr* out) { return parse_logic(ExprKind::and_, "and", &ExpressionParser::parse_not, out); }

  bool parse_not(ExprPtr* out) {
    if (!at_name("not")) return parse_compare(out);
    if (stack_.low()) return elsewhere([&] { return parse_not(out); });
    Nested nested(this);
    ORRERY_JINJA_TRY(nested.ok());
    ExprPtr e = make(ExprKind::not_, cur().at);
    advance();
    ORRERY_JINJA_TRY(parse_not(&e->a));
    return finish(std::move(e), out);
  }

  bool compare_op(Op* op) {
    switch (cur().type) {
      case TokenType::eq: *op = Op::eq; break;
      case TokenType::ne: *op = Op::ne; break;
      case TokenType::lt: *op = Op::lt; break;
      case TokenType::le: *op = Op::le; break;
      case TokenType::gt: *op = Op::gt; break;
      case TokenType::ge: *op = Op::ge; break;
      case TokenType::name:
        if (cur().text == "in") {
          *op = Op::in;
          break;
        }
        if (cur().text == "not" && next().type == TokenType::name && next().text == "in") {
          advance();
          *op = Op::not_in;
          break;
        }
        return false;
      default: return false;
    }
    advance();
    return true;
  }
  bool sum_op(Op* op) {
    if (at(TokenType::add)) *op = Op::add;
    else if (at(TokenType::sub)) *op = Op::sub;
    else return false;
    advance();
    return true;
  }
  bool product_op(Op* op) {
    if (at(TokenType::mul)) *op = Op::mul;
    else if (at(TokenType::div)) *op = Op::div;
    else if (at(TokenType::floordiv)) *op = Op::floordiv;
    else if (at(TokenType::mod)) *op = Op::mod;
    else return false;
    advance();
    return true;
  }
  bool power_op(Op* op) {
    *op = Op::pow;
    return skip(TokenType::pow);
  }

  bool parse_chain(ExprKind kind, bool (ExpressionParser::*op)(Op*), bool (ExpressionParser::*operand)(ExprPtr*), ExprPtr* out) {
    const Position where = cur().at;
    ExprPtr first;
    ORRERY_JINJA_TRY((this->*operand)(&first));
    Op found_op;
    if (!(this->*op)(&found_op)) {
      *out = std::move(first);
      return true;
    }
    ExprPtr e = make(kind, where);
    e->items.push_back(std::move(first));
    do {
      e->ops.push_back(found_op);
      ExprPtr item;
      ORRERY_JINJA_TRY((this->*operand)(&item));
      e->items.push_back(std::move(item));
    } while ((this->*op)(&found_op));
    return finish(std::move(e), out);
  }
  bool parse_compare(ExprPtr* out) {
    return parse_chain(ExprKind::compare, &ExpressionParser::compare_op, &ExpressionParser::parse_sum, out);
  }
  bool parse_sum(ExprPtr* out) { return parse_chain(ExprKind::binary, &ExpressionParser::sum_op, &ExpressionParser::parse_concat, out); }
  bool parse_product(ExprPtr* out) {
    return parse_chain(ExprKind::binary, &ExpressionParser::product_op, &ExpressionParser::parse_power, out);
  }
  bool parse_power(ExprPtr* out) {
    return parse_chain(ExprKind::binary, &ExpressionParser::power_op, &ExpressionParser::parse_unary_filtered, out);
  }
  bool parse_concat(ExprPtr* out) {  // binds tighter than + and -
    const Position where = cur().at;
    ExprPtr first;
    ORRERY_JINJA_TRY(parse_product(&first));
    if (!at(TokenType::tilde)) {
      *out = std::move(first);
      return true;
    }
    ExprPtr e = make(ExprKind::concat, where);
    e->items.push_back(std::move(first));
    while (skip(TokenType::tilde)) {
      ExprPtr item;
      ORRERY_JINJA_TRY(parse_product(&item));
      e->items.push_back(std::move(item));
    }
    return finish(std::move(e), out);
  }

  bool parse_unary_filtered(ExprPtr* out) { return parse_unary(true, out); }

  bool parse_unary(bool with_filter, ExprPtr* out) {
    if (stack_.low()) return elsewhere([&] { return parse_unary(with_filter, out); });
    Nested nested(this);
    ORRERY_JINJA_TRY(nested.ok());
    ExprPtr e;
    if (at(TokenType::sub) || at(TokenType::add)) {
      ExprPtr sign = make(at(TokenType::sub) ? ExprKind::negate : ExprKind::plus, cur().at);
      advance();
      ORRERY_JINJA_TRY(parse_unary(false, &sign->a));
      ORRERY_JINJA_TRY(finish(std::move(sign), &e));
    } else {
      ORRERY_JINJA_TRY(parse_primary(&e));
    }
    ORRERY_JINJA_TRY(parse_postfix(&e));
    while (with_filter) {
      if (at(TokenType::pipe)) ORRERY_JINJA_TRY(parse_filters(&e, false));
      else if (at_name("is")) ORRERY_JINJA_TRY(parse_test(&e));
      else if (at(TokenType::lparen)) ORRERY_JINJA_TRY(parse_call(&e));  // after a filter or a test
      else break;
    }
    *out = std::move(e);
    return true;
  }

  bool parse_integer(const Token& token, Value* out) {
    std::string_view text = token.text;
    int base = 10;
    if (text.size() > 2 && text[0] == '0') {
      const char mark = static_cast<char>(text[1] | 0x20);
      base = mark == 'x' ? 16 : (mark == 'o' ? 8 : (mark == 'b' ? 2 : 10));
      if (base != 10) text.remove_prefix(2);
    }
    int64_t v = 0;
    const auto parsed = std::from_chars(text.data(), text.data() + text.size(), v, base);
    if (parsed.ec == std::errc::result_out_of_range) {
      if (base != 10 || text.size() > 4000) return fail(token.at, "the integer is too large");
      *out = Value::big_integer(std::string(text));
      return true;
    }
    *out = Value::integer(v);
    return true;
  }

  bool parse_primary(ExprPtr* out) {
    const Token& token = cur();
    ExprPtr e = make(ExprKind::constant, token.at);
    switch (token.type) {
      case TokenType::name: {
        advance();
        const std::string& name = token.text;
        if (name == "true" || name == "True") e->value = Value::boolean(true);
        else if (name == "false" || name == "False") e->value = Value::boolean(false);
        else if (name == "none" || name == "None") e->value = Value::none();
        else {
          e->kind = ExprKind::name;
          e->name = intern(name);
          for (Stmt* macro : macros_) {
            macro->uses_caller |= e->name == kCaller;
            macro->uses_varargs |= e->name == kVarargs;
            macro->uses_kwargs |= e->name == kKwargs;
          }
        }
        break;
      }
      case TokenType::string: {
        std::string text;
        for (; at(TokenType::string); advance()) text += cur().text;
        e->value = Value::literal(std::move(text));
        break;
      }
      case TokenType::integer:
        advance();
        ORRERY_JINJA_TRY(parse_integer(token, &e->value));
        break;
      case TokenType::floating: {
        advance();
        double d = 0;
        if (std::from_chars(token.text.data(), token.text.data() + token.text.size(), d).ec != std::errc())
          return fail(token.at, "the number is out of range");
        e->value = Value::floating(d);
        break;
      }
      case TokenType::lparen:
        advance();
        ORRERY_JINJA_TRY(parse_tuple(out, true, {}, true));
        return expect(TokenType::rparen);
      case TokenType::lbracket:
        advance();
        e->kind = ExprKind::list;
        while (!at(TokenType::rbracket)) {
          if (!e->items.empty()) ORRERY_JINJA_TRY(expect(TokenType::comma));
          if (at(TokenType::rbracket)) break;
          e->items.emplace_back();
          ORRERY_JINJA_TRY(parse_expression(&e->items.back()));
        }
        advance();
        break;
      case TokenType::lbrace:
        advance();
        e->kind = ExprKind::dict;
        while (!at(TokenType::rbrace)) {
          if (!e->items.empty()) ORRERY_JINJA_TRY(expect(TokenType::comma));
          if (at(TokenType::rbrace)) break;
          e->items.emplace_back();
          ORRERY_JINJA_TRY(parse_expression(&e->items.back()));
          ORRERY_JINJA_TRY(expect(TokenType::colon));
          e->items.emplace_back();
          ORRERY_JINJA_TRY(parse_expression(&e->items.back()));
        }
        advance();
        break;
      default: return fail(token.at, "expected an expression, found " + found());
    }
    return finish(std::move(e), out);
  }

  bool parse_postfix(ExprPtr* e) {
    while (true) {
      if (at(TokenType::dot)) ORRERY_JINJA_TRY(parse_attribute(e));
      else if (at(TokenType::lbracket)) ORRERY_JINJA_TRY(parse_subscript(e));
      else if (at(TokenType::lparen)) ORRERY_JINJA_TRY(parse_call(e));
      else return true;
    }
  }

  bool parse_attribute(ExprPtr* e) {
    const Position where = cur().at;
    advance();
    if (at(TokenType::name)) {
      ExprPtr node = make(ExprKind::attribute, where);
      node->a = std::move(*e);
      node->text = cur().text;
      advance();
      return finish(std::move(node), e);
    }
    if (!at(TokenType::integer)) return fail(cur().at, "expected a name or number after '.', found " + found());
    ExprPtr node = make(ExprKind::item, where);
    node->a = std::move(*e);
    ORRERY_JINJA_TRY(parse_primary(&node->b));
    return finish(std::move(node), e);
  }

  bool parse_subscript(ExprPtr* e) {
    const Position where = cur().at;
    advance();
    if (at(TokenType::rbracket)) return fail(where, "expected an index");
    ExprPtr node = make(ExprKind::item, where);
    node->a = std::move(*e);
    ExprPtr first;
    if (!at(TokenType::colon)) ORRERY_JINJA_TRY(parse_expression(&first));
    if (at(TokenType::colon)) {
      node->kind = ExprKind::slice;
      node->items.push_back(std::move(first));
      for (int part = 0; part < 2; ++part) {
        ExprPtr bound;
        if (skip(TokenType::colon) && !at(TokenType::colon) && !at(TokenType::rbracket)) ORRERY_JINJA_TRY(parse_expression(&bound));
        node->items.push_back(std::move(bound));
      }
    } else if (at(TokenType::comma)) {
      ExprPtr tuple = make(ExprKind::tuple, where);
      tuple->items.push_back(std::move(first));
      while (!at(TokenType::rbracket)) {
        ORRERY_JINJA_TRY(expect(TokenType::comma));
        tuple->items.emplace_back();
        ORRERY_JINJA_TRY(parse_expression(&tuple->items.back()));
      }
      ORRERY_JINJA_TRY(finish(std::move(tuple), &node->b));
    } else {
      node->b = std::move(first);
    }
    ORRERY_JINJA_TRY(expect(TokenType::rbracket));
    return finish(std::move(node), e);
  }

  bool parse_arguments(CallSyntax* out) {
    const Position where = cur().at;
    ORRERY_JINJA_TRY(expect(TokenType::lparen));
    bool comma = false;
    std::set<std::string_view> named;  // in the tokens, which stay
    const auto misplaced = [&] { return fail(where, "arguments are in the wrong order"); };
    while (!at(TokenType::rparen)) {
      if (comma) {
        ORRERY_JINJA_TRY(expect(TokenType::comma));
        if (at(TokenType::rparen)) break;
      }
      comma = true;
      if (skip(TokenType::mul)) {
        if (out->star || out->double_star) return misplaced();
        ORRERY_JINJA_TRY(parse_expression(&out->star));
      } else if (skip(TokenType::pow)) {
        if (out->double_star) return misplaced();
        ORRERY_JINJA_TRY(parse_expression(&out->double_star));
      } else if (at(TokenType::name) && next().type == TokenType::assign) {
        if (out->double_star) return misplaced();
        if (!named.insert(cur().text).second) return fail(cur().at, "the argument '" + cur().text + "' is named twice");
        out->keywords.emplace_back(cur().text, nullptr);
        advance();
        advance();
        ORRERY_JINJA_TRY(parse_expression(&out->keywords.back().second));
      } else {
        if (out->star || out->double_star || !out->keywords.empty()) return misplaced();
        out->positional.emplace_back();
        ORRERY_JINJA_TRY(parse_expression(&out->positional.back()));
      }
    }
    return expect(TokenType::rparen);
  }

  bool parse_call(ExprPtr* e) {
    ExprPtr node = make(ExprKind::call, cur().at);
    ORRERY_JINJA_TRY(parse_arguments(&node->call));
    node->a = std::move(*e);
    return finish(std::move(node), e);
  }

  bool take_dotted_name(std::string* out) {
    ORRERY_JINJA_TRY(take_name(out));
    while (skip(TokenType::dot)) {
      std::string part;
      ORRERY_JINJA_TRY(take_name(&part));
      *out += "." + part;
    }
    return true;
  }

  // `| name(args)` any number of times. `inline_start`: the first filter has no bar, as in a filter block.
  bool parse_filters(ExprPtr* e, bool inline_start) {
    while (inline_start || at(TokenType::pipe)) {
      if (!inline_start) advance();
      inline_start = false;
      ExprPtr node = make(ExprKind::filter, cur().at);
      ORRERY_JINJA_TRY(take_dotted_name(&node->text));
      node->function = find_filter(node->text);
      if (node->function == kNoFunction) unknown_.push_back({node->at, "there is no filter '" + node->text + "'", false});
      if (at(TokenType::lparen)) ORRERY_JINJA_TRY(parse_arguments(&node->call));
      node->a = std::move(*e);
      ORRERY_JINJA_TRY(finish(std::move(node), e));
    }
    return true;
  }

  bool parse_test(ExprPtr* e) {
    ExprPtr node = make(ExprKind::test, cur().at);
    advance();
    const bool negated = skip_name("not");
    ORRERY_JINJA_TRY(take_dotted_name(&node->text));
    node->function = find_test(node->text);
    if (node->function == kNoFunction) unknown_.push_back({node->at, "there is no test '" + node->text + "'", false});
    if (at(TokenType::lparen)) {
      ORRERY_JINJA_TRY(parse_arguments(&node->call));
    } else if ((at(TokenType::name) && !at_name("else") && !at_name("or") && !at_name("and")) || at(TokenType::string) ||
               at(TokenType::integer) || at(TokenType::floating) || at(TokenType::lbracket) || at(TokenType::lbrace)) {
      if (at_name("is")) return fail(cur().at, "tests cannot be chained with 'is'");
      node->call.positional.emplace_back();
      ORRERY_JINJA_TRY(parse_primary(&node->call.positional.back()));
      ORRERY_JINJA_TRY(parse_postfix(&node->call.positional.back()));
    }
    node->a = std::move(*e);
    ExprPtr done;
    ORRERY_JINJA_TRY(finish(std::move(node), &done));
    if (!negated) {
      *e = std::move(done);
      return true;
    }
    ExprPtr inverse = make(ExprKind::not_, done->at);
    inverse->a = std::move(done);
    return finish(std::move(inverse), e);
  }

  StackRoom stack_;
  const std::vector<Token> tokens_;
  size_t pos_ = 0;
  std::shared_ptr<Program> program_;
  std::map<std::string, NameId, std::less<>> ids_;
  uint32_t nesting_ = 0;
  std::vector<Stmt*> macros_;     // the enclosing macros and callers
  std::vector<Unknown> unknown_;  // filters and tests that must exist
  Status status_;
};

#undef TRY

}  // namespace orrery::text::jinja
