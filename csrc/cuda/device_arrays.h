// Arrays of the host in one piece of device memory, each at a multiple of 256 bytes.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "cuda/cuda_check.h"
#include "cuda/device_buffer.h"

namespace dpiframe {

class DeviceArrays {
 public:
  DeviceArrays() = default;
  explicit DeviceArrays(const std::vector<std::span<const std::byte>>& arrays) {
    std::size_t bytes = 0;
    for (const auto& array : arrays) {
      places_.push_back(bytes);
      bytes += (array.size() + 255) / 256 * 256;
    }
    memory_ = DeviceBuffer(bytes);
    for (std::size_t i = 0; i < arrays.size(); ++i)
      DPIF_CUDA_CHECK(
          cudaMemcpy(at(i), arrays[i].data(), arrays[i].size(), cudaMemcpyHostToDevice));
  }

  void* at(std::size_t i) const { return static_cast<char*>(memory_.get()) + places_[i]; }
  std::size_t bytes() const { return memory_.bytes(); }

 private:
  DeviceBuffer memory_;
  std::vector<std::size_t> places_;
};

}  // namespace dpiframe
