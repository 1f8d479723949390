// A call of any number of rows, cut to batches that follow one another through a ring.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/batch_ring.h"

namespace dpiframe {

struct RingCall {
  std::vector<double> batch_seconds;               // from one batch's scores to the next's
  std::vector<std::vector<std::int64_t>> reports;  // of the batches that had bad ids
};

// Scores `call`, whose size may be any, into out [call.size]. `num_report`: counters of a batch.
// The caller's thread alone drives the GPU, without stops for anything else.
RingCall run_call(BatchRing& ring, const HostBatch& call, std::int64_t max_rows,
                  std::span<float> out, int num_report);

}  // namespace dpiframe
