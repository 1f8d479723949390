// What the operations' files share on the host: checks, choice of axes, tables in device memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cuda/cuda_check.h"
#include "cuda/device_buffer.h"
#include "kernels/tensor/axes.h"
#include "kernels/tensor/tensor_op.h"

namespace dpiframe {

TensorLaunch map_op(const MapOp& op, const TensorOperands& operands);
TensorLaunch reduce_op(const ReduceOp& op, const TensorOperands& operands);
TensorLaunch softmax_op(const SoftmaxOp& op, const TensorOperands& operands);
TensorLaunch layer_norm_op(const LayerNormOp& op, const TensorOperands& operands);
TensorLaunch matmul_op(const MatMulOp& op, const TensorOperands& operands);
TensorLaunch join_op(const JoinOp& op, const TensorOperands& operands);
TensorLaunch take_op(const TakeOp& op, const TensorOperands& operands);
TensorLaunch top_k_op(const TopKOp& op, const TensorOperands& operands);
TensorLaunch take_along_op(const TakeAlongOp& op, const TensorOperands& operands);

inline int elements_of(const std::vector<int>& shape) {
  int elements = 1;
  for (const int size : shape) elements *= size;
  return elements;
}

// The operation's inputs, of which there must be `least` to `most`.
inline void check_inputs(const TensorOperands& operands, const char* name, std::size_t least,
                         std::size_t most) {
  DPIF_CHECK(operands.inputs.size() >= least && operands.inputs.size() <= most, name, " takes ",
             least, " to ", most, " operands, got ", operands.inputs.size());
}

inline void check_out(const TensorOperands& operands, const char* name, std::int64_t elements) {
  DPIF_CHECK(operands.out.width == elements, name, " writes ", elements, " columns, got ",
             operands.out.width);
}

inline void check_operation(bool fits, const char* name) {
  DPIF_CHECK(fits, name, " does not fit the shapes of its operands");
}

// The matrix from the operand's first element on.
inline Matrix from_offset(const TensorInput& input) {
  Matrix matrix = input.source;
  matrix.data = static_cast<char*>(matrix.data) + input.operand.offset * bytes_of(matrix.type);
  return matrix;
}

// The axes `begin` .. `end` - 1.
inline std::vector<int> between(const std::vector<int>& values, std::size_t begin,
                                std::size_t end) {
  return {values.begin() + static_cast<std::ptrdiff_t>(begin),
          values.begin() + static_cast<std::ptrdiff_t>(end)};
}

// An operand's axes as those that an operation works along (inner) and the others (outer).
struct SplitAxes {
  std::vector<int> outer_sizes;
  std::vector<int> outer_strides;
  std::vector<int> inner_sizes;
  std::vector<int> inner_strides;
};
inline SplitAxes split_axes(const std::vector<int>& sizes, const std::vector<int>& strides,
                            const std::vector<int>& inner, const char* name) {
  SplitAxes split;
  for (const int axis : inner)
    DPIF_CHECK(axis >= 0 && axis < static_cast<int>(sizes.size()), name, " has an axis ", axis,
               " of a tensor of ", sizes.size(), " axes");
  for (int axis = 0; axis < static_cast<int>(sizes.size()); ++axis) {
    const bool within = std::find(inner.begin(), inner.end(), axis) != inner.end();
    (within ? split.inner_sizes : split.outer_sizes).push_back(sizes[axis]);
    (within ? split.inner_strides : split.outer_strides).push_back(strides[axis]);
  }
  return split;
}

// A table in device memory, which launches share.
template <class T>
std::shared_ptr<const T> device_table(const std::vector<T>& values) {
  auto buffer = std::make_shared<DeviceBuffer>(values.size() * sizeof(T));
  DPIF_CUDA_CHECK(
      cudaMemcpy(buffer->get(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  return {buffer, static_cast<const T*>(buffer->get())};
}

// Rows of one launch, and what it computes for them. Places are counted in 31 bits: operations of
// more take several launches.
struct RowRange {
  std::int64_t first;
  std::uint32_t places;
  FastDivision places_a_row;
};

// Calls launch(range) for ranges that together have all rows.
template <class Launch>
void in_row_ranges(std::int64_t rows, int places_a_row, const Launch& launch) {
  const std::int64_t most = ((std::int64_t{1} << 31) - 1) / places_a_row;
  for (std::int64_t first = 0; first < rows; first += most) {
    const std::int64_t count = std::min(most, rows - first);
    launch(RowRange{first, static_cast<std::uint32_t>(count * places_a_row),
                    FastDivision(static_cast<std::uint32_t>(places_a_row))});
  }
}

inline unsigned blocks_of(std::uint32_t places, std::uint32_t places_a_block) {
  return (places + places_a_block - 1) / places_a_block;
}

}  // namespace dpiframe
