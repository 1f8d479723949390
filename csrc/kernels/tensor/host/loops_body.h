// The loops of loops.h for vectors of kLanes numbers, which the including file defines. It includes
// this in an unnamed namespace, as each instruction set needs functions of its own.
//
// Written with the compiler's vector types: +, *, comparisons and ?: work lane by lane. Functions
// of the standard library that are not inlined must not be called: the linker keeps one copy, and
// it might be that of an instruction set that the processor lacks.

using Vec = float __attribute__((vector_size(4 * kLanes)));
using Mask = std::int32_t __attribute__((vector_size(4 * kLanes)));
using Bits = std::uint32_t __attribute__((vector_size(4 * kLanes)));
// As many double numbers as one vector register holds.
using HalfVec = float __attribute__((vector_size(2 * kLanes)));
using DoubleVec = double __attribute__((vector_size(4 * kLanes)));

inline Vec load(const float* x) {
  Vec v;
  __builtin_memcpy(&v, x, sizeof(v));
  return v;
}

inline void store(float* out, Vec v) {
  __builtin_memcpy(out, &v, sizeof(v));
}

inline DoubleVec load_double(const float* x) {
  HalfVec v;
  __builtin_memcpy(&v, x, sizeof(v));
  return __builtin_convertvector(v, DoubleVec);
}

// Fewer than kLanes numbers; the others are 0.
inline Vec load_some(const float* x, int count) {
  Vec v = {};
  for (int i = 0; i < count; ++i) v[i] = x[i];
  return v;
}

inline void store_some(float* out, Vec v, int count) {
  for (int i = 0; i < count; ++i) out[i] = v[i];
}

inline Vec all(float x) {
  return x - Vec{};  // not +: -0 stays -0
}

inline Vec from_bits(Bits bits) {
  return __builtin_bit_cast(Vec, bits);
}

inline Bits to_bits(Vec x) {
  return __builtin_bit_cast(Bits, x);
}

inline Vec truth(Mask mask) {
  return mask ? all(1.0f) : Vec{};
}

inline Vec magnitude(Vec x) {
  return from_bits(to_bits(x) & 0x7fffffffu);
}

// The magnitude of x with the sign of y.
inline Vec with_sign(Vec x, Vec y) {
  return from_bits((to_bits(x) & 0x7fffffffu) | (to_bits(y) & 0x80000000u));
}

inline float smaller(float x, float y) {
  return x < y || x != x ? x : y;
}

inline float larger(float x, float y) {
  return x > y || x != x ? x : y;
}

inline Vec smaller(Vec x, Vec y) {
  return (x < y) | (x != x) ? x : y;
}

inline Vec larger(Vec x, Vec y) {
  return (x > y) | (x != x) ? x : y;
}

// Lanes from `count` on are 0, the others -1.
inline Mask first_lanes(int count) {
  Mask mask;
  for (int i = 0; i < kLanes; ++i) mask[i] = i < count ? -1 : 0;
  return mask;
}

// The nearest integer, halves to the even one; |x| below 2^22.
inline Vec round_small(Vec x) {
  constexpr float kShift = 12582912.0f;  // 1.5 * 2^23: its unit in the last place is 1
  return (x + kShift) - kShift;
}

inline Vec square_root(Vec x) {
  Vec v;
  for (int i = 0; i < kLanes; ++i) v[i] = __builtin_sqrtf(x[i]);
  return v;
}

inline Vec rounded(Vec x) {
  Vec v;
  for (int i = 0; i < kLanes; ++i) v[i] = __builtin_rintf(x[i]);
  return v;
}

// x * 2^n for whole n of -300 to 300, in two steps, so that what is subnormal or infinite is right.
inline Vec scale_by_power(Vec x, Vec n) {
  const Vec half = round_small(n * 0.5f);
  const Vec rest = n - half;
  const Bits first = (to_bits(half + 12582912.0f) - 0x4b400000u + 127u) << 23;
  const Bits second = (to_bits(rest + 12582912.0f) - 0x4b400000u + 127u) << 23;
  return x * from_bits(first) * from_bits(second);
}

// Within 2 units in the last place. x = n log 2 + r, |r| <= log(2) / 2, and a polynomial of exp(r)
// (Cephes, expf).
inline Vec exponential(Vec x) {
  x = x < -110.0f ? all(-110.0f) : x;  // NaN stays NaN
  x = x > 90.0f ? all(90.0f) : x;
  const Vec n = round_small(x * 1.44269504088896341f);
  Vec r = x - n * 0.693359375f;
  r = r - n * -2.12194440e-4f;
  Vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  return scale_by_power(p, n);
}

// exp(x) - 1: for small x its series, whose first terms do not cancel.
inline Vec exponential_minus_1(Vec x) {
  Vec p = x * 2.48015873e-5f + 1.98412698e-4f;
  p = p * x + 1.38888889e-3f;
  p = p * x + 8.33333333e-3f;
  p = p * x + 4.16666667e-2f;
  p = p * x + 1.66666667e-1f;
  p = p * x + 0.5f;
  p = p * x * x + x;
  return magnitude(x) < 0.5f ? p : exponential(x) - 1.0f;
}

// Within 2 units in the last place (Cephes, logf): x = m 2^e, m from sqrt(1/2) to sqrt(2).
inline Vec logarithm(Vec x) {
  const Mask tiny = (x < 1.17549435e-38f) & (x > 0.0f);
  const Vec scaled = tiny ? x * 8388608.0f : x;
  const Bits bits = to_bits(scaled);
  Vec e = from_bits((bits >> 23 & 0xffu) + 0x4b400000u) - 12582912.0f - 126.0f;
  Vec m = from_bits((bits & 0x007fffffu) | 0x3f000000u);
  e = tiny ? e - 23.0f : e;
  const Mask low = m < 0.707106781186547524f;
  e = low ? e - 1.0f : e;
  m = low ? m + m - 1.0f : m - 1.0f;
  const Vec z = m * m;
  Vec p = m * 7.0376836292e-2f - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  p = p * m * z + e * -2.12194440e-4f - 0.5f * z;
  Vec found = m + p + e * 0.693359375f;
  found = x == __builtin_inff() ? x : found;
  found = x == 0.0f ? all(-__builtin_inff()) : found;
  return (x < 0.0f) | (x != x) ? all(__builtin_nanf("")) : found;
}

// log(1 + x): what rounding 1 + x loses is put back (Kahan).
inline Vec logarithm_plus_1(Vec x) {
  const Vec u = 1.0f + x;
  const Vec lost = u == __builtin_inff() ? Vec{} : (x - (u - 1.0f)) / u;
  const Vec found = logarithm(u) + (u == 0.0f ? Vec{} : lost);
  return magnitude(x) < 1e-7f ? x : found;
}

inline Vec logistic(Vec x) {
  return 1.0f / (1.0f + exponential(-x));
}

// Near 0 a polynomial (Cephes, tanhf).
inline Vec hyperbolic_tangent(Vec x) {
  const Vec a = magnitude(x);
  const Vec z = x * x;
  Vec p = z * -5.70498872745e-3f + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  p = p * z * x + x;
  const Vec far = with_sign(1.0f - 2.0f / (exponential(a + a) + 1.0f), x);
  return a < 0.625f ? p : (x != x ? x : far);
}

// Near 0 a polynomial, else 1 - exp(of a polynomial); within 1 unit in the last place, as N. Juffa
// fitted them.
inline Vec error_function(Vec x) {
  Vec t = magnitude(x);
  t = t > 10.0f ? all(10.0f) : t;  // NaN stays NaN
  const Vec s = x * x;
  Vec far = t * -1.72853470e-5f + 3.83197126e-4f;
  Vec u = t * -3.88396438e-3f + 2.42546219e-2f;
  const Vec square = t * t;
  far = far * square + u;
  far = far * t - 1.06777877e-1f;
  far = far * t - 6.34846687e-1f;
  far = far * t - 1.28717512e-1f;
  far = far * t - t;
  far = with_sign(1.0f - exponential(far), x);
  Vec near = s * -5.96761703e-4f + 4.99119423e-3f;
  near = near * s - 2.67681349e-2f;
  near = near * s + 1.12819925e-1f;
  near = near * s - 3.76125336e-1f;
  near = near * s + 1.28379166e-1f;
  near = near * x + x;
  return t > 0.927734375f ? far : (x != x ? x : near);
}

constexpr float kMostAngle = 8192.0f;  // beyond it reduction by pi / 2 in three parts is too coarse

// sin(x + turns pi / 2), |x| at most kMostAngle: x = n pi / 2 + r, and polynomials of sin(r) and
// cos(r) (Cephes, sinf and cosf).
inline Vec sine(Vec x, std::uint32_t turns) {
  const Vec n = round_small(x * 0.636619772367581343f);
  const Bits quarter = to_bits(n + 12582912.0f) + turns;
  Vec r = x - n * 1.5703125f;
  r = r - n * 4.837512969970703125e-4f;
  r = r - n * 7.54978995489188216e-8f;
  const Vec z = r * r;
  Vec even = z * 2.443315711809948e-5f - 1.388731625493765e-3f;
  even = even * z + 4.166664568298827e-2f;
  even = even * z * z - 0.5f * z + 1.0f;
  Vec odd = z * -1.9515295891e-4f + 8.3321608736e-3f;
  odd = odd * z - 1.6666654611e-1f;
  odd = odd * z * r + r;
  const Vec found = (quarter & 1u) != 0u ? even : odd;
  return from_bits(to_bits(found) ^ (quarter & 2u) << 30);
}

// Whether sine takes all of them.
inline bool are_angles(const HostArgument& a, int size) {
  const int count = a.is_scalar ? 1 : size;
  for (int i = 0; i < count; ++i)
    if (!(__builtin_fabsf(a.data[i]) <= kMostAngle)) return false;
  return true;
}

// Of 0 to 1 (Cephes, atanf).
inline Vec small_arctangent(Vec x) {
  const Mask large = x > 0.414213562373095f;
  const Vec t = large ? (x - 1.0f) / (x + 1.0f) : x;
  const Vec z = t * t;
  Vec p = z * 8.05374449538e-2f - 1.38776856032e-1f;
  p = p * z + 1.99777106478e-1f;
  p = p * z - 3.33329491539e-1f;
  p = p * z * t + t;
  return large ? p + 0.785398163397448310f : p;
}

// The angle of (x, y), from -pi to pi.
inline Vec arctangent(Vec y, Vec x) {
  const Vec a = magnitude(x);
  const Vec b = magnitude(y);
  const Vec most = a > b ? a : b;
  const Vec least = a > b ? b : a;
  Vec ratio = most == 0.0f ? Vec{} : least / most;
  ratio = least == __builtin_inff() ? all(1.0f) : ratio;
  Vec found = small_arctangent(ratio);
  found = b > a ? 1.57079632679489662f - found : found;
  found = (to_bits(x) & 0x80000000u) != 0u ? 3.14159265358979324f - found : found;
  return (x != x) | (y != y) ? x + y : with_sign(found, y);
}

template <class F>
inline void each(const HostArgument& a, int size, float* out, F f) {
  if (a.is_scalar) {
    const Vec value = f(all(*a.data));
    int i = 0;
    for (; i + kLanes <= size; i += kLanes) store(out + i, value);
    store_some(out + i, value, size - i);
    return;
  }
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) store(out + i, f(load(a.data + i)));
  if (i < size) store_some(out + i, f(load_some(a.data + i, size - i)), size - i);
}

template <bool kFirst, bool kSecond, class F>
inline void pairs(const float* a, const float* b, int size, float* out, F f) {
  Vec x = all(*a);
  Vec y = all(*b);
  int i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    if (kFirst) x = load(a + i);
    if (kSecond) y = load(b + i);
    store(out + i, f(x, y));
  }
  if (i == size) return;
  if (kFirst) x = load_some(a + i, size - i);
  if (kSecond) y = load_some(b + i, size - i);
  store_some(out + i, f(x, y), size - i);
}

template <class F>
inline void each(const HostArgument& a, const HostArgument& b, int size, float* out, F f) {
  if (size == 0) return;
  if (a.is_scalar && b.is_scalar) {
    const Vec value = f(all(*a.data), all(*b.data));
    const float first = value[0];
    each(HostArgument{&first, true}, size, out, [](Vec x) { return x; });
  } else if (a.is_scalar) {
    pairs<false, true>(a.data, b.data, size, out, f);
  } else if (b.is_scalar) {
    pairs<true, false>(a.data, b.data, size, out, f);
  } else {
    pairs<true, true>(a.data, b.data, size, out, f);
  }
}

inline Vec element(const HostArgument& a, int i, int count) {
  if (a.is_scalar) return all(*a.data);
  return count == kLanes ? load(a.data + i) : load_some(a.data + i, count);
}

void where(const HostArgument* a, int size, float* out) {
  for (int i = 0; i < size; i += kLanes) {
    const int count = size - i < kLanes ? size - i : kLanes;
    const Vec chosen =
        element(a[0], i, count) != 0.0f ? element(a[1], i, count) : element(a[2], i, count);
    if (count == kLanes)
      store(out + i, chosen);
    else
      store_some(out + i, chosen, count);
  }
}

bool apply_unary(Function function, const HostArgument& a, int size, float* out) {
  switch (function) {
    case Function::kSame:
      each(a, size, out, [](Vec x) { return x; });
      return true;
    case Function::kNeg:
      each(a, size, out, [](Vec x) { return -x; });
      return true;
    case Function::kAbs:
      each(a, size, out, magnitude);
      return true;
    case Function::kSign:
      each(a, size, out, [](Vec x) { return truth(x > 0.0f) - truth(x < 0.0f); });
      return true;
    case Function::kFloor:
      each(a, size, out, [](Vec x) {
        const Vec near = rounded(x);
        return with_sign(near > x ? near - 1.0f : near, x);
      });
      return true;
    case Function::kCeil:
      each(a, size, out, [](Vec x) {
        const Vec near = rounded(x);
        return with_sign(near < x ? near + 1.0f : near, x);
      });
      return true;
    case Function::kRound:
      each(a, size, out, rounded);
      return true;
    case Function::kExp:
      each(a, size, out, exponential);
      return true;
    case Function::kExpm1:
      each(a, size, out, exponential_minus_1);
      return true;
    case Function::kLog:
      each(a, size, out, logarithm);
      return true;
    case Function::kLog1p:
      each(a, size, out, logarithm_plus_1);
      return true;
    case Function::kSqrt:
      each(a, size, out, square_root);
      return true;
    case Function::kRsqrt:
      each(a, size, out, [](Vec x) { return 1.0f / square_root(x); });
      return true;
    case Function::kReciprocal:
      each(a, size, out, [](Vec x) { return 1.0f / x; });
      return true;
    case Function::kSquare:
      each(a, size, out, [](Vec x) { return x * x; });
      return true;
    case Function::kSigmoid:
      each(a, size, out, logistic);
      return true;
    case Function::kTanh:
      each(a, size, out, hyperbolic_tangent);
      return true;
    case Function::kRelu:
      each(a, size, out, [](Vec x) { return x < 0.0f ? Vec{} : x; });
      return true;
    case Function::kErf:
      each(a, size, out, error_function);
      return true;
    case Function::kSin:
      if (!are_angles(a, size)) return false;
      each(a, size, out, [](Vec x) { return x == 0.0f ? x : sine(x, 0); });  // -0 stays -0
      return true;
    case Function::kCos:
      if (!are_angles(a, size)) return false;
      each(a, size, out, [](Vec x) { return sine(x, 1); });
      return true;
    case Function::kAtan:
      each(a, size, out, [](Vec x) { return arctangent(x, all(1.0f)); });
      return true;
    case Function::kNot:
      each(a, size, out, [](Vec x) { return truth(x == 0.0f); });
      return true;
    case Function::kIsfinite:
      each(a, size, out, [](Vec x) { return truth(magnitude(x) <= 3.402823466e38f); });
      return true;
    default:
      return false;
  }
}

bool apply_binary(Function function, const HostArgument& a, const HostArgument& b, int size,
                  float* out) {
  switch (function) {
    case Function::kAdd:
      each(a, b, size, out, [](Vec x, Vec y) { return x + y; });
      return true;
    case Function::kSub:
      each(a, b, size, out, [](Vec x, Vec y) { return x - y; });
      return true;
    case Function::kMul:
      each(a, b, size, out, [](Vec x, Vec y) { return x * y; });
      return true;
    case Function::kDiv:
      each(a, b, size, out, [](Vec x, Vec y) { return x / y; });
      return true;
    case Function::kAtan2:
      each(a, b, size, out, arctangent);
      return true;
    case Function::kMin:
      each(a, b, size, out, [](Vec x, Vec y) { return smaller(x, y); });
      return true;
    case Function::kMax:
      each(a, b, size, out, [](Vec x, Vec y) { return larger(x, y); });
      return true;
    case Function::kEq:
      each(a, b, size, out, [](Vec x, Vec y) { return truth(x == y); });
      return true;
    case Function::kNe:
      each(a, b, size, out, [](Vec x, Vec y) { return truth(x != y); });
      return true;
    case Function::kLt:
      each(a, b, size, out, [](Vec x, Vec y) { return truth(x < y); });
      return true;
    case Function::kLe:
      each(a, b, size, out, [](Vec x, Vec y) { return truth(x <= y); });
      return true;
    case Function::kGt:
      each(a, b, size, out, [](Vec x, Vec y) { return truth(x > y); });
      return true;
    case Function::kGe:
      each(a, b, size, out, [](Vec x, Vec y) { return truth(x >= y); });
      return true;
    case Function::kAnd:
      each(a, b, size, out, [](Vec x, Vec y) { return truth((x != 0.0f) & (y != 0.0f)); });
      return true;
    case Function::kOr:
      each(a, b, size, out, [](Vec x, Vec y) { return truth((x != 0.0f) | (y != 0.0f)); });
      return true;
    default:
      return false;
  }
}

bool apply_loop(Function function, const HostArgument* arguments, int size, float* out) {
  if (function == Function::kWhere) {
    where(arguments, size, out);
    return true;
  }
  return apply_unary(function, arguments[0], size, out) ||
         apply_binary(function, arguments[0], arguments[1], size, out);
}

inline void copy_rows(const float* x, std::int64_t x_step, std::int64_t stride, int rows, int size,
                      float* out, std::int64_t out_step) {
  for (int r = 0; r < rows; ++r, x += x_step, out += out_step) {
    int i = 0;
    if (stride == 1) {
      for (; i + kLanes <= size; i += kLanes) store(out + i, load(x + i));
      if (i < size && size > kLanes)
        store(out + size - kLanes, load(x + size - kLanes));
      else
        for (; i < size; ++i) out[i] = x[i];
    } else if (stride == 0) {
      const Vec value = all(*x);
      for (; i + kLanes <= size; i += kLanes) store(out + i, value);
      for (; i < size; ++i) out[i] = *x;
    } else {
      for (; i < size; ++i) out[i] = x[i * stride];
    }
  }
}

// Four rows at a time, so that as many numbers are stored together.
void transpose(const float* x, std::int64_t x_step, int rows, int size, float* out,
               std::int64_t out_step) {
  int r = 0;
  for (; r + 4 <= rows; r += 4) {
    using Four = float __attribute__((vector_size(16)));
    const float* row = x + r * x_step;
    int i = 0;
    for (; i + 4 <= size; i += 4) {
      Four a, b, c, d;
      __builtin_memcpy(&a, row + i, 16);
      __builtin_memcpy(&b, row + x_step + i, 16);
      __builtin_memcpy(&c, row + 2 * x_step + i, 16);
      __builtin_memcpy(&d, row + 3 * x_step + i, 16);
      using Places = std::int32_t __attribute__((vector_size(16)));
      const Four ab_low = __builtin_shuffle(a, b, Places{0, 4, 1, 5});
      const Four ab_high = __builtin_shuffle(a, b, Places{2, 6, 3, 7});
      const Four cd_low = __builtin_shuffle(c, d, Places{0, 4, 1, 5});
      const Four cd_high = __builtin_shuffle(c, d, Places{2, 6, 3, 7});
      const Four columns[4] = {__builtin_shuffle(ab_low, cd_low, Places{0, 1, 4, 5}),
                               __builtin_shuffle(ab_low, cd_low, Places{2, 3, 6, 7}),
                               __builtin_shuffle(ab_high, cd_high, Places{0, 1, 4, 5}),
                               __builtin_shuffle(ab_high, cd_high, Places{2, 3, 6, 7})};
      for (int c = 0; c < 4; ++c) __builtin_memcpy(out + (i + c) * out_step + r, &columns[c], 16);
    }
    for (; i < size; ++i)
      for (int c = 0; c < 4; ++c) out[i * out_step + r + c] = row[c * x_step + i];
  }
  for (; r < rows; ++r)
    for (int i = 0; i < size; ++i) out[i * out_step + r] = x[r * x_step + i];
}

void reduce_into(Reduction reduction, const float* x, int size, double* totals) {
  switch (reduction) {
    case Reduction::kSum:
      for (int i = 0; i < size; ++i) totals[i] += x[i];
      break;
    case Reduction::kProduct:
      for (int i = 0; i < size; ++i) totals[i] *= x[i];
      break;
    case Reduction::kMax:
      for (int i = 0; i < size; ++i)
        totals[i] = totals[i] > x[i] || totals[i] != totals[i] ? totals[i] : x[i];
      break;
    case Reduction::kMin:
      for (int i = 0; i < size; ++i)
        totals[i] = totals[i] < x[i] || totals[i] != totals[i] ? totals[i] : x[i];
      break;
  }
}

// Of whole vectors.
inline double sum_double(const float* x, int size) {
  DoubleVec low = {};
  DoubleVec high = {};
  for (int i = 0; i < size; i += kLanes) {
    low += load_double(x + i);
    high += load_double(x + i + kLanes / 2);
  }
  low += high;
  double total = 0;
  for (int lane = 0; lane < kLanes / 2; ++lane) total += low[lane];
  return total;
}

double reduce_row(Reduction reduction, const float* x, std::int64_t stride, int size,
                  double total) {
  int i = 0;
  if (stride == 1 && size >= kLanes && reduction != Reduction::kProduct) {
    if (reduction == Reduction::kSum) {
      i = size - size % kLanes;
      total += sum_double(x, i);
    } else {
      const bool largest = reduction == Reduction::kMax;
      Vec found = load(x);
      for (i = kLanes; i + kLanes <= size; i += kLanes)
        found = largest ? larger(found, load(x + i)) : smaller(found, load(x + i));
      float one = found[0];
      for (int lane = 1; lane < kLanes; ++lane)
        one = largest ? larger(one, found[lane]) : smaller(one, found[lane]);
      const float before = static_cast<float>(total);
      total = largest ? larger(before, one) : smaller(before, one);
    }
  }
  for (; i < size; ++i) {
    const float value = x[i * stride];
    const float before = static_cast<float>(total);
    switch (reduction) {
      case Reduction::kSum:
        total += value;
        break;
      case Reduction::kProduct:
        total *= value;
        break;
      case Reduction::kMax:
        total = larger(before, value);
        break;
      case Reduction::kMin:
        total = smaller(before, value);
        break;
    }
  }
  return total;
}

// The lanes `distance` further, round the end.
inline Vec rotated(Vec x, int distance) {
  Mask places;
  for (int lane = 0; lane < kLanes; ++lane) places[lane] = (lane + distance) % kLanes;
  return __builtin_shuffle(x, places);
}

inline float sum_of(Vec x) {
#pragma GCC unroll 4
  for (int distance = kLanes / 2; distance > 0; distance /= 2) x += rotated(x, distance);
  return x[0];
}

inline float largest_of(Vec x) {
#pragma GCC unroll 4
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    const Vec y = rotated(x, distance);
    x = x > y ? x : y;
  }
  return x[0];
}

inline Vec sum_all(Vec x) {
  return all(sum_of(x));
}

// What is behind the last whole vector is computed with a vector that overlaps it. NaN among the
// numbers spreads over the row by way of the sum, whatever the maximum is.
void softmax_row(const float* x, int size, float* out) {
  const int full = size - size % kLanes;
  const int last = size - kLanes;
  Vec found = load(x);
  for (int i = kLanes; i < full; i += kLanes) {
    const Vec v = load(x + i);
    found = found > v ? found : v;
  }
  const Vec behind = load(x + last);
  found = found > behind ? found : behind;
  const Vec most = all(largest_of(found));
  Vec sum = {};
  for (int i = 0; i < full; i += kLanes) {
    const Vec power = exponential(load(x + i) - most);
    store(out + i, power);
    sum += power;
  }
  const Mask old = first_lanes(full - last);
  const Vec power = exponential(behind - most);
  sum += old ? Vec{} : power;
  const Vec scale = 1.0f / sum_all(sum);
  for (int i = 0; i < full; i += kLanes) store(out + i, load(out + i) * scale);
  store(out + last, power * scale);
}

void softmax_lanes(float* x, int size, bool guarded) {
  Vec most = load(x);
  for (int i = 1; i < size; ++i) most = larger(most, load(x + i * kLanes));
  Vec total = {};
  for (int i = 0; i < size; ++i) {
    const Vec power = exponential(load(x + i * kLanes) - most);
    store(x + i * kLanes, power);
    total += power;
  }
  const Mask is_nothing = most == -__builtin_inff();
  for (int i = 0; i < size; ++i) {
    const Vec share = load(x + i * kLanes) / total;
    store(x + i * kLanes, guarded ? (is_nothing ? Vec{} : share) : share);
  }
}

void softmax_rows(const float* x, std::int64_t x_step, int rows, int size, float* out,
                  std::int64_t out_step) {
  for (int r = 0; r < rows; ++r, x += x_step, out += out_step) {
    if (size >= kLanes) {
      softmax_row(x, size, out);
      continue;
    }
    const Mask some = first_lanes(size);
    const Vec v = some ? load_some(x, size) : all(-__builtin_inff());
    const Vec power = some ? exponential(v - all(largest_of(v))) : Vec{};
    store_some(out, power / sum_all(power), size);
  }
}

inline void normalize_row(const float* x, int size, double eps, const float* weight,
                          const float* bias, float* out) {
  const int full = size - size % kLanes;
  double total = sum_double(x, full);
  for (int i = full; i < size; ++i) total += x[i];
  const double mean = total / size;
  const float center = static_cast<float>(mean);
  Vec squares[2] = {};
  int at = 0;
  for (; at + 2 * kLanes <= full; at += 2 * kLanes) {
    const Vec first = load(x + at) - center;
    const Vec second = load(x + at + kLanes) - center;
    squares[0] += first * first;
    squares[1] += second * second;
  }
  if (at < full) squares[0] += (load(x + at) - center) * (load(x + at) - center);
  float spread = sum_of(squares[0] + squares[1]);
  for (int i = full; i < size; ++i) spread += (x[i] - center) * (x[i] - center);
  const double off = mean - center;  // what rounding the mean lost
  const double variance = static_cast<double>(spread) / size - off * off;
  const float scale = static_cast<float>(1.0 / __builtin_sqrt(variance + eps));
  for (int i = 0; i < size; i += kLanes) {
    const int count = size - i < kLanes ? size - i : kLanes;
    const bool whole = count == kLanes;
    Vec v = ((whole ? load(x + i) : load_some(x + i, count)) - center) * scale;
    if (weight != nullptr) v *= whole ? load(weight + i) : load_some(weight + i, count);
    if (bias != nullptr) v += whole ? load(bias + i) : load_some(bias + i, count);
    if (whole)
      store(out + i, v);
    else
      store_some(out + i, v, count);
  }
}

void add_rows(const float* x, std::int64_t x_step, int rows, int size, double* sums,
              double* squares) {
  constexpr int kHalf = kLanes / 2;
  int i = 0;
  for (; i + kHalf <= size; i += kHalf) {
    DoubleVec sum;
    DoubleVec square;
    __builtin_memcpy(&sum, sums + i, sizeof(sum));
    __builtin_memcpy(&square, squares + i, sizeof(square));
    for (int r = 0; r < rows; ++r) {
      const DoubleVec v = load_double(x + r * x_step + i);
      sum += v;
      square += v * v;
    }
    __builtin_memcpy(sums + i, &sum, sizeof(sum));
    __builtin_memcpy(squares + i, &square, sizeof(square));
  }
  for (; i < size; ++i)
    for (int r = 0; r < rows; ++r) {
      const double v = x[r * x_step + i];
      sums[i] += v;
      squares[i] += v * v;
    }
}

float dot(const float* a, const float* b, int size) {
  Vec first = {};
  Vec second = {};
  int i = 0;
  for (; i + 2 * kLanes <= size; i += 2 * kLanes) {
    first += load(a + i) * load(b + i);
    second += load(a + i + kLanes) * load(b + i + kLanes);
  }
  for (; i + kLanes <= size; i += kLanes) first += load(a + i) * load(b + i);
  float total = i > 0 ? sum_of(first + second) : 0.0f;
  using Four = float __attribute__((vector_size(16)));
  Four few = {};
  for (; i + 4 <= size; i += 4) {
    Four x, y;
    __builtin_memcpy(&x, a + i, 16);
    __builtin_memcpy(&y, b + i, 16);
    few += x * y;
  }
  total += (few[0] + few[1]) + (few[2] + few[3]);
  for (; i < size; ++i) total += a[i] * b[i];
  return total;
}

// kRows x kVectors vectors of sums in registers.
template <int kRows, int kVectors>
inline void multiply_block(const HostProduct& p, int first_row) {
  const float* a[kRows];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) a[r] = p.a + p.a_rows[first_row + r];
  Vec sums[kRows][kVectors] = {};
  const float* b = p.b;
  std::int64_t at = 0;
  for (int k = 0; k < p.inner; ++k, b += p.b_step, at += p.a_step) {
    Vec row[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) row[v] = load(b + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vec x = all(a[r][at]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sums[r][v] += x * row[v];
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    float* out = p.out + p.out_rows[first_row + r];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      const int left = p.columns - v * kLanes;
      float* to = out + v * kLanes;
      if (left >= kLanes) {
        store(to, p.accumulate ? load(to) + sums[r][v] : sums[r][v]);
      } else {
        store_some(to, p.accumulate ? load_some(to, left) + sums[r][v] : sums[r][v], left);
      }
    }
  }
}

template <int kVectors>
inline void multiply_rows(const HostProduct& p) {
  int row = 0;
  for (; row + 6 <= p.rows; row += 6) multiply_block<6, kVectors>(p, row);
  for (; row + 2 <= p.rows; row += 2) multiply_block<2, kVectors>(p, row);
  if (row < p.rows) multiply_block<1, kVectors>(p, row);
}

void multiply(const HostProduct& p) {
  if (p.columns > kLanes)
    multiply_rows<2>(p);
  else
    multiply_rows<1>(p);
}

void normalize_rows(const float* x, std::int64_t x_step, int rows, int size, double eps,
                    const float* weight, const float* bias, float* out, std::int64_t out_step) {
  for (int r = 0; r < rows; ++r, x += x_step, out += out_step)
    normalize_row(x, size, eps, weight, bias, out);
}

void copy_runs(const HostRun* runs, int count, const float* x, float* out) {
  for (int r = 0; r < count; ++r)
    copy_rows(x + runs[r].from, 0, runs[r].stride, 1, runs[r].size, out + runs[r].to, 0);
}

constexpr HostLoops loops_named(const char* name) {
  return {name,       kLanes,   apply_loop,   copy_rows,     copy_runs,      transpose, reduce_into,
          reduce_row, add_rows, softmax_rows, softmax_lanes, normalize_rows, dot,       multiply};
}
