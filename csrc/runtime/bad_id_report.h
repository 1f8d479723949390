// The counters of ids outside their tables, on their way from the device.
#pragma once

#include <cstdint>
#include <span>

#include "cuda/device_buffer.h"
#include "cuda/stream.h"

namespace dpiframe {

// The counters of one batch in flight: kernels add to them, the last step copies them to the host.
// A lookup has a count a field, and the smallest (row * F + field) of a bad id. Counts start at -1
// and that index is -1 where there is no bad id, so that all ones mean "no bad ids".
class BadIdReport {
 public:
  explicit BadIdReport(int size);

  unsigned long long* device() const { return static_cast<unsigned long long*>(device_.get()); }
  unsigned long long* host() const { return static_cast<unsigned long long*>(host_.get()); }
  // After the batch is done: false if it had no bad id; else copies the counters to `values` and
  // resets them, on the device by a copy on `stream`.
  bool take(std::span<std::int64_t> values, const Stream& stream);

 private:
  std::size_t bytes_;
  DeviceBuffer device_;
  PinnedBuffer host_;
  PinnedBuffer initial_;
};

}  // namespace dpiframe
