// The Hopper (sm_90a) kernels behind linear(); linear.h has the formulas.
#pragma once

#include <cuda.h>

#include "kernels/gemm/linear.h"
#include "kernels/gemm/tile_config.h"

namespace dpiframe {

// Whether the current device and the alignment of x allow them: x and its rows start at multiples
// of 16 bytes.
bool sm90_supports(Precision precision, const LinearParams& params);

// fp16, bf16, tf32: operands as they lie in memory.
void sm90_linear(Precision precision, const LinearParams& params, const LinearConfig& config,
                 cudaStream_t stream);

// fp32 by FP16x3 emulation.
void sm90_linear_fp16x3(const LinearParams& params, const LinearConfig& config,
                        cudaStream_t stream);

// The current device's number of multiprocessors.
int num_multiprocessors();

// The TMA descriptor of boxes of `box_rows` rows of 128 bytes in a row-major matrix. Loads outside
// the matrix give zeros.
CUtensorMap tensor_map(DataType type, const void* data, std::int64_t rows, std::int64_t columns,
                       std::int64_t stride, int box_rows);

// The same of `places` matrices whose rows lie `step` elements behind one another: dimensions are
// columns, matrices, rows.
CUtensorMap tensor_map_of_places(DataType type, const void* data, std::int64_t rows,
                                 std::int64_t columns, std::int64_t stride, int box_rows,
                                 int places, std::int64_t step);

// What the epilogue reads and writes in boxes of 16 rows; absent matrices are never used.
struct EpilogueMaps {
  CUtensorMap out;
  CUtensorMap x0;
  CUtensorMap xl;
};
struct EpilogueParams;
EpilogueMaps epilogue_maps(DataType type, const EpilogueParams& params);

}  // namespace dpiframe
