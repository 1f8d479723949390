// The weights of the one-kernel forward pass in the order in which its two blocks use them.
#pragma once

#include <cstdint>
#include <vector>

#include "common/precision.h"
#include "kernels/fused/mlp/fused_mlp.h"

namespace dpiframe {

// A number in 16 bits. type: half or bfloat16.
std::uint16_t forward_bits(DataType type, float value);
// The number that a float16 of these bits is.
float forward_half(std::uint16_t bits);

// x_columns: the first column of x0 in each chunk, -1: zeros. Returns the bits of 16-bit numbers:
// for each block, for each level, for each 16 columns of k (own half first), two chunks of 8
// columns of k, each the block's 2 tile columns by 8 numbers.
std::vector<std::uint16_t> forward_weights(DataType type, const ForwardArguments& arguments,
                                           const std::vector<int>& x_columns,
                                           const std::vector<ForwardLevel>& levels);

// ForwardArguments::vectors.
std::vector<float> forward_vectors(const ForwardArguments& arguments,
                                   const std::vector<ForwardLevel>& levels,
                                   const std::vector<float>& head);

}  // namespace dpiframe
