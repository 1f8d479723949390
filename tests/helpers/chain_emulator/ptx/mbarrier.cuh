// mbarriers, by address.
#pragma once

namespace dpiframe {

struct HostBarrier {
  int arrivals = 0;
  int pending = 0;
  long bytes = 0;
  long phase = 0;
};
inline std::mutex barriers_mutex;
inline std::condition_variable barriers_changed;
inline std::map<std::uint32_t, HostBarrier> host_barriers;

template <class Change>
void change_barrier(std::uint32_t barrier, const Change& change) {
  const std::scoped_lock lock(barriers_mutex);
  HostBarrier& own = host_barriers.at(barrier);
  change(own);
  if (own.pending == 0 && own.bytes == 0) {
    own.pending = own.arrivals;
    ++own.phase;
    barriers_changed.notify_all();
  }
}
inline void mbarrier_init(std::uint32_t barrier, int arrivals) {
  const std::scoped_lock lock(barriers_mutex);
  host_barriers[barrier] = {arrivals, arrivals};
}
inline void mbarrier_arrive(std::uint32_t barrier) {
  change_barrier(barrier, [](HostBarrier& own) { --own.pending; });
}
inline void mbarrier_arrive_remote(std::uint32_t barrier) {
  mbarrier_arrive(barrier);
}
inline void mbarrier_arrive_expect_tx(std::uint32_t barrier, int bytes) {
  change_barrier(barrier, [bytes](HostBarrier& own) {
    own.bytes += bytes;
    --own.pending;
  });
}
// The phase of this parity has ended.
inline void mbarrier_wait(std::uint32_t barrier, int parity) {
  std::unique_lock lock(barriers_mutex);
  barriers_changed.wait(lock, [&] { return host_barriers.at(barrier).phase % 2 != parity; });
}

}  // namespace dpiframe
