// Capturing a CUDA graph, and a captured one, ready to run over the memory of any batch.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <vector>

#include "cuda/stream.h"
#include "kernels/batch_memory.h"

namespace dpiframe {

// The graph of what `enqueue` puts on `stream`; the caller's. Kernels must have been loaded before.
cudaGraph_t capture_graph(const Stream& stream, const std::function<void()>& enqueue);

// Move-only owner of a graph and its executable form.
class CapturedGraph {
 public:
  // `graph` becomes this object's. `input_nodes` are its kernels that take (BatchMemory, parameters).
  CapturedGraph(cudaGraph_t graph, std::vector<cudaGraphNode_t> input_nodes,
                const BatchMemory& captured_with);
  ~CapturedGraph();
  CapturedGraph(CapturedGraph&& other) noexcept;
  CapturedGraph& operator=(CapturedGraph&&) = delete;

  void launch(const BatchMemory& inputs, cudaStream_t stream);

 private:
  void instantiate();

  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t executable_ = nullptr;
  std::vector<cudaGraphNode_t> input_nodes_;
  std::vector<cudaKernelNodeParams> params_;  // of the input nodes
  BatchMemory inputs_;                          // what the executable form holds
};

}  // namespace dpiframe
