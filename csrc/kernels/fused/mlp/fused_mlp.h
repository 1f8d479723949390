// A whole model in one kernel: lookup, FM, wide sum, products and scores of 64 rows by a cluster of
// two blocks, for 16-bit types on Hopper.
//
//   x0       = the rows of all tables, as multi_table_lookup makes them
//   h_0      = max(x0 w_0^T + bias_0, 0), h_l = max(h_{l-1} w_l^T + bias_l, 0)
//   extras   = further columns of the first product, without ReLU: the dots d_i of a collapsed
//              cross network and its part c of the head (lowering/collapse_cross_v1.py)
//   logit    = bias + head . h_last + wide + fm + alpha c, alpha = 1, then alpha (1 + d_i) +
//   shift_i
//
// Why one kernel: at a few thousand rows a launch for each step costs as much as the step.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "common/precision.h"
#include "cuda/device_buffer.h"
#include "kernels/batch_memory.h"
#include "kernels/embedding/multi_table_lookup_cuda.h"
#include "kernels/fused/gather_plan.h"
#include "kernels/fused/mlp/kernel.h"
#include "kernels/fused/mlp/smem_layout.h"

namespace dpiframe {

// A product and its ReLU.
struct ForwardLevel {
  int n;                    // the first level: extras come last
  int k;                    // columns of x0, or the n of the level before without its extras
  std::vector<float> w;     // [n, k]
  std::vector<float> bias;  // [n] or empty
};

struct ForwardModel {
  std::vector<DeviceLookupField> fields;  // out_column: a column of x0
  std::int64_t num_ids;                   // rows of a batch's ids
  std::vector<ForwardLevel> levels;
  std::vector<float> shifts;  // of the cross network: as many extras, and one more for c
  bool has_cross;
  std::vector<float> head;  // [n of the last level, without extras]
  float bias;
  std::int64_t report;  // place of the lookup's counters in the batch's report
  int num_report;       // counters of the whole batch
};

// What a model's launches have in common, but for its place in device memory.
struct ForwardPlan {
  ForwardArguments arguments;
  std::vector<std::uint16_t> weights;
  std::vector<float> vectors;
  ForwardLookup lookup;
};

// Pure. std::invalid_argument where the model does not fit.
ForwardPlan plan_forward(const ForwardModel& model, DataType type);

// The model on the device that is current when this is made.
class DeviceForward {
 public:
  DeviceForward(const ForwardModel& model, DataType type);

  // Enqueues the scores of the first `rows` rows or as many as the batch has; never synchronises,
  // never allocates, may be captured in a graph. One launch; not for two streams at a time.
  void run(std::int64_t rows, const BatchMemory& inputs, cudaStream_t stream) const;

  std::size_t bytes() const { return memory_.bytes(); }

 private:
  DeviceArrays memory_;
  ForwardArguments arguments_;
  ForwardKernel kernel_;
};

}  // namespace dpiframe
