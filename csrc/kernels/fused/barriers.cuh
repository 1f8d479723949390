// A CTA's mbarriers in shared memory: full and empty of each pipeline stage, then the kernel's own
// groups, which its smem_layout.h lists.
#pragma once

#include "kernels/fused/layout.h"
#include "ptx/fence.cuh"
#include "ptx/mbarrier.cuh"

namespace dpiframe {

struct CtaBarriers {
  std::uint32_t base;

  __device__ std::uint32_t full(int stage) const { return base + 16 * stage; }
  __device__ std::uint32_t empty(int stage) const { return full(stage) + 8; }
  template <BarrierGroup kGroup>
  __device__ std::uint32_t at(int i = 0) const {
    return full(kMaxStages) + 8 * (kGroup.first + i);
  }
};

}  // namespace dpiframe
