// The threads that kernels of the CPU share with one another, and with torch where it is there.
#pragma once

#include <functional>
#include <memory>

#include "common/thread_pool.h"

namespace dpiframe {

// Where the process has OpenMP's runtime, as torch brings it, tasks run on its threads: between two
// products these poll for work for milliseconds, and would take the processors from any others.
// Else, and in a fork, they run on one pool of so many threads, whatever the number of teams.
class ThreadTeam {
 public:
  // As ThreadPool's.
  explicit ThreadTeam(int num_threads);

  int num_threads() const { return num_threads_; }
  void run(int num_tasks, const std::function<void(int)>& task) const;

 private:
  // GOMP_parallel of libgomp: runs the function on so many threads, the calling one among them.
  using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
  static Parallel find_openmp();

  int num_threads_;
  Parallel openmp_;
  std::shared_ptr<ThreadPool> pool_;  // without OpenMP
};

}  // namespace dpiframe
