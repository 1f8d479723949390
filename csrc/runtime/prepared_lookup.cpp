#include "runtime/prepared_lookup.h"

#include "cuda/cuda_check.h"

namespace dpiframe {
namespace {

CapturedGraph captured(const MultiTableLookupParams& params, const BatchMemory& memory) {
  const Stream stream;
  // Loads the kernel: for a batch of no rows it reads and writes nothing.
  multi_table_lookup(memory.batch, params, BatchMemory{}, stream.get());
  stream.synchronize();
  return CapturedGraph(
      capture_graph(stream,
                    [&] { multi_table_lookup(memory.batch, params, memory, stream.get()); }),
      {}, memory);
}

}  // namespace

PreparedLookup::PreparedLookup(const MultiTableLookupParams& params, const BatchMemory& memory)
    : params_(params), memory_(memory), graph_(captured(params, memory)) {
  if (memory.batch == 0 || memory.batch > kMaxPolledRows) return;
  MultiTableLookupParams polled = params;
  polled.completion = completion_.emplace().get();
  polled_.emplace(captured(polled, memory));
}

void PreparedLookup::run(cudaStream_t stream) {
  cudaStreamCaptureStatus status{};
  DPIF_CUDA_CHECK(cudaStreamIsCapturing(stream, &status));
  if (status == cudaStreamCaptureStatusNone)
    graph_.launch(memory_, stream);
  else  // a kernel of the graph that is being captured, not a graph inside it
    multi_table_lookup(memory_.batch, params_, memory_, stream);
}

void PreparedLookup::run_and_wait(cudaStream_t stream) {
  if (polled_.has_value()) {
    completion_->reset();
    polled_->launch(memory_, stream);
    return completion_->wait(stream);
  }
  graph_.launch(memory_, stream);
  DPIF_CUDA_CHECK(cudaStreamSynchronize(stream));
}

}  // namespace dpiframe
