#include "common/thread_pool.h"

#include <algorithm>

#ifdef __linux__
#include <sched.h>
#endif

namespace dpiframe {

int num_usable_processors() {
#ifdef __linux__
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) return std::max(1, CPU_COUNT(&mask));
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

ThreadPool::ThreadPool(int num_threads) {
  if (num_threads <= 0) num_threads = num_usable_processors();
  for (int worker = 1; worker < num_threads; ++worker)
    threads_.emplace_back([this, worker] { serve(worker); });
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  start_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(int num_workers, const std::function<void(int)>& work) {
  num_workers = std::clamp(num_workers, 1, num_threads());
  if (num_workers == 1) {
    work(0);
    return;
  }
  const std::lock_guard turn(turn_);
  {
    const std::lock_guard lock(mutex_);
    work_ = &work;
    num_workers_ = num_workers;
    num_running_ = num_workers - 1;
    ++round_;
  }
  start_.notify_all();
  work(0);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return num_running_ == 0; });
}

void ThreadPool::serve(int worker) {
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    start_.wait(lock, [&] { return stop_ || round_ != seen; });
    if (stop_) return;
    seen = round_;
    if (worker >= num_workers_) continue;
    const std::function<void(int)>& work = *work_;
    lock.unlock();
    work(worker);
    lock.lock();
    if (--num_running_ == 0) done_.notify_one();
  }
}

}  // namespace dpiframe
