// A kernel that tells the host its end: what it is given (kernel_end.cuh has its part,
// kernel_end_wait.h the host's).
#pragma once

namespace dpiframe {

struct KernelEnd {
  unsigned* word;     // the host's, or null: nobody polls
  unsigned* tickets;  // the device's: blocks that are done

  bool operator==(const KernelEnd&) const = default;
};

}  // namespace dpiframe
