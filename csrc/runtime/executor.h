// Runs a plan on CUDA streams, or captures it once for each bucket of batch sizes and replays that.
//
// A batch runs in the smallest bucket that holds it: powers of two from 512 on, and max_rows. Steps
// are launched for the bucket's rows; rows beyond the batch hold leftovers that nothing reads. For
// some buckets one kernel may stand for the whole plan.
// After construction a run allocates nothing and synchronises nothing. One caller at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cuda/stream.h"
#include "kernels/batch_memory.h"
#include "planner/plan.h"
#include "runtime/captured_graph.h"

namespace dpiframe {

struct LaunchStep {
  std::function<void(std::int64_t rows, const BatchMemory& inputs, cudaStream_t stream)> launch;
  bool takes_inputs;  // the last kernel it launches takes (BatchMemory, parameters)
};

// Does all that the plan does, in buckets of more than `beyond` and up to `rows` rows.
struct WholePlan {
  LaunchStep step;
  std::int64_t beyond;
  std::int64_t rows;
};

struct ExecutorOptions {
  std::int64_t max_rows;
  bool graphs;
  unsigned delay_seed = 0;  // for tests: not 0 puts a random delay before each step
  int refused_step = -1;    // for tests: this step's launch fails, once all is warm
};

std::vector<std::int64_t> batch_buckets(std::int64_t max_rows);

class Executor {
 public:
  // `steps` by the plan's graph. Every kernel is run once here, for no rows of input.
  Executor(Plan plan, std::vector<LaunchStep> steps, WholePlan whole,
           const ExecutorOptions& options);

  // Enqueues a batch of 1 to max_rows rows; its work begins and ends on `stream`, which takes the
  // place of the plan's first one. Batches on different streams must be put in order by the caller.
  void run(const BatchMemory& inputs, cudaStream_t stream);

  const Stream& stream() const { return streams_[0]; }
  const std::vector<std::int64_t>& buckets() const { return buckets_; }

 private:
  struct Launches {
    std::int64_t rows;
    const BatchMemory& inputs;
    cudaStream_t first;                   // in place of streams_[0]
    std::vector<cudaGraphNode_t>* nodes;  // takes those with inputs; null: nothing is captured
  };

  void enqueue(const Launches& launches);
  void enqueue_step(const PlannedStep& planned, const Launches& launches);
  void launch(const LaunchStep& step, bool refused, cudaStream_t stream, const Launches& launches);
  CapturedGraph capture(std::int64_t rows);

  Plan plan_;
  std::vector<LaunchStep> steps_;
  WholePlan whole_;
  ExecutorOptions options_;
  std::vector<std::int64_t> buckets_;
  std::vector<Stream> streams_;
  std::vector<bool> used_;  // by stream
  std::vector<Event> events_;
  std::vector<Event> ends_;  // by stream
  Event start_;
  std::vector<CapturedGraph> graphs_;  // by bucket
  unsigned random_;
  bool warm_ = false;
};

}  // namespace dpiframe
