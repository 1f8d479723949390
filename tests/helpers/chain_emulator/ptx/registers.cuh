#pragma once

namespace dpiframe {
template <int kCount>
void warpgroup_reg_alloc() {}
template <int kCount>
void warpgroup_reg_dealloc() {}
}  // namespace dpiframe
