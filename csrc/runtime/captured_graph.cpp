#include "runtime/captured_graph.h"

#include <utility>

#include "cuda/cuda_check.h"

namespace dpiframe {

cudaGraph_t capture_graph(const Stream& stream, const std::function<void()>& enqueue) {
  cudaGraph_t graph = nullptr;
  DPIF_CUDA_CHECK(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeThreadLocal));
  try {
    enqueue();
  } catch (...) {
    if (cudaStreamEndCapture(stream.get(), &graph) == cudaSuccess && graph != nullptr)
      DPIF_CUDA_WARN(cudaGraphDestroy(graph));
    (void)cudaGetLastError();
    throw;
  }
  DPIF_CUDA_CHECK(cudaStreamEndCapture(stream.get(), &graph));
  return graph;
}

CapturedGraph::CapturedGraph(cudaGraph_t graph, std::vector<cudaGraphNode_t> input_nodes,
                             const BatchMemory& captured_with)
    : graph_(graph), input_nodes_(std::move(input_nodes)), inputs_(captured_with) {
  try {
    instantiate();
  } catch (...) {  // the destructor does not run where a constructor throws
    DPIF_CUDA_WARN(cudaGraphDestroy(graph_));
    throw;
  }
}

CapturedGraph::CapturedGraph(CapturedGraph&& other) noexcept
    : graph_(std::exchange(other.graph_, nullptr)),
      executable_(std::exchange(other.executable_, nullptr)),
      input_nodes_(std::move(other.input_nodes_)),
      params_(std::move(other.params_)),
      inputs_(other.inputs_) {}

CapturedGraph::~CapturedGraph() {
  if (executable_ != nullptr) DPIF_CUDA_WARN(cudaGraphExecDestroy(executable_));
  if (graph_ != nullptr) DPIF_CUDA_WARN(cudaGraphDestroy(graph_));
}

void CapturedGraph::instantiate() {
  for (const cudaGraphNode_t node : input_nodes_) {
    cudaKernelNodeParams params{};
    DPIF_CUDA_CHECK(cudaGraphKernelNodeGetParams(node, &params));
    params_.push_back(params);
  }
  DPIF_CUDA_CHECK(cudaGraphInstantiate(&executable_, graph_, 0));
}

void CapturedGraph::launch(const BatchMemory& inputs, cudaStream_t stream) {
  if (inputs != inputs_) {
    BatchMemory changed = inputs;
    for (std::size_t i = 0; i < input_nodes_.size(); ++i) {
      void* arguments[] = {&changed, params_[i].kernelParams[1]};
      cudaKernelNodeParams params = params_[i];
      params.kernelParams = arguments;
      DPIF_CUDA_CHECK(cudaGraphExecKernelNodeSetParams(executable_, input_nodes_[i], &params));
    }
    inputs_ = inputs;
  }
  DPIF_CUDA_CHECK(cudaGraphLaunch(executable_, stream));
}

}  // namespace dpiframe
