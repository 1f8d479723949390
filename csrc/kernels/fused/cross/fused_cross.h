// A whole model with cross layers of the field width in one kernel: lookup, wide sum, products and
// scores of 64 rows by a cluster of two blocks, for 16-bit types on Hopper.
//
//   x_0      = the rows of all tables, as multi_table_lookup makes them
//   x_{l+1}  = x_0 (x_l w_l^T + bias_l) + x_l                      (DCNv2, arXiv 2008.13535)
//   h_0      = x_0, h_{l+1} = max(h_l v_l^T + c_l, 0)
//   logit    = bias + head . (the last x) + deep_head . (the last h) + wide
//
// What products read, x_l and h_l, is rounded to 16 bits, as by the steps. x_{l+1} is made as
// x_0 + x_0 * (all layers' products so far + all their biases), so that of x_l nothing rounded is
// added. Where such sums are not finite, steps may have infinity for what is not a number here, or
// the other way round.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cuda/device_buffer.h"
#include "kernels/fused/cross/smem_layout.h"
#include "kernels/fused/cross_persistent/smem_layout.h"
#include "kernels/fused/mlp/fused_mlp.h"

namespace dpiframe {

struct ForwardCrossModel {
  std::vector<DeviceLookupField> fields;  // out_column: a column of x_0
  std::int64_t num_ids;                   // rows of a batch's ids
  std::vector<ForwardLevel> cross;        // n and k: columns of x_0
  std::vector<float> cross_head;          // [columns of x_0]
  std::vector<ForwardLevel> deep;
  std::vector<float> deep_head;  // [n of the last deep level]
  float bias;
  std::int64_t report;  // place of the lookup's counters in the batch's report
  int num_report;       // counters of the whole batch
};

// What decides whether a model fits.
ForwardCrossShape forward_cross_shape(const ForwardCrossModel& model);
// Whether its levels and heads belong together: std::invalid_argument where they do not.
void check_forward_cross(const ForwardCrossModel& model);
// Of each cross layer the sum of its biases and those of the layers before, as x_{l+1} is made of
// x_0 and all layers' products: forward_cross_levels.cuh.
std::vector<std::vector<float>> forward_cross_biases(const ForwardCrossModel& model);

// What a model's launches have in common, but for its place in device memory.
struct ForwardCrossPlan {
  ForwardCrossArguments arguments;
  std::vector<std::uint16_t> weights;
  std::vector<float> vectors;
  std::vector<ForwardCrossPiece> pieces;
  ForwardLookup lookup;
};

// Pure. std::invalid_argument where the model does not fit.
ForwardCrossPlan plan_forward_cross(const ForwardCrossModel& model, DataType type);

// The model on the device that is current when this is made. Batches of up to `small_rows` rows run
// as one tile a cluster; larger ones by the kernel for those (forward_tall_hopper.h), where the
// model takes it: that one works in `scratch`, which a run may use and nobody else meanwhile.
class DeviceForwardCross {
 public:
  DeviceForwardCross(const ForwardCrossModel& model, DataType type, std::int64_t small_rows,
                     int multiprocessors, std::span<std::byte> scratch);

  // As DeviceForward's.
  void run(std::int64_t rows, const BatchMemory& inputs, cudaStream_t stream) const;

  bool takes_large() const { return tall_blocks_ > 0; }
  std::size_t bytes() const { return memory_.bytes() + tall_memory_.bytes(); }

 private:
  void add_tall(const ForwardCrossModel& model, DataType type, int multiprocessors,
                std::span<std::byte> scratch);

  std::int64_t small_rows_;
  DeviceArrays memory_;
  DeviceArrays tall_memory_;
  ForwardCrossArguments arguments_;
  ForwardKernel kernel_;
  ForwardTallArguments tall_{};
  ForwardKernel tall_kernel_;
  int tall_blocks_ = 0;
};

}  // namespace dpiframe
