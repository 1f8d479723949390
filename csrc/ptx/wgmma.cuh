// wgmma, the matrix multiply of a Hopper warpgroup: d [64, kTileN] += a [64, K] b [kTileN, K]^T
// with float32 sums. K is 32 bytes of operands: 16 numbers of two bytes, 8 of tf32. Both operands
// are in shared memory (Wgmma, "SS"), or the rows of a are in registers (WgmmaRs).
//
// The instruction names each of its kTileN / 2 accumulators, so its text differs with kTileN; the
// macros below write these lists, which a template cannot, and nothing else.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace dpiframe {

// The descriptor of an operand with rows of 128 bytes under the 128-byte swizzle: 8 rows are a
// swizzle atom of 1,024 bytes.
__device__ inline std::uint64_t wgmma_descriptor_swizzle128(std::uint32_t address) {
  constexpr std::uint64_t kSwizzle128 = 1ull << 62;
  constexpr std::uint64_t kAtomStride = 1024 / 16;
  return kSwizzle128 | (kAtomStride << 32) | (1ull << 16) | ((address & 0x3ffff) >> 4);
}
// Without swizzle: core matrices of 8 rows of 16 bytes, those of further rows 128 bytes on, those
// of the next 16 bytes of K `k_stride` bytes on.
__device__ inline std::uint64_t wgmma_descriptor_no_swizzle(std::uint32_t address, int k_stride) {
  constexpr std::uint64_t kEightRows = 128 / 16;
  return (kEightRows << 32) | (static_cast<std::uint64_t>(k_stride / 16) << 16) |
         ((address & 0x3ffff) >> 4);
}

__device__ inline void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Stops the compiler from moving reads of the sums before the wait.
template <int kCount>
__device__ void wgmma_fence_operands(float (&sums)[kCount]) {
#pragma unroll
  for (float& sum : sums) asm volatile("" : "+f"(sum)::"memory");
}

template <int kTileN>
struct Wgmma;
template <int kTileN>
struct WgmmaRs;

#define DPIF_S4(a, b, c, d) "%" #a ",%" #b ",%" #c ",%" #d
#define DPIF_S16_0    \
  DPIF_S4(0, 1, 2, 3) \
  "," DPIF_S4(4, 5, 6, 7) "," DPIF_S4(8, 9, 10, 11) "," DPIF_S4(12, 13, 14, 15)
#define DPIF_S28_0 \
  DPIF_S16_0 "," DPIF_S4(16, 17, 18, 19) "," DPIF_S4(20, 21, 22, 23) "," DPIF_S4(24, 25, 26, 27)
#define DPIF_S32_0 DPIF_S28_0 "," DPIF_S4(28, 29, 30, 31)
#define DPIF_S36_0 DPIF_S32_0 "," DPIF_S4(32, 33, 34, 35)
#define DPIF_S40_0 DPIF_S36_0 "," DPIF_S4(36, 37, 38, 39)
#define DPIF_S20_32                                                                                \
  DPIF_S4(32, 33, 34, 35)                                                                          \
  "," DPIF_S4(36, 37, 38, 39) "," DPIF_S4(40, 41, 42, 43) "," DPIF_S4(44, 45, 46, 47) "," DPIF_S4( \
      48, 49, 50, 51)
#define DPIF_S12_52 DPIF_S4(52, 53, 54, 55) "," DPIF_S4(56, 57, 58, 59) "," DPIF_S4(60, 61, 62, 63)
#define DPIF_S16_64       \
  DPIF_S4(64, 65, 66, 67) \
  "," DPIF_S4(68, 69, 70, 71) "," DPIF_S4(72, 73, 74, 75) "," DPIF_S4(76, 77, 78, 79)
#define DPIF_S24_80                                                                                \
  DPIF_S4(80, 81, 82, 83)                                                                          \
  "," DPIF_S4(84, 85, 86, 87) "," DPIF_S4(88, 89, 90, 91) "," DPIF_S4(92, 93, 94, 95) "," DPIF_S4( \
      96, 97, 98, 99) "," DPIF_S4(100, 101, 102, 103)
#define DPIF_S24_104                                                           \
  DPIF_S4(104, 105, 106, 107)                                                  \
  "," DPIF_S4(108, 109, 110, 111) "," DPIF_S4(112, 113, 114, 115) "," DPIF_S4( \
      116, 117, 118, 119) "," DPIF_S4(120, 121, 122, 123) "," DPIF_S4(124, 125, 126, 127)

#define DPIF_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define DPIF_D16_0 DPIF_D4(0), DPIF_D4(4), DPIF_D4(8), DPIF_D4(12)
#define DPIF_D28_0 DPIF_D16_0, DPIF_D4(16), DPIF_D4(20), DPIF_D4(24)
#define DPIF_D32_0 DPIF_D28_0, DPIF_D4(28)
#define DPIF_D36_0 DPIF_D32_0, DPIF_D4(32)
#define DPIF_D40_0 DPIF_D36_0, DPIF_D4(36)
#define DPIF_D20_32 DPIF_D4(32), DPIF_D4(36), DPIF_D4(40), DPIF_D4(44), DPIF_D4(48)
#define DPIF_D12_52 DPIF_D4(52), DPIF_D4(56), DPIF_D4(60)
#define DPIF_D16_64 DPIF_D4(64), DPIF_D4(68), DPIF_D4(72), DPIF_D4(76)
#define DPIF_D24_80 DPIF_D4(80), DPIF_D4(84), DPIF_D4(88), DPIF_D4(92), DPIF_D4(96), DPIF_D4(100)
#define DPIF_D24_104 \
  DPIF_D4(104), DPIF_D4(108), DPIF_D4(112), DPIF_D4(116), DPIF_D4(120), DPIF_D4(124)

// One wgmma; with `add` 0 it overwrites the sums. A, B, C: the operands' numbers behind the
// accumulators.
#define DPIF_SS(name, shape, k, types, tail, text, operands, A, B, C)                             \
  __device__ static void name(float (&d)[shape / 2], std::uint64_t a, std::uint64_t b, int add) { \
    asm volatile("{.reg .pred p;\nsetp.ne.b32 p, %" #C                                            \
                 ", 0;\nwgmma.mma_async.sync.aligned.m64n" #shape "k" #k ".f32." types " {" text  \
                 "}, %" #A ", %" #B ", p, 1, 1" tail ";}"                                         \
                 : operands                                                                       \
                 : "l"(a), "l"(b), "r"(add));                                                     \
  }
#define DPIF_LIST(...) __VA_ARGS__
#define DPIF_WGMMA(shape, text, operands, A, B, C)                                                \
  template <>                                                                                     \
  struct Wgmma<shape> {                                                                           \
    DPIF_SS(half_, shape, 16, "f16.f16", ", 0, 0", text, DPIF_LIST(operands), A, B, C)            \
    DPIF_SS(bfloat16_, shape, 16, "bf16.bf16", ", 0, 0", text, DPIF_LIST(operands), A, B, C)      \
    DPIF_SS(tf32_, shape, 8, "tf32.tf32", "", text, DPIF_LIST(operands), A, B, C)                 \
    template <class T>                                                                            \
    __device__ static void ss(float (&d)[shape / 2], std::uint64_t a, std::uint64_t b, int add) { \
      if constexpr (sizeof(T) == 4)                                                               \
        tf32_(d, a, b, add);                                                                      \
      else if constexpr (std::is_same_v<T, __half>)                                               \
        half_(d, a, b, add);                                                                      \
      else                                                                                        \
        bfloat16_(d, a, b, add);                                                                  \
    }                                                                                             \
  };
// float16 rows of a from registers.
#define DPIF_RS(shape, text, operands, A0, A1, A2, A3, B, C)                                 \
  template <>                                                                                \
  struct WgmmaRs<shape> {                                                                    \
    __device__ static void half(float (&d)[shape / 2], const std::uint32_t (&a)[4],          \
                                std::uint64_t b, int add) {                                  \
      asm volatile("{.reg .pred p;\nsetp.ne.b32 p, %" #C                                     \
                   ", 0;\nwgmma.mma_async.sync.aligned.m64n" #shape "k16.f32.f16.f16 {" text \
                   "}, {%" #A0 ",%" #A1 ",%" #A2 ",%" #A3 "}, %" #B ", p, 1, 1, 0;}"         \
                   : operands                                                                \
                   : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));          \
    }                                                                                        \
  };

DPIF_WGMMA(64, DPIF_S32_0, DPIF_LIST(DPIF_D32_0), 32, 33, 34)
DPIF_WGMMA(104, DPIF_S32_0 "," DPIF_S20_32, DPIF_LIST(DPIF_D32_0, DPIF_D20_32), 52, 53, 54)
DPIF_WGMMA(112, DPIF_S32_0 "," DPIF_S20_32 "," DPIF_S4(52, 53, 54, 55),
           DPIF_LIST(DPIF_D32_0, DPIF_D20_32, DPIF_D4(52)), 56, 57, 58)
DPIF_WGMMA(128, DPIF_S32_0 "," DPIF_S20_32 "," DPIF_S12_52,
           DPIF_LIST(DPIF_D32_0, DPIF_D20_32, DPIF_D12_52), 64, 65, 66)
DPIF_WGMMA(144,
           DPIF_S32_0 "," DPIF_S20_32 "," DPIF_S12_52
                      "," DPIF_S4(64, 65, 66, 67) "," DPIF_S4(68, 69, 70, 71),
           DPIF_LIST(DPIF_D32_0, DPIF_D20_32, DPIF_D12_52, DPIF_D4(64), DPIF_D4(68)), 72, 73, 74)
DPIF_WGMMA(160, DPIF_S32_0 "," DPIF_S20_32 "," DPIF_S12_52 "," DPIF_S16_64,
           DPIF_LIST(DPIF_D32_0, DPIF_D20_32, DPIF_D12_52, DPIF_D16_64), 80, 81, 82)
DPIF_WGMMA(208, DPIF_S32_0 "," DPIF_S20_32 "," DPIF_S12_52 "," DPIF_S16_64 "," DPIF_S24_80,
           DPIF_LIST(DPIF_D32_0, DPIF_D20_32, DPIF_D12_52, DPIF_D16_64, DPIF_D24_80), 104, 105, 106)
DPIF_WGMMA(256,
           DPIF_S32_0 "," DPIF_S20_32 "," DPIF_S12_52 "," DPIF_S16_64 "," DPIF_S24_80
                      "," DPIF_S24_104,
           DPIF_LIST(DPIF_D32_0, DPIF_D20_32, DPIF_D12_52, DPIF_D16_64, DPIF_D24_80, DPIF_D24_104),
           128, 129, 130)

DPIF_RS(32, DPIF_S16_0, DPIF_LIST(DPIF_D16_0), 16, 17, 18, 19, 20, 21)
DPIF_RS(56, DPIF_S28_0, DPIF_LIST(DPIF_D28_0), 28, 29, 30, 31, 32, 33)
DPIF_RS(64, DPIF_S32_0, DPIF_LIST(DPIF_D32_0), 32, 33, 34, 35, 36, 37)
DPIF_RS(72, DPIF_S36_0, DPIF_LIST(DPIF_D36_0), 36, 37, 38, 39, 40, 41)
DPIF_RS(80, DPIF_S40_0, DPIF_LIST(DPIF_D40_0), 40, 41, 42, 43, 44, 45)

}  // namespace dpiframe
