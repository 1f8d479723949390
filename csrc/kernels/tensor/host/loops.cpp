#include "kernels/tensor/host/loops.h"

#include <stdexcept>

#include "common/check.h"

namespace dpiframe {

std::vector<const HostLoops*> usable_host_loops() {
  std::vector<const HostLoops*> usable = {&kBaselineLoops};
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    usable.push_back(&kAvx2Loops);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512bw"))
      usable.push_back(&kAvx512Loops);
  }
#endif
  return usable;
}

const HostLoops& host_loops(const std::string& name) {
  const std::vector<const HostLoops*> usable = usable_host_loops();
  if (name.empty()) return *usable.back();
  for (const HostLoops* loops : usable)
    if (name == loops->name) return *loops;
  throw std::invalid_argument(join_message("this processor has no loops named ", name));
}

}  // namespace dpiframe
