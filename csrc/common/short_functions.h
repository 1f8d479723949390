// Functions of expression.py in a few instructions, for results of 16 bits: for a GPU, and for the
// host, where they are tested.
#pragma once

#include <cmath>

#include "common/host_device.h"

namespace dpiframe::functions {

// erf within 7e-7: 1 - 2^q(|x|), with the q of degree 5 whose largest error is least. Its relative
// error is large where erf is nearly 0.
DPIF_HOST_DEVICE float short_erf(float x) {
  const float a = fabsf(x);
  float q = fmaf(-0.0029441577f, a, 0.029590042f);
  q = fmaf(q, a, -0.14866562f);
  q = fmaf(q, a, -0.91850936f);
  q = fmaf(q, a, -1.6278890f);
  return copysignf(1.0f - exp2f(q * a), x);
}

}  // namespace dpiframe::functions
