// Compiled with -mavx512f -mavx512vl -mavx512dq -mavx512bw -mfma, and called only where the
// processor has it.
#ifdef __x86_64__
#include "kernels/tensor/host/loops.h"

namespace dpiframe {
namespace {

constexpr int kLanes = 16;
#include "kernels/tensor/host/loops_body.h"

}  // namespace

constinit const HostLoops kAvx512Loops = loops_named("avx512");

}  // namespace dpiframe
#endif
