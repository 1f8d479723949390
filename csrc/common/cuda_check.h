// Checks of what CUDA answered.
//
// DPIF_CUDA_CHECK(call) throws (RuntimeError in Python) with the expression, the place and CUDA's
// own text. DPIF_CUDA_WARN(call) is for destructors: it writes one line to stderr, never throws.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <stdexcept>

#include "common/check.h"

#define DPIF_CUDA_CHECK(expression)                                               \
  do {                                                                            \
    const cudaError_t dpif_status = (expression);                                 \
    if (dpif_status != cudaSuccess) [[unlikely]]                                  \
      throw std::runtime_error(::dpiframe::join_message(                          \
          #expression, " failed at ", __FILE__, ":", __LINE__, ": ",              \
          cudaGetErrorName(dpif_status), ", ", cudaGetErrorString(dpif_status))); \
  } while (false)

#define DPIF_CUDA_WARN(expression)                                                                \
  do {                                                                                            \
    const cudaError_t dpif_status = (expression);                                                 \
    if (dpif_status != cudaSuccess) [[unlikely]]                                                  \
      std::fprintf(stderr, "dpiframe: %s failed at %s:%d: %s\n", #expression, __FILE__, __LINE__, \
                   cudaGetErrorString(dpif_status));                                              \
  } while (false)
