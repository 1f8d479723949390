// Compiled with -mavx2 -mfma, and called only where the processor has it.
#ifdef __x86_64__
#include "kernels/tensor/host/loops.h"

namespace dpiframe {
namespace {

constexpr int kLanes = 8;
#include "kernels/tensor/host/loops_body.h"

}  // namespace

constinit const HostLoops kAvx2Loops = loops_named("avx2");

}  // namespace dpiframe
#endif
