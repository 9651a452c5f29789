// Floating point, by the PTX manual. add, mul, fma, div, rcp and sqrt round as they say, once. ex2.approx and rcp.approx are
// approximations: off by as much as the manual allows (Settings::approximate), so that a kernel that relies on more than the manual's bound
// fails here.
#include <cmath>
#include <limits>

#include "tests/ptx/executor/half.h"
#include "tests/ptx/executor/lanes.h"

namespace orrery::ptx {

namespace {

// clang-format off
struct Add { template <class T> T operator()(T a, T b) const { return a + b; } };
struct Sub { template <class T> T operator()(T a, T b) const { return a - b; } };
struct Mul { template <class T> T operator()(T a, T b) const { return a * b; } };
struct Div { template <class T> T operator()(T a, T b) const { return a / b; } };
struct Fma { float operator()(float a, float b, float c) const { return __builtin_fmaf(a, b, c); }
             double operator()(double a, double b, double c) const { return __builtin_fma(a, b, c); } };
struct Rcp { template <class T> T operator()(T a) const { return T(1) / a; } };
struct Sqrt { template <class T> T operator()(T a) const { return std::sqrt(a); } };
struct Neg { uint32_t operator()(uint32_t a) const { return a ^ 0x80000000u; }
             uint64_t operator()(uint64_t a) const { return a ^ uint64_t{1} << 63; } };
struct Abs { uint32_t operator()(uint32_t a) const { return a & 0x7FFFFFFFu; }
             uint64_t operator()(uint64_t a) const { return a & ~(uint64_t{1} << 63); } };
// copysign.f32 d, a, b: the sign of a on b.
struct CopySign { uint32_t operator()(uint32_t a, uint32_t b) const { return (a & 0x80000000u) | (b & 0x7FFFFFFFu); }
                  uint64_t operator()(uint64_t a, uint64_t b) const { return (a & uint64_t{1} << 63) | (b & ~(uint64_t{1} << 63)); } };
// The other one of a NaN; -0 is less than +0.
struct Min { template <class T> T operator()(T a, T b) const {
  if (a != a) return b != b ? std::numeric_limits<T>::quiet_NaN() : b;
  if (b != b) return a;
  return a < b || (a == b && std::signbit(a)) ? a : b; } };
struct Max { template <class T> T operator()(T a, T b) const {
  if (a != a) return b != b ? std::numeric_limits<T>::quiet_NaN() : b;
  if (b != b) return a;
  return a > b || (a == b && std::signbit(b)) ? a : b; } };
// clang-format on

// The largest float that is not above s + rest, where rest is what a sum of doubles lost.
float rounded_down(double s, double rest) {
  const float f = static_cast<float>(s);
  if (std::isnan(s) || std::isinf(s)) return f;
  if (static_cast<double>(f) > s || (static_cast<double>(f) == s && rest < 0))
    return std::nextafter(f, -std::numeric_limits<float>::infinity());
  return f;
}
// a + b = the sum and what it lost (Knuth).
double sum_of(double a, double b, double* rest) {
  const double s = a + b, c = s - a;
  *rest = std::isfinite(s) ? (a - (s - c)) + (b - c) : 0;
  return s;
}
// clang-format off
struct FmaDown { float operator()(float a, float b, float c) const {
  double rest;
  const double product = static_cast<double>(a) * static_cast<double>(b);   // exact
  const double s = sum_of(product, static_cast<double>(c), &rest);
  if (s == 0 && rest == 0) return std::signbit(product) || std::signbit(c) ? -0.0f : 0.0f;
  return rounded_down(s, rest); } };
struct AddZero { float operator()(float a, float b) const {
  double rest;
  const double s = sum_of(static_cast<double>(a), static_cast<double>(b), &rest);
  if (s == 0) return static_cast<float>(s);
  return s > 0 ? rounded_down(s, rest) : -rounded_down(-s, -rest); } };
// clang-format on

// The upper halves alone take part: those of the argument and of the result, whose relative error is about 2^-20. Denormal numbers are
// zeros.
struct RcpOfUpper {
  double operator()(double a) const {
    const auto upper = [](double x) {
      return std::isnan(x)                                       ? x
             : std::fabs(x) < std::numeric_limits<double>::min() ? std::copysign(0.0, x)
                                                                 : bits_of<double>(bits_of<uint64_t>(x) >> 32 << 32);
    };
    return upper(1.0 / upper(a));
  }
};

float flushed(float x) { return std::fabs(x) < std::numeric_limits<float>::min() ? std::copysign(0.0f, x) : x; }

// 2^a. The manual: a relative error of at most 2^-22; exact for 0 and for the infinities.
template <bool kFlush>
void exp2_approx(Warp& w, const Instruction& i, uint32_t m) {
  float* d = w.lanes<float>(i.operand[0]);
  const float* a = w.lanes<const float>(i.operand[1]);
  const bool off = w.block->settings().approximate;
  for (unsigned l = 0; l < kLanes; ++l) {
    if (!(m >> l & 1)) continue;
    const float x = kFlush ? flushed(a[l]) : a[l];
    float y = static_cast<float>(std::exp2(static_cast<double>(x)));
    // One unit in the last place up or down, or none: by the argument, so that equal arguments have equal results.
    if (off && x != 0 && std::isnormal(y)) {
      const uint32_t third = bits_of<uint32_t>(x) * 2654435761u >> 16;
      const float moved = bits_of<float>(bits_of<uint32_t>(y) + third % 3 - 1);
      if (std::isnormal(moved)) y = moved;
    }
    d[l] = kFlush ? flushed(y) : y;
  }
}

// 1 / a of F32. The manual: a relative error of at most 2^-23, so either of the two floats beside the result will do.
void rcp_approx(Warp& w, const Instruction& i, uint32_t m) {
  float* d = w.lanes<float>(i.operand[0]);
  const float* a = w.lanes<const float>(i.operand[1]);
  const bool off = w.block->settings().approximate;
  for (unsigned l = 0; l < kLanes; ++l) {
    if (!(m >> l & 1)) continue;
    const float x = flushed(a[l]);
    const double exact = 1.0 / static_cast<double>(x);
    float y = static_cast<float>(exact);
    if (off && std::isnormal(y) && static_cast<double>(y) != exact && (bits_of<uint32_t>(x) * 2654435761u >> 31) != 0)
      y = std::nextafter(y,
                         static_cast<double>(y) < exact ? std::numeric_limits<float>::infinity() : -std::numeric_limits<float>::infinity());
    d[l] = flushed(y);
  }
}

// ---- pairs of halves. A float holds the exact result of one operation on two halves well enough to round it once.
template <class F>
void half_pairs(Warp& w, const Instruction& i, uint32_t m) {
  alignas(64) float a[2 * kLanes], b[2 * kLanes];
  alignas(64) uint16_t out[2 * kLanes];
  half_values(w.lanes<const uint16_t>(i.operand[1]), a, 2 * kLanes);
  half_values(w.lanes<const uint16_t>(i.operand[2]), b, 2 * kLanes);
  for (unsigned l = 0; l < 2 * kLanes; ++l) a[l] = F{}(a[l], b[l]);
  nearest_halves(a, out, 2 * kLanes);
  uint32_t* d = w.lanes<uint32_t>(i.operand[0]);
  for (unsigned l = 0; l < kLanes; ++l)
    if (m >> l & 1) std::memcpy(&d[l], &out[2 * l], 4);
}

// ---- comparisons: false of a NaN; with u, true.
// clang-format off
struct Eq { template <class T> bool operator()(T a, T b) const { return a == b; } };
struct Ne { template <class T> bool operator()(T a, T b) const { return a < b || a > b; } };
struct Lt { template <class T> bool operator()(T a, T b) const { return a < b; } };
struct Le { template <class T> bool operator()(T a, T b) const { return a <= b; } };
struct Gt { template <class T> bool operator()(T a, T b) const { return a > b; } };
struct Ge { template <class T> bool operator()(T a, T b) const { return a >= b; } };
struct Nan { template <class T> bool operator()(T a, T b) const { return a != a || b != b; } };
template <class F>
struct OrNan { template <class T> bool operator()(T a, T b) const { return F{}(a, b) || a != a || b != b; } };
struct Num { template <class T> bool operator()(T a, T b) const { return a == a && b == b; } };
// clang-format on

template <class T>
void add_compares(Table* t, const std::string& type, const std::string& operands, Class counted) {
  const auto add = [&](const std::string& relation, Execute f) { (*t)["setp." + relation + "." + type] = {operands, counted, f}; };
  add("eq", compare<Eq, T>), add("ne", compare<Ne, T>), add("lt", compare<Lt, T>), add("le", compare<Le, T>);
  add("gt", compare<Gt, T>), add("ge", compare<Ge, T>), add("equ", compare<OrNan<Eq>, T>), add("neu", compare<OrNan<Ne>, T>);
  add("ltu", compare<OrNan<Lt>, T>), add("leu", compare<OrNan<Le>, T>), add("gtu", compare<OrNan<Gt>, T>),
      add("geu", compare<OrNan<Ge>, T>);
  add("nan", compare<Nan, T>), add("num", compare<Num, T>);
}
template <class T, class Bits>
void add_width(Table* t, const std::string& type, const std::string& c, Class counted) {
  const std::string one = c + "=" + c, two = one + c, three = two + c;
  const auto add = [&](const std::string& name, const std::string& operands, Execute f) {
    (*t)[name + "." + type] = {operands, counted, f};
  };
  for (const std::string rounding : {"", ".rn"}) {
    add("add" + rounding, two, binary<Add, T, T>);
    add("sub" + rounding, two, binary<Sub, T, T>);
    add("mul" + rounding, two, binary<Mul, T, T>);
  }
  add("fma.rn", three, ternary<Fma, T, T>);
  add("div.rn", two, binary<Div, T, T>);
  add("rcp.rn", one, unary<Rcp, T, T>);
  add("sqrt.rn", one, unary<Sqrt, T, T>);
  add("neg", one, unary<Neg, Bits, Bits>);
  add("abs", one, unary<Abs, Bits, Bits>);
  add("copysign", two, binary<CopySign, Bits, Bits>);
  add("min", two, binary<Min, T, T>);
  add("max", two, binary<Max, T, T>);
  add_compares<T>(t, type, "p=" + c + c, counted);
}

}  // namespace

void add_floating(Table* table) {
  add_width<float, uint32_t>(table, "f32", "w", Class::single);
  add_width<double, uint64_t>(table, "f64", "q", Class::twice);
  (*table)["rcp.approx.ftz.f64"] = {"q=q", Class::twice, unary<RcpOfUpper, double, double>};
  (*table)["fma.rm.f32"] = {"w=www", Class::single, ternary<FmaDown, float, float>};
  (*table)["add.rz.f32"] = {"w=ww", Class::single, binary<AddZero, float, float>};
  (*table)["ex2.approx.ftz.f32"] = {"w=w", Class::single, exp2_approx<true>};
  (*table)["ex2.approx.f32"] = {"w=w", Class::single, exp2_approx<false>};
  (*table)["rcp.approx.ftz.f32"] = {"w=w", Class::single, rcp_approx};
  (*table)["add.f16x2"] = {"w=ww", Class::half, half_pairs<Add>};
  (*table)["sub.f16x2"] = {"w=ww", Class::half, half_pairs<Sub>};
  (*table)["mul.f16x2"] = {"w=ww", Class::half, half_pairs<Mul>};
}

}  // namespace orrery::ptx
