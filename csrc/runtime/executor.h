// Runs a plan on CUDA streams, or captures it as a CUDA graph for each bucket of batch sizes and
// replays that.
//
// Branches of a plan run side by side on its streams, or one after the other on one: which is
// faster in a bucket is measured (choose_streams), since it gives the same bits.
// A batch runs in the smallest bucket that holds it: powers of two from 512 on, and max_rows. Steps
// are launched for the bucket's rows; nothing reads what they compute for rows beyond the batch. In
// some buckets a fused forward kernel replaces the whole plan.
// After construction a run allocates nothing and synchronises nothing. One caller at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "cuda/stream.h"
#include "kernels/batch_memory.h"
#include "planner/plan.h"
#include "runtime/captured_graph.h"

namespace dpiframe {

struct LaunchStep {
  std::function<void(std::int64_t rows, const BatchMemory& memory, cudaStream_t stream)> launch;
  bool takes_batch;  // the last kernel it launches takes (BatchMemory, parameters)
};

// A fused forward kernel, which runs in place of the plan in buckets of more than `above` and up to
// `up_to` rows.
struct FusedForward {
  LaunchStep step;
  std::int64_t above;
  std::int64_t up_to;
};

// How branches of a plan run: whichever way is faster (with graphs; else side by side), or always
// one way, for tests.
enum class Branches { kMeasured, kSideBySide, kInTurn };

struct ExecutorOptions {
  std::int64_t max_rows;
  bool graphs;
  unsigned delay_seed = 0;  // for tests: not 0 puts a random delay before each step
  int refused_step = -1;    // for tests: this step's launch fails after construction
  Branches branches = Branches::kMeasured;
};

std::vector<std::int64_t> batch_buckets(std::int64_t max_rows);

class Executor {
 public:
  // `steps` in the order of the plan's graph; `first`, if any, runs before all of them. Every
  // kernel runs once here, for a batch of no rows, because a kernel cannot be loaded while its
  // launch is captured.
  Executor(Plan plan, std::optional<LaunchStep> first, std::vector<LaunchStep> steps,
           FusedForward fused, const ExecutorOptions& options);

  // Enqueues a batch of 1 to max_rows rows; its work begins and ends on `stream`, which stands in
  // for the plan's first stream. The caller orders batches on different streams.
  void run(const BatchMemory& memory, cudaStream_t stream);

  // In each bucket of up to inputs.batch rows where branches are captured both ways, keeps the
  // faster one; `inputs` is any batch in memory of its own. Waits for the stream.
  void choose_streams(const BatchMemory& inputs);

  const Stream& stream() const { return streams_[0]; }
  // Rows of the buckets in which branches run one after the other, by choose_streams.
  std::vector<std::int64_t> buckets_in_turn() const;

 private:
  struct Launches {
    std::int64_t rows;
    const BatchMemory& memory;
    cudaStream_t first;                   // stands in for streams_[0]
    std::vector<cudaGraphNode_t>* nodes;  // gets the nodes that take a batch; null: no capture
    bool in_turn = false;                 // all steps on `first`
  };

  struct Bucket {
    std::int64_t rows;
    std::optional<CapturedGraph> graph;    // without graphs none
    std::optional<CapturedGraph> in_turn;  // where there are branches, until one is chosen
    bool is_in_turn = false;
  };

  bool is_fused(std::int64_t rows) const { return rows > fused_.above && rows <= fused_.up_to; }
  void enqueue(const Launches& launches);
  void enqueue_step(const PlannedStep& planned, const Launches& launches);
  void launch(const LaunchStep& step, bool refused, cudaStream_t stream, const Launches& launches);
  CapturedGraph capture(std::int64_t rows, bool in_turn);
  void keep_several(Bucket& bucket);
  double milliseconds(CapturedGraph& graph, const BatchMemory& memory, int runs);

  Plan plan_;
  std::optional<LaunchStep> first_;
  std::vector<LaunchStep> steps_;
  FusedForward fused_;
  ExecutorOptions options_;
  std::vector<Bucket> buckets_;
  std::vector<Stream> streams_;
  std::vector<bool> used_;  // by stream
  std::vector<Event> events_;
  std::vector<Event> ends_;  // by stream
  Event start_;
  unsigned random_;
  bool warm_ = false;
};

}  // namespace dpiframe
