// cvt, cvta, and mov with packing. A source register may be wider than the type that is read of it; then its low bits are read.
#include <cmath>
#include <limits>

#include "tests/ptx/executor/half.h"
#include "tests/ptx/executor/lanes.h"

namespace orrery::ptx {

namespace {

// To integers: NaN gives 0; what is too large or too small gives the end of the range.
template <class T, class F>
T clamped(F x) {
  if (x != x) return 0;
  const double low = static_cast<double>(std::numeric_limits<T>::min()), high = std::ldexp(1.0, std::numeric_limits<T>::digits);
  if (static_cast<double>(x) < low) return std::numeric_limits<T>::min();
  if (static_cast<double>(x) >= high) return std::numeric_limits<T>::max();
  return static_cast<T>(x);
}
// clang-format off
template <class T> struct Truncate { template <class F> T operator()(F x) const { return clamped<T>(std::trunc(x)); } };
template <class T> struct Nearest { template <class F> T operator()(F x) const { return clamped<T>(std::nearbyint(x)); } };
template <class T> struct Floor { template <class F> T operator()(F x) const { return clamped<T>(std::floor(x)); } };
template <class T> struct Ceil { template <class F> T operator()(F x) const { return clamped<T>(std::ceil(x)); } };
struct TruncateFloat { template <class F> F operator()(F x) const { return std::trunc(x); } };
struct NearestFloat { template <class F> F operator()(F x) const { return std::nearbyint(x); } };
struct FloorFloat { template <class F> F operator()(F x) const { return std::floor(x); } };
struct CeilFloat { template <class F> F operator()(F x) const { return std::ceil(x); } };
// To floating point, rounded to nearest.
template <class F> struct To { template <class T> F operator()(T x) const { return static_cast<F>(x); } };
// .sat: into [0, 1], and NaN to 0.
struct Saturate { float operator()(float x) const { return x > 0.0f ? (x < 1.0f ? x : 1.0f) : 0.0f; } };
// clang-format on

// Integers: the low bits of a register of R, read as A, in a register of D.
template <class D, class A, class R>
void integer(Warp& w, const Instruction& i, uint32_t m) {
  D* d = w.lanes<D>(i.operand[0]);
  const R* a = w.lanes<const R>(i.operand[1]);
  for (unsigned l = 0; l < kLanes; ++l) d[l] = m >> l & 1 ? static_cast<D>(static_cast<A>(a[l])) : d[l];
}

void half_to_float(Warp& w, const Instruction& i, uint32_t m) {
  alignas(64) float out[kLanes];
  half_values(w.lanes<const uint16_t>(i.operand[1]), out, kLanes);
  float* d = w.lanes<float>(i.operand[0]);
  for (unsigned l = 0; l < kLanes; ++l) d[l] = m >> l & 1 ? out[l] : d[l];
}
void float_to_half(Warp& w, const Instruction& i, uint32_t m) {
  alignas(64) uint16_t out[kLanes];
  nearest_halves(w.lanes<const float>(i.operand[1]), out, kLanes);
  uint16_t* d = w.lanes<uint16_t>(i.operand[0]);
  for (unsigned l = 0; l < kLanes; ++l) d[l] = m >> l & 1 ? out[l] : d[l];
}
template <Rounding kRounding>
struct HalfOf {
  uint16_t operator()(float x) const { return half_of(x, kRounding); }
};
// cvt.rn.f16x2.f32 d, a, b: a is the upper half.
void floats_to_pair(Warp& w, const Instruction& i, uint32_t m) {
  alignas(64) uint16_t high[kLanes], low[kLanes];
  nearest_halves(w.lanes<const float>(i.operand[1]), high, kLanes);
  nearest_halves(w.lanes<const float>(i.operand[2]), low, kLanes);
  uint32_t* d = w.lanes<uint32_t>(i.operand[0]);
  for (unsigned l = 0; l < kLanes; ++l) d[l] = m >> l & 1 ? static_cast<uint32_t>(high[l]) << 16 | low[l] : d[l];
}

// clang-format off
struct Same { template <class T> T operator()(T x) const { return x; } };
struct ToShared { uint64_t operator()(uint64_t a) const { return a - kSharedWindow; } };
struct FromShared { uint64_t operator()(uint64_t a) const { return a + kSharedWindow; } };
struct ToLocal { uint64_t operator()(uint64_t a) const { return a - kLocalWindow; } };
struct FromLocal { uint64_t operator()(uint64_t a) const { return a + kLocalWindow; } };
// clang-format on

template <class W, class P>  // a register of W as two of P
void unpack(Warp& w, const Instruction& i, uint32_t m) {
  const W* a = w.lanes<const W>(i.operand[2]);
  P *low = w.lanes<P>(i.operand[0]), *high = w.lanes<P>(i.operand[1]);
  for (unsigned l = 0; l < kLanes; ++l) {
    const W value = a[l];
    low[l] = m >> l & 1 ? static_cast<P>(value) : low[l];
    high[l] = m >> l & 1 ? static_cast<P>(value >> 8 * sizeof(P)) : high[l];
  }
}
template <class W, class P>
struct Pack {
  W operator()(P low, P high) const { return static_cast<W>(low | static_cast<W>(high) << 8 * sizeof(P)); }
};

// mov from a special register.
enum class Special { tid, ntid, ctaid, nctaid };
template <Special kWhich, int kAxis>
void special(Warp& w, const Instruction& i, uint32_t m) {
  const auto axis = [](const Dim3& d) { return kAxis == 0 ? d.x : kAxis == 1 ? d.y : d.z; };
  const Dim3 block = w.block->launch.block;
  uint32_t* d = w.lanes<uint32_t>(i.operand[0]);
  for (unsigned l = 0; l < kLanes; ++l) {
    if (!(m >> l & 1)) continue;
    const uint32_t t = w.index * kLanes + l;
    const Dim3 thread{t % block.x, t / block.x % block.y, t / block.x / block.y};
    d[l] = kWhich == Special::tid     ? axis(thread)
           : kWhich == Special::ntid  ? axis(block)
           : kWhich == Special::ctaid ? axis(w.block->index)
                                      : axis(w.block->launch.grid);
  }
}
void lane_id(Warp& w, const Instruction& i, uint32_t m) {
  uint32_t* d = w.lanes<uint32_t>(i.operand[0]);
  for (unsigned l = 0; l < kLanes; ++l) d[l] = m >> l & 1 ? l : d[l];
}
template <Special kWhich>
void add_special(Table* t, const std::string& name) {
  (*t)["mov.u32 %" + name + ".x"] = {"w=", Class::move, special<kWhich, 0>};
  (*t)["mov.u32 %" + name + ".y"] = {"w=", Class::move, special<kWhich, 1>};
  (*t)["mov.u32 %" + name + ".z"] = {"w=", Class::move, special<kWhich, 2>};
}

template <class D>
void add_integer_cvt(Table* t, const std::string& to, const std::string& d) {
  const auto add = [&](const std::string& from, const std::string& operands, Execute f) {
    (*t)["cvt." + to + "." + from + " " + operands] = {d + "=" + operands, Class::convert, f};
  };
  add("u8", "h", integer<D, uint8_t, uint16_t>), add("s8", "h", integer<D, int8_t, uint16_t>);
  add("u8", "w", integer<D, uint8_t, uint32_t>), add("s8", "w", integer<D, int8_t, uint32_t>);
  add("u16", "h", integer<D, uint16_t, uint16_t>), add("s16", "h", integer<D, int16_t, uint16_t>);
  add("u16", "w", integer<D, uint16_t, uint32_t>), add("s16", "w", integer<D, int16_t, uint32_t>);
  add("u32", "w", integer<D, uint32_t, uint32_t>), add("s32", "w", integer<D, int32_t, uint32_t>);
  add("u8", "q", integer<D, uint8_t, uint64_t>), add("s8", "q", integer<D, int8_t, uint64_t>);
  add("u16", "q", integer<D, uint16_t, uint64_t>), add("s16", "q", integer<D, int16_t, uint64_t>);
  add("u32", "q", integer<D, uint32_t, uint64_t>), add("s32", "q", integer<D, int32_t, uint64_t>);
  add("u64", "q", integer<D, uint64_t, uint64_t>), add("s64", "q", integer<D, int64_t, uint64_t>);
}
template <class F>
void add_float_cvt(Table* t, const std::string& type, const std::string& f) {
  const auto to_integer = [&](const std::string& name, const std::string& to, const std::string& d, Execute e) {
    (*t)["cvt." + name + "." + to + "." + type + " " + f] = {d + "=" + f, Class::convert, e};
  };
  const auto both = [&](const std::string& name, auto pick) {
    to_integer(name, "s32", "w", pick(int32_t{})), to_integer(name, "u32", "w", pick(uint32_t{}));
    to_integer(name, "s64", "q", pick(int64_t{})), to_integer(name, "u64", "q", pick(uint64_t{}));
  };
  both("rzi", [](auto x) -> Execute { return unary<Truncate<decltype(x)>, decltype(x), F>; });
  both("rni", [](auto x) -> Execute { return unary<Nearest<decltype(x)>, decltype(x), F>; });
  both("rmi", [](auto x) -> Execute { return unary<Floor<decltype(x)>, decltype(x), F>; });
  both("rpi", [](auto x) -> Execute { return unary<Ceil<decltype(x)>, decltype(x), F>; });
  to_integer("rzi", type, f, unary<TruncateFloat, F, F>), to_integer("rni", type, f, unary<NearestFloat, F, F>);
  to_integer("rmi", type, f, unary<FloorFloat, F, F>), to_integer("rpi", type, f, unary<CeilFloat, F, F>);
  const auto from = [&](const std::string& name, const std::string& a, Execute e) {
    (*t)["cvt.rn." + type + "." + name + " " + a] = {f + "=" + a, Class::convert, e};
  };
  from("s16", "h", unary<To<F>, F, int16_t>), from("u16", "h", unary<To<F>, F, uint16_t>);
  from("s32", "w", unary<To<F>, F, int32_t>), from("u32", "w", unary<To<F>, F, uint32_t>);
  from("s64", "q", unary<To<F>, F, int64_t>), from("u64", "q", unary<To<F>, F, uint64_t>);
}

}  // namespace

// The keys of cvt have the letters of the source registers behind them, because registers of several widths may hold one type.
void add_conversions(Table* table) {
  add_integer_cvt<uint16_t>(table, "u16", "h"), add_integer_cvt<uint16_t>(table, "s16", "h");
  add_integer_cvt<uint32_t>(table, "u32", "w"), add_integer_cvt<uint32_t>(table, "s32", "w");
  add_integer_cvt<uint64_t>(table, "u64", "q"), add_integer_cvt<uint64_t>(table, "s64", "q");
  add_float_cvt<float>(table, "f32", "w"), add_float_cvt<double>(table, "f64", "q");
  const auto add = [&](const std::string& name, const std::string& operands, Execute f) { (*table)[name] = {operands, Class::convert, f}; };
  add("cvt.f64.f32 w", "q=w", unary<To<double>, double, float>);
  add("cvt.rn.f32.f64 q", "w=q", unary<To<float>, float, double>);
  add("cvt.sat.f32.f32 w", "w=w", unary<Saturate, float, float>);
  add("cvt.f32.f16 h", "w=h", half_to_float);
  add("cvt.rn.f16.f32 w", "h=w", float_to_half);
  add("cvt.rp.f16.f32 w", "h=w", unary<HalfOf<Rounding::up>, uint16_t, float>);
  add("cvt.rm.f16.f32 w", "h=w", unary<HalfOf<Rounding::down>, uint16_t, float>);
  add("cvt.rz.f16.f32 w", "h=w", unary<HalfOf<Rounding::zero>, uint16_t, float>);
  add("cvt.rn.f16x2.f32 ww", "w=ww", floats_to_pair);
}

void add_moves(Table* table) {
  const auto add = [&](const std::string& name, const std::string& operands, Execute f) { (*table)[name] = {operands, Class::move, f}; };
  for (const std::string type : {"b16", "u16", "s16"}) add("mov." + type, "h=h", unary<Same, uint16_t, uint16_t>);
  for (const std::string type : {"b32", "u32", "s32", "f32"}) add("mov." + type, "w=w", unary<Same, uint32_t, uint32_t>);
  for (const std::string type : {"b64", "u64", "s64", "f64"}) add("mov." + type, "q=q", unary<Same, uint64_t, uint64_t>);
  add("mov.b32 {}=", "hh=w", unpack<uint32_t, uint16_t>), add("mov.b64 {}=", "ww=q", unpack<uint64_t, uint32_t>);
  add("mov.b32 ={}", "w=hh", binary<Pack<uint32_t, uint16_t>, uint32_t, uint16_t>);
  add("mov.b64 ={}", "q=ww", binary<Pack<uint64_t, uint32_t>, uint64_t, uint32_t>);
  add("cvta.to.global.u64", "q=q", unary<Same, uint64_t, uint64_t>), add("cvta.global.u64", "q=q", unary<Same, uint64_t, uint64_t>);
  add("cvta.to.shared.u64", "q=q", unary<ToShared, uint64_t, uint64_t>),
      add("cvta.shared.u64", "q=q", unary<FromShared, uint64_t, uint64_t>);
  add("cvta.to.local.u64", "q=q", unary<ToLocal, uint64_t, uint64_t>), add("cvta.local.u64", "q=q", unary<FromLocal, uint64_t, uint64_t>);
  add_special<Special::tid>(table, "tid"), add_special<Special::ntid>(table, "ntid");
  add_special<Special::ctaid>(table, "ctaid"), add_special<Special::nctaid>(table, "nctaid");
  add("mov.u32 %laneid", "w=", lane_id);
}

}  // namespace orrery::ptx
