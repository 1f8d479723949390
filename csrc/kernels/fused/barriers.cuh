// A CTA's mbarriers in shared memory: full and empty of each pipeline stage, then the kernel's own
// groups, which its smem_layout.h lists.
#pragma once

#include "kernels/fused/layout.h"
#include "ptx/fence.cuh"
#include "ptx/mbarrier.cuh"

namespace dpiframe {

template <BarrierGroup>
struct GroupTag {};

struct CtaBarriers {
  std::uint32_t base;

  __device__ std::uint32_t full(int stage) const { return base + 16 * stage; }
  __device__ std::uint32_t empty(int stage) const { return full(stage) + 8; }
  template <BarrierGroup kGroup>
  __device__ std::uint32_t at(int i = 0) const {
    return full(kMaxStages) + 8 * (kGroup.first + i);
  }
};

// By one thread, before any other touches a barrier. consumers: arrivals that empty a stage.
template <BarrierGroup... kGroups>
__device__ void init_barriers(const CtaBarriers& barriers, int consumers) {
  for (int stage = 0; stage < kMaxStages; ++stage) {
    mbarrier_init(barriers.full(stage), 1);
    mbarrier_init(barriers.empty(stage), consumers);
  }
  const auto init_group = [&]<BarrierGroup kGroup>(GroupTag<kGroup>) {
    for (int i = 0; i < kGroup.count; ++i) mbarrier_init(barriers.at<kGroup>(i), kGroup.arrivals);
  };
  (init_group(GroupTag<kGroups>{}), ...);
  fence_mbarrier_init();
  fence_proxy_async_shared();
}

}  // namespace dpiframe
