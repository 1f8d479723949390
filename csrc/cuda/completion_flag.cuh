// How a kernel sets its completion flag.
//
// Each CTA takes a ticket after its last write; the last CTA to finish sets the flag. Then whatever
// the host launches next, on any stream, sees all that the kernel wrote. By PTX's memory model:
//   a thread's writes happen before its CTA's fence, by the barrier;
//   fence and ticket release them at GPU scope; the last ticket and the fence after it acquire
//     them, since each ticket atomically reads what the one before it wrote;
//   that fence and the store of the flag release all of it at system scope; the host's load
//     acquires it;
//   what the host launches afterwards is ordered after that load.
// A CTA's own fence has GPU scope, because one of system scope takes longer: only the last CTA pays
// for that.
#pragma once

#include "cuda/completion_flag.h"

namespace dpiframe {

// By one thread of each of `num_ctas` CTAs, after a barrier that orders all of the CTA's writes
// before it.
__device__ inline void signal_cta_done(const CompletionFlag& completion, unsigned num_ctas) {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
  // Wraps to 0 at the last ticket, ready for the next launch.
  if (atomicInc(completion.tickets, num_ctas - 1) != num_ctas - 1) return;
  asm volatile("fence.acq_rel.sys;" ::: "memory");
  asm volatile("st.relaxed.sys.global.u32 [%0], 1;" ::"l"(completion.flag) : "memory");
}

// By all threads of every CTA of a grid, after their last write.
__device__ inline void signal_completion(const CompletionFlag& completion) {
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) signal_cta_done(completion, gridDim.x);
}

}  // namespace dpiframe
