// Statements: tags with their bodies, on top of the expression parser. The nesting during parsing and the height of
// the tree are bounded for every template.
//
// An unknown filter or test inside an `if` fails only when it is reached, as in Jinja2, because templates probe for
// features that way.
#include "runtime/text/jinja/syntax/parser.h"

#include <algorithm>
#include <set>

#include "runtime/text/jinja/syntax/expression_parser.h"
#include "runtime/text/jinja/syntax/scopes.h"

namespace orrery::text::jinja {

namespace {

#define TRY ORRERY_JINJA_TRY

class Parser : ExpressionParser {
 public:
  explicit Parser(std::vector<Token> tokens) : ExpressionParser(std::move(tokens)) {}

  Result<std::shared_ptr<const Program>> run() {
    if (!parse_body({}, &program_->body)) return std::move(status_);
    if (!unknown_.empty()) return template_error(unknown_[0].at, unknown_[0].message);
    if (!find_hidden_names(program_.get())) return template_error({}, "the template is too complex");
    return std::shared_ptr<const Program>(std::move(program_));
  }

 private:
  using Names = std::initializer_list<std::string_view>;

  // --- statements ---

  // Parses until one of `ends`, which stays the current token. Without ends, parses to the end of the template.
  bool parse_body(Names ends, Body* out) {
    while (true) {
      const Position where = cur().at;
      switch (cur().type) {
        case TokenType::data: {
          auto s = StmtPtr(new Stmt);
          s->kind = StmtKind::data;
          s->at = where;
          s->text = cur().text;
          out->push_back(std::move(s));
          advance();
          break;
        }
        case TokenType::variable_begin: {
          advance();
          auto s = StmtPtr(new Stmt);
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
  // Parses `%} body {% end`. The end stays the current token.
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
  // As parse_block(), for bodies that Jinja2 compiles as functions: break and continue inside do not reach the loops
  // outside.
  bool parse_function_body(std::string_view end, Body* out) {
    const uint32_t loops = std::exchange(loops_, 0);
    const bool done = parse_block_to(end, out);
    loops_ = loops;
    return done;
  }

  bool parse_statement(Body* out) {
    if (stack_.low()) return elsewhere([&] { return parse_statement(out); });
    Nested nested(this);
    TRY(nested.ok());
    if (!at(TokenType::name)) return fail(cur().at, "expected the name of a tag, found " + found());
    const std::string tag = cur().text;
    auto s = StmtPtr(new Stmt);
    s->at = cur().at;
    advance();
    const size_t unknown_before = unknown_.size();
    if (tag == "if") TRY(parse_if(s.get()));
    else if (tag == "for") TRY(parse_for(s.get()));
    else if (tag == "set") TRY(parse_set(s.get()));
    else if (tag == "macro") TRY(parse_macro(s.get()));
    else if (tag == "call") TRY(parse_call_block(s.get()));
    else if (tag == "filter") TRY(parse_filter_block(s.get()));
    else if (tag == "with") TRY(parse_with(s.get()));
    else if (tag == "print") return parse_print(std::move(s), out);
    else if (tag == "generation") {
      s->kind = StmtKind::generation;
      TRY(parse_function_body("endgeneration", &s->body));
    } else if (tag == "break" || tag == "continue") {
      if (loops_ == 0) return fail(s->at, "'" + tag + "' outside of a loop");
      s->kind = tag == "break" ? StmtKind::break_ : StmtKind::continue_;
    } else {
      for (std::string_view known : {"extends", "include", "import", "from", "block", "autoescape", "do", "trans"})
        if (tag == known) return fail(s->at, "the tag '" + tag + "' is not supported");
      return fail(s->at, "unknown or misplaced tag '" + tag + "'");
    }
    if (tag != "if" && s->kind != StmtKind::set) make_inner(unknown_before);
    out->push_back(std::move(s));
    return true;
  }

  bool parse_print(StmtPtr s, Body* out) {
    const Position where = s->at;
    bool first = true;
    while (!at(TokenType::block_end)) {
      if (!first) TRY(expect(TokenType::comma));
      first = false;
      auto part = StmtPtr(new Stmt);
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
    forgive(unknown_before);
    return true;
  }

  static bool assigns(const Target& target, NameId id) {
    return target.kind == Target::tuple
               ? std::any_of(target.items.begin(), target.items.end(), [id](const Target& t) { return assigns(t, id); })
               : target.id == id;
  }

  bool parse_for(Stmt* s) {
    s->kind = StmtKind::for_;
    TRY(parse_target(&s->target, false, "in"));
    if (assigns(s->target, kLoop)) return fail(s->target.at, "'loop' cannot be a loop's own variable");
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
    std::set<NameId> named;
    while (!at(TokenType::rparen)) {
      if (!s->params.empty()) TRY(expect(TokenType::comma));
      const Position where = cur().at;
      Param param;
      std::string name;
      TRY(take_name(&name));
      TRY(check_assignable(name, where));
      param.id = intern(name);
      if (!named.insert(param.id).second) return fail(where, "the parameter '" + name + "' is named twice");
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

  // Parses `a`, `ns.a`, `a, b`, `(a, b)`. `end`: a name that ends the target.
  bool parse_target(Target* out, bool with_attribute, std::string_view end) {
    std::vector<Target> items;
    const Position where = cur().at;
    bool comma = false;
    while (true) {
      if (at(TokenType::variable_end) || at(TokenType::block_end) || at(TokenType::rparen) || (!end.empty() && at_name(end))) break;
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
    if (stack_.low()) return elsewhere([&] { return parse_target_item(out, with_attribute); });
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

  uint32_t loops_ = 0;  // enclosing loops in the same function
};

}  // namespace

Result<std::shared_ptr<const Program>> parse(std::string_view source) {
  ORRERY_ASSIGN(std::vector<Token> tokens, tokenize(source));
  return Parser(std::move(tokens)).run();
}

}  // namespace orrery::text::jinja
