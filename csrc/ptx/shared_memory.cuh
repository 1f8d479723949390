// Loads and stores of shared memory by address.
#pragma once

#include <cstdint>

namespace dpiframe {

__device__ inline std::uint32_t smem_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

__device__ inline std::uint32_t ld_shared_u8(std::uint32_t address) {
  std::uint32_t byte;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(byte) : "r"(address) : "memory");
  return byte;
}
__device__ inline std::uint32_t ld_shared_u32(std::uint32_t address) {
  std::uint32_t word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(address) : "memory");
  return word;
}
__device__ inline uint2 ld_shared_v2(std::uint32_t address) {
  uint2 words;
  asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
               : "=r"(words.x), "=r"(words.y)
               : "r"(address)
               : "memory");
  return words;
}
__device__ inline uint4 ld_shared_v4(std::uint32_t address) {
  uint4 words;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(address)
               : "memory");
  return words;
}
__device__ inline float ld_shared_f32(std::uint32_t address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}
__device__ inline float2 ld_shared_f32x2(std::uint32_t address) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(pair.x), "=f"(pair.y)
               : "r"(address)
               : "memory");
  return pair;
}
__device__ inline float4 ld_shared_f32x4(std::uint32_t address) {
  const uint4 words = ld_shared_v4(address);
  return {__uint_as_float(words.x), __uint_as_float(words.y), __uint_as_float(words.z),
          __uint_as_float(words.w)};
}

__device__ inline void st_shared_u8(std::uint32_t address, std::uint32_t byte) {
  asm volatile("st.shared.u8 [%0], %1;" ::"r"(address), "r"(byte) : "memory");
}
__device__ inline void st_shared_u16(std::uint32_t address, unsigned short word) {
  asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(word) : "memory");
}
__device__ inline void st_shared_u32(std::uint32_t address, std::uint32_t word) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}
__device__ inline void st_shared_v2(std::uint32_t address, const uint2& words) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(address), "r"(words.x), "r"(words.y)
               : "memory");
}
__device__ inline void st_shared_v4(std::uint32_t address, const uint4& words) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words.x),
               "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}

// Four 8 x 8 matrices of 16-bit numbers, rows of 16 bytes: of each matrix a thread has a pair of
// one row, as it has of wgmma's sums. `address`: of row lane % 8 of matrix lane / 8.
__device__ inline uint4 ldmatrix_x4(std::uint32_t address) {
  uint4 words;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "r"(address)
               : "memory");
  return words;
}
__device__ inline void stmatrix_x4(std::uint32_t address, const uint4& words) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address),
               "r"(words.x), "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}
__device__ inline void stmatrix_x2(std::uint32_t address, std::uint32_t x, std::uint32_t y) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(x),
               "r"(y)
               : "memory");
}

}  // namespace dpiframe
