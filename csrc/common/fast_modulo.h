// n mod d for many n and one d: a product and a subtraction instead of a division.
#pragma once

#include <cstdint>

#include "common/host_device.h"

namespace dpiframe {

class FastModulo {
 public:
  // divisor >= 1
  DPIF_HOST_DEVICE explicit FastModulo(std::uint64_t divisor)
      : divisor_(divisor), inverse_(~0ull / divisor) {}

  // n * inverse / 2^64 is less than 1 below n / divisor, so the quotient is at most 1 too small.
  DPIF_HOST_DEVICE std::uint64_t operator()(std::uint64_t n) const {
#ifdef __CUDA_ARCH__
    const std::uint64_t quotient = __umul64hi(n, inverse_);
#else
    const auto quotient =
        static_cast<std::uint64_t>((static_cast<unsigned __int128>(n) * inverse_) >> 64);
#endif
    const std::uint64_t rest = n - quotient * divisor_;
    return rest >= divisor_ ? rest - divisor_ : rest;
  }

  DPIF_HOST_DEVICE std::uint64_t divisor() const { return divisor_; }

 private:
  std::uint64_t divisor_;
  std::uint64_t inverse_;
};

}  // namespace dpiframe
