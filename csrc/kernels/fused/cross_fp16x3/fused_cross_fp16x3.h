// The fused FP16x3 cross kernel: the models of the fused cross kernel (fused_cross.h has the
// formulas) in float32, persistent, for Hopper.
//
// Products are FP16x3 emulation (H. Ootomo and R. Yokota, arXiv 2203.03341): an operand is two
// float16, large and small, times a power of two, of a row of weights or of a sample of a quarter
// of activations. Of the four products of these three are made; that of both small ones would be
// 2^-22 of the whole.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/fused/cross/fused_cross.h"
#include "kernels/fused/cross_fp16x3/smem_layout.h"

namespace dpiframe {

// Kernel arguments and data on the host, before upload.
struct FusedCrossFp16x3Plan {
  FusedCrossFp16x3Params params;
  std::vector<std::uint16_t> weights;  // bits of float16
  std::vector<float> vectors;
  std::vector<Fp16x3ColumnGroup> groups;
  std::vector<Fp16x3Field> fields;
  std::vector<WeightStage> stages;
};

// num_cross is 0 where the model does not fit.
Fp16x3Tiling fused_cross_fp16x3_tiling(const FusedCrossShape& shape);
// Pure. std::invalid_argument where the model does not fit.
FusedCrossFp16x3Plan plan_fused_cross_fp16x3(const FusedCrossModel& model);

// kernel.cu.
FusedKernel fused_cross_fp16x3_kernel(const FusedCrossFp16x3Params& params);

using FusedCrossFp16x3 = DeviceFusedKernel<FusedCrossFp16x3Params>;
// On the current device. It works in `scratch`, which nobody else may use during a run; null where
// that is too small.
std::shared_ptr<FusedCrossFp16x3> make_fused_cross_fp16x3(const FusedCrossModel& model,
                                                          int multiprocessors,
                                                          std::span<std::byte> scratch);

}  // namespace dpiframe
