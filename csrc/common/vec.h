// kWidth floats that move as one access: 16 bytes where kWidth is 4.
#pragma once

namespace dpiframe {

template <int kWidth>
struct alignas(sizeof(float) * kWidth) FloatVec {
  float values[kWidth] = {};
};

}  // namespace dpiframe
