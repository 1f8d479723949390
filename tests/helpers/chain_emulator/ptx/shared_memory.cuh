// Shared memory by address: the place in `shared`.
#pragma once

namespace dpiframe {

inline std::uint32_t smem_address(const void* pointer) {
  return cta * kWindow +
         static_cast<std::uint32_t>(static_cast<const unsigned char*>(pointer) - shared);
}
template <class T>
T& in_shared(std::uint32_t address) {
  return *reinterpret_cast<T*>(shared + address);
}
inline uint2 ld_shared_v2(std::uint32_t address) {
  return in_shared<uint2>(address);
}
inline void st_shared_v2(std::uint32_t address, const uint2& words) {
  in_shared<uint2>(address) = words;
}
inline float ld_shared_f32(std::uint32_t address) {
  return in_shared<float>(address);
}
inline float2 ld_shared_f32x2(std::uint32_t address) {
  return in_shared<float2>(address);
}
inline void st_shared_u32(std::uint32_t address, std::uint32_t word) {
  in_shared<std::uint32_t>(address) = word;
}
// Of a byte under the 128-byte swizzle.
inline std::uint32_t swizzled(std::uint32_t address) {
  return address ^ (address >> 7 & 7) << 4;
}

}  // namespace dpiframe
