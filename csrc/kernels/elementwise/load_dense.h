// out [rows, N] = the batch's dense features [N, B], turned to rows.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/batch_memory.h"
#include "kernels/elementwise/matrix.h"

namespace dpiframe {

void load_dense(std::int64_t rows, const Matrix& out, const BatchMemory& inputs, cudaStream_t stream);

}  // namespace dpiframe
