// The fused MLP kernel: lookup, FM, wide sum, MLP and scores of 64 samples by a cluster of two
// CTAs, for 16-bit types on Hopper (WDL, DeepFM, DCN).
//
//   x_0      = the embedding rows of all fields, as multi_table_lookup makes them
//   h_0      = max(x_0 w_0^T + bias_0, 0), h_l = max(h_{l-1} w_l^T + bias_l, 0)
//   extras   = further columns of the first product, without ReLU: the dots d_i of a collapsed
//              cross network and its part c of the head (lowering/collapse_cross_v1.py)
//   logit    = bias + head . h_last + wide + fm + alpha c, alpha = 1, then alpha (1 + d_i) +
//   shift_i
//
// For at a few thousand samples a launch for each step takes as long as the step.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/precision.h"
#include "kernels/embedding/multi_table_lookup_cuda.h"
#include "kernels/fused/device_kernel.h"
#include "kernels/fused/mlp/smem_layout.h"
#include "kernels/fused/plan.h"

namespace dpiframe {

struct FusedMlpModel {
  std::vector<DeviceLookupField> fields;  // out_column: a column of x_0
  std::int64_t num_ids;                   // rows of a batch's ids
  std::vector<LinearLayer> layers;        // the first layer's extras come last
  std::vector<float> shifts;  // of the cross network: as many extras, and one more for c
  bool has_cross;
  std::vector<float> head;  // [n of the last layer, without extras]
  float bias;
  std::int64_t report;  // the lookup's counters in the batch's report
  int num_report;       // counters of the whole batch
};

// What decides whether a model fits.
struct FusedMlpShape {
  std::vector<std::int64_t> dims;  // of the lookup's fields
  std::vector<int> widths;         // of the layers, without extras
  int num_shifts;
  bool has_cross;
  int num_fm;             // FM's sums
  std::int64_t num_ids;   // rows of a batch's ids
  std::int64_t max_rows;  // of a table
};
bool fused_mlp_fits(const FusedMlpShape& shape);
// About how long a batch of up to a wave takes, by a model that is fitted to an H100
// (docs/decisions/fused_mlp.md); of a shape that fits.
double fused_mlp_microseconds(const FusedMlpShape& shape, std::int64_t samples);

// Kernel arguments and data on the host, before upload.
struct FusedMlpPlan {
  FusedMlpParams params;
  std::vector<std::uint16_t> weights;
  std::vector<float> vectors;
  GatherPlan gather;
};

// Pure. std::invalid_argument where the model does not fit.
FusedMlpPlan plan_fused_mlp(const FusedMlpModel& model, DataType type);

// kernel.cu. type: half or bfloat16.
FusedKernel fused_mlp_kernel(DataType type, const FusedMlpParams& params);

using FusedMlp = DeviceFusedKernel<FusedMlpParams>;
// On the current device.
std::shared_ptr<FusedMlp> make_fused_mlp(const FusedMlpModel& model, DataType type);

}  // namespace dpiframe
