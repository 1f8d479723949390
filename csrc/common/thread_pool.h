// A fixed set of threads that share the tasks of one call and meet again at its end.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace dpiframe {

// Processors that this process may run on (its affinity mask), at least 1.
int num_usable_processors();

class ThreadPool {
 public:
  // num_threads counts the calling thread; 0: one a usable processor. An idle thread polls for work
  // as long as `spin` before it sleeps: waking a sleeping thread takes tens of microseconds,
  // polling takes a processor. std::runtime_error where the system starts no more threads.
  explicit ThreadPool(int num_threads, std::chrono::microseconds spin = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls task(i) once for every i in [0, num_tasks) and returns when all have returned. Tasks go
  // to whichever thread asks first, the calling one among them, so a thread that wakes late delays
  // nobody. Calls from several threads take turns. Where tasks throw, the first exception is thrown
  // here, after all tasks have ended.
  void run(int num_tasks, const std::function<void(int)>& task);

 private:
  void stop();
  void serve();
  void take_tasks();
  void run_task(int i);

  const std::chrono::microseconds spin_;
  std::mutex turn_;
  const std::function<void(int)>* task_ = nullptr;  // of the round, while tasks are unfinished
  std::atomic<std::uint64_t> open_ = 0;             // round << 32 | tasks that nobody took yet
  std::atomic<std::uint32_t> unfinished_ = 0;
  std::atomic<std::uint32_t> round_ = 0;  // what idle threads watch
  std::atomic<bool> stop_ = false;
  std::mutex failure_guard_;
  std::exception_ptr failure_;  // the first of the round
  std::vector<std::thread> threads_;
};

}  // namespace dpiframe
