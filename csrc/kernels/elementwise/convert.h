// target[i] = source[i], float32 rounded to the target's type: tables on their way to the device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "common/precision.h"

namespace dpiframe {

void convert(std::int64_t size, const float* source, void* target, DataType type,
             cudaStream_t stream);

}  // namespace dpiframe
