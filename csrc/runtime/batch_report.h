// What batches found wrong with their ids, on its way from the device.
#pragma once

#include <cstdint>
#include <span>

#include "cuda/device_buffer.h"
#include "cuda/stream.h"

namespace dpiframe {

// The counters of one batch in flight; kernels add to them, the head copies them to the host.
class Report {
 public:
  explicit Report(int size);

  unsigned long long* device() const { return static_cast<unsigned long long*>(device_.get()); }
  unsigned long long* host() const { return static_cast<unsigned long long*>(host_.get()); }
  // What the batch left, once it is done; false: no bad id. Else the counters are copied to
  // `values` and put back on `stream`. Counts start at -1; the place behind a lookup's counts is -1
  // where it saw no bad id.
  bool take(std::span<std::int64_t> values, const Stream& stream);

 private:
  int size_;
  DeviceBuffer device_;
  PinnedBuffer host_;
  PinnedBuffer initial_;
};

}  // namespace dpiframe
