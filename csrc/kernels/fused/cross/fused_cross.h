// The fused cross kernel: a model with cross layers of x_0's width (DCNv2), lookup, wide sum,
// products and scores of 64 samples by a cluster of two CTAs, for 16-bit types on Hopper.
//
//   x_0      = the embedding rows of all fields, as multi_table_lookup makes them
//   x_{l+1}  = x_0 (x_l w_l^T + bias_l) + x_l                      (DCNv2, arXiv 2008.13535)
//   h_0      = x_0, h_{l+1} = max(h_l v_l^T + c_l, 0)
//   logit    = bias + head . (the last x) + deep_head . (the last h) + wide
//
// What products read, x_l and h_l, is rounded to 16 bits, as by the steps. x_{l+1} is made as
// x_0 + x_0 * (all layers' products so far + all their biases), so that of x_l nothing rounded is
// added. Where such sums are not finite, steps may have infinity for what is NaN here, or the other
// way round.
#pragma once

#include "kernels/fused/cross/smem_layout.h"
#include "kernels/fused/mlp/fused_mlp.h"

namespace dpiframe {

struct FusedCrossModel {
  std::vector<DeviceLookupField> fields;  // out_column: a column of x_0
  std::int64_t num_ids;                   // rows of a batch's ids
  std::vector<LinearLayer> cross;         // n and k: columns of x_0
  std::vector<float> cross_head;          // [columns of x_0]
  std::vector<LinearLayer> deep;
  std::vector<float> deep_head;  // [n of the last deep layer]
  float bias;
  std::int64_t report;  // the lookup's counters in the batch's report
  int num_report;       // counters of the whole batch
};

// What decides whether a model fits, in any precision.
struct FusedCrossShape {
  std::vector<std::int64_t> dims;  // of the lookup's fields
  int num_cross;
  std::vector<int> widths;  // of the deep layers
  std::int64_t num_ids;     // rows of a batch's ids
  std::int64_t max_rows;    // of a table
};
FusedCrossShape fused_cross_shape(const FusedCrossModel& model);
// Its tiling for 16 bits; num_cross is 0 where it has none.
FusedCrossTiling fused_cross_tiling(const FusedCrossShape& shape);
bool fused_cross_fits(const FusedCrossShape& shape);

// Whether the model's layers and heads belong together: std::invalid_argument where they do not.
void check_fused_cross(const FusedCrossModel& model);
// Of each cross layer the sum of its biases and those of the layers before, as x_{l+1} is made of
// x_0 and all layers' products.
std::vector<std::vector<float>> summed_cross_biases(const FusedCrossModel& model);

// Kernel arguments and data on the host, before upload.
struct FusedCrossPlan {
  FusedCrossParams params;
  std::vector<std::uint16_t> weights;
  std::vector<float> vectors;
  std::vector<CrossWeightStage> stages;
  GatherPlan gather;
};

// Pure. std::invalid_argument where the model does not fit.
FusedCrossPlan plan_fused_cross(const FusedCrossModel& model, DataType type);

// kernel.cu. type: half or bfloat16.
FusedKernel fused_cross_kernel(DataType type, const FusedCrossParams& params);

using FusedCross = DeviceFusedKernel<FusedCrossParams>;
// On the current device.
std::shared_ptr<FusedCross> make_fused_cross(const FusedCrossModel& model, DataType type);

}  // namespace dpiframe
