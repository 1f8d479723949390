#include "runtime/batch_times.h"

#include <algorithm>

namespace dpiframe {
namespace {

double seconds_between(const Event& begin, const Event& end) {
  float milliseconds = 0;
  DPIF_CUDA_CHECK(cudaEventElapsedTime(&milliseconds, begin.get(), end.get()));
  return 1e-3 * milliseconds;
}

}  // namespace

BatchSeconds batch_seconds(const BatchEvents& batch, const BatchEvents* before) {
  BatchSeconds seconds{seconds_between(batch.begun, batch.copied),
                       seconds_between(batch.copied, batch.computed),
                       seconds_between(batch.computed, batch.done)};
  if (before == nullptr) return seconds;
  // From whichever came later.
  seconds.compute = std::min(seconds.compute, seconds_between(before->computed, batch.computed));
  seconds.copy_out = std::min(seconds.copy_out, seconds_between(before->done, batch.done));
  return seconds;
}

}  // namespace dpiframe
