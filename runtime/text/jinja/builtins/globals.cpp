// Functions that every template can call: range, namespace, dict, joiner, cycler, raise_exception,
// strftime_now.
#include <ctime>

#include "runtime/os/os.h"
#include "runtime/text/jinja/interpreter/interpreter.h"

namespace orrery::text::jinja {

#define TRY ORRERY_JINJA_TRY

namespace {

constexpr uint64_t kMaxRange = 100'000;  // Jinja2's sandbox has the same bound

bool range(Interp& in, Args& args, Value* out) {
  const Value* v[3];
  int64_t bounds[3] = {0, 0, 1};
  TRY(in.bind(args, "range", {"start", "stop", "step"}, 1, v, 3));
  for (size_t i = 0; i < 3; ++i)
    if (v[i] != nullptr) TRY(in.want_int(*v[i], "the bound of a range", &bounds[i]));
  if (v[1] == nullptr) {
    bounds[1] = bounds[0];
    bounds[0] = 0;
  }
  const int64_t start = bounds[0], stop = bounds[1], step = bounds[2];
  if (step == 0) return in.fail("the step of a range must not be zero");
  const auto distance = static_cast<uint64_t>(step > 0 ? stop : start) - static_cast<uint64_t>(step > 0 ? start : stop);
  const uint64_t stride = step > 0 ? static_cast<uint64_t>(step) : 0 - static_cast<uint64_t>(step);
  const bool empty = step > 0 ? start >= stop : start <= stop;
  const uint64_t count = empty ? 0 : (distance - 1) / stride + 1;
  if (count > kMaxRange) return in.fail("the range has more than the %llu items allowed", static_cast<unsigned long long>(kMaxRange));
  TRY(in.charge_items(count));
  std::vector<Value> items;
  items.reserve(count);
  auto at = static_cast<uint64_t>(start);
  for (uint64_t i = 0; i < count; ++i, at += static_cast<uint64_t>(step)) items.push_back(Value::integer(static_cast<int64_t>(at)));
  *out = Value::view(Value::ViewType::range, std::move(items), start, stop, step);
  return true;
}

// dict(mapping or pairs, name=value, ...)
bool fill_map(Interp& in, Args& args, const char* what, Map* map) {
  if (args.positional.size() > 1) return in.fail("%s takes at most one positional argument", what);
  if (!args.positional.empty()) {
    const Value& from = args.positional[0];
    if (from.is_map()) {
      TRY(in.charge_items(from.as_map().size() * 2) && in.step(from.as_map().size() * 4));
      *map = Map(from.as_map());
    } else {
      std::vector<Value> pairs;
      TRY(in.not_undefined(from) && in.items_of(from, &pairs));
      for (const Value& pair : pairs) {
        std::vector<Value> items;
        TRY(in.items_of(pair, &items));
        if (items.size() != 2) return in.fail("%s wants pairs", what);
        TRY(in.hash_check(items[0]) && in.step(8));
        map->set(items[0], items[1]);
      }
    }
  }
  TRY(in.charge_items(args.keywords.size() * 2));
  for (auto& keyword : args.keywords) map->set(keyword.first, std::move(keyword.second));
  return true;
}

bool dict(Interp& in, Args& args, Value* out) {
  Map map;
  TRY(fill_map(in, args, "dict", &map));
  *out = Value::map(std::move(map));
  return true;
}

bool name_space(Interp& in, Args& args, Value* out) {
  auto* ns = new NamespaceObject;
  const Value v = Value::object(ns);
  TRY(fill_map(in, args, "namespace", &ns->attributes) && in.charge(sizeof(NamespaceObject)));
  in.track(v);
  *out = v;
  return true;
}

bool joiner(Interp& in, Args& args, Value* out) {
  const Value* separator;
  TRY(in.bind(args, "joiner", {"sep"}, 0, &separator) && in.charge(sizeof(JoinerObject)));
  auto* j = new JoinerObject;
  *out = Value::object(j);
  j->separator = separator != nullptr ? *separator : Value::literal(", ");
  return true;
}

bool cycler(Interp& in, Args& args, Value* out) {
  if (args.positional.empty() || !args.keywords.empty()) return in.fail("cycler wants items to cycle through");
  TRY(in.charge(sizeof(CyclerObject)));
  auto* c = new CyclerObject;
  *out = Value::object(c);
  c->items = std::move(args.positional);
  return true;
}

bool raise_exception(Interp& in, Args& args, Value* out) {
  (void)out;
  const Value* message;
  TRY(in.bind(args, "raise_exception", {"message"}, 1, &message));
  Text text;
  TRY(in.text_of(*message, &text) && in.step(text.size() / 16));
  return in.raise(text.bytes());
}

// The C locale's names, because the application may have set another locale.
constexpr const char* kDays[] = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};
constexpr const char* kMonths[] = {"January", "February", "March",     "April",   "May",      "June",
                                   "July",    "August",   "September", "October", "November", "December"};

bool format_time(Interp& in, const std::tm& t, std::string_view how, std::string* out) {
  const auto name = [](const auto& names, int i) {
    constexpr int n = sizeof names / sizeof names[0];
    return std::string(names[i >= 0 && i < n ? i : 0]);
  };
  const int hour12 = t.tm_hour % 12 == 0 ? 12 : t.tm_hour % 12;
  for (size_t i = 0; i < how.size(); ++i) {
    if (how[i] != '%' || i + 1 == how.size()) {
      *out += how[i];
      continue;
    }
    bool plain = false;  // "%-d": without leading zero
    if (how[i + 1] == '-' && i + 2 < how.size()) {
      plain = true;
      ++i;
    }
    const auto two = [&](int v) { *out += format(plain ? "%d" : "%02d", v); };
    switch (how[++i]) {
      case 'a': *out += name(kDays, t.tm_wday).substr(0, 3); break;
      case 'A': *out += name(kDays, t.tm_wday); break;
      case 'b':
      case 'h': *out += name(kMonths, t.tm_mon).substr(0, 3); break;
      case 'B': *out += name(kMonths, t.tm_mon); break;
      case 'c': TRY(format_time(in, t, "%a %b %e %H:%M:%S %Y", out)); break;
      case 'd': two(t.tm_mday); break;
      case 'e': *out += format(plain ? "%d" : "%2d", t.tm_mday); break;
      case 'D':
      case 'x': TRY(format_time(in, t, "%m/%d/%y", out)); break;
      case 'F': TRY(format_time(in, t, "%Y-%m-%d", out)); break;
      case 'H': two(t.tm_hour); break;
      case 'I': two(hour12); break;
      case 'j': *out += format(plain ? "%d" : "%03d", t.tm_yday + 1); break;
      case 'm': two(t.tm_mon + 1); break;
      case 'M': two(t.tm_min); break;
      case 'n': *out += '\n'; break;
      case 'p': *out += t.tm_hour < 12 ? "AM" : "PM"; break;
      case 'R': TRY(format_time(in, t, "%H:%M", out)); break;
      case 'S': two(t.tm_sec); break;
      case 't': *out += '\t'; break;
      case 'T':
      case 'X': TRY(format_time(in, t, "%H:%M:%S", out)); break;
      case 'u': *out += format("%d", t.tm_wday == 0 ? 7 : t.tm_wday); break;
      case 'w': *out += format("%d", t.tm_wday); break;
      case 'y': two((t.tm_year + 1900) % 100); break;
      case 'Y': *out += format("%d", t.tm_year + 1900); break;
      case 'f': *out += "000000"; break;  // the clock is read in seconds
      case 'z':
      case 'Z': break;  // a local time without zone, as datetime.now() is
      case '%': *out += '%'; break;
      default: return in.fail("strftime_now does not know '%%%c'", how[i]);
    }
  }
  return true;
}

bool strftime_now(Interp& in, Args& args, Value* out) {
  const Value* how;
  TRY(in.bind(args, "strftime_now", {"format"}, 1, &how) && in.want_string(*how, "the format"));
  std::tm now{};
  if (in.now() != nullptr) {
    now = *in.now();
  } else {
    now = os::local_time(std::time(nullptr));
  }
  std::string text;
  TRY(in.charge(how->as_string().size() * 12) && in.step(how->as_string().size() * 4) && format_time(in, now, how->as_string(), &text));
  return in.string_value(Text::data(std::move(text)), out);
}

struct Global {
  const char* name;
  BuiltinFunction function;
};
constexpr Global kGlobals[] = {
    {"range", range},
    {"dict", dict},
    {"namespace", name_space},
    {"joiner", joiner},
    {"cycler", cycler},
    {"raise_exception", raise_exception},
    {"strftime_now", strftime_now},
};

}  // namespace

std::vector<std::string> global_names() {
  std::vector<std::string> out;
  for (const Global& g : kGlobals) out.push_back(g.name);
  return out;
}

Value global_function(std::string_view name) {
  for (const Global& g : kGlobals)
    if (name == g.name) return Value::object(new BuiltinObject(g.name, g.function));
  return Value();
}

}  // namespace orrery::text::jinja
