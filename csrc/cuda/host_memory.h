// Host memory for large arrays, which a GPU reads by itself once its pages are locked.
#pragma once

#include <cstddef>

namespace dpiframe {

class HostMemory {
 public:
  explicit HostMemory(std::size_t bytes);  // zeros; std::bad_alloc
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // Locks the pages for every CUDA device; returns whether they are locked. They are not without
  // CUDA, or where the system locks no more memory; CUDA then copies through a buffer of its own.
  bool lock();

  void* get() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  void* data_;
  std::size_t bytes_;
  bool locked_ = false;
};

}  // namespace dpiframe
