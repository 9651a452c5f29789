// Integers and predicates, by the PTX manual: arithmetic wraps; shifts by the width or more give zero, or the sign.
#include "tests/ptx/executor/lanes.h"

namespace orrery::ptx {

namespace {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s8 = int8_t;
using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;

// clang-format off
struct Add { template <class T> T operator()(T a, T b) const { return static_cast<T>(a + b); } };
struct Sub { template <class T> T operator()(T a, T b) const { return static_cast<T>(a - b); } };
struct Mul { template <class T> T operator()(T a, T b) const { return static_cast<T>(a * b); } };
struct Mad { template <class T> T operator()(T a, T b, T c) const { return static_cast<T>(a * b + c); } };
struct And { template <class T> T operator()(T a, T b) const { return a & b; } };
struct Or { template <class T> T operator()(T a, T b) const { return a | b; } };
struct Xor { template <class T> T operator()(T a, T b) const { return a ^ b; } };
struct Not { template <class T> T operator()(T a) const { return static_cast<T>(~a); } };
struct Neg { template <class T> T operator()(T a) const { return static_cast<T>(0 - a); } };
struct Abs { template <class T> T operator()(T a) const { return static_cast<T>(a < 0 ? T(0) - static_cast<u64>(a) : static_cast<u64>(a)); } };
struct Min { template <class T> T operator()(T a, T b) const { return b < a ? b : a; } };
struct Max { template <class T> T operator()(T a, T b) const { return a < b ? b : a; } };
struct WideS { s64 operator()(s32 a, s32 b) const { return s64{a} * b; } };
struct WideU16 { u32 operator()(u16 a, u16 b) const { return u32{a} * b; } };
struct WideU { u64 operator()(u32 a, u32 b) const { return u64{a} * b; } };
struct WideMadS { s64 operator()(s32 a, s32 b, s64 c) const { return static_cast<s64>(static_cast<u64>(s64{a} * b) + static_cast<u64>(c)); } };
struct HighS { s32 operator()(s32 a, s32 b) const { return static_cast<s32>(s64{a} * b >> 32); } };
struct HighU { u32 operator()(u32 a, u32 b) const { return static_cast<u32>(u64{a} * b >> 32); } };
struct HighU64 { u64 operator()(u64 a, u64 b) const { return static_cast<u64>(static_cast<unsigned __int128>(a) * b >> 64); } };
struct Left { template <class T> T operator()(T a, u32 n) const { return n >= 8 * sizeof(T) ? T(0) : static_cast<T>(a << n); } };
struct Right { template <class T> T operator()(T a, u32 n) const {
  constexpr u32 kBits = 8 * sizeof(T);
  return n >= kBits ? static_cast<T>(a < T(0) ? ~T(0) : T(0)) : static_cast<T>(a >> n); } };
struct Popc { u32 operator()(u32 a) const { return static_cast<u32>(__builtin_popcount(a)); } };
struct Popc64 { u32 operator()(u64 a) const { return static_cast<u32>(__builtin_popcountll(a)); } };
struct Clz { u32 operator()(u32 a) const { return a ? static_cast<u32>(__builtin_clz(a)) : 32u; } };
struct Clz64 { u32 operator()(u64 a) const { return a ? static_cast<u32>(__builtin_clzll(a)) : 64u; } };
// The position of the highest set bit; shiftamt: how far it is from the top.
struct FindShift { u32 operator()(u32 a) const { return a ? static_cast<u32>(__builtin_clz(a)) : ~0u; } };
struct Reverse { u32 operator()(u32 a) const {
  u32 out = 0;
  for (unsigned k = 0; k < 32; ++k) out |= (a >> k & 1) << (31 - k);
  return out; } };
// bfi: a's low `n` bits, at position p of b.
template <class T> struct Insert { T operator()(T a, T b, u32 p, u32 n) const {
  constexpr u32 kBits = 8 * sizeof(T);
  p &= 0xFF, n &= 0xFF;
  if (p >= kBits || n == 0) return b;
  const T field = static_cast<T>((n >= kBits ? ~T(0) : static_cast<T>((T(1) << n) - 1)) << p);
  return (b & ~field) | (static_cast<T>(a << p) & field); } };
// bfe: `n` bits of a from position p on; signed: extended by the bit at its end.
struct ExtractU { u32 operator()(u32 a, u32 p, u32 n) const {
  p &= 0xFF, n &= 0xFF;
  if (p > 31 || n == 0) return 0;
  return a >> p & (n > 31 ? ~0u : (1u << n) - 1); } };
struct ExtractS { s32 operator()(s32 a, u32 p, u32 n) const {
  p &= 0xFF, n &= 0xFF;
  if (n == 0) return 0;
  const u32 top = p + n - 1 > 31 ? 31 : p + n - 1, sign = static_cast<u32>(a) >> top & 1;
  u32 out = 0;
  for (u32 k = 0; k < 32; ++k) out |= (k < n && p + k <= 31 ? static_cast<u32>(a) >> (p + k) & 1 : sign) << k;
  return static_cast<s32>(out); } };
// prmt in its default mode: each nibble of the selector names a byte of b:a, or with its high bit the byte's sign.
struct Permute { u32 operator()(u32 a, u32 b, u32 selector) const {
  const u64 bytes = u64{b} << 32 | a;
  u32 out = 0;
  for (u32 k = 0; k < 4; ++k) {
    const u32 s = selector >> 4 * k, byte = static_cast<u32>(bytes >> 8 * (s & 7)) & 0xFF;
    out |= (s & 8 ? (byte & 0x80 ? 0xFFu : 0u) : byte) << 8 * k;
  }
  return out; } };
struct FunnelLeft { u32 operator()(u32 a, u32 b, u32 n) const { return static_cast<u32>((u64{b} << 32 | a) << (n & 31) >> 32); } };
struct FunnelRight { u32 operator()(u32 a, u32 b, u32 n) const { return static_cast<u32>((u64{b} << 32 | a) >> (n & 31)); } };
// A: the type of a's bytes.
template <class A>
struct Dot4 { u32 operator()(u32 a, u32 b, u32 c) const {
  for (unsigned k = 0; k < 4; ++k) c += static_cast<u32>(s32{static_cast<A>(a >> 8 * k)} * s32{static_cast<s8>(b >> 8 * k)});
  return c; } };
// The two halves of a times the lower two bytes of b.
struct Dot2 { u32 operator()(u32 a, u32 b, u32 c) const {
  for (unsigned k = 0; k < 2; ++k) c += static_cast<u32>(s32{static_cast<s16>(a >> 16 * k)} * s32{static_cast<s8>(b >> 8 * k)});
  return c; } };
// clang-format on

template <class T>
void bit_insert(Warp& w, const Instruction& i, uint32_t m) {
  for_lanes<Insert<T>>(w.lanes<T>(i.operand[0]), m, w.lanes<const T>(i.operand[1]), w.lanes<const T>(i.operand[2]),
                       w.lanes<const u32>(i.operand[3]), w.lanes<const u32>(i.operand[4]));
}
// lop3.b32 d, a, b, c, table.
void lop3(Warp& w, const Instruction& i, uint32_t m) {
  u32* d = w.lanes<u32>(i.operand[0]);
  const u32 *a = w.lanes<const u32>(i.operand[1]), *b = w.lanes<const u32>(i.operand[2]), *c = w.lanes<const u32>(i.operand[3]);
  const u32 table = w.lanes<const u32>(i.operand[4])[0];
  for (unsigned l = 0; l < kLanes; ++l) {
    if (!(m >> l & 1)) continue;
    u32 out = 0;
    for (u32 k = 0; k < 8; ++k)
      if (table >> k & 1) out |= (k & 4 ? a[l] : ~a[l]) & (k & 2 ? b[l] : ~b[l]) & (k & 1 ? c[l] : ~c[l]);
    d[l] = out;
  }
}
// Division: the result of a division by zero is unspecified, so no kernel may ask for one.
template <class T, bool kRemainder>
void divide(Warp& w, const Instruction& i, uint32_t m) {
  T* d = w.lanes<T>(i.operand[0]);
  const T *a = w.lanes<const T>(i.operand[1]), *b = w.lanes<const T>(i.operand[2]);
  for (unsigned l = 0; l < kLanes; ++l) {
    if (!(m >> l & 1)) continue;
    if (b[l] == 0) w.fail(l, "divides an integer by zero");
    const bool overflows = static_cast<T>(-1) < T(0) && b[l] == static_cast<T>(-1);
    if (kRemainder) d[l] = overflows ? T(0) : static_cast<T>(a[l] % b[l]);
    else d[l] = overflows ? static_cast<T>(0 - static_cast<u64>(a[l])) : static_cast<T>(a[l] / b[l]);
  }
}

// ---- with carry: the condition code is a bit of each lane. F gives the sum of 33 bits.
template <bool kReads, bool kWrites, class F>
void carried(Warp& w, const Instruction& i, uint32_t m, F sum) {
  u32* d = w.lanes<u32>(i.operand[0]);
  u32 out = 0;
  u32 results[kLanes];
  for (unsigned l = 0; l < kLanes; ++l) {
    const u64 s = sum(l, kReads ? w.carry >> l & 1 : 0u);
    results[l] = static_cast<u32>(s);
    out |= static_cast<u32>(s >> 32 & 1) << l;
  }
  for (unsigned l = 0; l < kLanes; ++l)
    if (m >> l & 1) d[l] = results[l];
  if (kWrites) w.carry = (w.carry & ~m) | (out & m);
}
template <bool kReads, bool kWrites>
void add_carry(Warp& w, const Instruction& i, uint32_t m) {
  const u32 *a = w.lanes<const u32>(i.operand[1]), *b = w.lanes<const u32>(i.operand[2]);
  carried<kReads, kWrites>(w, i, m, [=](unsigned l, u32 in) { return u64{a[l]} + b[l] + in; });
}
// A borrow is a carry of one: a - b - borrow.
template <bool kReads, bool kWrites>
void sub_carry(Warp& w, const Instruction& i, uint32_t m) {
  const u32 *a = w.lanes<const u32>(i.operand[1]), *b = w.lanes<const u32>(i.operand[2]);
  carried<kReads, kWrites>(w, i, m, [=](unsigned l, u32 in) { return u64{a[l]} - b[l] - in; });
}
template <bool kHigh, bool kReads, bool kWrites>
void mad_carry(Warp& w, const Instruction& i, uint32_t m) {
  const u32 *a = w.lanes<const u32>(i.operand[1]), *b = w.lanes<const u32>(i.operand[2]), *c = w.lanes<const u32>(i.operand[3]);
  carried<kReads, kWrites>(w, i, m, [=](unsigned l, u32 in) {
    const u64 product = u64{a[l]} * b[l];
    return (kHigh ? product >> 32 : product & ~0u) + u64{c[l]} + in;
  });
}

// ---- comparisons and predicates
// clang-format off
struct Eq { template <class T> bool operator()(T a, T b) const { return a == b; } };
struct Ne { template <class T> bool operator()(T a, T b) const { return a != b; } };
struct Lt { template <class T> bool operator()(T a, T b) const { return a < b; } };
struct Le { template <class T> bool operator()(T a, T b) const { return a <= b; } };
struct Gt { template <class T> bool operator()(T a, T b) const { return a > b; } };
struct Ge { template <class T> bool operator()(T a, T b) const { return a >= b; } };
// clang-format on

template <class F>
void predicates(Warp& w, const Instruction& i, uint32_t m) {
  w.set_predicate(i.operand[0], F{}(w.predicate(i.operand[1]), w.predicate(i.operand[2])), m);
}
void not_predicate(Warp& w, const Instruction& i, uint32_t m) { w.set_predicate(i.operand[0], ~w.predicate(i.operand[1]), m); }
void move_predicate(Warp& w, const Instruction& i, uint32_t m) { w.set_predicate(i.operand[0], w.predicate(i.operand[1]), m); }

template <class T>
void select(Warp& w, const Instruction& i, uint32_t m) {
  T* d = w.lanes<T>(i.operand[0]);
  const T *a = w.lanes<const T>(i.operand[1]), *b = w.lanes<const T>(i.operand[2]);
  const u32 p = w.predicate(i.operand[3]);
  ORRERY_IVDEP
  for (unsigned l = 0; l < kLanes; ++l) {
    const T value = p >> l & 1 ? a[l] : b[l];
    d[l] = m >> l & 1 ? value : d[l];
  }
}

template <class T>
void add_compares(Table* t, const std::string& type, const char* operands) {
  (*t)["setp.eq." + type] = {operands, Class::integer, compare<Eq, T>};
  (*t)["setp.ne." + type] = {operands, Class::integer, compare<Ne, T>};
  (*t)["setp.lt." + type] = {operands, Class::integer, compare<Lt, T>};
  (*t)["setp.le." + type] = {operands, Class::integer, compare<Le, T>};
  (*t)["setp.gt." + type] = {operands, Class::integer, compare<Gt, T>};
  (*t)["setp.ge." + type] = {operands, Class::integer, compare<Ge, T>};
}
// U, S: the unsigned and the signed type of `bits` bits; c: the letter of its registers.
template <class U, class S>
void add_width(Table* t, const std::string& bits, const std::string& c) {
  const std::string two = c + "=" + c + c, one = c + "=" + c;
  const auto add = [&](const std::string& name, const std::string& operands, Execute f) { (*t)[name] = {operands, Class::integer, f}; };
  for (const std::string sign : {"s", "u"}) {
    add("add." + sign + bits, two, binary<Add, U, U>);
    add("sub." + sign + bits, two, binary<Sub, U, U>);
    add("mul.lo." + sign + bits, two, binary<Mul, U, U>);
    add("mad.lo." + sign + bits, c + "=" + c + c + c, ternary<Mad, U, U>);
  }
  add("neg.s" + bits, one, unary<Neg, U, U>);
  add("abs.s" + bits, one, unary<Abs, S, S>);
  add("min.s" + bits, two, binary<Min, S, S>), add("max.s" + bits, two, binary<Max, S, S>);
  add("min.u" + bits, two, binary<Min, U, U>), add("max.u" + bits, two, binary<Max, U, U>);
  add("div.s" + bits, two, divide<S, false>), add("div.u" + bits, two, divide<U, false>);
  add("rem.s" + bits, two, divide<S, true>), add("rem.u" + bits, two, divide<U, true>);
  add("and.b" + bits, two, binary<And, U, U>), add("or.b" + bits, two, binary<Or, U, U>), add("xor.b" + bits, two, binary<Xor, U, U>);
  add("not.b" + bits, one, unary<Not, U, U>);
  add("shl.b" + bits, c + "=" + c + "w", binary<Left, U, U, u32>);
  add("shr.u" + bits, c + "=" + c + "w", binary<Right, U, U, u32>);
  add("shr.b" + bits, c + "=" + c + "w", binary<Right, U, U, u32>);
  add("shr.s" + bits, c + "=" + c + "w", binary<Right, S, S, u32>);
  add_compares<S>(t, "s" + bits, ("p=" + c + c).c_str());
  add_compares<U>(t, "u" + bits, ("p=" + c + c).c_str());
  add("setp.eq.b" + bits, "p=" + c + c, compare<Eq, U>), add("setp.ne.b" + bits, "p=" + c + c, compare<Ne, U>);
  for (const std::string type : {"b", "s", "u"}) (*t)["selp." + type + bits] = {c + "=" + c + c + "p", Class::move, select<U>};
}

}  // namespace

void add_integer(Table* table) {
  const auto add = [&](const std::string& name, const std::string& operands, Execute f) { (*table)[name] = {operands, Class::integer, f}; };
  add_width<u16, s16>(table, "16", "h");
  add_width<u32, s32>(table, "32", "w");
  add_width<u64, s64>(table, "64", "q");
  (*table)["selp.f32"] = {"w=wwp", Class::move, select<u32>};
  (*table)["selp.f64"] = {"q=qqp", Class::move, select<u64>};
  add("mul.wide.s32", "q=ww", binary<WideS, s64, s32>), add("mul.wide.u32", "q=ww", binary<WideU, u64, u32>);
  add("mul.wide.u16", "w=hh", binary<WideU16, u32, u16>);
  add("mad.wide.s32", "q=wwq", ternary<WideMadS, s64, s32, s32, s64>);
  add("mul.hi.s32", "w=ww", binary<HighS, s32, s32>), add("mul.hi.u32", "w=ww", binary<HighU, u32, u32>);
  add("mul.hi.u64", "q=qq", binary<HighU64, u64, u64>);
  add("popc.b32", "w=w", unary<Popc, u32, u32>), add("popc.b64", "w=q", unary<Popc64, u32, u64>);
  add("clz.b32", "w=w", unary<Clz, u32, u32>), add("clz.b64", "w=q", unary<Clz64, u32, u64>);
  add("bfind.shiftamt.u32", "w=w", unary<FindShift, u32, u32>);
  add("brev.b32", "w=w", unary<Reverse, u32, u32>);
  add("bfi.b32", "w=wwww", bit_insert<u32>), add("bfi.b64", "q=qqww", bit_insert<u64>);
  add("bfe.u32", "w=www", ternary<ExtractU, u32, u32>), add("bfe.s32", "w=www", ternary<ExtractS, s32, s32, u32, u32>);
  add("prmt.b32", "w=www", ternary<Permute, u32, u32>);
  add("lop3.b32", "w=wwww", lop3);
  add("shf.l.wrap.b32", "w=www", ternary<FunnelLeft, u32, u32>), add("shf.r.wrap.b32", "w=www", ternary<FunnelRight, u32, u32>);
  add("dp4a.s32.s32", "w=www", ternary<Dot4<s8>, u32, u32>), add("dp4a.u32.s32", "w=www", ternary<Dot4<u8>, u32, u32>);
  add("dp2a.lo.s32.s32", "w=www", ternary<Dot2, u32, u32>);
  add("add.cc.u32", "w=ww", add_carry<false, true>), add("addc.u32", "w=ww", add_carry<true, false>);
  add("addc.cc.u32", "w=ww", add_carry<true, true>);
  add("sub.cc.u32", "w=ww", sub_carry<false, true>), add("subc.u32", "w=ww", sub_carry<true, false>);
  add("subc.cc.u32", "w=ww", sub_carry<true, true>);
  add("mad.lo.cc.u32", "w=www", mad_carry<false, false, true>), add("mad.hi.cc.u32", "w=www", mad_carry<true, false, true>);
  add("madc.lo.cc.u32", "w=www", mad_carry<false, true, true>), add("madc.hi.cc.u32", "w=www", mad_carry<true, true, true>);
  add("madc.lo.u32", "w=www", mad_carry<false, true, false>), add("madc.hi.u32", "w=www", mad_carry<true, true, false>);
  add("and.pred", "p=pp", predicates<And>), add("or.pred", "p=pp", predicates<Or>), add("xor.pred", "p=pp", predicates<Xor>);
  add("not.pred", "p=p", not_predicate);
  (*table)["mov.pred"] = {"p=p", Class::move, move_predicate};
}

}  // namespace orrery::ptx
