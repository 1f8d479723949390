// Registers: how many a warpgroup's threads have, and what the compiler may do with them.
#pragma once

#include <cstdint>

namespace dpiframe {

// setmaxnreg, by all warps of a warpgroup.
template <int kCount>
__device__ void warpgroup_reg_alloc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ void warpgroup_reg_dealloc() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

// A value that is the same in all lanes of a warp, so that the compiler sees that it is: what
// follows from it stays in uniform registers, from which wgmma takes its descriptors.
__device__ inline int warp_uniform(int value) {
  return __shfl_sync(0xffffffffu, value, 0);
}
// A value that the compiler keeps in a register, and does not work out again at each use.
__device__ inline std::uint32_t keep_in_register(std::uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}
// Marks them initialised for the compiler; the first wgmma of a product overwrites them.
template <int kCount>
__device__ void leave_unset(float (&sums)[kCount]) {
#pragma unroll
  for (float& sum : sums) asm volatile("" : "=f"(sum));
}

}  // namespace dpiframe
