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
    : graph_(std::move(graph)),
      batch_nodes_(std::move(batch_nodes)),
      captured_with_(captured_with) {
  for (const cudaGraphNode_t node : batch_nodes_)
    DPIF_CUDA_CHECK(cudaGraphKernelNodeGetParams(node, &params_.emplace_back()));
  keep(1);
}

void CapturedGraph::keep(std::size_t count) {
  while (executables_.size() < count) {
    cudaGraphExec_t executable = nullptr;
    DPIF_CUDA_CHECK(cudaGraphInstantiate(&executable, graph_.get(), 0));
    executables_.emplace_back(CudaGraphExec(executable), captured_with_);
  }
}

void CapturedGraph::launch(const BatchMemory& memory, cudaStream_t stream) {
  Executable& found = executable(memory);
  if (found.memory != memory) change(found, memory);
  last_ = static_cast<std::size_t>(&found - executables_.data());
  DPIF_CUDA_CHECK(cudaGraphLaunch(found.graph.get(), stream));
}

CapturedGraph::Executable& CapturedGraph::executable(const BatchMemory& memory) {
  const std::size_t count = executables_.size();
  for (std::size_t i = 0; i < count; ++i) {  // buffers in turn: the next one holds it
    Executable& candidate = executables_[(last_ + 1 + i) % count];
    if (candidate.memory == memory) return candidate;
  }
  changed_ = (changed_ + 1) % count;
  return executables_[changed_];
}

void CapturedGraph::change(Executable& executable, const BatchMemory& memory) {
  BatchMemory changed = memory;
  executable.memory = captured_with_;  // until all nodes have changed
  for (std::size_t i = 0; i < batch_nodes_.size(); ++i) {
    void* arguments[] = {&changed, params_[i].kernelParams[1]};
    cudaKernelNodeParams params = params_[i];
    params.kernelParams = arguments;
    DPIF_CUDA_CHECK(
        cudaGraphExecKernelNodeSetParams(executable.graph.get(), batch_nodes_[i], &params));
  }
  executable.memory = memory;
}

}  // namespace dpiframe
