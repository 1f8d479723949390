// n / d for many n and one d: a product and a shift in place of a division (Granlund and
// Montgomery, "Division by Invariant Integers using Multiplication", 1994).
#pragma once

#include <cstdint>

#include "common/host_device.h"

namespace dpiframe {

struct FastDivision {
  std::uint32_t divisor = 1;
  std::uint32_t multiplier = 1;
  std::uint32_t shift = 0;

  FastDivision() = default;
  // 1 <= d < 2^31
  explicit FastDivision(std::uint32_t d) : divisor(d) {
    while ((std::uint64_t{1} << shift) < d) ++shift;
    const std::uint64_t rest = (std::uint64_t{1} << shift) - d;
    multiplier = static_cast<std::uint32_t>((rest << 32) / d + 1);
  }

  // n < 2^31, so that the sum does not overflow
  DPIF_HOST_DEVICE std::uint32_t quotient(std::uint32_t n) const {
#ifdef __CUDA_ARCH__
    const std::uint32_t high = __umulhi(n, multiplier);
#else
    const auto high =
        static_cast<std::uint32_t>((static_cast<std::uint64_t>(n) * multiplier) >> 32);
#endif
    return (high + n) >> shift;
  }
};

}  // namespace dpiframe
