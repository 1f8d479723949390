// Global memory is the host's.
#pragma once

namespace dpiframe {
inline float4 ld_global_nc_f32x4(const float* address) {
  return *reinterpret_cast<const float4*>(address);
}
}  // namespace dpiframe
