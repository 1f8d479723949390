// Loads and stores of global memory that the compiler neither moves nor merges. _nc: through the
// read-only cache.
#pragma once

#include <cstdint>

namespace dpiframe {

// Asks L2 for the line of an address; nothing tells when it is there. The bulk form takes a uniform
// address: lanes with addresses of their own would go through it one by one.
__device__ inline void prefetch_l2(const void* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}
__device__ inline std::uint32_t ld_global_u32(const char* address) {
  std::uint32_t word;
  asm volatile("ld.global.b32 %0, [%1];" : "=r"(word) : "l"(address) : "memory");
  return word;
}
// 0 unless `is_read`; without a branch, so that many can be in flight.
__device__ inline std::uint32_t ld_global_u16_if(const char* address, bool is_read) {
  std::uint32_t word = 0;
  asm volatile(
      "{.reg .pred p;\n"
      "setp.ne.s32 p, %2, 0;\n"
      "@p ld.global.u16 %0, [%1];}"
      : "+r"(word)
      : "l"(address), "r"(static_cast<int>(is_read))
      : "memory");
  return word;
}
__device__ inline std::uint32_t ld_global_u32_if(const char* address, bool is_read) {
  std::uint32_t word = 0;
  asm volatile(
      "{.reg .pred p;\n"
      "setp.ne.s32 p, %2, 0;\n"
      "@p ld.global.u32 %0, [%1];}"
      : "+r"(word)
      : "l"(address), "r"(static_cast<int>(is_read))
      : "memory");
  return word;
}
__device__ inline uint2 ld_global_v2(const char* address) {
  uint2 words;
  asm volatile("ld.global.v2.b32 {%0, %1}, [%2];"
               : "=r"(words.x), "=r"(words.y)
               : "l"(address)
               : "memory");
  return words;
}
__device__ inline std::uint32_t ld_global_nc_u32(const char* address) {
  std::uint32_t word;
  asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(word) : "l"(address));
  return word;
}
__device__ inline uint2 ld_global_nc_v2(const char* address) {
  uint2 words;
  asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(words.x), "=r"(words.y) : "l"(address));
  return words;
}
__device__ inline int4 ld_global_nc_v4(const int4* address) {
  int4 words;
  asm volatile("ld.global.nc.v4.s32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(address));
  return words;
}
__device__ inline float4 ld_global_nc_f32x4(const float* address) {
  float4 values;
  asm volatile("ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(values.x), "=f"(values.y), "=f"(values.z), "=f"(values.w)
               : "l"(address));
  return values;
}
// Zeros unless `is_read`.
__device__ inline float4 ld_global_nc_f32x4_if(const char* address, bool is_read) {
  float4 values;
  asm volatile(
      "{.reg .pred p;\n"
      "setp.ne.s32 p, %5, 0;\n"
      "mov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"
      "@p ld.global.nc.v4.f32 {%0, %1, %2, %3}, [%4];}"
      : "=&f"(values.x), "=&f"(values.y), "=&f"(values.z), "=&f"(values.w)
      : "l"(address), "r"(static_cast<int>(is_read)));
  return values;
}
__device__ inline void st_global_u8(char* address, std::uint32_t byte) {
  asm volatile("st.global.u8 [%0], %1;" ::"l"(address), "r"(byte) : "memory");
}
__device__ inline void st_global_u32(char* address, std::uint32_t word) {
  asm volatile("st.global.b32 [%0], %1;" ::"l"(address), "r"(word) : "memory");
}
// Visible to the host that polls it.
__device__ inline void st_relaxed_system_u32(std::uint32_t* address, std::uint32_t word) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(address), "r"(word) : "memory");
}
__device__ inline void prefetch_l2(const char* address) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(address));
}

}  // namespace dpiframe
