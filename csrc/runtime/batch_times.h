// How long batches took on the device, by the events that keep their order anyway.
//
// Copy in, compute and copy out of a batch are each one stretch of a stream. It begins when two
// things are done: the stretch before it of the same batch, and the same stretch of the batch
// before. So an event at each end tells all but when copying in began, which waits for the host and
// has one more event, on a stream where nothing else is late for it.
#pragma once

#include "cuda/stream.h"

namespace dpiframe {

struct BatchSeconds {
  double copy_in = 0;
  double compute = 0;
  double copy_out = 0;
};

// The events of one batch.
struct BatchEvents {
  TimedEvent begun;
  TimedEvent copied;
  TimedEvent computed;
  TimedEvent done;
};

// The seconds of a batch that is done, behind `before` (null: the first one), which is done too.
BatchSeconds batch_seconds(const BatchEvents& batch, const BatchEvents* before);

}  // namespace dpiframe
