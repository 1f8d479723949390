// out [rows, N] = the dense features [N, B] of the batch, transposed.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/batch_memory.h"
#include "kernels/elementwise/matrix.h"

namespace dpiframe {

void load_dense(std::int64_t rows, const Matrix& out, const BatchMemory& inputs,
                cudaStream_t stream);

}  // namespace dpiframe
