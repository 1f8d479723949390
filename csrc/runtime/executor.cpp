#include "runtime/executor.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "cuda/completion_flag.h"
#include "cuda/cuda_check.h"
#include "kernels/testing/delay.h"

namespace dpiframe {
namespace {

constexpr std::int64_t kFirstBucket = 512;

// Changing a graph's nodes counts where batches are short: those that are polled for, of so few
// launches, have several executable graphs.
constexpr std::size_t kShortSteps = 32;
constexpr std::size_t kKept = 16;

constexpr unsigned kMaxDelay = 50'000;  // nanoseconds: more than most steps take

// How plans with branches are timed. One stream takes the host less, so it wins a draw.
constexpr int kRounds = 3;
constexpr int kMostRuns = 16;
constexpr double kTimedMilliseconds = 1.0;  // of a round
constexpr double kWorthIt = 1.01;

// The node that the last launch on a capturing stream made.
cudaGraphNode_t last_node(cudaStream_t stream) {
  cudaStreamCaptureStatus status{};
  const cudaGraphNode_t* nodes = nullptr;
  std::size_t num_nodes = 0;
#if CUDART_VERSION >= 13000
  DPIF_CUDA_CHECK(
      cudaStreamGetCaptureInfo(stream, &status, nullptr, nullptr, &nodes, nullptr, &num_nodes));
#else
  DPIF_CUDA_CHECK(
      cudaStreamGetCaptureInfo_v2(stream, &status, nullptr, nullptr, &nodes, &num_nodes));
#endif
  if (num_nodes != 1) throw std::runtime_error("a step that takes a batch launched no kernel");
  return nodes[0];
}

}  // namespace

std::vector<std::int64_t> batch_buckets(std::int64_t max_rows) {
  std::vector<std::int64_t> buckets;
  for (std::int64_t rows = kFirstBucket; rows < max_rows; rows *= 2) buckets.push_back(rows);
  buckets.push_back(max_rows);
  return buckets;
}

Executor::Executor(Plan plan, std::optional<LaunchStep> first, std::vector<LaunchStep> steps,
                   FusedForward fused, const ExecutorOptions& options)
    : plan_(std::move(plan)),
      first_(std::move(first)),
      steps_(std::move(steps)),
      fused_(std::move(fused)),
      options_(options),
      streams_(plan_.num_streams()),
      used_(plan_.num_streams(), false),
      events_(plan_.num_events()),
      ends_(plan_.num_streams()),
      random_(options.delay_seed) {
  DPIF_CHECK(plan_.steps().size() == steps_.size(), "the plan has ", plan_.steps().size(),
             " steps, there are ", steps_.size());
  DPIF_CHECK(options.max_rows >= 1, "max_rows must be at least 1, got ", options.max_rows);
  for (const PlannedStep& planned : plan_.steps()) used_[planned.stream] = true;
  const bool has_branches = std::ranges::count(used_, true) > 1;
  for (const std::int64_t rows : batch_buckets(options.max_rows)) {
    enqueue({rows, BatchMemory{}, stream().get(), nullptr});
    stream().synchronize();
    Bucket& bucket = buckets_.emplace_back(rows);
    const bool both_ways = has_branches && !is_fused(rows);
    bucket.is_in_turn = both_ways && options_.branches == Branches::kInTurn;
    if (!options_.graphs) continue;
    bucket.graph = capture(rows, bucket.is_in_turn);
    if (both_ways && options_.branches == Branches::kMeasured)
      bucket.in_turn = capture(rows, true);
    else
      keep_several(bucket);
  }
  warm_ = true;
}

void Executor::run(const BatchMemory& memory, cudaStream_t stream) {
  DPIF_CHECK(memory.batch >= 1 && memory.batch <= options_.max_rows, "a batch must have 1 to ",
             options_.max_rows, " rows, got ", memory.batch);
  const auto bucket = std::ranges::lower_bound(buckets_, memory.batch, {}, &Bucket::rows);
  if (bucket->graph)
    bucket->graph->launch(memory, stream);
  else
    enqueue({bucket->rows, memory, stream, nullptr, bucket->is_in_turn});
}

void Executor::choose_streams(const BatchMemory& inputs) {
  for (Bucket& bucket : buckets_) {
    if (!bucket.in_turn || bucket.rows > inputs.batch) continue;
    BatchMemory memory = inputs;
    memory.batch = bucket.rows;
    (void)milliseconds(*bucket.in_turn, memory, 1);  // a graph's first launch takes longer
    const double one = milliseconds(*bucket.graph, memory, 1);
    const int runs = std::clamp(static_cast<int>(kTimedMilliseconds / one), 1, kMostRuns);
    double in_turn = std::numeric_limits<double>::max();
    double side_by_side = in_turn;
    for (int round = 0; round < kRounds; ++round) {
      in_turn = std::min(in_turn, milliseconds(*bucket.in_turn, memory, runs));
      side_by_side = std::min(side_by_side, milliseconds(*bucket.graph, memory, runs));
    }
    bucket.is_in_turn = in_turn <= kWorthIt * side_by_side;
    if (bucket.is_in_turn) bucket.graph = std::move(bucket.in_turn);
    bucket.in_turn.reset();
    keep_several(bucket);
  }
}

void Executor::keep_several(Bucket& bucket) {
  if (bucket.rows <= kMaxPolledRows && steps_.size() <= kShortSteps) bucket.graph->keep(kKept);
}

double Executor::milliseconds(CapturedGraph& graph, const BatchMemory& memory, int runs) {
  const TimedEvent begin;
  const TimedEvent end;
  graph.launch(memory, stream().get());  // so that the host is ahead of the launches that count
  begin.record(stream());
  for (int run = 0; run < runs; ++run) graph.launch(memory, stream().get());
  end.record(stream());
  stream().synchronize();
  return 1e3 * seconds_between(begin, end) / runs;
}

std::vector<std::int64_t> Executor::buckets_in_turn() const {
  std::vector<std::int64_t> rows;
  for (const Bucket& bucket : buckets_)
    if (bucket.is_in_turn) rows.push_back(bucket.rows);
  return rows;
}

void Executor::enqueue(const Launches& launches) {
  if (first_) launch(*first_, false, launches.first, launches);
  if (is_fused(launches.rows))
    return launch(fused_.step, options_.refused_step >= 0, launches.first, launches);
  if (launches.in_turn) {
    for (const PlannedStep& planned : plan_.steps())
      launch(steps_[planned.step], planned.step == options_.refused_step, launches.first, launches);
    return;
  }
  start_.record(launches.first);
  for (std::size_t s = 1; s < streams_.size(); ++s)
    if (used_[s]) streams_[s].wait_for(start_.get());
  for (const PlannedStep& planned : plan_.steps()) enqueue_step(planned, launches);
  for (std::size_t s = 1; s < streams_.size(); ++s) {
    if (!used_[s]) continue;
    ends_[s].record(streams_[s]);
    ends_[s].hold(launches.first);
  }
}

void Executor::enqueue_step(const PlannedStep& planned, const Launches& launches) {
  const cudaStream_t stream = planned.stream == 0 ? launches.first : streams_[planned.stream].get();
  for (const int event : planned.waits) events_[event].hold(stream);
  launch(steps_[planned.step], planned.step == options_.refused_step, stream, launches);
  if (planned.record >= 0) events_[planned.record].record(stream);
}

void Executor::launch(const LaunchStep& step, bool refused, cudaStream_t stream,
                      const Launches& launches) {
  if (options_.delay_seed != 0) {
    random_ = random_ * 1664525u + 1013904223u;
    delay((random_ >> 8) % kMaxDelay, stream);
  }
  if (warm_ && refused) refused_launch(stream);
  step.launch(launches.rows, launches.memory, stream);
  if (launches.nodes != nullptr && step.takes_batch) launches.nodes->push_back(last_node(stream));
}

CapturedGraph Executor::capture(std::int64_t rows, bool in_turn) {
  std::vector<cudaGraphNode_t> nodes;
  const BatchMemory memory{};
  CudaGraph graph =
      capture_graph(stream(), [&] { enqueue({rows, memory, stream().get(), &nodes, in_turn}); });
  return CapturedGraph(std::move(graph), std::move(nodes), memory);
}

}  // namespace dpiframe
