#include "runtime/captured_graph.h"

#include <utility>

#include "cuda/cuda_check.h"

namespace dpiframe {

CudaGraph capture_graph(const Stream& stream, const std::function<void()>& enqueue) {
  DPIF_CUDA_CHECK(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
  cudaGraph_t captured = nullptr;
  try {
    enqueue();
  } catch (...) {  // while it captures, the stream can be neither used nor destroyed
    (void)cudaStreamEndCapture(stream.get(), &captured);
    (void)cudaGetLastError();
    const CudaGraph owner(captured);
    throw;
  }
  const cudaError_t status = cudaStreamEndCapture(stream.get(), &captured);
  CudaGraph graph(captured);
  DPIF_CUDA_CHECK(status);
  return graph;
}

CapturedGraph::CapturedGraph(CudaGraph graph, std::vector<cudaGraphNode_t> batch_nodes,
                             const BatchMemory& captured_with)
    : graph_(std::move(graph)), batch_nodes_(std::move(batch_nodes)), memory_(captured_with) {
  for (const cudaGraphNode_t node : batch_nodes_)
    DPIF_CUDA_CHECK(cudaGraphKernelNodeGetParams(node, &params_.emplace_back()));
  cudaGraphExec_t executable = nullptr;
  DPIF_CUDA_CHECK(cudaGraphInstantiate(&executable, graph_.get(), 0));
  executable_.reset(executable);
}

void CapturedGraph::launch(const BatchMemory& memory, cudaStream_t stream) {
  if (memory != memory_) {
    BatchMemory changed = memory;
    for (std::size_t i = 0; i < batch_nodes_.size(); ++i) {
      void* arguments[] = {&changed, params_[i].kernelParams[1]};
      cudaKernelNodeParams params = params_[i];
      params.kernelParams = arguments;
      DPIF_CUDA_CHECK(
          cudaGraphExecKernelNodeSetParams(executable_.get(), batch_nodes_[i], &params));
    }
    memory_ = memory;
  }
  DPIF_CUDA_CHECK(cudaGraphLaunch(executable_.get(), stream));
}

}  // namespace dpiframe
