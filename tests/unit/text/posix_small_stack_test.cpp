// The deepest templates, JSON texts and values on a thread with 64 KiB of stack, half of what musl gives a thread.
// Whatever needs more depth continues on a stack of its own (runtime/base/stack_room.h).
#include <gtest/gtest.h>
#include <pthread.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "runtime/os/stack_room.h"
#include "runtime/text/jinja/chat_template.h"
#include "runtime/text/json/json.h"

namespace orrery::text::posix_small_stack_test {
namespace {

// Frames of builds without optimization and of sanitizers are several times as large.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__)
constexpr size_t kStackBytes = 1 << 20;
#else
constexpr size_t kStackBytes = 64 << 10;
#endif

std::string repeat(const std::string& s, size_t n) {
  std::string out;
  for (size_t i = 0; i < n; ++i) out += s;
  return out;
}

// Runs `body` on such a stack, with a page below that ends the process when touched; returns how much was used.
template <class F>
size_t on_small_stack(const F& body) {
  constexpr size_t kGuard = 64 << 10;
  void* memory = mmap(nullptr, kGuard + kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EXPECT_NE(memory, MAP_FAILED);
  EXPECT_EQ(mprotect(memory, kGuard, PROT_NONE), 0);
  char* stack = static_cast<char*>(memory) + kGuard;
  std::memset(stack, 0x5A, kStackBytes);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  EXPECT_EQ(pthread_attr_setstack(&attributes, stack, kStackBytes), 0);
  pthread_t thread;
  const auto enter = [](void* f) -> void* {
    (*static_cast<const F*>(f))();
    return nullptr;
  };
  EXPECT_EQ(pthread_create(&thread, &attributes, enter, const_cast<F*>(&body)), 0);
  pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  size_t unused = 0;
  while (unused < kStackBytes && stack[unused] == 0x5A) ++unused;
  munmap(memory, kGuard + kStackBytes);
  return kStackBytes - unused;
}

Result<Text> render(const std::string& source) {
  ORRERY_ASSIGN(ChatTemplate t, ChatTemplate::compile(source));
  Map context;
  context.set("xs", Value::list({Value::integer(1)}));
  return t.render(Value::map(std::move(context)));
}

TEST(SmallStack, Templates) {
  const std::string nest =
      "{% set ns = namespace(x=[], y=[], t=(1,)) %}{% for i in range(149) %}{% set ns.x = [ns.x] %}"
      "{% set ns.y = [ns.y] %}{% endfor %}";
  const struct {
    std::string source;
    bool good;
  } cases[] = {
      {"{{ " + repeat("[", 70) + "1" + repeat("]", 70) + " }}", true},
      {"{{ " + repeat("[", 5000) + " }}", false},
      {"{{ " + repeat("(", 70) + "1" + repeat(")", 70) + " }}", true},
      {"{{ " + repeat("{1:", 70) + "1" + repeat("}", 70) + " }}", true},
      {"{{ " + repeat("not ", 140) + "1 }}", true},
      {"{{ " + repeat("-", 140) + "1 }}", true},
      {"{{ " + repeat("1 if 0 else ", 140) + "1 }}", true},
      {"{{ xs" + repeat("|list", 240) + " }}", true},
      {"{{ xs" + repeat("[0:]", 240) + " }}", true},
      {repeat("{% if 1 %}", 145) + "x" + repeat("{% endif %}", 145), true},
      {repeat("{% if x %}{% set y = 1 %}{% else %}", 145) + "x" + repeat("{% endif %}", 145), true},
      {repeat("{% for x in xs %}", 145) + "x" + repeat("{% endfor %}", 145), true},
      {repeat("{% set x %}", 145) + "x" + repeat("{% endset %}", 145), true},
      {repeat("{% filter upper %}", 145) + "x" + repeat("{% endfilter %}", 145), true},
      {repeat("{% with a = 1 %}", 145) + "x" + repeat("{% endwith %}", 145), true},
      {repeat("{% macro m() %}", 145) + "x" + repeat("{% endmacro %}", 145), true},
      {"{% set " + repeat("(", 140) + "a" + repeat(",)", 140) + " = " + repeat("[", 70) + "1" + repeat("]", 70) + " %}", false},
      {"{% macro m(n) %}{% if n %}{% if 1 %}{{ m(n - 1) }}{% endif %}{% endif %}{% endmacro %}{{ m(60) }}", true},
      {"{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}", false},
      {"{% macro m(n) %}{% if 1 %}{{ [[[m(n + 1) | upper]]] }}{% endif %}{% endmacro %}{{ m(0) }}", false},
      {"{% macro m() %}{{ caller() }}{% endmacro %}{% macro r() %}{% call m() %}{{ r() }}{% endcall %}{% endmacro %}{{ r() }}", false},
      {"{% for x in [xs] recursive %}{{ loop([x]) }}{% endfor %}", false},
      {"{{ [1]|map(" + repeat("'map', ", 400) + "'string')|list }}", true},
      {nest + "{{ ns.x }}", true},
      {nest + "{{ ns.x == ns.y }}{{ ns.x < ns.y }}{{ ns.x|tojson }}{{ [ns.x, ns.y]|sort|length }}", true},
      {"{% set ns = namespace(x=[]) %}{% for i in range(900) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x|tojson }}", true},
      {"{% set ns = namespace(x=[]) %}{% for i in range(100000) %}{% set ns.x = [ns.x] %}{% endfor %}", true},
      {"{% set ns = namespace(t=(1,)) %}{% for i in range(30) %}{% set ns.t = (ns.t,) %}{% endfor %}{{ {ns.t: 1}[ns.t] }}", true},
      {"{% set ns = namespace(t=(1,)) %}{% for i in range(900) %}{% set ns.t = (ns.t,) %}{% endfor %}{{ {ns.t: 1} }}", false},
      {"{{ '%.300f|%s|%r' % (1e300, xs, xs) }}{{ 1.5|round(300) }}{{ strftime_now('%c') }}{{ '{:>40.3f}'.format(2.5) }}", true},
      {"{{ 1 / 0 }}", false},
      {"{{ raise_exception('x' * 100000) }}", false},
  };
  size_t most = 0;
  for (const auto& c : cases) {
    const size_t used = on_small_stack([&] {
      const Result<Text> text = render(c.source);
      EXPECT_EQ(text.ok(), c.good) << c.source.substr(0, 100) << "\n" << (text.ok() ? "" : text.status().message());
    });
    if (used > kStackBytes * 3 / 4) ADD_FAILURE() << used << " bytes of stack: " << c.source.substr(0, 100);
    most = std::max(most, used);
  }
  RecordProperty("stack_bytes", static_cast<int>(most));
}

TEST(SmallStack, JsonAndValues) {
  const std::string lists = repeat("[", 199) + "1" + repeat("]", 199);
  const std::string maps = repeat("{\"key\": ", 199) + "1" + repeat("}", 199);
  const std::string deep = repeat("[", 100000);
  const size_t used = on_small_stack([&] {
    for (const std::string& text : {lists, maps}) {
      const Result<Value> a = parse_json(text), b = parse_json(text);
      ASSERT_TRUE(a.ok() && b.ok());
      EXPECT_EQ(dump_json(a.value()).value(), text);
      EXPECT_TRUE(a.value().equals(b.value()));
    }
    EXPECT_EQ(parse_json(deep).status().code(), Code::invalid_argument);
    Value v = Value::integer(1);
    for (int i = 0; i < 1000; ++i) v = Value::list({v});
    EXPECT_EQ(dump_json(v).value().size(), 2001u);
    EXPECT_EQ(dump_json(Value::list({v})).status().code(), Code::invalid_argument);
  });
  EXPECT_LE(used, kStackBytes * 3 / 4);
}

TEST(StackRoom, DescendsOnOtherStacksAndBack) {
  struct Descent {
    StackRoom room;
    size_t moved = 0;
    size_t down(size_t levels) {
      if (room.low()) {
        size_t result = 0;
        ++moved;
        EXPECT_TRUE(room.on_new_stack([&] { result = down(levels); }).ok());
        return result;
      }
      volatile char frame[500];
      frame[levels % 500] = 1;
      return levels == 1 ? static_cast<size_t>(frame[1]) : 1 + down(levels - 1);
    }
  };
  on_small_stack([] {
    Descent descent;
    EXPECT_EQ(descent.down(10), 10u);
    EXPECT_EQ(descent.moved, 0u);
    EXPECT_EQ(descent.down(5000), 5000u);  // more than one stack of a megabyte holds
    EXPECT_GT(descent.moved, 1u);
    EXPECT_FALSE(descent.room.low());
    try {  // an exception comes up through all of them
      struct Thrower {
        StackRoom room;
        void down(size_t levels) {
          if (room.low()) {
            const Status status = room.on_new_stack([&] { down(levels); });
            EXPECT_TRUE(status.ok());
            return;
          }
          volatile char frame[500];
          frame[levels % 500] = 1;
          if (levels == 0) throw std::runtime_error("the bottom");
          down(levels - 1);
          EXPECT_EQ(frame[levels % 500], 1);  // not the last thing: each level keeps its frame
        }
      } thrower;
      thrower.down(3000);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const std::runtime_error& e) {
      EXPECT_STREQ(e.what(), "the bottom");
    }
  });
}

}  // namespace
}  // namespace orrery::text::posix_small_stack_test
