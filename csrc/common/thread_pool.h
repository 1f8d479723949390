// A fixed set of threads that all run the same piece of work and meet again at its end.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace dpiframe {

// Processors that this process may run on (its affinity mask), at least 1.
int num_usable_processors();

class ThreadPool {
 public:
  // num_threads counts the calling thread; 0 takes one a usable processor.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls work(w) for every w in [0, num_workers), work(0) on the calling thread, and returns when
  // all have returned. Calls from several threads take turns. `work` must not throw.
  void run(int num_workers, const std::function<void(int)>& work);

 private:
  void serve(int worker);

  std::mutex turn_;
  std::mutex mutex_;
  std::condition_variable start_;
  std::condition_variable done_;
  const std::function<void(int)>* work_ = nullptr;
  std::uint64_t round_ = 0;
  int num_workers_ = 0;
  int num_running_ = 0;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace dpiframe
