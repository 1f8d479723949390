// What the plans of the fused forward kernels share: which CTA gathers what, and the order in which
// weights lie in global memory. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "common/precision.h"
#include "kernels/embedding/multi_table_lookup_cuda.h"
#include "kernels/fused/layout.h"
#include "kernels/fused/mlp/smem_layout.h"

namespace dpiframe {

// A linear layer: x w^T + bias.
struct LinearLayer {
  int n;
  int k;
  std::vector<float> w;     // [n, k]
  std::vector<float> bias;  // [n] or empty
};

struct GatherPlan {
  std::vector<FieldSlice> slices;
  std::vector<int> x_columns;  // the first column of x_0 in each chunk, -1: zeros
};

// Gives half of the slices to either CTA. Writes the gather's part of `params`, too.
GatherPlan plan_gather(const std::vector<DeviceLookupField>& fields, DataType type,
                       FusedMlpParams& params);

// The bits of a number of type half or bfloat16; the number that a float16 of these bits is.
std::uint16_t to_bits16(DataType type, float value);
float from_float16(std::uint16_t bits);

// The weights of `layers` in the order of their use, as bits of 16-bit numbers: for each CTA, for
// each layer, for each k-step (the CTA's own half of k first) two chunks of 8 columns of k, each
// [2 tile, 8].
std::vector<std::uint16_t> pack_weights(DataType type, const FusedMlpParams& params,
                                        const std::vector<int>& x_columns,
                                        const std::vector<LinearLayer>& layers);
// FusedMlpParams::vectors.
std::vector<float> pack_vectors(const FusedMlpParams& params,
                                const std::vector<LinearLayer>& layers,
                                const std::vector<float>& head);

// Gives the stages of a tile their offsets in a ring of shared memory: each follows the one before;
// one that would reach beyond the ring's end begins at its start. The same stages follow tile after
// tile, each tile from the ring's start, and are consumed in their order. At least kMaxStages.
void assign_ring_offsets(std::vector<WeightStage>& stages, int ring_bytes);

}  // namespace dpiframe
