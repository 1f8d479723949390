// A lookup whose arguments stay the same, as a CUDA graph of its one launch: replaying that costs
// the host less than launching. For tests and benchmarks of the kernel alone.
#pragma once

#include <optional>

#include "cuda/completion_flag.h"
#include "kernels/embedding/multi_table_lookup_cuda.h"
#include "runtime/captured_graph.h"

namespace dpiframe {

class PreparedLookup {
 public:
  PreparedLookup(const MultiTableLookupParams& params, const BatchMemory& memory);

  void run(cudaStream_t stream);
  void run_and_wait(cudaStream_t stream);

 private:
  MultiTableLookupParams params_;
  BatchMemory memory_;
  CapturedGraph graph_;
  std::optional<PolledCompletion> completion_;
  std::optional<CapturedGraph> polled_;  // sets the completion flag, where polling saves time
};

}  // namespace dpiframe
