// One Names per scope. The walk visits a scope's statements in order without entering inner scopes. Inner scopes
// follow when the outer scope is complete, because they look their names up in the outer scope.
#include "runtime/text/jinja/syntax/scopes.h"

#include <map>
#include <set>

#include "runtime/os/stack_room.h"

namespace orrery::text::jinja {

namespace {

constexpr uint64_t kMaxWork = 5'000'000;

struct Names {
  const Names* parent = nullptr;
  uint64_t* work = nullptr;  // names copied and visited so far in the whole template
  StackRoom* stack = nullptr;
  std::map<NameId, bool> refs;  // names known in this scope; true: undefined when the scope opens
  std::set<NameId> stores;

  bool known_outside(NameId id) const {
    for (const Names* n = parent; n != nullptr; n = n->parent)
      if (n->refs.count(id) != 0) return true;
    return false;
  }
  void load(NameId id) {
    if (refs.count(id) == 0 && !known_outside(id)) refs[id] = false;
  }
  void store(NameId id) {
    stores.insert(id);
    if (refs.count(id) == 0) refs[id] = !known_outside(id);
  }
  void parameter(NameId id) {
    stores.insert(id);
    refs[id] = false;
  }
  // After an `if`: a name that not all three kinds of branches assign keeps its earlier value.
  void merge(const Names (&branches)[3]) {
    std::map<NameId, int> counts;
    for (const Names& b : branches)
      for (NameId id : b.stores)
        if (stores.count(id) == 0) ++counts[id];
    for (const Names& b : branches) {
      for (const auto& ref : b.refs) refs[ref.first] = ref.second;
      stores.insert(b.stores.begin(), b.stores.end());
    }
    for (const auto& [id, count] : counts)
      if (count != 3) refs[id] = false;
  }
  std::vector<NameId> hidden() const {
    std::vector<NameId> out;
    for (const auto& ref : refs)
      if (ref.second) out.push_back(ref.first);
    return out;
  }
};

// Continues on a new stack if this one is nearly full. If the system starts no thread, the template counts as too
// complex.
template <class F>
__attribute__((noinline)) void elsewhere(const Names& names, const F& level) {
  if (!names.stack->on_new_stack(level).ok()) *names.work = kMaxWork + 1;
}

void read(const Expr* e, Names* names) {
  if (e == nullptr) return;
  if (names->stack->low()) return elsewhere(*names, [&] { read(e, names); });
  if (e->kind == ExprKind::name) names->load(e->name);
  read(e->a.get(), names);
  read(e->b.get(), names);
  read(e->c.get(), names);
  for (const ExprPtr& item : e->items) read(item.get(), names);
  for (const ExprPtr& arg : e->call.positional) read(arg.get(), names);
  for (const auto& keyword : e->call.keywords) read(keyword.second.get(), names);
  read(e->call.star.get(), names);
  read(e->call.double_star.get(), names);
}

void write(const Target& target, bool as_parameter, Names* names) {
  if (names->stack->low()) return elsewhere(*names, [&] { write(target, as_parameter, names); });
  if (target.kind == Target::attribute) names->load(target.id);
  else if (target.kind == Target::tuple)
    for (const Target& item : target.items) write(item, as_parameter, names);
  else if (as_parameter) names->parameter(target.id);
  else names->store(target.id);
}

void visit(const Body& body, Names* names);

void visit(const Stmt& s, Names* names) {
  if (names->stack->low()) return elsewhere(*names, [&] { visit(s, names); });
  switch (s.kind) {
    case StmtKind::if_: {
      *names->work += 3 * (names->refs.size() + names->stores.size()) + s.branches.size();
      if (*names->work > kMaxWork) return;
      read(s.branches[0].first.get(), names);
      Names branches[3] = {*names, *names, *names};  // if, every elif, else
      for (size_t i = 0; i < s.branches.size(); ++i) {
        Names* branch = &branches[i == 0 ? 0 : (s.branches[i].first ? 1 : 2)];
        if (i != 0) read(s.branches[i].first.get(), branch);
        visit(s.branches[i].second, branch);
      }
      names->merge(branches);
      break;
    }
    case StmtKind::set:
    case StmtKind::set_block:
      if (s.kind == StmtKind::set) read(s.expr.get(), names);
      write(s.target, false, names);
      break;
    case StmtKind::macro: names->store(s.name); break;
    case StmtKind::with:
      for (const auto& binding : s.bindings) read(binding.second.get(), names);
      break;
    default: read(s.expr.get(), names);  // output, for, call, filter: the expression is evaluated outside their own scope
  }
}

void visit(const Body& body, Names* names) {
  for (const StmtPtr& s : body) visit(*s, names);
}

void open_scopes(const Body& body, const Names& around);

void open_scope(const Stmt& s, Names* names, const Body& body, std::vector<NameId>* hidden) {
  for (const Param& p : s.params) names->parameter(p.id);
  for (const Param& p : s.params) read(p.fallback.get(), names);
  visit(body, names);
  *hidden = names->hidden();
  open_scopes(body, *names);
}

void open_scopes(const Body& body, const Names& around) {
  if (around.stack->low()) return elsewhere(around, [&] { open_scopes(body, around); });
  for (const StmtPtr& s : body) {
    Names names, other;
    names.parent = other.parent = &around;
    names.work = other.work = around.work;
    names.stack = other.stack = around.stack;
    switch (s->kind) {
      case StmtKind::if_:
        for (const auto& branch : s->branches) open_scopes(branch.second, around);
        break;
      case StmtKind::for_:
        names.parameter(kLoop);
        write(s->target, true, &names);
        open_scope(*s, &names, s->body, &s->hidden);
        open_scope(*s, &other, s->else_body, &s->else_hidden);
        break;
      case StmtKind::macro:
      case StmtKind::call_block:
        if (s->uses_caller) names.parameter(kCaller);
        if (s->uses_kwargs) names.parameter(kKwargs);
        if (s->uses_varargs) names.parameter(kVarargs);
        open_scope(*s, &names, s->body, &s->hidden);
        break;
      case StmtKind::with:
        for (const auto& binding : s->bindings) write(binding.first, true, &names);
        open_scope(*s, &names, s->body, &s->hidden);
        break;
      case StmtKind::set_block:
      case StmtKind::filter_block:
      case StmtKind::generation: open_scope(*s, &names, s->body, &s->hidden); break;
      default: break;
    }
  }
}

}  // namespace

bool find_hidden_names(Program* program) {
  uint64_t work = 0;
  StackRoom stack;
  Names root;
  root.work = &work;
  root.stack = &stack;
  visit(program->body, &root);
  program->hidden = root.hidden();
  open_scopes(program->body, root);
  return work <= kMaxWork;
}

}  // namespace orrery::text::jinja
