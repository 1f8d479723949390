// Scoring: sums the parts of each logit, applies the sigmoid, reports bad ids to the host.
//
// What is added to a logit (wide sums, the head's dots) goes to the CTA that scores the sample by
// DSMEM stores, whose bytes a barrier there counts: so no CTA waits for the other at the end.
#pragma once

#include "cuda/completion_flag.cuh"
#include "kernels/batch_memory.h"
#include "ptx/cluster.cuh"

namespace dpiframe {

// Over the four neighbouring lanes that have the columns of one sample.
__device__ inline float quad_sum(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

__device__ inline void write_score(const BatchMemory& inputs, std::int64_t sample, float logit) {
  if (sample >= inputs.batch) return;
  if (inputs.logits != nullptr) inputs.logits[sample] = logit;
  if (inputs.scores != nullptr) inputs.scores[sample] = 1.0f / (1.0f + expf(-logit));
}

// An id of field `field` outside its table; `report`: the lookup's counters of its `num_fields`
// fields, then its first bad id.
__device__ inline void count_bad_id(unsigned long long* report, int num_fields, int field,
                                    std::int64_t sample) {
  atomicAdd(report + field, 1ull);
  atomicMin(report + num_fields, static_cast<unsigned long long>(sample) * num_fields + field);
}

// By one warp of each of `num_ctas` CTAs, once the CTA's bad ids are counted: the last copies the
// counters to the host if any id was bad.
__device__ inline void report_bad_ids(const BatchMemory& inputs, unsigned* tickets, int num_report,
                                      unsigned num_ctas) {
  if (inputs.report_copy == nullptr) return;
  const int lane = threadIdx.x % 32;
  unsigned ticket = 0;
  if (lane == 0) {
    __threadfence();
    ticket = atomicAdd(tickets, 1u);
    __threadfence();
  }
  if (__shfl_sync(0xffffffffu, ticket, 0) != num_ctas - 1) return;
  bool any = false;
#pragma unroll 1
  for (int i = lane; i < num_report; i += 32) any = any || __ldcg(inputs.report + i) != ~0ull;
  if (__any_sync(0xffffffffu, any))
#pragma unroll 1
    for (int i = lane; i < num_report; i += 32) inputs.report_copy[i] = __ldcg(inputs.report + i);
  if (lane == 0) *tickets = 0;
}

}  // namespace dpiframe
