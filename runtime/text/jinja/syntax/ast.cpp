// Frees a syntax tree in a loop over a list that links the dead nodes themselves. Freeing takes neither stack nor
// memory, whatever the tree's height.
#include "runtime/text/jinja/syntax/ast.h"

namespace orrery::text::jinja {

void ExprDeleter::operator()(Expr* root) const noexcept {
  Expr* dead = root;
  const auto take = [&dead](ExprPtr& child) {
    if (Expr* e = child.release()) {
      e->next_dead = dead;
      dead = e;
    }
  };
  while (Expr* e = dead) {
    dead = e->next_dead;
    take(e->a), take(e->b), take(e->c);
    for (ExprPtr& item : e->items) take(item);
    for (ExprPtr& arg : e->call.positional) take(arg);
    for (auto& keyword : e->call.keywords) take(keyword.second);
    take(e->call.star), take(e->call.double_star);
    delete e;
  }
}

void StmtDeleter::operator()(Stmt* root) const noexcept {
  Stmt* dead = root;
  const auto take = [&dead](Body& body) {
    for (StmtPtr& child : body) {
      Stmt* s = child.release();
      if (s == nullptr) continue;
      s->next_dead = dead;
      dead = s;
    }
  };
  while (Stmt* s = dead) {
    dead = s->next_dead;
    for (auto& branch : s->branches) take(branch.second);
    take(s->body), take(s->else_body);
    delete s;
  }
}

}  // namespace orrery::text::jinja
