// The persistent fused cross kernel: large batches of the models of the fused cross kernel
// (fused_cross.h has the formulas), on the weights of that.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/fused/cross/fused_cross.h"
#include "kernels/fused/cross_persistent/smem_layout.h"

namespace dpiframe {

// Slices of fields that a CTA gathers, at most.
int slices_of_cta(const FusedCrossShape& shape);

// Whether the kernel takes a model that fused_cross_fits. A product must have more stages than the
// pipeline: so neither warpgroup is ahead of the other by a product.
bool fused_cross_persistent_fits(const FusedCrossTiling& tiling, int most_slices);

// kernel.cu. type: half or bfloat16.
FusedKernel fused_cross_persistent_kernel(DataType type, const FusedCrossPersistentParams& params);

using FusedCrossPersistent = DeviceFusedKernel<FusedCrossPersistentParams>;
// Reads the weights of `cross`, which must outlive it, and works in `scratch`, which nobody else
// may use during a run. Null where the model does not fit, is faster in steps, or needs more
// scratch.
std::shared_ptr<FusedCrossPersistent> make_fused_cross_persistent(const FusedCrossModel& model,
                                                                  DataType type,
                                                                  const FusedCross& cross,
                                                                  int multiprocessors,
                                                                  std::span<std::byte> scratch);

}  // namespace dpiframe
