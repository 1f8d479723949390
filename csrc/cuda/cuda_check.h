// Checks of what CUDA answered.
//
// DPIF_CUDA_CHECK(call) throws (RuntimeError in Python) with the expression, file, line and CUDA's
// own text; where the device has too little memory a DeviceMemoryError, with what is free.
// DPIF_CUDA_WARN(call) is for destructors: it writes one line to stderr and never throws.
//
// Either leaves no error behind for cudaGetLastError, or the next checked launch would be blamed.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>

#include "common/check.h"
#include "common/device_memory_error.h"

namespace dpiframe {

// For tests: the n-th checked call from now on is not made and reports too little memory; 0: none.
inline std::atomic<std::int64_t> calls_until_failure{0};

inline bool fails_by_injection() {
  return calls_until_failure.load(std::memory_order_relaxed) > 0 && calls_until_failure-- == 1;
}

// " (1 of 2 bytes are free)" of the current device; nothing where CUDA does not say.
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
  (void)cudaGetLastError();
  const std::string text = join_message(expression, " failed at ", file, ":", line, ": ",
                                        cudaGetErrorName(status), ", ", cudaGetErrorString(status));
  if (status == cudaErrorMemoryAllocation) throw DeviceMemoryError(text + free_memory());
  throw std::runtime_error(text);
}

inline void warn_of_cuda_error(cudaError_t status, const char* expression, const char* file,
                               int line) {
  (void)cudaGetLastError();
  std::fprintf(stderr, "dpiframe: %s failed at %s:%d: %s\n", expression, file, line,
               cudaGetErrorString(status));
}

}  // namespace dpiframe

#define DPIF_CUDA_STATUS(expression) \
  (::dpiframe::fails_by_injection() ? cudaErrorMemoryAllocation : (expression))

#define DPIF_CUDA_CHECK(expression)                                               \
  do {                                                                            \
    const cudaError_t dpif_status = DPIF_CUDA_STATUS(expression);                 \
    if (dpif_status != cudaSuccess) [[unlikely]]                                  \
      ::dpiframe::throw_cuda_error(dpif_status, #expression, __FILE__, __LINE__); \
  } while (false)

#define DPIF_CUDA_WARN(expression)                                                  \
  do {                                                                              \
    const cudaError_t dpif_status = (expression);                                   \
    if (dpif_status != cudaSuccess) [[unlikely]]                                    \
      ::dpiframe::warn_of_cuda_error(dpif_status, #expression, __FILE__, __LINE__); \
  } while (false)
