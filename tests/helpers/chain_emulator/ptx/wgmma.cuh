// wgmma as its threads' own sums, made at once.
#pragma once

namespace dpiframe {

inline std::uint64_t wgmma_descriptor_swizzle128(std::uint32_t address) {
  return address / 16;
}
inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int kPending>
void wgmma_wait() {
  __syncwarp();  // it is an instruction of whole warps
}
template <int kCount>
void wgmma_fence_operands(float (&)[kCount]) {}

template <int kColumns>
struct HostProduct {
  template <class T>
  static void ss(float (&d)[kColumns / 2], std::uint64_t a, std::uint64_t b, int add) {
    const auto number = [](std::uint64_t descriptor, int row, int k) {
      return to_float(in_shared<T>(swizzled(descriptor * 16 + row * 128 + k * 2)));
    };
    const int lane = threadIdx.x % 32;
    for (int r = 0; r < 2; ++r) {
      const int row = threadIdx.x / 32 % 4 * 16 + lane / 4 + 8 * r;
      float x[16];
      for (int k = 0; k < 16; ++k) x[k] = number(a, row, k);
      for (int i = 0; i < kColumns / 4; ++i) {
        const int column = i / 2 * 8 + lane % 4 * 2 + i % 2;
        float& sum = d[i / 2 * 4 + r * 2 + i % 2];
        if (!add) sum = 0;
        for (int k = 0; k < 16; ++k) sum += x[k] * number(b, column, k);
      }
    }
  }
};

}  // namespace dpiframe
