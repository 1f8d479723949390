// Building blocks of kernels that run a group of steps over a tile of samples, compiled at load.
//
// A generated kernel (dpiframe_core/engine/cuda/tile) is a list of stages, each one call of what is
// here; between stages all threads of the CTA meet. What stages hand to one another lies in shared
// memory. Sizes are compile-time constants, and every element access is a function that the
// generator wrote. Self-contained: no header of a toolkit is needed. Compiled for the host
// (DPIF_TILE_HOST), one thread runs the same stages with plain loops; with the instructions of
// tests/helpers/tile_emulator in the place of a GPU's, all threads run as they would there.
#pragma once

#include "common/short_functions.h"
#include "jit/compiled_params.h"
#ifdef DPIF_TILE_HOST
#include "kernels/tile/host.h"
#else
#include "kernels/tile/instructions.cuh"
#endif

namespace tile {

using Params = dpiframe::CompiledParams;

// Of what is not negative, which a compiler does not know.
template <unsigned kBy>
DPIF_DEVICE int quotient(int value) {
  return static_cast<int>(static_cast<unsigned>(value) / kBy);
}
template <unsigned kBy>
DPIF_DEVICE int remainder(int value) {
  return static_cast<int>(static_cast<unsigned>(value) % kBy);
}

DPIF_DEVICE int shorter(long long rows, int most) {
  return rows < most ? static_cast<int>(rows) : most;
}

DPIF_DEVICE float widen(float x) {
  return x;
}
DPIF_DEVICE void narrow(float x, float& out) {
  out = x;
}

template <class T>
DPIF_DEVICE float load(const T* from) {
  return widen(*from);
}
template <class T>
DPIF_DEVICE void store(T* to, float value) {
  narrow(value, *to);
}

// V neighbours from an address that is a multiple of their size (16 bytes at most).
template <int kWords>
struct alignas(kWords * 4 <= 16 ? kWords * 4 : 16) Words {
  u32 of[kWords];
};
// Two neighbours as a register of a product's operand.
template <class T>
DPIF_DEVICE u32 pair(float low, float high) {
  return narrow_pair(low, high, T{});
}

template <int V, class T>
DPIF_DEVICE void load_pack(const T* from, float (&to)[V]) {
  if constexpr (sizeof(T) == 4) {
    const Words<V> words = *reinterpret_cast<const Words<V>*>(from);
#pragma unroll
    for (int i = 0; i < V; ++i) to[i] = bits_to_float(words.of[i]);
  } else {
    const Words<V / 2> words = *reinterpret_cast<const Words<V / 2>*>(from);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      T part;
      part.bits = static_cast<u16>(words.of[i / 2] >> (16 * (i % 2)));
      to[i] = widen(part);
    }
  }
}
template <int V, class T>
DPIF_DEVICE void store_pack(T* to, const float (&from)[V]) {
  if constexpr (sizeof(T) == 4) {
    Words<V> words;
#pragma unroll
    for (int i = 0; i < V; ++i) words.of[i] = float_to_bits(from[i]);
    *reinterpret_cast<Words<V>*>(to) = words;
  } else {
    Words<V / 2> words;
#pragma unroll
    for (int i = 0; i < V / 2; ++i) words.of[i] = pair<T>(from[2 * i], from[2 * i + 1]);
    *reinterpret_cast<Words<V / 2>*>(to) = words;
  }
}

// Numbers that no kernel changes.
struct Numbers {
  const float* first;
  DPIF_DEVICE Numbers operator+(int place) const { return {first + place}; }
};
DPIF_DEVICE float load(Numbers from) {
  float to[1];
  load_numbers(from.first, to);
  return to[0];
}
template <int V>
DPIF_DEVICE void load_pack(Numbers from, float (&to)[V]) {
  load_numbers(from.first, to);
}

template <class T>
DPIF_DEVICE u32 load_pair(const T* from) {
  return *reinterpret_cast<const u32*>(from);
}
// Two elements as they are, side by side.
template <class T>
DPIF_DEVICE u32 joined(const T* low, const T* high) {
  return static_cast<u32>(low->bits) | static_cast<u32>(high->bits) << 16;
}
template <class T>
DPIF_DEVICE u32 twice(const T* from) {
  return static_cast<u32>(from->bits) * 0x10001u;
}
// The product of two pairs, rounded once.
template <class T>
DPIF_DEVICE u32 times(u32 a, u32 b) {
  return multiply_pair(a, b, T{});
}

// V neighbours of 16 bits as pairs, from an address that is a multiple of their size.
template <int V, class T>
DPIF_DEVICE Words<V / 2> load_pairs(const T* from) {
  return *reinterpret_cast<const Words<V / 2>*>(from);
}
template <int V, class T>
DPIF_DEVICE void store_pairs(T* to, const Words<V / 2>& pairs) {
  *reinterpret_cast<Words<V / 2>*>(to) = pairs;
}
// Functions of pairs; NaN where one of both is.
namespace pairs {
template <class T>
DPIF_DEVICE u32 add(u32 a, u32 b) {
  return add_pair(a, b, T{});
}
template <class T>
DPIF_DEVICE u32 sub(u32 a, u32 b) {
  return subtract_pair(a, b, T{});
}
template <class T>
DPIF_DEVICE u32 mul(u32 a, u32 b) {
  return multiply_pair(a, b, T{});
}
template <class T>
DPIF_DEVICE u32 min(u32 a, u32 b) {
  return smaller_pair(a, b, T{});
}
template <class T>
DPIF_DEVICE u32 max(u32 a, u32 b) {
  return larger_pair(a, b, T{});
}
template <class T>
DPIF_DEVICE u32 relu(u32 a) {
  return larger_pair(a, 0u, T{});
}
template <class T>
DPIF_DEVICE u32 neg(u32 a) {
  return a ^ 0x80008000u;
}
template <class T>
DPIF_DEVICE u32 abs(u32 a) {
  return a & 0x7fff7fffu;
}
}  // namespace pairs

// Functions of dpiframe_core/program/expression.py; NaN, infinities and halves as torch has them.
namespace fn {
DPIF_DEVICE float truth(bool x) {
  return x ? 1.0f : 0.0f;
}
DPIF_DEVICE float neg(float x) {
  return -x;
}
DPIF_DEVICE float abs(float x) {
  return fabsf(x);
}
DPIF_DEVICE float sign(float x) {
  return truth(x > 0.0f) - truth(x < 0.0f);
}
DPIF_DEVICE float floor(float x) {
  return floorf(x);
}
DPIF_DEVICE float ceil(float x) {
  return ceilf(x);
}
DPIF_DEVICE float round(float x) {
  return rintf(x);
}
// DPIF_TILE_SHORT: exp, sigmoid, tanh and erf in a few instructions, for results of 16 bits, with
// the errors of SHORT_FUNCTIONS (dpiframe_core/engine/cuda/formula.py).
DPIF_DEVICE float exp(float x) {
#ifdef DPIF_TILE_SHORT
  return exp2f(x * 1.44269504f);
#else
  return expf(x);
#endif
}
// exp(x - largest), where all numbers of a row share the rounding of the latter.
DPIF_DEVICE float exp_below(float x, float largest) {
#ifdef DPIF_TILE_SHORT
  return exp2f(fmaf(x, 1.44269504f, largest * -1.44269504f));
#else
  return expf(x - largest);
#endif
}
// 1 / x, where x is at least 1.
DPIF_DEVICE float inverse(float x) {
#ifdef DPIF_TILE_SHORT
  return short_reciprocal(x);
#else
  return 1.0f / x;
#endif
}
DPIF_DEVICE float expm1(float x) {
  return expm1f(x);
}
DPIF_DEVICE float log(float x) {
  return logf(x);
}
DPIF_DEVICE float log1p(float x) {
  return log1pf(x);
}
DPIF_DEVICE float sqrt(float x) {
  return sqrtf(x);
}
DPIF_DEVICE float rsqrt(float x) {
  return 1.0f / sqrtf(x);
}
DPIF_DEVICE float reciprocal(float x) {
  return 1.0f / x;
}
DPIF_DEVICE float sigmoid(float x) {
  return inverse(1.0f + exp(-x));
}
DPIF_DEVICE float tanh(float x) {
#ifdef DPIF_TILE_SHORT
  return 1.0f - 2.0f * inverse(1.0f + exp(x + x));
#else
  return tanhf(x);
#endif
}
DPIF_DEVICE float relu(float x) {
  return larger(x, 0.0f);
}
DPIF_DEVICE float erf(float x) {
#ifdef DPIF_TILE_SHORT
  return dpiframe::functions::short_erf(x);
#else
  return erff(x);
#endif
}
DPIF_DEVICE float sin(float x) {
  return sinf(x);
}
DPIF_DEVICE float cos(float x) {
  return cosf(x);
}
DPIF_DEVICE float tan(float x) {
  return tanf(x);
}
DPIF_DEVICE float asin(float x) {
  return asinf(x);
}
DPIF_DEVICE float acos(float x) {
  return acosf(x);
}
DPIF_DEVICE float atan(float x) {
  return atanf(x);
}
DPIF_DEVICE float sinh(float x) {
  return sinhf(x);
}
DPIF_DEVICE float cosh(float x) {
  return coshf(x);
}
DPIF_DEVICE float not_(float x) {
  return truth(x == 0.0f);
}
DPIF_DEVICE float isfinite(float x) {
  return truth((float_to_bits(x) & 0x7f800000u) != 0x7f800000u);
}
DPIF_DEVICE float add(float a, float b) {
  return a + b;
}
DPIF_DEVICE float sub(float a, float b) {
  return a - b;
}
DPIF_DEVICE float mul(float a, float b) {
  return a * b;
}
DPIF_DEVICE float div(float a, float b) {
  return a / b;
}
DPIF_DEVICE float pow(float a, float b) {
  return b == 2.0f ? a * a : powf(a, b);
}
DPIF_DEVICE float min(float a, float b) {
  return smaller(a, b);
}
DPIF_DEVICE float max(float a, float b) {
  return larger(a, b);
}
DPIF_DEVICE float atan2(float a, float b) {
  return atan2f(a, b);
}
DPIF_DEVICE float mod(float a, float b) {
  const float rest = fmodf(a, b);
  return rest != 0.0f && (rest < 0.0f) != (b < 0.0f) ? rest + b : rest;
}
DPIF_DEVICE float eq(float a, float b) {
  return truth(a == b);
}
DPIF_DEVICE float ne(float a, float b) {
  return truth(a != b);
}
DPIF_DEVICE float lt(float a, float b) {
  return truth(a < b);
}
DPIF_DEVICE float le(float a, float b) {
  return truth(a <= b);
}
DPIF_DEVICE float gt(float a, float b) {
  return truth(a > b);
}
DPIF_DEVICE float ge(float a, float b) {
  return truth(a >= b);
}
DPIF_DEVICE float and_(float a, float b) {
  return truth(a != 0.0f && b != 0.0f);
}
DPIF_DEVICE float or_(float a, float b) {
  return truth(a != 0.0f || b != 0.0f);
}
DPIF_DEVICE float where(float c, float a, float b) {
  return c != 0.0f ? a : b;
}
}  // namespace fn

// body(i) for each i below kCount, by all threads.
template <int kCount, class Body>
DPIF_DEVICE void each(const Body& body) {
  constexpr int kTurns = (kCount + kThreads - 1) / kThreads;
#pragma unroll(kTurns <= 8 ? kTurns : 4)
  for (int turn = 0; turn < kTurns; ++turn) {
    const int i = thread() + turn * kThreads;
    if (kCount % kThreads == 0 || i < kCount) body(i);
  }
}

// Asks L2 for the input of the tile that is about to follow on this multiprocessor, where kCtas are
// at once: columns kFirst .. kEnd of samples, the first of this tile's at `from`, of `rows` behind.
template <int kSamples, int kCtas, int kFirst, int kEnd, class T>
DPIF_DEVICE void fetch_next(const T* from, long long stride, long long rows) {
  constexpr int kEach = 128 / sizeof(T);  // columns of a line
  constexpr int kLines = (kEnd - kFirst + kEach - 1) / kEach + 1;
  const long long next = static_cast<long long>(kSamples) * kCtas * multiprocessors();
  each<kSamples * kLines>([&](int i) {
    const long long sample = next + quotient<kLines>(i);
    const int column = kFirst + remainder<kLines>(i) * kEach;
    if (sample < rows) prefetch(from + sample * stride + (column < kEnd ? column : kEnd - 1));
  });
}

struct Sum {
  static DPIF_DEVICE float start() { return 0.0f; }
  static DPIF_DEVICE float join(float a, float b) { return a + b; }
};
struct Prod {
  static DPIF_DEVICE float start() { return 1.0f; }
  static DPIF_DEVICE float join(float a, float b) { return a * b; }
};
struct Max {
  static DPIF_DEVICE float start() { return bits_to_float(0xff800000u); }
  static DPIF_DEVICE float join(float a, float b) { return larger(a, b); }
};
struct Min {
  static DPIF_DEVICE float start() { return bits_to_float(0x7f800000u); }
  static DPIF_DEVICE float join(float a, float b) { return smaller(a, b); }
};

// Lanes side by side that share a row.
template <int kLanes, class F>
DPIF_DEVICE float over_lanes(float value) {
#ifndef DPIF_TILE_HOST
#pragma unroll
  for (int lane = kLanes / 2; lane > 0; lane /= 2) value = F::join(value, shuffled(value, lane));
#endif
  return value;
}

// A row of kSize elements, a part of which each of the lanes holds: blocks of kWidth neighbours, in
// turn. read(block, x) and write(block, x) take a block's elements.
template <int kLanes, int kSize, int kWidth>
struct Row {
#ifdef DPIF_TILE_HOST
  static constexpr int kStep = 1;
  static DPIF_DEVICE int lane() { return 0; }
#else
  static constexpr int kStep = kLanes;
  static DPIF_DEVICE int lane() { return thread() % kLanes; }
#endif
  static constexpr int kBlocks = kSize / kWidth;
  static constexpr int kEach = (kBlocks + kStep - 1) / kStep;
  float of[kEach][kWidth];

  template <class Read>
  DPIF_DEVICE explicit Row(const Read& read) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
      for (auto& x : of[i]) x = 0.0f;
      if (lane() + i * kStep < kBlocks) read(lane() + i * kStep, of[i]);
    }
  }
  // change(x) for each element.
  template <class Change>
  DPIF_DEVICE void each(const Change& change) {
#pragma unroll
    for (auto& block : of)
#pragma unroll
      for (auto& x : block) x = change(x);
  }
  template <class F, class Change>
  DPIF_DEVICE float reduced(const Change& change) const {
    float total = F::start();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (lane() + i * kStep >= kBlocks) continue;
#pragma unroll
      for (const float x : of[i]) total = F::join(total, change(x));
    }
    return over_lanes<kLanes, F>(total);
  }
  template <class Write>
  DPIF_DEVICE void write(const Write& write) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (lane() + i * kStep < kBlocks) write(lane() + i * kStep, of[i]);
  }
};

// body(row, valid) for each row, by kLanes threads; whole warps go through it, so that lanes meet.
// The first row is that of thread kStart, a multiple of 32.
template <int kLanes, int kRows, int kStart, class Body>
DPIF_DEVICE void each_row(const Body& body) {
#ifdef DPIF_TILE_HOST
  for (int row = 0; row < kRows; ++row) body(row, true);
#else
  constexpr int kAtOnce = kThreads / kLanes;
  const int own = (thread() + kThreads - kStart) % kThreads;
  for (int first = 0; first < kRows; first += kAtOnce) {
    if (first + own / 32 * 32 / kLanes >= kRows) break;
    const int row = first + own / kLanes;
    const bool valid = row < kRows;
    body(valid ? row : kRows - 1, valid);
  }
#endif
}

// write(row, F over all elements of the row); read(row, block, x).
template <class F, int kLanes, int kRows, int kSize, int kWidth, int kStart, class Read,
          class Write>
DPIF_DEVICE void reduce(const Read& read, const Write& write) {
  using Lanes = Row<kLanes, kWidth, kWidth>;
  each_row<kLanes, kRows, kStart>([&](int row, bool valid) {
    float total = F::start();
#pragma unroll(kWidth == 1 ? 8 : 4)
    for (int i = Lanes::lane(); i < kSize / kWidth; i += Lanes::kStep) {
      float block[kWidth];
      read(row, i, block);
#pragma unroll
      for (const float x : block) total = F::join(total, x);
    }
    total = over_lanes<kLanes, F>(total);
    if (valid && Lanes::lane() == 0) write(row, total);
  });
}

// The least number of a half in the place of those below, which are -inf in a half: a row of these
// alone, of which a mask leaves nothing, has the same number everywhere then, as in float32.
DPIF_DEVICE float held(float x, Half) {
  return x < -65504.0f ? -65504.0f : x;
}
template <class Element>
DPIF_DEVICE float held(float x, Element) {
  return x;
}

// Of a row of scores whose largest is given: what to take from them, and the scale of their powers,
// whose sum is given; guarded: 0 where all of the row is -infinity.
template <bool kGuarded>
DPIF_DEVICE float base_of(float largest) {
  return kGuarded && largest == Max::start() ? 0.0f : largest;
}
template <bool kGuarded>
DPIF_DEVICE float scale_of(float total) {
  return kGuarded && total == 0.0f ? 0.0f : fn::inverse(total);
}

// read(row, block, x), then change(row's elements), then write(row, block, x), of each row; of
// short rows two are read before the first is changed.
template <int kLanes, int kRows, int kSize, int kWidth, int kStart, class Read, class Change,
          class Write>
DPIF_DEVICE void change_rows(const Read& read, const Change& change, const Write& write) {
  using Elements = Row<kLanes, kSize, kWidth>;
  constexpr int kAtOnce = kThreads / kLanes;
  if constexpr (kRows <= kAtOnce || Elements::kEach * kWidth > 16) {
    each_row<kLanes, kRows, kStart>([&](int r, bool valid) {
      Elements row([&](int i, auto& x) { read(r, i, x); });
      change(row);
      if (valid) row.write([&](int i, const auto& x) { write(r, i, x); });
    });
  } else {
    each_row<kLanes, (kRows + 1) / 2, kStart>([&](int r, bool valid) {
      const int next = r + (kRows + 1) / 2;
      const bool both = kRows % 2 == 0 || next < kRows;
      Elements row([&](int i, auto& x) { read(r, i, x); });
      Elements other([&](int i, auto& x) { read(both ? next : r, i, x); });
      change(row);
      change(other);
      if (valid) row.write([&](int i, const auto& x) { write(r, i, x); });
      if (valid && both) other.write([&](int i, const auto& x) { write(next, i, x); });
    });
  }
}

template <class Element, bool kGuarded, int kLanes, int kRows, int kSize, int kWidth, int kStart,
          class Read, class Write>
DPIF_DEVICE void softmax(const Read& read, const Write& write) {
  const auto change = [](auto& row) {
    if (!kGuarded) row.each([](float x) { return held(x, Element{}); });
    const float largest = base_of<kGuarded>(row.template reduced<Max>([](float x) { return x; }));
    row.each([&](float x) { return fn::exp_below(x, largest); });
    const float scale = scale_of<kGuarded>(row.template reduced<Sum>([](float x) { return x; }));
    row.each([&](float x) { return x * scale; });
  };
  change_rows<kLanes, kRows, kSize, kWidth, kStart>(read, change, write);
}

// Normalised: weight and bias are the writer's.
template <int kLanes, int kRows, int kSize, int kWidth, int kStart, class Read, class Write>
DPIF_DEVICE void layer_norm(float eps, const Read& read, const Write& write) {
  const auto change = [&](auto& row) {
    const float mean = row.template reduced<Sum>([](float x) { return x; }) * (1.0f / kSize);
    const float variance = row.template reduced<Sum>([&](float x) {
      return (x - mean) * (x - mean);
    }) * (1.0f / kSize);
    const float scale = 1.0f / sqrtf(variance + eps);
    row.each([&](float x) { return (x - mean) * scale; });
  };
  change_rows<kLanes, kRows, kSize, kWidth, kStart>(read, change, write);
}

// Products: kProducts of them side by side, each [kRows, kInner] x [kInner, kColumns], where inner
// is kOuter x kInner, the latter padded to a multiple of 16. a(product, row, outer, inner) and
// b(product, column, outer, inner) give elements, a.two and b.two a pair at (inner, inner + 1),
// write(product, row, column, value) takes a result.
template <class One, class Two>
struct Operand {
  One read_one;
  Two read_two;
  DPIF_DEVICE float one(int product, int place, int outer, int inner) const {
    return read_one(product, place, outer, inner);
  }
  DPIF_DEVICE u32 two(int product, int place, int outer, int inner) const {
    return read_two(read_one, product, place, outer, inner);
  }
};
template <class One, class Two>
DPIF_DEVICE Operand<One, Two> operand(const One& one, const Two& two) {
  return {one, two};
}

// How an operand's elements lie in shared memory: rows (columns, of b) of 16 bytes aligned; the
// same transposed; aligned pairs along the inner axis; anyhow.
enum class Lie { kRows, kColumns, kPairs, kApart };

// An operand of 16 bits in shared memory: at(product, row, outer, inner) is an element's address.
template <Lie kHow, class At>
struct Stored {
  At at;
  static constexpr bool kBlocks = kHow == Lie::kRows || kHow == Lie::kColumns;
  DPIF_DEVICE float one(int product, int place, int outer, int inner) const {
    return load(at(product, place, outer, inner));
  }
  DPIF_DEVICE u32 two(int product, int place, int outer, int inner) const {
    const auto* first = at(product, place, outer, inner);
    if constexpr (kHow == Lie::kRows || kHow == Lie::kPairs)
      return load_pair(first);
    else
      return joined(first, at(product, place, outer, inner + 1));
  }
};
template <Lie kHow, class At>
DPIF_DEVICE Stored<kHow, At> stored(const At& at) {
  return {at};
}
template <class A>
constexpr bool kInBlocks = false;
template <Lie kHow, class At>
constexpr bool kInBlocks<Stored<kHow, At>> = Stored<kHow, At>::kBlocks;

// An operand whose element is a product of two: one the same for every outer place, which lanes
// keep in registers, and one the same for every inner place. `two` are of a pair of elements, in
// the operand's type.
template <class FixedOne, class FixedTwo, class ScaleOne, class ScaleTwo>
struct Separable {
  FixedOne fixed_one;
  FixedTwo fixed_two;
  ScaleOne scale_one;
  ScaleTwo scale_two;
  DPIF_DEVICE float one(int product, int place, int outer, int inner) const {
    return fixed_one(product, place, inner) * scale_one(product, place, outer);
  }
};
template <class FixedOne, class FixedTwo, class ScaleOne, class ScaleTwo>
DPIF_DEVICE Separable<FixedOne, FixedTwo, ScaleOne, ScaleTwo> separable(const FixedOne& fixed_one,
                                                                        const FixedTwo& fixed_two,
                                                                        const ScaleOne& scale_one,
                                                                        const ScaleTwo& scale_two) {
  return {fixed_one, fixed_two, scale_one, scale_two};
}
template <class A>
struct Fixed {
  const A& of;
  DPIF_DEVICE float one(int product, int place, int, int inner) const {
    return of.fixed_one(product, place, inner);
  }
  DPIF_DEVICE u32 two(int product, int place, int, int inner) const {
    return of.fixed_two(product, place, inner);
  }
};

// Where results of a row of a product go, if they shall be stored: one, or two of neighbouring
// columns, the first of which is even. A writer(product, row) gives it.
template <class One, class Two>
struct Results {
  One one;
  Two two;
};
template <class One, class Two>
DPIF_DEVICE Results<One, Two> results(const One& one, const Two& two) {
  return {one, two};
}

DPIF_DEVICE constexpr int padded(int size, int to) {
  return (size + to - 1) / to * to;
}

#ifdef DPIF_TILE_HOST

template <class T, int kProducts, int kRows, int kOuter, int kInner, int kColumns, int kRowTiles,
          int kColumnTiles, class A, class B, class Write>
void multiply(const A& a, const B& b, const Write& write) {
  for (int p = 0; p < kProducts; ++p)
    for (int row = 0; row < kRows; ++row)
      for (int column = 0; column < kColumns; ++column) {
        float sum = 0.0f;
        for (int o = 0; o < kOuter; ++o)
          for (int i = 0; i < kInner; ++i) sum += a.one(p, row, o, i) * b.one(p, column, o, i);
        write(p, row).one(column, sum, true);
      }
}

template <class T, int kProducts, int kRows, int kOuter, int kInner, int kColumns, int kRowTiles,
          int kColumnTiles, int kStages, class A, class B, class Write>
void multiply_staged(unsigned char*, const A& a, const B& b, const Write& write) {
  multiply<T, kProducts, kRows, kOuter, kInner, kColumns, kRowTiles, kColumnTiles>(a, b, write);
}

template <int kBytes>
void fetch_matrix(unsigned char*, const void*) {}
DPIF_DEVICE void matrix_arrives() {}
template <class T, int kProducts, int kRows, int kOuter, int kInner, int kColumns, int kRowTiles,
          int kColumnTiles, class A, class B, class Write>
void multiply_resident(unsigned char*, const A& a, const B& b, const Write& write) {
  multiply<T, kProducts, kRows, kOuter, kInner, kColumns, kRowTiles, kColumnTiles>(a, b, write);
}

template <class T, bool kGuarded, int kProducts, int kRows, int kInner, int kColumns, int kOut,
          int kRowTiles, class A, class B, class Score, class V, class Write>
void attend(const A& a, const B& b, const Score& score, const V& v, const Write& write) {
  for (int p = 0; p < kProducts; ++p)
    for (int row = 0; row < kRows; ++row) {
      float weights[kColumns];
      float largest = Max::start();
      for (int column = 0; column < kColumns; ++column) {
        float sum = 0.0f;
        for (int i = 0; i < kInner; ++i) sum += a.one(p, row, 0, i) * b.one(p, column, 0, i);
        weights[column] = score(p, row)(column, sum);
        largest = larger(largest, weights[column]);
      }
      largest = base_of<kGuarded>(largest);
      float total = 0.0f;
      for (float& x : weights) total += x = fn::exp_below(x, largest);
      for (int to = 0; to < kOut; ++to) {
        float sum = 0.0f;
        for (int i = 0; i < kColumns; ++i) sum += weights[i] * v.one(p, to, 0, i);
        write(p, row).one(to, sum * scale_of<kGuarded>(total), true);
      }
    }
}

// b of a constant matrix, as the generator packed it: in lanes' order, or in blocks.
template <class T, int kOuter, int kInner, int kColumns>
struct Blocks {
  const void* data;
  float one(int p, int column, int o, int i) const {
    constexpr int kSteps = padded(kInner, 16) / 16;
    constexpr int kTiles = padded(kColumns, 16) / 8;
    const long long step = (static_cast<long long>(p) * kOuter + o) * kSteps + i / 16;
    const long long block = (step * 2 + i % 16 / 8) * kTiles + column / 8;
    return load(static_cast<const T*>(data) + block * 64 + column % 8 * 8 + i % 8);
  }
};
template <class T, int kOuter, int kInner, int kColumns>
struct Packed {
  const void* data;
  float one(int p, int column, int o, int i) const {
    constexpr int kSteps = padded(kInner, 16) / 16;
    constexpr int kTiles = padded(kColumns, 16) / 16;
    const long long step = (static_cast<long long>(p) * kOuter + o) * kSteps + i / 16;
    const int k = i % 16;
    const int n = column % 16;
    if (sizeof(T) == 2) {
      // of lane (n % 8) * 4 + k % 8 / 2: register n / 8 * 2 + k / 8, half k % 2
      const long long lane = (step * kTiles + column / 16) * 32 + n % 8 * 4 + k % 8 / 2;
      return load(static_cast<const T*>(data) + (lane * 4 + n / 8 * 2 + k / 8) * 2 + k % 2);
    }
    // a step of 16 is two of 8; of lane (n % 8) * 4 + k % 4: register n / 8 * 2 + k % 8 / 4
    const long long lane = ((step * 2 + k / 8) * kTiles + column / 16) * 32 + n % 8 * 4 + k % 4;
    return load(static_cast<const T*>(data) + lane * 4 + n / 8 * 2 + k % 8 / 4);
  }
};

#else

// 16 places from `first_place` on times 16 inner ones from `first` on: of register i two
// neighbours, of which those behind kInner are 0. kPlaceFirst: blocks are 8 places, then 8 inner
// ones apart.
template <int kPlaces, int kInner, bool kPlaceFirst, Lie kHow, class At>
DPIF_DEVICE void read_blocks(u32 (&to)[4], const Stored<kHow, At>& from, int product,
                             int first_place, int outer, int first) {
  const int block = thread() % 32 / 8;
  const int row = thread() % 8;
  const int places = (kPlaceFirst ? block % 2 : block / 2) * 8;
  const int inners = (kPlaceFirst ? block / 2 : block % 2) * 8;
  constexpr bool kTransposed = kHow == Lie::kColumns;
  int place = first_place + places + (kTransposed ? 0 : row);
  int inner = first + inners + (kTransposed ? row : 0);
  constexpr int kLastPlace = kPlaces - (kTransposed ? 8 : 1);
  if (kPlaces % 16 != 0 && place > kLastPlace) place = kLastPlace;
  if (kInner % 16 != 0 && inner >= kInner) inner = kTransposed ? kInner - 1 : first;
  load_blocks<kTransposed>(to, shared_address(from.at(product, place, outer, inner)));
  if (kInner % 16 == 0 || first + 16 <= kInner) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int left = kInner - (first + (kPlaceFirst ? i / 2 : i % 2) * 8 + thread() % 4 * 2);
    to[i] = left >= 2 ? to[i] : left == 1 ? to[i] & 0xffffu : 0u;
  }
}

// A step of 16 along the inner axis of one row tile of a.
template <class T>
struct Fragment {
  u32 of[4];

  // rows: of lanes / 4, and 8 below; both exist.
  template <int kInner, class A>
  DPIF_DEVICE void read(const A& a, int product, int row0, int row1, int outer, int first) {
    const int lane = thread() % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int inner = first + half * 8 + lane;
      of[half * 2] = two<kInner>(a, product, row0, outer, inner);
      of[half * 2 + 1] = two<kInner>(a, product, row1, outer, inner);
    }
  }
  // Of 16 columns of a product's sums.
  DPIF_DEVICE void narrow_sums(const float (&sums)[2][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) of[i] = pair<T>(sums[i / 2][i % 2 * 2], sums[i / 2][i % 2 * 2 + 1]);
  }
  template <class A>
  DPIF_DEVICE Fragment scaled(const A& a, int product, int row0, int row1, int outer) const {
    const u32 scales[2] = {a.scale_two(product, row0, outer), a.scale_two(product, row1, outer)};
    Fragment found;
#pragma unroll
    for (int i = 0; i < 4; ++i) found.of[i] = times<T>(of[i], scales[i % 2]);
    return found;
  }
  template <int kInner, class A>
  static DPIF_DEVICE u32 two(const A& a, int product, int row, int outer, int inner) {
    if (kInner % 16 == 0 || inner + 1 < kInner) return a.two(product, row, outer, inner);
    return inner < kInner ? pair<T>(a.one(product, row, outer, inner), 0.0f) : 0u;
  }
};
template <>
struct Fragment<float> {
  float of[2][4];  // two steps of 8

  // Inner places in the order of read_columns_float, paired.
  DPIF_DEVICE void narrow_sums(const float (&sums)[2][4]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) of[i / 4][i % 4] = sums[i / 4][i % 2 * 2 + i % 4 / 2];
  }
  template <class A>
  DPIF_DEVICE Fragment scaled(const A& a, int product, int row0, int row1, int outer) const {
    const float scales[2] = {a.scale_one(product, row0, outer), a.scale_one(product, row1, outer)};
    Fragment found;
#pragma unroll
    for (int i = 0; i < 8; ++i) found.of[i / 4][i % 4] = of[i / 4][i % 4] * scales[i % 2];
    return found;
  }

  template <int kInner, class A>
  DPIF_DEVICE void read(const A& a, int product, int row0, int row1, int outer, int first) {
#pragma unroll
    for (int step = 0; step < 2; ++step)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int inner = first + step * 8 + half * 4 + thread() % 4;
        const bool inside = kInner % 16 == 0 || inner < kInner;
        of[step][half * 2] = inside ? a.one(product, row0, outer, inner) : 0.0f;
        of[step][half * 2 + 1] = inside ? a.one(product, row1, outer, inner) : 0.0f;
      }
  }
};

// 16 columns of b for a step of 16.
template <class T>
struct Columns {
  u32 of[2][2];
  DPIF_DEVICE void multiply(float (&low)[4], float (&high)[4], const Fragment<T>& a) const {
    mma(low, a.of, of[0][0], of[0][1], T{});
    mma(high, a.of, of[1][0], of[1][1], T{});
  }
};
template <>
struct Columns<float> {
  float of[2][2][2];  // step of 8, tile of 8 columns, register
  // float32 from tf32 products: a b = large large + large small + small large, the rest is below
  // float32's own rounding (Ootomo and Yokota, 2022). DPIF_TILE_TF32: large large alone.
  DPIF_DEVICE void multiply(float (&low)[4], float (&high)[4], const Fragment<float>& a) const {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      u32 large[4];
      u32 small[4];
      split(a.of[step], large, small);
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        float (&sums)[4] = tile ? high : low;
        u32 b_large[2];
        u32 b_small[2];
        split(of[step][tile], b_large, b_small);
#ifndef DPIF_TILE_TF32
        mma_tf32(sums, large, b_small[0], b_small[1]);
        mma_tf32(sums, small, b_large[0], b_large[1]);
#endif
        mma_tf32(sums, large, b_large[0], b_large[1]);
      }
    }
  }
  // Tensor cores ignore the lower 13 bits, so small, of 12 bits at most, goes there as it is. NaN,
  // which the addition may spoil, remains in small. A conversion instruction would take as long as
  // several.
  template <int kCount>
  static DPIF_DEVICE void split(const float (&x)[kCount], u32 (&large)[kCount],
                                u32 (&small)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#ifdef DPIF_TILE_TF32
      large[i] = to_tf32(x[i]);
#else
      large[i] = (float_to_bits(x[i]) + 0x1000u) & 0xffffe000u;
      small[i] = float_to_bits(x[i] - bits_to_float(large[i]));
#endif
    }
  }
};

// A constant matrix in device memory in the order in which lanes read it.
template <class T, int kOuter, int kInner, int kColumns>
struct Packed {
  const void* data;

  template <int kUnused>
  DPIF_DEVICE void read(Columns<T>& to, int product, int outer, int first, int column_tile) const {
    constexpr int kSteps = padded(kInner, 16) / 16;
    constexpr int kTiles = padded(kColumns, 16) / 16;
    const long long step = (static_cast<long long>(product) * kOuter + outer) * kSteps + first / 16;
    constexpr int kParts = sizeof(T) == 2 ? 1 : 2;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const long long lane = ((step * kParts + part) * kTiles + column_tile) * 32 + thread() % 32;
      put(to, part, load_constant(static_cast<const char*>(data) + lane * 16));
    }
  }

  template <class U>
  static DPIF_DEVICE void put(Columns<U>& to, int, const Four& f) {
    to.of[0][0] = f.x;
    to.of[0][1] = f.y;
    to.of[1][0] = f.z;
    to.of[1][1] = f.w;
  }
  static DPIF_DEVICE void put(Columns<float>& to, int part, const Four& f) {
    to.of[part][0][0] = bits_to_float(f.x);
    to.of[part][0][1] = bits_to_float(f.y);
    to.of[part][1][0] = bits_to_float(f.z);
    to.of[part][1][1] = bits_to_float(f.w);
  }
};

// The same of 16 bits in blocks of 8 columns x 8 inner places, by columns, for a ring: all columns
// of 8 inner places, then those of the next 8.
template <class T, int kOuter, int kInner, int kColumns>
struct Blocks {
  const void* data;
};
// 16 columns of a step of 16 of a chunk in shared memory, of kTiles in all.
template <class T>
DPIF_DEVICE void read_chunk(Columns<T>& to, unsigned chunk, int kTiles, int step, int tile) {
  const int block = thread() % 32 / 8;
  const int place = (step * 2 + block % 2) * kTiles * 2 + tile * 2 + block / 2;
  u32 found[4];
  load_blocks<false>(found, chunk + place * 128 + thread() % 8 * 16);
#pragma unroll
  for (int i = 0; i < 4; ++i) to.of[i / 2][i % 2] = found[i];
}
// All of it in shared memory.
template <class T, int kOuter, int kInner, int kColumns>
struct Resident {
  unsigned first;

  DPIF_DEVICE unsigned chunk(int product, int outer) const {
    return first + (product * kOuter + outer) * (padded(kInner, 16) * padded(kColumns, 16) * 2);
  }
};

// b as the generator reads it, element by element; columns beyond the last one are read as it.
template <class T, int kInner, int kColumns, class B>
DPIF_DEVICE void read_columns(Columns<T>& to, const B& b, int product, int outer, int first,
                              int column_tile) {
  if constexpr (kInBlocks<B>) {
    u32 found[4];
    read_blocks<kColumns, kInner, false>(found, b, product, column_tile * 16, outer, first);
#pragma unroll
    for (int i = 0; i < 4; ++i) to.of[i / 2][i % 2] = found[i];
    return;
  }
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    int column = column_tile * 16 + tile * 8 + thread() % 32 / 4;
    if (kColumns % 16 != 0 && column >= kColumns) column = kColumns - 1;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      to.of[tile][half] = Fragment<T>::template two<kInner>(b, product, column, outer,
                                                            first + half * 8 + thread() % 4 * 2);
  }
}
// kPaired: a lane's inner places are neighbours, as its sums' columns are.
template <int kInner, int kColumns, bool kPaired, class B>
DPIF_DEVICE void read_columns_float(Columns<float>& to, const B& b, int product, int outer,
                                    int first, int column_tile) {
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    int column = column_tile * 16 + tile * 8 + thread() % 32 / 4;
    if (kColumns % 16 != 0 && column >= kColumns) column = kColumns - 1;
#pragma unroll
    for (int step = 0; step < 2; ++step)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int lane = thread() % 4;
        const int inner = first + step * 8 + (kPaired ? lane * 2 + half : half * 4 + lane);
        const bool inside = kInner % 16 == 0 || inner < kInner;
        to.of[step][tile][half] = inside ? b.one(product, column, outer, inner) : 0.0f;
      }
  }
}

template <class T, int kInner, int kColumns, bool kPaired = false>
struct ReadColumns {
  template <int kOuter>
  static DPIF_DEVICE void read(Columns<T>& to, const Packed<T, kOuter, kInner, kColumns>& b,
                               int product, int outer, int first, int column_tile) {
    b.template read<0>(to, product, outer, first, column_tile);
  }
  template <int kOuter>
  static DPIF_DEVICE void read(Columns<T>& to, const Resident<T, kOuter, kInner, kColumns>& b,
                               int product, int outer, int first, int column_tile) {
    read_chunk(to, b.chunk(product, outer), padded(kColumns, 16) / 16, first / 16, column_tile);
  }
  template <class B>
  static DPIF_DEVICE void read(Columns<T>& to, const B& b, int product, int outer, int first,
                               int column_tile) {
    if constexpr (sizeof(T) == 2)
      read_columns<T, kInner, kColumns>(to, b, product, outer, first, column_tile);
    else
      read_columns_float<kInner, kColumns, kPaired>(to, b, product, outer, first, column_tile);
  }
};

template <int kRows, int kColumns, int kRowTiles, int kColumnTiles, class Write>
DPIF_DEVICE void write_sums(const float (&sums)[kRowTiles][kColumnTiles][2][4], int product,
                            int first_row, int first_tile, const Write& write) {
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Rows that do not exist are computed as the last one, without a branch, and not stored.
      const int row = first_row + i * 16 + half * 8;
      const bool exists = kRows % (kRowTiles * 16) == 0 || row < kRows;
      const auto results = write(product, exists ? row : kRows - 1);
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j)
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          const int column = (first_tile + j) * 16 + part * 8 + thread() % 4 * 2;
          const float x = sums[i][j][part][half * 2];
          const float y = sums[i][j][part][half * 2 + 1];
          if (kColumns % (kColumnTiles * 16) == 0 || column + 1 < kColumns)
            results.two(column, x, y, exists);
          else if (column < kColumns)
            results.one(column, x, exists);
        }
    }
}

// A warp's row tiles of a, step by step.
template <class T, int kInner, int kRows, int kRowTiles, class A>
struct RowFragments {
  const A& a;
  int product;
  int first_row;
  DPIF_DEVICE RowFragments(const A& a, int product, int first_row)
      : a(a), product(product), first_row(first_row) {}
  DPIF_DEVICE int row(int tile, int half) const {
    const int row = first_row + tile * 16 + half * 8;
    return kRows % (kRowTiles * 16) == 0 || row < kRows ? row : kRows - 1;
  }
  DPIF_DEVICE void read(Fragment<T> (&to)[kRowTiles], int outer, int step) const {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
      if constexpr (kInBlocks<A>) {
        const int first = first_row - thread() % 32 / 4 + i * 16;
        read_blocks<kRows, kInner, true>(to[i].of, a, product, first, outer, step * 16);
      } else {
        to[i].template read<kInner>(a, product, row(i, 0), row(i, 1), outer, step * 16);
      }
  }
};
template <class T, int kInner, int kRows, int kRowTiles, class... F>
struct RowFragments<T, kInner, kRows, kRowTiles, Separable<F...>> {
  using A = Separable<F...>;
  static constexpr int kSteps = padded(kInner, 16) / 16;
  const A& a;
  int product;
  int first_row;
  Fragment<T> fixed[kRowTiles][kSteps];
  DPIF_DEVICE RowFragments(const A& a, int product, int first_row)
      : a(a), product(product), first_row(first_row) {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
        fixed[i][step].template read<kInner>(Fixed<A>{a}, product, row(i, 0), row(i, 1), 0,
                                             step * 16);
  }
  DPIF_DEVICE int row(int tile, int half) const {
    const int row = first_row + tile * 16 + half * 8;
    return kRows % (kRowTiles * 16) == 0 || row < kRows ? row : kRows - 1;
  }
  DPIF_DEVICE void read(Fragment<T> (&to)[kRowTiles], int outer, int step) const {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
      to[i] = fixed[i][step].scaled(a, product, row(i, 0), row(i, 1), outer);
  }
};

// Each warp owns kRowTiles x 16 rows and kColumnTiles x 16 columns at a time.
template <class T, int kProducts, int kRows, int kOuter, int kInner, int kColumns, int kRowTiles,
          int kColumnTiles, class A, class B, class Write>
DPIF_DEVICE void multiply(const A& a, const B& b, const Write& write) {
  constexpr int kRowBlocks = (kRows + kRowTiles * 16 - 1) / (kRowTiles * 16);
  constexpr int kAllColumnTiles = (kColumns + 15) / 16;
  constexpr int kColumnBlocks = (kAllColumnTiles + kColumnTiles - 1) / kColumnTiles;
  constexpr int kBlocks = kProducts * kRowBlocks * kColumnBlocks;
  const int lane = thread() % 32;
  for (int block = thread() / 32; block < kBlocks; block += kThreads / 32) {
    const int column_block = block % kColumnBlocks;
    const int row_block = block / kColumnBlocks % kRowBlocks;
    const int product = block / kColumnBlocks / kRowBlocks;
    const int first_row = row_block * kRowTiles * 16 + lane / 4;
    float sums[kRowTiles][kColumnTiles][2][4] = {};
    const RowFragments<T, kInner, kRows, kRowTiles, A> fragments(a, product, first_row);
#pragma unroll(kOuter > 1 && padded(kInner, 16) <= 64 ? 2 : 1)
    for (int outer = 0; outer < kOuter; ++outer) {
#pragma unroll(padded(kInner, 16) / 16 <= 8 ? padded(kInner, 16) / 16 : 2)
      for (int first = 0; first < padded(kInner, 16); first += 16) {
        Fragment<T> rows[kRowTiles];
        fragments.read(rows, outer, first / 16);
#pragma unroll
        for (int j = 0; j < kColumnTiles; ++j) {
          const int column_tile = column_block * kColumnTiles + j;
          if (kAllColumnTiles % kColumnTiles != 0 && column_tile >= kAllColumnTiles) break;
          Columns<T> columns;
          ReadColumns<T, kInner, kColumns>::read(columns, b, product, outer, first, column_tile);
#pragma unroll
          for (int i = 0; i < kRowTiles; ++i)
            columns.multiply(sums[i][j][0], sums[i][j][1], rows[i]);
        }
      }
    }
    write_sums<kRows, kColumns>(sums, product, first_row, column_block * kColumnTiles, write);
  }
}

// Attention: a product's result, of which score(product, row)(column, sum) makes a score, its
// softmax over columns, and the product [kRows, kColumns] x [kColumns, kOut] with v. Each warp owns
// kRowTiles x 16 rows with all columns, which never leave its registers.
template <class T, bool kGuarded, int kProducts, int kRows, int kInner, int kColumns, int kOut,
          int kRowTiles, class A, class B, class Score, class V, class Write>
DPIF_DEVICE void attend(const A& a, const B& b, const Score& score, const V& v,
                        const Write& write) {
  constexpr int kRowBlocks = (kRows + kRowTiles * 16 - 1) / (kRowTiles * 16);
  constexpr int kTiles = padded(kColumns, 16) / 16;
  constexpr int kOutTiles = padded(kOut, 16) / 16;
  const int lane = thread() % 32;
  for (int block = thread() / 32; block < kProducts * kRowBlocks; block += kThreads / 32) {
    const int product = block / kRowBlocks;
    const int first_row = block % kRowBlocks * kRowTiles * 16 + lane / 4;
    float weights[kRowTiles][kTiles][2][4] = {};
    const RowFragments<T, kInner, kRows, kRowTiles, A> fragments(a, product, first_row);
#pragma unroll(padded(kInner, 16) / 16 <= 4 ? padded(kInner, 16) / 16 : 2)
    for (int first = 0; first < padded(kInner, 16); first += 16) {
      Fragment<T> rows[kRowTiles];
      fragments.read(rows, 0, first / 16);
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        Columns<T> columns;
        ReadColumns<T, kInner, kColumns>::read(columns, b, product, 0, first, j);
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i)
          columns.multiply(weights[i][j][0], weights[i][j][1], rows[i]);
      }
    }
    float scales[kRowTiles][2];
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto of = score(product, fragments.row(i, half));
        const auto each = [&](const auto& body) {
#pragma unroll
          for (int k = 0; k < kTiles * 4; ++k) {
            const int column = k / 2 * 8 + lane % 4 * 2 + k % 2;
            body(column, weights[i][k / 4][k / 2 % 2][half * 2 + k % 2]);
          }
        };
        float largest = Max::start();
        each([&](int column, float& x) {
          const bool inside = kColumns % 16 == 0 || column < kColumns;
          x = inside ? of(column, x) : Max::start();
          largest = larger(largest, x);
        });
        largest = base_of<kGuarded>(over_lanes<4, Max>(largest));
        float total = 0.0f;
        each([&](int, float& x) { total += x = fn::exp_below(x, largest); });
        scales[i][half] = scale_of<kGuarded>(over_lanes<4, Sum>(total));
      }
    float sums[kRowTiles][kOutTiles][2][4] = {};
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      Fragment<T> rows[kRowTiles];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) rows[i].narrow_sums(weights[i][j]);
#pragma unroll
      for (int t = 0; t < kOutTiles; ++t) {
        Columns<T> columns;
        ReadColumns<T, kColumns, kOut, true>::read(columns, v, product, 0, j * 16, t);
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) columns.multiply(sums[i][t][0], sums[i][t][1], rows[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int k = 0; k < kOutTiles * 8; ++k)
        sums[i][k / 8][k / 4 % 2][k % 4] *= scales[i][k % 4 / 2];
    write_sums<kRows, kOut>(sums, product, first_row, 0, write);
  }
}

// A ring of kStages chunks in shared memory, through which a constant matrix goes: all threads fill
// it ahead by asynchronous copies, chunk by chunk.
template <int kStages, int kBytes, int kChunks>
struct Ring {
  unsigned base;
  const char* from;

  DPIF_DEVICE unsigned chunk(int number) const { return base + number % kStages * kBytes; }
  DPIF_DEVICE void fill(int number) const {
    if (number < kChunks)
      each<kBytes / 16>([&](int i) {
        copy_async(chunk(number) + i * 16, from + static_cast<long long>(number) * kBytes + i * 16);
      });
    commit_copies();
  }
};

// 16 columns of a chunk for a step of 16, of kTiles in all.
template <class T, int kOuter, int kInner, int kColumns>
DPIF_DEVICE void read_chunk(Columns<T>& to, const Packed<T, kOuter, kInner, kColumns>&,
                            unsigned chunk, int step, int column_tile) {
  constexpr int kTiles = padded(kColumns, 16) / 16;
#pragma unroll
  for (int part = 0; part < 2; ++part)
    Packed<T, kOuter, kInner, kColumns>::put(
        to, part,
        load_shared(chunk + ((step * 2 + part) * kTiles + column_tile) * 512 + thread() % 32 * 16));
}
template <class T, int kOuter, int kInner, int kColumns>
DPIF_DEVICE void read_chunk(Columns<T>& to, const Blocks<T, kOuter, kInner, kColumns>&,
                            unsigned chunk, int step, int column_tile) {
  read_chunk(to, chunk, padded(kColumns, 16) / 16, step, column_tile);
}

// A product with b through a ring, of kInner places a chunk. Each warp keeps its sums while all of
// b goes by, once for each round of blocks.
template <class T, int kProducts, int kRows, int kOuter, int kInner, int kColumns, int kRowTiles,
          int kColumnTiles, int kStages, class A, class B, class Write>
DPIF_DEVICE void multiply_by_warps(unsigned char* ring, const A& a, const B& b,
                                   const Write& write) {
  constexpr int kSteps = padded(kInner, 16) / 16;  // a chunk
  constexpr int kAllColumnTiles = (kColumns + 15) / 16;
  constexpr int kChunkBytes = kSteps * 16 * kAllColumnTiles * 16 * static_cast<int>(sizeof(T));
  constexpr int kRowBlocks = (kRows + kRowTiles * 16 - 1) / (kRowTiles * 16);
  constexpr int kColumnBlocks = (kAllColumnTiles + kColumnTiles - 1) / kColumnTiles;
  constexpr int kBlocks = kRowBlocks * kColumnBlocks;
  constexpr int kWarps = kThreads / 32;
  constexpr int kRounds = (kBlocks + kWarps - 1) / kWarps;
  const int lane = thread() % 32;
  for (int product = 0; product < kProducts; ++product) {
    const Ring<kStages, kChunkBytes, kOuter> chunks{
        shared_address(ring),
        static_cast<const char*>(b.data) + static_cast<long long>(product) * kOuter * kChunkBytes};
    for (int round = 0; round < kRounds; ++round) {
      const int block = round * kWarps + thread() / 32;
      const int column_block = block % kColumnBlocks;
      const int row_block = block / kColumnBlocks;
      const bool works = block < kBlocks;
      const int first_row = row_block * kRowTiles * 16 + lane / 4;
      meet();  // the ring is no longer read
#pragma unroll
      for (int chunk = 0; chunk < kStages - 1; ++chunk) chunks.fill(chunk);
      float sums[kRowTiles][kColumnTiles][2][4] = {};
      const RowFragments<T, kInner, kRows, kRowTiles, A> fragments(a, product,
                                                                   works ? first_row : 0);
      for (int outer = 0; outer < kOuter; ++outer) {
        wait_copies<kStages - 2>();
        meet();
        chunks.fill(outer + kStages - 1);
        if (!works) continue;
#pragma unroll(kSteps <= 8 ? kSteps : 2)
        for (int step = 0; step < kSteps; ++step) {
          Fragment<T> rows[kRowTiles];
          fragments.read(rows, outer, step);
#pragma unroll
          for (int j = 0; j < kColumnTiles; ++j) {
            const int column_tile = column_block * kColumnTiles + j;
            if (kAllColumnTiles % kColumnTiles != 0 && column_tile >= kAllColumnTiles) break;
            Columns<T> columns;
            read_chunk(columns, b, chunks.chunk(outer), step, column_tile);
#pragma unroll
            for (int i = 0; i < kRowTiles; ++i)
              columns.multiply(sums[i][j][0], sums[i][j][1], rows[i]);
          }
        }
      }
      wait_copies<0>();
      if (works)
        write_sums<kRows, kColumns>(sums, product, first_row, column_block * kColumnTiles, write);
    }
  }
}

#ifdef DPIF_TILE_WARPGROUPS

// sums of 64 rows and 16 x kTiles columns += rows b, in as few instructions as there are widths.
template <class T, int kTiles, int kTile = 0>
DPIF_DEVICE void multiply_columns(float* sums, const Fragment<T>& rows, unsigned b, int step) {
  constexpr int kLeft = kTiles - kTile;
  if constexpr (kLeft > 0) {
    constexpr int kTaken = kLeft >= 8 ? 8 : kLeft >= 4 ? 4 : kLeft >= 2 ? 2 : 1;
    multiply_warpgroup<kTaken * 16, T>(sums + kTile * 8, rows.of, b + kTile * 256, step);
    multiply_columns<T, kTiles, kTile + kTaken>(sums, rows, b, step);
  }
}

// Which 64 rows and how many columns, up to 128, a warpgroup owns at a time.
template <int kRows, int kColumns>
struct WarpgroupBlocks {
  static constexpr int kGroups = kThreads / 128;
  static constexpr int kAllTiles = padded(kColumns, 16) / 16;
  static constexpr int kRowBlocks = (kRows + 63) / 64;
  static constexpr int kWide = (kAllTiles + 7) / 8;
  static constexpr bool kNarrower =
      kRowBlocks * kWide % kGroups != 0 && kAllTiles >= kWide * kGroups;
  static constexpr int kColumnBlocks = kNarrower ? kWide * kGroups : kWide;
  static constexpr int kTiles = (kAllTiles + kColumnBlocks - 1) / kColumnBlocks;
  static constexpr int kCount = kRowBlocks * kColumnBlocks;
  static constexpr int kRounds = (kCount + kGroups - 1) / kGroups;

  bool works;   // this warpgroup
  bool exists;  // this warp's rows
  int row;      // the first of this warp
  int tile;     // the first of 16 columns

  // The last block of columns ends with them: some are computed twice.
  DPIF_DEVICE explicit WarpgroupBlocks(int round) {
    const int block = round * kGroups + thread() / 128;
    const int own_tile = block % kColumnBlocks * kTiles;
    works = block < kCount;
    row = block / kColumnBlocks * 64 + thread() % 128 / 32 * 16;
    exists = works && row < kRows;
    tile = own_tile + kTiles <= kAllTiles ? own_tile : kAllTiles - kTiles;
  }
  // This lane's first row, or one that there is.
  DPIF_DEVICE int lane_row() const { return (exists ? row : 0) + thread() % 32 / 4; }
};

// The same by warpgroups. While one makes its rows of a chunk, which it cannot beside a product of
// its own, others multiply.
template <class T, int kProducts, int kRows, int kOuter, int kInner, int kColumns, int kStages,
          class A, class B, class Write>
DPIF_DEVICE void multiply_by_warpgroups(unsigned char* ring, const A& a, const B& b,
                                        const Write& write) {
  using Own = WarpgroupBlocks<kRows, kColumns>;
  constexpr int kSteps = padded(kInner, 16) / 16;  // a chunk
  constexpr int kStepBytes = Own::kAllTiles * 512;
  constexpr int kChunkBytes = kSteps * kStepBytes;
  for (int product = 0; product < kProducts; ++product) {
    const Ring<kStages, kChunkBytes, kOuter> chunks{
        shared_address(ring),
        static_cast<const char*>(b.data) + static_cast<long long>(product) * kOuter * kChunkBytes};
    for (int round = 0; round < Own::kRounds; ++round) {
      const Own own(round);
      meet();  // the ring is no longer read
#pragma unroll
      for (int chunk = 0; chunk < kStages - 1; ++chunk) chunks.fill(chunk);
      float sums[1][Own::kTiles][2][4] = {};
      const RowFragments<T, kInner, kRows, 1, A> fragments(a, product, own.lane_row());
#pragma unroll 1
      for (int outer = 0; outer < kOuter; ++outer) {
        Fragment<T> rows[kSteps][1];
#pragma unroll
        for (int step = 0; step < kSteps; ++step) fragments.read(rows[step], outer, step);
        wait_copies<kStages - 2>();
        publish_copies();
        meet();
        chunks.fill(outer + kStages - 1);
        if (!own.works) continue;
        begin_products();
#pragma unroll
        for (int step = 0; step < kSteps; ++step)
          multiply_columns<T, Own::kTiles>(&sums[0][0][0][0], rows[step][0],
                                           chunks.chunk(outer) + step * kStepBytes + own.tile * 256,
                                           kStepBytes / 2);
        commit_products();
        wait_products<0>();
      }
      wait_copies<0>();
      if (own.exists) write_sums<kRows, kColumns>(sums, product, own.lane_row(), own.tile, write);
    }
  }
}
// With all of b in shared memory.
template <class T, int kProducts, int kRows, int kOuter, int kInner, int kColumns, class A,
          class Write>
DPIF_DEVICE void multiply_by_warpgroups(const A& a, const Resident<T, kOuter, kInner, kColumns>& b,
                                        const Write& write) {
  using Own = WarpgroupBlocks<kRows, kColumns>;
  constexpr int kSteps = padded(kInner, 16) / 16;
  constexpr int kAtOnce = kSteps < 4 ? kSteps : 4;
  constexpr int kStepBytes = Own::kAllTiles * 512;
  for (int product = 0; product < kProducts; ++product) {
    for (int round = 0; round < Own::kRounds; ++round) {
      const Own own(round);
      if (!own.works) break;
      float sums[1][Own::kTiles][2][4] = {};
      const RowFragments<T, kInner, kRows, 1, A> fragments(a, product, own.lane_row());
      for (int outer = 0; outer < kOuter; ++outer) {
        const unsigned chunk = b.chunk(product, outer) + own.tile * 256;
#pragma unroll(kSteps <= 16 ? (kSteps + kAtOnce - 1) / kAtOnce : 1)
        for (int first = 0; first < kSteps; first += kAtOnce) {
          Fragment<T> rows[kAtOnce][1];
#pragma unroll
          for (int step = 0; step < kAtOnce; ++step)
            if (kSteps % kAtOnce == 0 || first + step < kSteps)
              fragments.read(rows[step], outer, first + step);
          begin_products();
#pragma unroll
          for (int step = 0; step < kAtOnce; ++step)
            if (kSteps % kAtOnce == 0 || first + step < kSteps)
              multiply_columns<T, Own::kTiles>(&sums[0][0][0][0], rows[step][0],
                                               chunk + (first + step) * kStepBytes, kStepBytes / 2);
          commit_products();
          wait_products<0>();
        }
      }
      if (own.exists) write_sums<kRows, kColumns>(sums, product, own.lane_row(), own.tile, write);
    }
  }
}

#endif

// A product with b through shared memory.
template <class T, int kProducts, int kRows, int kOuter, int kInner, int kColumns, int kRowTiles,
          int kColumnTiles, int kStages, class A, class B, class Write>
DPIF_DEVICE void multiply_staged(unsigned char* ring, const A& a, const B& b, const Write& write) {
#ifdef DPIF_TILE_WARPGROUPS
  if constexpr (sizeof(T) == 2)
    multiply_by_warpgroups<T, kProducts, kRows, kOuter, kInner, kColumns, kStages>(ring, a, b,
                                                                                   write);
  else
#endif
    multiply_by_warps<T, kProducts, kRows, kOuter, kInner, kColumns, kRowTiles, kColumnTiles,
                      kStages>(ring, a, b, write);
}

// All of a constant matrix on its way to shared memory, where it is when threads that called
// matrix_arrives() have met.
template <int kBytes>
DPIF_DEVICE void fetch_matrix(unsigned char* to, const void* from) {
  const unsigned base = shared_address(to);
  each<kBytes / 16>(
      [&](int i) { copy_async(base + i * 16, static_cast<const char*>(from) + i * 16); });
  commit_copies();
}
DPIF_DEVICE void matrix_arrives() {
  wait_copies<0>();
#ifdef DPIF_TILE_WARPGROUPS
  publish_copies();
#endif
}
// A product with that matrix.
template <class T, int kProducts, int kRows, int kOuter, int kInner, int kColumns, int kRowTiles,
          int kColumnTiles, class A, class B, class Write>
DPIF_DEVICE void multiply_resident(unsigned char* matrix, const A& a, const B&,
                                   const Write& write) {
  const Resident<T, kOuter, kInner, kColumns> b{shared_address(matrix)};
#ifdef DPIF_TILE_WARPGROUPS
  multiply_by_warpgroups<T, kProducts, kRows>(a, b, write);
#else
  multiply<T, kProducts, kRows, kOuter, kInner, kColumns, kRowTiles, kColumnTiles>(a, b, write);
#endif
}

#endif

}  // namespace tile
