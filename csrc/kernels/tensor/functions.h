// The functions of dpiframe_core/program/expression.py in float32, for a GPU and for the host,
// where they are tested. NaN, infinities, signs and halves are treated as torch treats them.
#pragma once

#include <cmath>
#include <cstdint>

#include "common/host_device.h"
#include "common/lanes.h"

namespace dpiframe {

enum class Function : std::int32_t {
  kSame,
  kNeg,
  kAbs,
  kSign,
  kFloor,
  kCeil,
  kRound,
  kExp,
  kExp2,
  kExpm1,
  kLog,
  kLog2,
  kLog10,
  kLog1p,
  kSqrt,
  kRsqrt,
  kReciprocal,
  kSquare,
  kSigmoid,
  kTanh,
  kRelu,
  kErf,
  kSin,
  kCos,
  kTan,
  kAsin,
  kAcos,
  kAtan,
  kSinh,
  kCosh,
  kNot,
  kIsfinite,
  kAdd,
  kSub,
  kMul,
  kDiv,
  kPow,
  kMin,
  kMax,
  kAtan2,
  kMod,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kAnd,
  kOr,
  kWhere,
};

// Values of kWidth elements, which a thread computes at once so that it chooses a function once for
// all of them.
template <int kWidth>
struct Values {
  float of[kWidth];
};

namespace functions {

template <int kWidth, class F>
DPIF_HOST_DEVICE Values<kWidth> each(const Values<kWidth>& a, F f) {
  Values<kWidth> found;
  DPIF_UNROLL
  for (int i = 0; i < kWidth; ++i) found.of[i] = f(a.of[i]);
  return found;
}

template <int kWidth, class F>
DPIF_HOST_DEVICE Values<kWidth> each(const Values<kWidth>& a, const Values<kWidth>& b, F f) {
  Values<kWidth> found;
  DPIF_UNROLL
  for (int i = 0; i < kWidth; ++i) found.of[i] = f(a.of[i], b.of[i]);
  return found;
}

// torch.remainder: it has the divisor's sign.
DPIF_HOST_DEVICE float remainder_of(float a, float b) {
  const float rest = fmodf(a, b);
  return rest != 0.0f && (rest < 0.0f) != (b < 0.0f) ? rest + b : rest;
}

DPIF_HOST_DEVICE float truth(bool value) {
  return value ? 1.0f : 0.0f;
}

}  // namespace functions

// function(a, b, c), of which it takes as many as it has arguments.
template <int kWidth>
DPIF_HOST_DEVICE Values<kWidth> apply(Function function, const Values<kWidth>& a,
                                      const Values<kWidth>& b, const Values<kWidth>& c) {
  using functions::each;
  using functions::remainder_of;
  using functions::truth;
  switch (function) {
    case Function::kSame:
      return a;
    case Function::kNeg:
      return each(a, [](float x) { return -x; });
    case Function::kAbs:
      return each(a, [](float x) { return fabsf(x); });
    case Function::kSign:
      return each(a, [](float x) { return truth(x > 0.0f) - truth(x < 0.0f); });
    case Function::kFloor:
      return each(a, [](float x) { return floorf(x); });
    case Function::kCeil:
      return each(a, [](float x) { return ceilf(x); });
    case Function::kRound:
      return each(a, [](float x) { return rintf(x); });
    case Function::kExp:
      return each(a, [](float x) { return expf(x); });
    case Function::kExp2:
      return each(a, [](float x) { return exp2f(x); });
    case Function::kExpm1:
      return each(a, [](float x) { return expm1f(x); });
    case Function::kLog:
      return each(a, [](float x) { return logf(x); });
    case Function::kLog2:
      return each(a, [](float x) { return log2f(x); });
    case Function::kLog10:
      return each(a, [](float x) { return log10f(x); });
    case Function::kLog1p:
      return each(a, [](float x) { return log1pf(x); });
    case Function::kSqrt:
      return each(a, [](float x) { return sqrtf(x); });
    case Function::kRsqrt:
      return each(a, [](float x) { return 1.0f / sqrtf(x); });
    case Function::kReciprocal:
      return each(a, [](float x) { return 1.0f / x; });
    case Function::kSquare:
      return each(a, [](float x) { return x * x; });
    case Function::kSigmoid:
      return each(a, [](float x) { return 1.0f / (1.0f + expf(-x)); });
    case Function::kTanh:
      return each(a, [](float x) { return tanhf(x); });
    case Function::kRelu:
      return each(a, [](float x) { return x < 0.0f ? 0.0f : x; });
    case Function::kErf:
      return each(a, [](float x) { return erff(x); });
    case Function::kSin:
      return each(a, [](float x) { return sinf(x); });
    case Function::kCos:
      return each(a, [](float x) { return cosf(x); });
    case Function::kTan:
      return each(a, [](float x) { return tanf(x); });
    case Function::kAsin:
      return each(a, [](float x) { return asinf(x); });
    case Function::kAcos:
      return each(a, [](float x) { return acosf(x); });
    case Function::kAtan:
      return each(a, [](float x) { return atanf(x); });
    case Function::kSinh:
      return each(a, [](float x) { return sinhf(x); });
    case Function::kCosh:
      return each(a, [](float x) { return coshf(x); });
    case Function::kNot:
      return each(a, [](float x) { return truth(x == 0.0f); });
    case Function::kIsfinite:
      return each(a, [](float x) { return truth(fabsf(x) <= 3.402823466e38f); });
    case Function::kAdd:
      return each(a, b, [](float x, float y) { return x + y; });
    case Function::kSub:
      return each(a, b, [](float x, float y) { return x - y; });
    case Function::kMul:
      return each(a, b, [](float x, float y) { return x * y; });
    case Function::kDiv:
      return each(a, b, [](float x, float y) { return x / y; });
    case Function::kPow:
      return each(a, b, [](float x, float y) { return powf(x, y); });
    case Function::kMin:  // either is NaN: NaN
      return each(a, b, [](float x, float y) { return x < y || x != x ? x : y; });
    case Function::kMax:
      return each(a, b, [](float x, float y) { return x > y || x != x ? x : y; });
    case Function::kAtan2:
      return each(a, b, [](float x, float y) { return atan2f(x, y); });
    case Function::kMod:
      return each(a, b, [](float x, float y) { return remainder_of(x, y); });
    case Function::kEq:
      return each(a, b, [](float x, float y) { return truth(x == y); });
    case Function::kNe:
      return each(a, b, [](float x, float y) { return truth(x != y); });
    case Function::kLt:
      return each(a, b, [](float x, float y) { return truth(x < y); });
    case Function::kLe:
      return each(a, b, [](float x, float y) { return truth(x <= y); });
    case Function::kGt:
      return each(a, b, [](float x, float y) { return truth(x > y); });
    case Function::kGe:
      return each(a, b, [](float x, float y) { return truth(x >= y); });
    case Function::kAnd:
      return each(a, b, [](float x, float y) { return truth(x != 0.0f && y != 0.0f); });
    case Function::kOr:
      return each(a, b, [](float x, float y) { return truth(x != 0.0f || y != 0.0f); });
    case Function::kWhere: {
      Values<kWidth> found;
      DPIF_UNROLL
      for (int i = 0; i < kWidth; ++i) found.of[i] = a.of[i] != 0.0f ? b.of[i] : c.of[i];
      return found;
    }
  }
  return a;
}

}  // namespace dpiframe
