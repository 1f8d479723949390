// The CTAs of a cluster: each other's memory is a window further.
#pragma once

#include "ptx/mbarrier.cuh"
#include "ptx/shared_memory.cuh"

namespace dpiframe {

inline std::uint32_t cluster_cta_rank() {
  return cta;
}
inline void cluster_arrive_relaxed() {}
inline void cluster_wait() {
  cluster->arrive_and_wait();
}
inline std::uint32_t mapa(std::uint32_t address, std::uint32_t rank) {
  return address % kWindow + rank * kWindow;
}
template <class T>
void st_async(std::uint32_t target, const T& value, std::uint32_t barrier) {
  in_shared<T>(target) = value;
  change_barrier(barrier, [](HostBarrier& b) { b.bytes -= sizeof(T); });
}

}  // namespace dpiframe
