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

// A graph's nodes hold the memory of their batch, and changing them takes some microseconds. A
// caller that reuses buffers in turn is spared this where several executable graphs are kept, each
// with the memory that it was last launched over.
class CapturedGraph {
 public:
  // `batch_nodes` are the graph's kernels that take (BatchMemory, parameters).
  CapturedGraph(CudaGraph graph, std::vector<cudaGraphNode_t> batch_nodes,
                const BatchMemory& captured_with);

  // Instantiates more executable graphs, so that there are `count`.
  void keep(std::size_t count);

  void launch(const BatchMemory& memory, cudaStream_t stream);

 private:
  struct Executable {
    CudaGraphExec graph;
    BatchMemory memory;  // what its nodes hold
  };

  // The executable graph that holds `memory`, or the one that is changed next.
  Executable& executable(const BatchMemory& memory);
  void change(Executable& executable, const BatchMemory& memory);

  CudaGraph graph_;
  std::vector<cudaGraphNode_t> batch_nodes_;
  std::vector<cudaKernelNodeParams> params_;  // of the batch nodes
  BatchMemory captured_with_;
  std::vector<Executable> executables_;
  std::size_t last_ = 0;     // launched last
  std::size_t changed_ = 0;  // changed last
};

}  // namespace dpiframe
