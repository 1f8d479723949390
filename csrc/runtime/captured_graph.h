// Capturing a CUDA graph, and replaying a captured one over the memory of any batch.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

#include "cuda/stream.h"
#include "kernels/batch_memory.h"

namespace dpiframe {

struct DestroyGraph {
  void operator()(cudaGraph_t graph) const { DPIF_CUDA_WARN(cudaGraphDestroy(graph)); }
  void operator()(cudaGraphExec_t graph) const { DPIF_CUDA_WARN(cudaGraphExecDestroy(graph)); }
};
using CudaGraph = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, DestroyGraph>;
using CudaGraphExec = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, DestroyGraph>;

// The graph of what `enqueue` puts on `stream`. Its kernels must have been loaded before.
CudaGraph capture_graph(const Stream& stream, const std::function<void()>& enqueue);

class CapturedGraph {
 public:
  // `batch_nodes` are the graph's kernels that take (BatchMemory, parameters).
  CapturedGraph(CudaGraph graph, std::vector<cudaGraphNode_t> batch_nodes,
                const BatchMemory& captured_with);

  void launch(const BatchMemory& memory, cudaStream_t stream);

 private:
  CudaGraph graph_;
  CudaGraphExec executable_;
  std::vector<cudaGraphNode_t> batch_nodes_;
  std::vector<cudaKernelNodeParams> params_;  // of the batch nodes
  BatchMemory memory_;                        // what the executable graph holds
};

}  // namespace dpiframe
