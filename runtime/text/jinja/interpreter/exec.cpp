// Statements, scopes and calls of macros. A scope is a short list of variables with a link to the outer scope. A for
// loop opens one per iteration, a macro opens one per call. Scopes are reused, except for a scope in which a macro
// was defined, because the macro may outlive it.
#include <cstdarg>
#include <cstdio>

#include "runtime/text/jinja/interpreter/interpreter.h"

namespace orrery::text::jinja {

#define TRY ORRERY_JINJA_TRY

Interp::Interp(const Program& program, const Value& context, const TemplateLimits& limits, const std::tm* now)
    : program_(program), limits_(limits), now_(now) {
  base_.reserve(program.names.size());
  for (const std::string& name : program.names) {
    const Value* given = context.find(name);
    base_.push_back(given != nullptr ? *given : global_function(name));
  }
}

Interp::~Interp() {
  // A scope that a macro captured holds that macro. Clearing the variables first breaks every such cycle.
  for (const auto& env : envs_) env->vars.clear();
  for (const Value& v : tracked_) {
    if (v.is_list()) v.clear();
    else static_cast<NamespaceObject*>(as_mutable_object(v))->attributes = Map();
  }
}

Result<Text> Interp::run() {
  bool done;
  {
    Scope scope(this, nullptr, program_.hidden);
    out_ = &output_;
    Flow flow = Flow::normal;
    done = run_body(program_.body, &flow);
  }
  if (!done) return std::move(status_);
  return std::move(output_);
}

bool Interp::fail(const char* fmt, ...) {
  if (!status_.ok()) return false;  // the first failure is the cause
  char buffer[512];
  va_list args;
  va_start(args, fmt);
  std::vsnprintf(buffer, sizeof buffer, fmt, args);
  va_end(args);
  status_ = template_error(at_, buffer);
  return false;
}

bool Interp::raise(std::string message) {
  ErrorDetail detail;
  detail.code = Code::invalid_argument;
  detail.message = std::move(message);
  detail.line = at_.line;
  detail.column = at_.column;
  status_ = Status(std::move(detail));
  return false;
}

bool Interp::step(uint64_t count) {
  steps_ += count;
  if (steps_ <= limits_.max_steps && count <= limits_.max_steps)
    return !is_cancelled(limits_.cancel) || stop(error(Code::cancelled, "the chat template was cancelled"));
  exhausted_ = true;
  return fail("the template takes more than the %llu steps allowed", static_cast<unsigned long long>(limits_.max_steps));
}

bool Interp::charge(uint64_t bytes) {
  if (bytes <= limits_.max_work_bytes && work_bytes_ + bytes <= limits_.max_work_bytes) {
    work_bytes_ += bytes;
    return true;
  }
  exhausted_ = true;
  fail("the template makes more than the %llu bytes of text and lists allowed", static_cast<unsigned long long>(limits_.max_work_bytes));
  if (status_.detail().bytes_requested == 0) {
    status_.detail().bytes_requested = bytes;
    status_.detail().bytes_available = limits_.max_work_bytes - work_bytes_;
  }
  return false;
}

bool Interp::stop(Status status) {
  if (!status_.ok()) return false;
  exhausted_ = true;
  status_ = std::move(status);
  status_.detail().line = at_.line;
  status_.detail().column = at_.column;
  return false;
}

bool Interp::too_deep() { return fail("evaluation is nested deeper than the %u levels allowed", limits_.max_depth); }

// --- scopes ---

Interp::Scope::Scope(Interp* interp, Env* parent, const std::vector<NameId>& hidden) : interp_(interp), saved_(interp->env_) {
  if (interp->free_ == nullptr) {
    interp->envs_.push_back(std::make_unique<Env>());
    env_ = interp->envs_.back().get();
  } else {
    env_ = interp->free_;
    interp->free_ = env_->next_free;
  }
  env_->parent = parent;
  interp->env_ = env_;
  for (NameId id : hidden) env_->vars.emplace_back(id, Value());
}

Interp::Scope::~Scope() {
  interp_->env_ = saved_;
  if (env_->captured) return;
  env_->vars.clear();
  env_->next_free = interp_->free_;  // the list links the scopes themselves, because a destructor must not allocate
  interp_->free_ = env_;
}

void Interp::set_variable(NameId id, Value v) {
  steps_ += env_->vars.size() / 8;  // the next step() looks at the sum
  for (auto& var : env_->vars) {
    if (var.first == id) {
      var.second = std::move(v);
      return;
    }
  }
  env_->vars.emplace_back(id, std::move(v));
}

bool Interp::assign(const Target& target, const Value& v) {
  if (stack_.low()) return elsewhere([&] { return assign(target, v); });
  at_ = target.at;
  switch (target.kind) {
    case Target::name: set_variable(target.id, v); return true;
    case Target::attribute: {
      Value ns;
      lookup(target.id, &ns);
      if (!is_object(ns, ObjectType::name_space)) return fail("only a namespace's attributes can be assigned to");
      TRY(charge(2 * sizeof(Value)));
      static_cast<NamespaceObject*>(as_mutable_object(ns))->attributes.set(target.attribute_name, v);
      return true;
    }
    case Target::tuple: break;
  }
  std::vector<Value> items;
  TRY(items_of(v, &items));
  if (items.size() != target.items.size()) return fail("cannot unpack %zu values into %zu names", items.size(), target.items.size());
  for (size_t i = 0; i < items.size(); ++i) TRY(assign(target.items[i], items[i]));
  return true;
}

bool Interp::emit(TextView text) {
  TRY(step(text.size() / 16) && charge(text.n_changes() * 4));
  if (out_ != &output_) {
    TRY(charge(text.size()));
  } else if (const uint64_t bytes = uint64_t{output_.size()} + text.size(); bytes > limits_.max_output_bytes) {
    return stop(memory_error(Code::context_full, bytes, limits_.max_output_bytes,
                             "chat template, line %u, column %u: the text is longer than the %llu bytes allowed", at_.line, at_.column,
                             static_cast<unsigned long long>(limits_.max_output_bytes)));
  }
  out_->append(text);
  return true;
}

// --- statements ---

bool Interp::run_body(const Body& body, Flow* flow) {
  for (const StmtPtr& s : body) {
    TRY(run_statement(*s, flow));
    if (*flow != Flow::normal) break;
  }
  return true;
}

bool Interp::run_statement(const Stmt& s, Flow* flow) {
  if (stack_.low()) return elsewhere([&] { return run_statement(s, flow); });
  Deeper deeper(this);
  at_ = s.at;
  TRY(deeper.ok() && step());
  switch (s.kind) {
    case StmtKind::data: return emit(TextView(s.text, Origin::chat_template));
    case StmtKind::output: {
      Value v;
      TRY(eval(*s.expr, &v));
      if (v.is_string()) return emit(v.as_text());
      Text text;
      TRY(text_of(v, &text));
      return emit(text);
    }
    case StmtKind::if_:
      for (const auto& branch : s.branches) {
        if (branch.first) {
          Value v;
          TRY(eval(*branch.first, &v));
          if (!truth(v)) continue;
        }
        return run_body(branch.second, flow);
      }
      return true;
    case StmtKind::for_: {
      Value iterable;
      TRY(eval(*s.expr, &iterable));
      at_ = s.at;
      return run_for(s, iterable, env_, 0);
    }
    case StmtKind::set: {
      Value v;
      TRY(eval(*s.expr, &v));
      return assign(s.target, v);
    }
    case StmtKind::set_block:
    case StmtKind::filter_block:
    case StmtKind::generation: {
      Text text;
      TRY(capture(s, &text, flow));
      if (*flow != Flow::normal) return true;
      Value v;
      TRY(string_value(std::move(text), &v));
      if (s.expr) {
        const Value input = v;
        const Value* outer = std::exchange(block_input_, &input);
        const bool filtered = eval(*s.expr, &v);
        block_input_ = outer;
        TRY(filtered);
      }
      if (s.kind == StmtKind::set_block) return assign(s.target, v);
      text = Text();
      TRY(text_of(v, &text));
      return emit(text);
    }
    case StmtKind::macro: {
      Value macro;
      make_macro(s, &macro);
      set_variable(s.name, std::move(macro));
      return true;
    }
    case StmtKind::call_block: return run_call_block(s);
    case StmtKind::with: return run_with(s, flow);
    case StmtKind::break_: *flow = Flow::break_loop; return true;
    case StmtKind::continue_: *flow = Flow::continue_loop; return true;
  }
  return true;
}

bool Interp::run_with(const Stmt& s, Flow* flow) {
  std::vector<Value> values(s.bindings.size());
  for (size_t i = 0; i < values.size(); ++i) TRY(eval(*s.bindings[i].second, &values[i]));
  Scope scope(this, env_, s.hidden);
  for (size_t i = 0; i < values.size(); ++i) TRY(assign(s.bindings[i].first, values[i]));
  return run_body(s.body, flow);
}

bool Interp::capture(const Stmt& s, Text* text, Flow* flow) {
  Scope scope(this, env_, s.hidden);
  Text* outer = std::exchange(out_, text);
  const bool done = run_body(s.body, flow);
  out_ = outer;
  return done;
}

// --- loops ---

bool Interp::run_for(const Stmt& s, const Value& iterable, Env* outer, uint32_t depth) {
  auto* loop = new LoopObject;
  const Value loop_value = Value::object(loop);
  loop->statement = &s;
  loop->outer = outer;
  loop->depth = depth;
  TRY(items_of(iterable, &loop->items));
  Flow flow = Flow::normal;
  bool completed = false;  // Jinja2's else also runs if every iteration ended by break or continue
  for (size_t index = 0; flow != Flow::break_loop; ++index) {
    bool more;
    TRY(loop_has(*loop, index, &more));
    if (!more) break;
    flow = Flow::normal;
    loop->index = index;
    Scope scope(this, outer, s.hidden);
    set_variable(kLoop, loop_value);
    TRY(assign(s.target, loop_item(*loop, index)) && step());
    TRY(run_body(s.body, &flow));
    completed = completed || flow == Flow::normal;
  }
  loop->running = false;
  if (completed || s.else_body.empty()) return true;
  Scope scope(this, outer, s.else_hidden);
  flow = Flow::normal;
  return run_body(s.else_body, &flow);
}

bool Interp::loop_has(LoopObject& loop, size_t index, bool* out) {
  if (!loop.filtered()) {
    *out = index < loop.items.size();
    return true;
  }
  while (loop.chosen.size() <= index && loop.source < loop.items.size() && loop.running) {
    const Value& candidate = loop.items[loop.source++];
    Scope scope(this, loop.outer, {});
    Value keep;
    TRY(assign(loop.statement->target, candidate));
    TRY(eval(*loop.statement->condition, &keep));
    if (truth(keep)) loop.chosen.push_back(candidate);
  }
  *out = index < loop.chosen.size();
  return true;
}

bool Interp::loop_length(LoopObject& loop, int64_t* out) {
  bool more = true;
  if (loop.filtered())
    for (size_t i = loop.chosen.size(); more; ++i) TRY(loop_has(loop, i, &more));
  *out = static_cast<int64_t>(loop.filtered() ? loop.chosen.size() : loop.items.size());
  return true;
}

bool Interp::call_loop(const Value& value, Args& args, Value* out) {
  const auto& loop = *static_cast<const LoopObject*>(as_object(value));
  if (!loop.statement->recursive) return fail("only the loop of a 'for ... recursive' can be called");
  if (!loop.running) return fail("the loop is called after its end");
  const Value* iterable = nullptr;
  TRY(bind(args, "loop", {"iterable"}, 1, &iterable));
  Text text;
  Text* outer = std::exchange(out_, &text);
  const bool done = run_for(*loop.statement, *iterable, loop.outer, loop.depth + 1);
  out_ = outer;
  return done && string_value(std::move(text), out);
}

// --- macros ---

void Interp::make_macro(const Stmt& s, Value* out) {
  for (Env* env = env_; env != nullptr && !env->captured; env = env->parent) env->captured = true;
  *out = Value::object(new MacroObject(&s, env_));
}

bool Interp::run_call_block(const Stmt& s) {
  Value callee, caller, result;
  Args args;
  TRY(eval(*s.expr->a, &callee) && eval_args(s.expr->call, &args));
  at_ = s.expr->at;
  for (const auto& keyword : args.keywords)
    if (keyword.first == "caller") return fail("'caller' is given twice");
  make_macro(s, &caller);
  args.keywords.emplace_back("caller", std::move(caller));
  TRY(call(callee, args, &result));
  Text text;
  TRY(text_of(result, &text));
  return emit(text);
}

bool Interp::call_macro(const MacroObject& macro, Args& args, Value* out) {
  const Stmt& s = *macro.definition;
  TRY(charge(sizeof(Env) + 64));
  Scope scope(this, macro.closure, s.hidden);
  const auto take_keyword = [&args, this](const std::string& name, Value* v) {
    steps_ += args.keywords.size() / 4;
    for (size_t i = 0; i < args.keywords.size(); ++i) {
      if (args.keywords[i].first != name) continue;
      *v = std::move(args.keywords[i].second);
      args.keywords.erase(args.keywords.begin() + static_cast<std::ptrdiff_t>(i));
      return true;
    }
    return false;
  };
  // All arguments are placed before the first default is evaluated, because a default may use other arguments.
  std::vector<bool> missing(s.params.size(), false);
  bool named_caller = false;
  for (size_t i = 0; i < s.params.size(); ++i) {
    Value v;
    if (s.params[i].id == kCaller) named_caller = true;
    if (i < args.positional.size()) v = args.positional[i];
    else missing[i] = !take_keyword(program_.names[s.params[i].id], &v);
    if (!missing[i]) set_variable(s.params[i].id, std::move(v));
    TRY(step());
  }
  if (s.uses_caller && !named_caller) {
    Value v;
    if (!take_keyword("caller", &v)) v = Value::undefined("there is no caller");
    set_variable(kCaller, std::move(v));
  }
  if (s.uses_kwargs) {
    Map rest;
    for (auto& keyword : args.keywords) rest.set(keyword.first, std::move(keyword.second));
    set_variable(kKwargs, Value::map(std::move(rest)));
  } else if (!args.keywords.empty()) {
    return fail("macro '%s' takes no argument named '%s'", s.text.c_str(), args.keywords[0].first.c_str());
  }
  if (s.uses_varargs) {
    std::vector<Value> rest;
    for (size_t i = s.params.size(); i < args.positional.size(); ++i) rest.push_back(args.positional[i]);
    set_variable(kVarargs, Value::tuple(std::move(rest)));
  } else if (args.positional.size() > s.params.size()) {
    return fail("macro '%s' takes %zu arguments, %zu were given", s.text.c_str(), s.params.size(), args.positional.size());
  }
  for (size_t i = 0; i < s.params.size(); ++i) {
    if (!missing[i]) continue;
    const std::string& name = program_.names[s.params[i].id];
    Value v = Value::undefined("parameter '" + name + "' was not provided");
    if (s.params[i].fallback) TRY(eval(*s.params[i].fallback, &v));
    set_variable(s.params[i].id, std::move(v));
  }
  Text text;
  Text* outer = std::exchange(out_, &text);
  const Value* outer_input = std::exchange(block_input_, nullptr);
  Flow flow = Flow::normal;
  const bool done = run_body(s.body, &flow);
  out_ = outer;
  block_input_ = outer_input;
  return done && string_value(std::move(text), out);
}

}  // namespace orrery::text::jinja
