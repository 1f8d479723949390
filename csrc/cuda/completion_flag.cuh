// How a kernel tells its end, by common/kernel_end.h.
//
// Each block takes a ticket when all that it writes is written; who takes the last one writes the
// word. Then all that the kernel wrote can be read by whatever the host launches next on any
// stream. By PTX's memory model:
//   a thread's writes come before its block's fence, by the barrier;
//   the fence and the ticket release them to the GPU, the last ticket and the fence behind it
//     acquire them: each ticket reads what the one before it wrote, atomically;
//   that fence and the word's write release all of it to the system, the host's load acquires it;
//   what the host launches afterwards comes after that load.
// A block's fence is of the GPU alone, since one of the system takes longer: only the last pays it.
#pragma once

#include "cuda/completion_flag.h"

namespace dpiframe {

// By one thread of each of `blocks` blocks, behind a barrier that all of its block's writes come
// before.
__device__ inline void tell_end_of_block(const KernelEnd& end, unsigned blocks) {
  asm volatile("fence.acq_rel.gpu;" ::: "memory");
  // Begins at 0 again behind the last.
  if (atomicInc(end.tickets, blocks - 1) != blocks - 1) return;
  asm volatile("fence.acq_rel.sys;" ::: "memory");
  asm volatile("st.relaxed.sys.global.u32 [%0], 1;" ::"l"(end.word) : "memory");
}

// By all threads of every block of a grid, behind their last write.
__device__ inline void tell_end(const KernelEnd& end) {
  __syncthreads();
  if (threadIdx.x == 0 && threadIdx.y == 0) tell_end_of_block(end, gridDim.x);
}

}  // namespace dpiframe
