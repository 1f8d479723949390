// out [rows, N] = the batch's dense features [N, B], turned to rows.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/matrix.h"
#include "kernels/run_inputs.h"

namespace dpiframe {

void load_dense(std::int64_t rows, const Matrix& out, const RunInputs& inputs, cudaStream_t stream);

}  // namespace dpiframe
