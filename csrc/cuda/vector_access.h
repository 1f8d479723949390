// kWidth numbers that move as one access: 16 bytes where kWidth is 4 floats or 8 halves.
#pragma once

namespace dpiframe {

template <class T, int kWidth>
struct alignas(sizeof(T) * kWidth) Vec {
  T values[kWidth];
};

}  // namespace dpiframe
