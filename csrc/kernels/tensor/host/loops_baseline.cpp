#include "kernels/tensor/host/loops.h"

namespace dpiframe {
namespace {

constexpr int kLanes = 4;  // 16 bytes: what every x86-64 and 64-bit Arm has
#include "kernels/tensor/host/loops_body.h"

}  // namespace

constinit const HostLoops kBaselineLoops = loops_named("baseline");

}  // namespace dpiframe
