// Checks of what CUDA answered.
//
// DPIF_CUDA_CHECK(call) throws (RuntimeError in Python) with the expression, file, line and CUDA's
// own text; where the device has too little memory a DeviceMemoryError, with what is free; where it
// answers no call any more a DeviceLostError.
// DPIF_CUDA_WARN(call) is for destructors: it writes one line to stderr and never throws.
//
// Either leaves no error behind for cudaGetLastError, or the next checked launch would be blamed.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <stdexcept>
#include <string>

#include "common/check.h"
#include "common/device_errors.h"

namespace dpiframe {

// For tests: the n-th checked call from now on is not made and reports too little memory; 0: none.
inline std::atomic<std::int64_t> calls_until_failure{0};
// Instead it reports a bad address, and no checked call is made any more.
inline std::atomic<bool> failure_loses_device{false};
constexpr std::int64_t kDeviceLost = std::numeric_limits<std::int64_t>::min();

inline cudaError_t injected_failure() {
  const std::int64_t left = calls_until_failure.load(std::memory_order_relaxed);
  if (left == kDeviceLost) return cudaErrorIllegalAddress;
  if (left <= 0 || calls_until_failure-- != 1) return cudaSuccess;
  if (!failure_loses_device) return cudaErrorMemoryAllocation;
  calls_until_failure = kDeviceLost;
  return cudaErrorIllegalAddress;
}

// The status of a call, or that of an injected failure in its place.
template <class Call>
cudaError_t status_of(const Call& call) {
  const cudaError_t injected = injected_failure();
  return injected == cudaSuccess ? call() : injected;
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

// Which errors lose the device CUDA does not say, but then it answers no call any more.
inline bool device_is_lost() {
  std::size_t free = 0;
  std::size_t total = 0;
  const cudaError_t status = status_of([&] { return cudaMemGetInfo(&free, &total); });
  (void)cudaGetLastError();
  return status != cudaSuccess;
}

// `text` says what failed, and the sizes where memory was short.
[[noreturn]] inline void throw_device_error(cudaError_t status, const std::string& text) {
  if (status == cudaErrorMemoryAllocation) throw DeviceMemoryError(text);
  if (device_is_lost()) throw DeviceLostError(text);
  throw std::runtime_error(text);
}

[[noreturn]] inline void throw_cuda_error(cudaError_t status, const char* expression,
                                          const char* file, int line) {
  (void)cudaGetLastError();
  const std::string text = join_message(expression, " failed at ", file, ":", line, ": ",
                                        cudaGetErrorName(status), ", ", cudaGetErrorString(status));
  throw_device_error(status, status == cudaErrorMemoryAllocation ? text + free_memory() : text);
}

inline void warn_of_cuda_error(cudaError_t status, const char* expression, const char* file,
                               int line) {
  (void)cudaGetLastError();
  std::fprintf(stderr, "dpiframe: %s failed at %s:%d: %s\n", expression, file, line,
               cudaGetErrorString(status));
}

}  // namespace dpiframe

#define DPIF_CUDA_STATUS(expression) ::dpiframe::status_of([&] { return expression; })

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
