#include "common/thread_team.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <map>
#include <mutex>
#include <utility>

namespace dpiframe {
namespace {

constexpr std::chrono::microseconds kSpin{20};

// A fork has no threads but its own: in it OpenMP would wait for those of its parent for ever.
bool is_fork = false;
[[maybe_unused]] const int kWatched = pthread_atfork(nullptr, nullptr, [] { is_fork = true; });

std::shared_ptr<ThreadPool> shared_pool(int num_threads) {
  static std::mutex guard;
  static std::map<std::pair<pid_t, int>, std::weak_ptr<ThreadPool>> pools;
  const std::lock_guard lock(guard);
  std::weak_ptr<ThreadPool>& known = pools[{getpid(), num_threads}];
  std::shared_ptr<ThreadPool> pool = known.lock();
  if (pool == nullptr) known = pool = std::make_shared<ThreadPool>(num_threads, kSpin);
  return pool;
}

// The tasks of one call, which threads take one by one.
struct Round {
  Round(const std::function<void(int)>& task, int num_tasks) : task(task), num_tasks(num_tasks) {}

  const std::function<void(int)>& task;
  int num_tasks;
  std::atomic<int> next = 0;
  std::mutex guard;
  std::exception_ptr failure;  // the first

  static void serve(void* self) {
    Round& round = *static_cast<Round*>(self);
    for (int i = round.next++; i < round.num_tasks; i = round.next++) {
      try {
        round.task(i);
      } catch (...) {  // none may leave a thread of OpenMP
        const std::lock_guard lock(round.guard);
        if (!round.failure) round.failure = std::current_exception();
      }
    }
  }
};

}  // namespace

ThreadTeam::ThreadTeam(int num_threads)
    : num_threads_(num_threads > 0 ? num_threads : num_usable_processors()),
      openmp_(find_openmp()) {
  if (openmp_ == nullptr && num_threads_ > 1) pool_ = shared_pool(num_threads_);
}

ThreadTeam::Parallel ThreadTeam::find_openmp() {
  if (is_fork) return nullptr;
  void* library = dlopen("libgomp.so.1", RTLD_NOW | RTLD_NOLOAD);
  return library == nullptr ? nullptr : reinterpret_cast<Parallel>(dlsym(library, "GOMP_parallel"));
}

void ThreadTeam::run(int num_tasks, const std::function<void(int)>& task) const {
  const bool alone = std::min(num_tasks, num_threads_) <= 1;
  if (openmp_ == nullptr && !alone) {
    pool_->run(num_tasks, task);
    return;
  }
  Round round(task, num_tasks);
  if (alone)
    Round::serve(&round);
  else  // all threads, as torch takes: libgomp ends those that a smaller number leaves out
    openmp_(Round::serve, &round, static_cast<unsigned>(num_threads_), 0);
  if (round.failure) std::rethrow_exception(round.failure);
}

}  // namespace dpiframe
