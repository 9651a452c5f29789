// Each parse_ function consumes its construct and returns false after recording the first error.  Nesting
// while parsing and the height of the tree are bounded, whatever the template does.
//
// An unknown filter or test inside an `if` only fails when it is reached, as in Jinja2: templates probe for
// features that way.
#include "runtime/text/jinja_parser.h"

#include <algorithm>
#include <charconv>
#include <map>

#include "runtime/text/jinja_functions.h"

namespace orrery::text::jinja {

namespace {

constexpr uint32_t kMaxNesting = 150;  // of syntax while parsing
constexpr uint32_t kMaxHeight = 250;   // of an expression's tree

#define TRY(expr)              \
  do {                         \
    if (!(expr)) return false; \
  } while (0)

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens)
      : tokens_(std::move(tokens)), program_(std::make_shared<Program>()) {
    for (const char* name : {"loop", "caller", "varargs", "kwargs"}) intern(name);
  }

  Result<std::shared_ptr<const Program>> run() {
    if (!parse_body({}, &program_->body)) return std::move(status_);
    if (!unknown_.empty()) return template_error(unknown_[0].first, unknown_[0].second);
    return std::shared_ptr<const Program>(std::move(program_));
  }

 private:
  using Names = std::initializer_list<std::string_view>;

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
  std::string found() const {
    return at(TokenType::name) ? "'" + cur().text + "'" : std::string(describe(cur().type));
  }
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

  // Counts one level of nesting for as long as it lives.
  struct Nested {
    explicit Nested(Parser* p) : parser(p) { ++parser->nesting_; }
    ~Nested() { --parser->nesting_; }
    bool ok() const {
      return parser->nesting_ <= kMaxNesting ||
             parser->fail(parser->cur().at, "the template is nested too deeply");
    }
    Parser* parser;
  };

  ExprPtr make(ExprKind kind, Position where) const {
    auto e = std::make_unique<Expr>();
    e->kind = kind;
    e->at = where;
    return e;
  }
  // To be called when all children of `e` are in place.
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

  // --- statements ---

  // Until one of `ends` (left as the current token) or, without ends, the end of the template.
  bool parse_body(Names ends, Body* out) {
    while (true) {
      const Position where = cur().at;
      switch (cur().type) {
        case TokenType::data: {
          auto s = std::make_unique<Stmt>();
          s->kind = StmtKind::data;
          s->at = where;
          s->text = cur().text;
          out->push_back(std::move(s));
          advance();
          break;
        }
        case TokenType::variable_begin: {
          advance();
          auto s = std::make_unique<Stmt>();
          s->kind = StmtKind::output;
          s->at = where;
          TRY(parse_tuple(&s->expr));
          TRY(expect(TokenType::variable_end));
          out->push_back(std::move(s));
          break;
        }
        case TokenType::block_begin: {
          advance();
          if (at(TokenType::name))
            for (std::string_view end : ends)
              if (cur().text == end) return true;
          TRY(parse_statement(out));
          TRY(expect(TokenType::block_end));
          break;
        }
        default:
          if (ends.size() == 0) return true;
          return fail(where, "the template ends where '" + std::string(*(ends.end() - 1)) + "' is missing");
      }
    }
  }
  // `%} body {% end`, the end left as the current token.
  bool parse_block(Names ends, Body* out) {
    skip(TokenType::colon);
    TRY(expect(TokenType::block_end));
    return parse_body(ends, out);
  }
  bool parse_block_to(std::string_view end, Body* out) {
    TRY(parse_block({end}, out));
    advance();
    return true;
  }
  // The same for the bodies that Jinja2 compiles as scopes of their own, where break and continue do not
  // reach out when they are functions.
  bool parse_function_body(std::string_view end, Body* out) {
    const uint32_t loops = std::exchange(loops_, 0);
    const bool done = parse_block_to(end, out);
    loops_ = loops;
    return done;
  }

  bool parse_statement(Body* out) {
    Nested nested(this);
    TRY(nested.ok());
    if (!at(TokenType::name)) return fail(cur().at, "expected the name of a tag, found " + found());
    const std::string tag = cur().text;
    auto s = std::make_unique<Stmt>();
    s->at = cur().at;
    advance();
    if (tag == "if")
      TRY(parse_if(s.get()));
    else if (tag == "for")
      TRY(parse_for(s.get()));
    else if (tag == "set")
      TRY(parse_set(s.get()));
    else if (tag == "macro")
      TRY(parse_macro(s.get()));
    else if (tag == "call")
      TRY(parse_call_block(s.get()));
    else if (tag == "filter")
      TRY(parse_filter_block(s.get()));
    else if (tag == "with")
      TRY(parse_with(s.get()));
    else if (tag == "print")
      return parse_print(std::move(s), out);
    else if (tag == "generation") {
      s->kind = StmtKind::generation;
      TRY(parse_function_body("endgeneration", &s->body));
    } else if (tag == "break" || tag == "continue") {
      if (loops_ == 0) return fail(s->at, "'" + tag + "' outside of a loop");
      s->kind = tag == "break" ? StmtKind::break_ : StmtKind::continue_;
    } else {
      for (std::string_view known :
           {"extends", "include", "import", "from", "block", "autoescape", "do", "trans"})
        if (tag == known) return fail(s->at, "the tag '" + tag + "' is not supported");
      return fail(s->at, "unknown or misplaced tag '" + tag + "'");
    }
    out->push_back(std::move(s));
    return true;
  }

  bool parse_print(StmtPtr s, Body* out) {
    const Position where = s->at;
    bool first = true;
    while (!at(TokenType::block_end)) {
      if (!first) TRY(expect(TokenType::comma));
      first = false;
      auto part = std::make_unique<Stmt>();
      part->kind = StmtKind::output;
      part->at = where;
      TRY(parse_expression(&part->expr));
      out->push_back(std::move(part));
    }
    return true;
  }

  bool parse_if(Stmt* s) {
    s->kind = StmtKind::if_;
    const size_t unknown_before = unknown_.size();
    while (true) {
      s->branches.emplace_back();
      TRY(parse_tuple(&s->branches.back().first, /*with_condition=*/false));
      TRY(parse_block({"elif", "else", "endif"}, &s->branches.back().second));
      const std::string end = cur().text;
      advance();
      if (end == "elif") continue;
      if (end == "else") {
        s->branches.emplace_back();
        TRY(parse_block_to("endif", &s->branches.back().second));
      }
      break;
    }
    unknown_.resize(unknown_before);
    return true;
  }

  bool parse_for(Stmt* s) {
    s->kind = StmtKind::for_;
    TRY(parse_target(&s->target, false, "in"));
    TRY(expect_name("in"));
    TRY(parse_tuple(&s->expr, /*with_condition=*/false, "recursive"));
    if (skip_name("if")) TRY(parse_expression(&s->condition));
    s->recursive = skip_name("recursive");
    ++loops_;
    const bool body = parse_block({"endfor", "else"}, &s->body);
    --loops_;
    TRY(body);
    const std::string end = cur().text;
    advance();
    if (end == "else") TRY(parse_block_to("endfor", &s->else_body));
    return true;
  }

  bool parse_set(Stmt* s) {
    TRY(parse_target(&s->target, true, ""));
    if (skip(TokenType::assign)) {
      s->kind = StmtKind::set;
      return parse_tuple(&s->expr);
    }
    s->kind = StmtKind::set_block;
    TRY(parse_filters(&s->expr, false));
    return parse_block_to("endset", &s->body);
  }

  bool parse_with(Stmt* s) {
    s->kind = StmtKind::with;
    while (!at(TokenType::block_end)) {
      if (!s->bindings.empty()) TRY(expect(TokenType::comma));
      s->bindings.emplace_back();
      TRY(parse_target(&s->bindings.back().first, false, ""));
      TRY(expect(TokenType::assign));
      TRY(parse_expression(&s->bindings.back().second));
    }
    return parse_block_to("endwith", &s->body);
  }

  bool parse_signature(Stmt* s) {
    TRY(expect(TokenType::lparen));
    bool fallbacks = false;
    while (!at(TokenType::rparen)) {
      if (!s->params.empty()) TRY(expect(TokenType::comma));
      const Position where = cur().at;
      Param param;
      std::string name;
      TRY(take_name(&name));
      TRY(check_assignable(name, where));
      param.id = intern(name);
      for (const Param& other : s->params)
        if (other.id == param.id) return fail(where, "the parameter '" + name + "' is named twice");
      if (skip(TokenType::assign)) {
        TRY(parse_expression(&param.fallback));
        fallbacks = true;
      } else if (fallbacks) {
        return fail(where, "a parameter without default follows one with a default");
      }
      s->params.push_back(std::move(param));
    }
    return expect(TokenType::rparen);
  }

  bool parse_macro_body(Stmt* s, std::string_view end) {
    macros_.push_back(s);
    const bool done = parse_function_body(end, &s->body);
    macros_.pop_back();
    return done;
  }

  bool parse_macro(Stmt* s) {
    s->kind = StmtKind::macro;
    const Position where = cur().at;
    TRY(take_name(&s->text));
    TRY(check_assignable(s->text, where));
    s->name = intern(s->text);
    TRY(parse_signature(s));
    return parse_macro_body(s, "endmacro");
  }

  bool parse_call_block(Stmt* s) {
    s->kind = StmtKind::call_block;
    s->text = "caller";
    if (at(TokenType::lparen)) TRY(parse_signature(s));
    TRY(parse_expression(&s->expr));
    if (s->expr->kind != ExprKind::call) return fail(s->at, "'call' wants the call of a macro");
    return parse_macro_body(s, "endcall");
  }

  bool parse_filter_block(Stmt* s) {
    s->kind = StmtKind::filter_block;
    TRY(parse_filters(&s->expr, true));
    return parse_block_to("endfilter", &s->body);
  }

  bool check_assignable(const std::string& name, Position where) {
    for (std::string_view constant : {"true", "false", "none", "True", "False", "None"})
      if (name == constant) return fail(where, "'" + name + "' cannot be assigned to");
    return true;
  }

  // `a`, `ns.a`, `a, b`, `(a, b)`.  `end`: a name that ends the target.
  bool parse_target(Target* out, bool with_attribute, std::string_view end) {
    std::vector<Target> items;
    const Position where = cur().at;
    bool comma = false;
    while (true) {
      if (at(TokenType::variable_end) || at(TokenType::block_end) || at(TokenType::rparen) ||
          (!end.empty() && at_name(end)))
        break;
      items.emplace_back();
      TRY(parse_target_item(&items.back(), with_attribute));
      if (!skip(TokenType::comma)) break;
      comma = true;
    }
    if (items.empty()) return fail(where, "expected something to assign to, found " + found());
    if (!comma) {
      *out = std::move(items[0]);
      return true;
    }
    out->kind = Target::tuple;
    out->at = where;
    out->items = std::move(items);
    return true;
  }

  bool parse_target_item(Target* out, bool with_attribute) {
    Nested nested(this);
    TRY(nested.ok());
    out->at = cur().at;
    if (skip(TokenType::lparen)) {
      TRY(parse_target(out, false, ""));
      return expect(TokenType::rparen);
    }
    std::string name;
    TRY(take_name(&name));
    TRY(check_assignable(name, out->at));
    out->id = intern(name);
    if (with_attribute && skip(TokenType::dot)) {
      out->kind = Target::attribute;
      return take_name(&out->attribute_name);
    }
    return true;
  }

  // --- expressions ---

  bool parse_expression(ExprPtr* out) { return parse_condition(out); }

  bool parse_tuple(ExprPtr* out, bool with_condition = true, std::string_view end = {},
                   bool parentheses = false) {
    const Position where = cur().at;
    std::vector<ExprPtr> items;
    bool comma = false;
    while (true) {
      if (at(TokenType::variable_end) || at(TokenType::block_end) || at(TokenType::rparen) ||
          (!end.empty() && at_name(end)))
        break;
      ExprPtr item;
      TRY(with_condition ? parse_condition(&item) : parse_or(&item));
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
    Nested nested(this);
    TRY(nested.ok());
    const Position where = cur().at;
    const size_t unknown_before = unknown_.size();
    ExprPtr value;
    TRY(parse_or(&value));
    while (skip_name("if")) {
      ExprPtr e = make(ExprKind::condition, where);
      e->b = std::move(value);
      TRY(parse_or(&e->a));
      if (skip_name("else")) TRY(parse_condition(&e->c));
      TRY(finish(std::move(e), &value));
      unknown_.resize(unknown_before);
    }
    *out = std::move(value);
    return true;
  }

  // Chains `next` by the name `word` into one flat node.
  bool parse_logic(ExprKind kind, std::string_view word, bool (Parser::*operand)(ExprPtr*), ExprPtr* out) {
    const Position where = cur().at;
    ExprPtr first;
    TRY((this->*operand)(&first));
    if (!at_name(word)) {
      *out = std::move(first);
      return true;
    }
    ExprPtr e = make(kind, where);
    e->items.push_back(std::move(first));
    while (skip_name(word)) {
      ExprPtr item;
      TRY((this->*operand)(&item));
      e->items.push_back(std::move(item));
    }
    return finish(std::move(e), out);
  }
  bool parse_or(ExprPtr* out) { return parse_logic(ExprKind::or_, "or", &Parser::parse_and, out); }
  bool parse_and(ExprPtr* out) { return parse_logic(ExprKind::and_, "and", &Parser::parse_not, out); }

  bool parse_not(ExprPtr* out) {
    if (!at_name("not")) return parse_compare(out);
    Nested nested(this);
    TRY(nested.ok());
    ExprPtr e = make(ExprKind::not_, cur().at);
    advance();
    TRY(parse_not(&e->a));
    return finish(std::move(e), out);
  }

  bool compare_op(Op* op) {
    switch (cur().type) {
      case TokenType::eq:
        *op = Op::eq;
        break;
      case TokenType::ne:
        *op = Op::ne;
        break;
      case TokenType::lt:
        *op = Op::lt;
        break;
      case TokenType::le:
        *op = Op::le;
        break;
      case TokenType::gt:
        *op = Op::gt;
        break;
      case TokenType::ge:
        *op = Op::ge;
        break;
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
      default:
        return false;
    }
    advance();
    return true;
  }
  bool sum_op(Op* op) {
    if (at(TokenType::add))
      *op = Op::add;
    else if (at(TokenType::sub))
      *op = Op::sub;
    else
      return false;
    advance();
    return true;
  }
  bool product_op(Op* op) {
    if (at(TokenType::mul))
      *op = Op::mul;
    else if (at(TokenType::div))
      *op = Op::div;
    else if (at(TokenType::floordiv))
      *op = Op::floordiv;
    else if (at(TokenType::mod))
      *op = Op::mod;
    else
      return false;
    advance();
    return true;
  }
  bool power_op(Op* op) {
    *op = Op::pow;
    return skip(TokenType::pow);
  }

  bool parse_chain(ExprKind kind, bool (Parser::*op)(Op*), bool (Parser::*operand)(ExprPtr*), ExprPtr* out) {
    const Position where = cur().at;
    ExprPtr first;
    TRY((this->*operand)(&first));
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
      TRY((this->*operand)(&item));
      e->items.push_back(std::move(item));
    } while ((this->*op)(&found_op));
    return finish(std::move(e), out);
  }
  bool parse_compare(ExprPtr* out) {
    return parse_chain(ExprKind::compare, &Parser::compare_op, &Parser::parse_sum, out);
  }
  bool parse_sum(ExprPtr* out) {
    return parse_chain(ExprKind::binary, &Parser::sum_op, &Parser::parse_concat, out);
  }
  bool parse_product(ExprPtr* out) {
    return parse_chain(ExprKind::binary, &Parser::product_op, &Parser::parse_power, out);
  }
  bool parse_power(ExprPtr* out) {
    return parse_chain(ExprKind::binary, &Parser::power_op, &Parser::parse_unary_filtered, out);
  }
  bool parse_concat(ExprPtr* out) {  // binds tighter than + and -
    const Position where = cur().at;
    ExprPtr first;
    TRY(parse_product(&first));
    if (!at(TokenType::tilde)) {
      *out = std::move(first);
      return true;
    }
    ExprPtr e = make(ExprKind::concat, where);
    e->items.push_back(std::move(first));
    while (skip(TokenType::tilde)) {
      ExprPtr item;
      TRY(parse_product(&item));
      e->items.push_back(std::move(item));
    }
    return finish(std::move(e), out);
  }

  bool parse_unary_filtered(ExprPtr* out) { return parse_unary(true, out); }

  bool parse_unary(bool with_filter, ExprPtr* out) {
    Nested nested(this);
    TRY(nested.ok());
    ExprPtr e;
    if (at(TokenType::sub) || at(TokenType::add)) {
      ExprPtr sign = make(at(TokenType::sub) ? ExprKind::negate : ExprKind::plus, cur().at);
      advance();
      TRY(parse_unary(false, &sign->a));
      TRY(finish(std::move(sign), &e));
    } else {
      TRY(parse_primary(&e));
    }
    TRY(parse_postfix(&e));
    while (with_filter) {
      if (at(TokenType::pipe))
        TRY(parse_filters(&e, false));
      else if (at_name("is"))
        TRY(parse_test(&e));
      else if (at(TokenType::lparen))
        TRY(parse_call(&e));  // after a filter or a test
      else
        break;
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
        if (name == "true" || name == "True")
          e->value = Value::boolean(true);
        else if (name == "false" || name == "False")
          e->value = Value::boolean(false);
        else if (name == "none" || name == "None")
          e->value = Value::none();
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
        e->value = Value::string(std::move(text));
        break;
      }
      case TokenType::integer:
        advance();
        TRY(parse_integer(token, &e->value));
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
        TRY(parse_tuple(out, true, {}, true));
        return expect(TokenType::rparen);
      case TokenType::lbracket:
        advance();
        e->kind = ExprKind::list;
        while (!at(TokenType::rbracket)) {
          if (!e->items.empty()) TRY(expect(TokenType::comma));
          if (at(TokenType::rbracket)) break;
          e->items.emplace_back();
          TRY(parse_expression(&e->items.back()));
        }
        advance();
        break;
      case TokenType::lbrace:
        advance();
        e->kind = ExprKind::dict;
        while (!at(TokenType::rbrace)) {
          if (!e->items.empty()) TRY(expect(TokenType::comma));
          if (at(TokenType::rbrace)) break;
          e->items.emplace_back();
          TRY(parse_expression(&e->items.back()));
          TRY(expect(TokenType::colon));
          e->items.emplace_back();
          TRY(parse_expression(&e->items.back()));
        }
        advance();
        break;
      default:
        return fail(token.at, "expected an expression, found " + found());
    }
    return finish(std::move(e), out);
  }

  bool parse_postfix(ExprPtr* e) {
    while (true) {
      if (at(TokenType::dot))
        TRY(parse_attribute(e));
      else if (at(TokenType::lbracket))
        TRY(parse_subscript(e));
      else if (at(TokenType::lparen))
        TRY(parse_call(e));
      else
        return true;
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
    if (!at(TokenType::integer))
      return fail(cur().at, "expected a name or number after '.', found " + found());
    ExprPtr node = make(ExprKind::item, where);
    node->a = std::move(*e);
    TRY(parse_primary(&node->b));
    return finish(std::move(node), e);
  }

  bool parse_subscript(ExprPtr* e) {
    const Position where = cur().at;
    advance();
    if (at(TokenType::rbracket)) return fail(where, "expected an index");
    ExprPtr node = make(ExprKind::item, where);
    node->a = std::move(*e);
    ExprPtr first;
    if (!at(TokenType::colon)) TRY(parse_expression(&first));
    if (at(TokenType::colon)) {
      node->kind = ExprKind::slice;
      node->items.push_back(std::move(first));
      for (int part = 0; part < 2; ++part) {
        ExprPtr bound;
        if (skip(TokenType::colon) && !at(TokenType::colon) && !at(TokenType::rbracket))
          TRY(parse_expression(&bound));
        node->items.push_back(std::move(bound));
      }
    } else if (at(TokenType::comma)) {
      ExprPtr tuple = make(ExprKind::tuple, where);
      tuple->items.push_back(std::move(first));
      while (!at(TokenType::rbracket)) {
        TRY(expect(TokenType::comma));
        tuple->items.emplace_back();
        TRY(parse_expression(&tuple->items.back()));
      }
      TRY(finish(std::move(tuple), &node->b));
    } else {
      node->b = std::move(first);
    }
    TRY(expect(TokenType::rbracket));
    return finish(std::move(node), e);
  }

  bool parse_arguments(CallSyntax* out) {
    const Position where = cur().at;
    TRY(expect(TokenType::lparen));
    bool comma = false;
    const auto misplaced = [&] { return fail(where, "arguments are in the wrong order"); };
    while (!at(TokenType::rparen)) {
      if (comma) {
        TRY(expect(TokenType::comma));
        if (at(TokenType::rparen)) break;
      }
      comma = true;
      if (skip(TokenType::mul)) {
        if (out->star || out->double_star) return misplaced();
        TRY(parse_expression(&out->star));
      } else if (skip(TokenType::pow)) {
        if (out->double_star) return misplaced();
        TRY(parse_expression(&out->double_star));
      } else if (at(TokenType::name) && next().type == TokenType::assign) {
        if (out->double_star) return misplaced();
        for (const auto& other : out->keywords)
          if (other.first == cur().text)
            return fail(cur().at, "the argument '" + cur().text + "' is named twice");
        out->keywords.emplace_back(cur().text, nullptr);
        advance();
        advance();
        TRY(parse_expression(&out->keywords.back().second));
      } else {
        if (out->star || out->double_star || !out->keywords.empty()) return misplaced();
        out->positional.emplace_back();
        TRY(parse_expression(&out->positional.back()));
      }
    }
    return expect(TokenType::rparen);
  }

  bool parse_call(ExprPtr* e) {
    ExprPtr node = make(ExprKind::call, cur().at);
    TRY(parse_arguments(&node->call));
    node->a = std::move(*e);
    return finish(std::move(node), e);
  }

  bool take_dotted_name(std::string* out) {
    TRY(take_name(out));
    while (skip(TokenType::dot)) {
      std::string part;
      TRY(take_name(&part));
      *out += "." + part;
    }
    return true;
  }

  // `| name(args)` any number of times; `inline_start`: the first one without its bar, as in a filter block.
  bool parse_filters(ExprPtr* e, bool inline_start) {
    while (inline_start || at(TokenType::pipe)) {
      if (!inline_start) advance();
      inline_start = false;
      ExprPtr node = make(ExprKind::filter, cur().at);
      TRY(take_dotted_name(&node->text));
      node->function = find_filter(node->text);
      if (node->function == kNoFunction)
        unknown_.emplace_back(node->at, "there is no filter '" + node->text + "'");
      if (at(TokenType::lparen)) TRY(parse_arguments(&node->call));
      node->a = std::move(*e);
      TRY(finish(std::move(node), e));
    }
    return true;
  }

  bool parse_test(ExprPtr* e) {
    ExprPtr node = make(ExprKind::test, cur().at);
    advance();
    const bool negated = skip_name("not");
    TRY(take_dotted_name(&node->text));
    node->function = find_test(node->text);
    if (node->function == kNoFunction)
      unknown_.emplace_back(node->at, "there is no test '" + node->text + "'");
    if (at(TokenType::lparen)) {
      TRY(parse_arguments(&node->call));
    } else if ((at(TokenType::name) && !at_name("else") && !at_name("or") && !at_name("and")) ||
               at(TokenType::string) || at(TokenType::integer) || at(TokenType::floating) ||
               at(TokenType::lbracket) || at(TokenType::lbrace)) {
      if (at_name("is")) return fail(cur().at, "tests cannot be chained with 'is'");
      node->call.positional.emplace_back();
      TRY(parse_primary(&node->call.positional.back()));
      TRY(parse_postfix(&node->call.positional.back()));
    }
    node->a = std::move(*e);
    ExprPtr done;
    TRY(finish(std::move(node), &done));
    if (!negated) {
      *e = std::move(done);
      return true;
    }
    ExprPtr inverse = make(ExprKind::not_, done->at);
    inverse->a = std::move(done);
    return finish(std::move(inverse), e);
  }

  const std::vector<Token> tokens_;
  size_t pos_ = 0;
  std::shared_ptr<Program> program_;
  std::map<std::string, NameId, std::less<>> ids_;
  uint32_t nesting_ = 0;
  uint32_t loops_ = 0;                                     // loops around, inside the same function
  std::vector<Stmt*> macros_;                              // macros and callers around
  std::vector<std::pair<Position, std::string>> unknown_;  // filters and tests that must exist
  Status status_;
};

}  // namespace

Result<std::shared_ptr<const Program>> parse(std::string_view source) {
  ORRERY_ASSIGN(std::vector<Token> tokens, tokenize(source));
  return Parser(std::move(tokens)).run();
}

}  // namespace orrery::text::jinja
