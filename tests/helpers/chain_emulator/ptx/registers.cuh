#pragma once

namespace dpiframe {
template <int kCount>
void warpgroup_reg_alloc() {}
template <int kCount>
void warpgroup_reg_dealloc() {}
inline int warp_uniform(int value) { return value; }
}  // namespace dpiframe
