// Checks of what CUDA answered.
//
// DPIF_CUDA_CHECK(call) throws (RuntimeError in Python) with the expression, the place and CUDA's
// own text; where the device has too little memory a DeviceMemoryError, with what is free.
// DPIF_CUDA_WARN(call) is for destructors: it writes one line to stderr, never throws.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdio>
#include <stdexcept>
#include <string>

#include "common/check.h"
#include "common/device_memory_error.h"

namespace dpiframe {

// " (1 of 2 bytes are free)" of the current device; nothing where it does not tell.
inline std::string free_memory() {
  std::size_t free = 0;
  std::size_t total = 0;
  if (cudaMemGetInfo(&free, &total) == cudaSuccess)
    return join_message(" (", free, " of ", total, " bytes are free)");
  (void)cudaGetLastError();
  return "";
}

[[noreturn]] inline void throw_cuda_error(cudaError_t status, const char* expression,
                                          const char* file, int line) {
  (void)cudaGetLastError();  // or the next launch that is checked would be blamed for it
  const std::string text = join_message(expression, " failed at ", file, ":", line, ": ",
                                        cudaGetErrorName(status), ", ", cudaGetErrorString(status));
  if (status == cudaErrorMemoryAllocation) throw DeviceMemoryError(text + free_memory());
  throw std::runtime_error(text);
}

}  // namespace dpiframe

#define DPIF_CUDA_CHECK(expression)                                               \
  do {                                                                            \
    const cudaError_t dpif_status = (expression);                                 \
    if (dpif_status != cudaSuccess) [[unlikely]]                                  \
      ::dpiframe::throw_cuda_error(dpif_status, #expression, __FILE__, __LINE__); \
  } while (false)

#define DPIF_CUDA_WARN(expression)                                                                \
  do {                                                                                            \
    const cudaError_t dpif_status = (expression);                                                 \
    if (dpif_status != cudaSuccess) [[unlikely]]                                                  \
      std::fprintf(stderr, "dpiframe: %s failed at %s:%d: %s\n", #expression, __FILE__, __LINE__, \
                   cudaGetErrorString(dpif_status));                                              \
  } while (false)
