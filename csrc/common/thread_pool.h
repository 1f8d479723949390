// A fixed set of threads that share the pieces of one work and meet again at its end.
#pragma once

#include <atomic>
#include <chrono>
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
  // num_threads counts the calling thread; 0 takes one a usable processor. A thread without work
  // looks out for more for as long as `spin` before it sleeps: waking a sleeping one takes tens of
  // microseconds, looking out takes a processor.
  explicit ThreadPool(int num_threads, std::chrono::microseconds spin = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls work(i) once for every i in [0, num_pieces) and returns when all have returned. Pieces go
  // to whichever thread asks first, the calling one among them, so one that wakes late holds
  // nobody up. Calls from several threads take turns. `work` must not throw.
  void run(int num_pieces, const std::function<void(int)>& work);

 private:
  void serve();
  void take_pieces();

  const std::chrono::microseconds spin_;
  std::mutex turn_;
  const std::function<void(int)>* work_ = nullptr;  // of the round, while pieces are unfinished
  std::atomic<std::uint64_t> open_ = 0;             // round << 32 | pieces that nobody took yet
  std::atomic<std::uint32_t> unfinished_ = 0;
  std::atomic<std::uint32_t> round_ = 0;  // what threads without work watch
  std::atomic<bool> stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace dpiframe
