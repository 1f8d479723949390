// What the one-kernel forward passes tell the host at their end.
#pragma once

#include "kernels/batch_memory.h"
#include "kernels/fused/mlp/smem_layout.h"

namespace dpiframe {

// Those that have rows.
__device__ inline unsigned busy_blocks(const BatchMemory& inputs) {
  return static_cast<unsigned>((inputs.batch + kForwardRows - 1) / kForwardRows * 2);
}

// The last of `blocks` blocks whose ids are all counted copies the counters to the host if any is
// bad.
__device__ inline void report_bad_ids(const BatchMemory& inputs, unsigned* tickets, int num_report,
                                      unsigned blocks) {
  if (inputs.report_copy == nullptr) return;
  const int lane = threadIdx.x % 32;
  unsigned ticket = 0;
  if (lane == 0) {
    __threadfence();
    ticket = atomicAdd(tickets, 1u);
    __threadfence();
  }
  if (__shfl_sync(0xffffffffu, ticket, 0) != blocks - 1) return;
  bool any = false;
#pragma unroll 1
  for (int i = lane; i < num_report; i += 32) any = any || __ldcg(inputs.report + i) != ~0ull;
  if (__any_sync(0xffffffffu, any))
#pragma unroll 1
    for (int i = lane; i < num_report; i += 32) inputs.report_copy[i] = __ldcg(inputs.report + i);
  if (lane == 0) *tickets = 0;
}

}  // namespace dpiframe
