// The Hopper (sm_90a) kernel behind DeviceForward.
#pragma once

#include <cuda_runtime_api.h>

#include "common/precision.h"
#include "kernels/forward_layout.h"
#include "kernels/run_inputs.h"

namespace dpiframe {

// type: half or bfloat16.
void forward_hopper(DataType type, std::int64_t rows, const RunInputs& inputs,
                    const ForwardArguments& arguments, cudaStream_t stream);

}  // namespace dpiframe
