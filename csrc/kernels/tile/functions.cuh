// Functions of dpiframe_core/program/expression.py; NaN, infinities and halves as torch has them.
#pragma once

#include "common/short_functions.h"
#include "kernels/tile/elements.cuh"

namespace tile {

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
DPIF_DEVICE float exp2(float x) {
  return exp2f(x);
}
DPIF_DEVICE float expm1(float x) {
  return expm1f(x);
}
DPIF_DEVICE float log(float x) {
  return logf(x);
}
DPIF_DEVICE float log2(float x) {
  return log2f(x);
}
DPIF_DEVICE float log10(float x) {
  return log10f(x);
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

}  // namespace tile
