// Makes a device current for as long as it lives, then the one before it again.
#pragma once

#include <cuda_runtime_api.h>

#include "cuda/cuda_check.h"

namespace dpiframe {

class DeviceGuard {
 public:
  explicit DeviceGuard(int device) : device_(device) {
    DPIF_CUDA_CHECK(cudaGetDevice(&before_));
    if (before_ != device_) DPIF_CUDA_CHECK(cudaSetDevice(device_));  // dearer than asking
  }
  ~DeviceGuard() {
    if (before_ != device_) DPIF_CUDA_WARN(cudaSetDevice(before_));
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int device_;
  int before_ = 0;
};

}  // namespace dpiframe
