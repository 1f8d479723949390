#include "common/thread_pool.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "common/check.h"

#ifdef __linux__
#include <sched.h>
#endif

namespace dpiframe {
namespace {

constexpr std::uint64_t kLeft = 0xffffffff;  // the part of open_ that counts tasks

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Returns once `value` differs from `old`; whoever changes it must notify.
void await_change(const std::atomic<std::uint32_t>& value, std::uint32_t old,
                  std::chrono::microseconds spin) {
  using Clock = std::chrono::steady_clock;
  if (spin.count() > 0) {
    for (const auto end = Clock::now() + spin; Clock::now() < end;)
      for (int i = 0; i < 32; ++i) {
        if (value.load() != old) return;
        pause();
      }
  }
  value.wait(old);
}

}  // namespace

int num_usable_processors() {
#ifdef __linux__
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) return std::max(1, CPU_COUNT(&mask));
#endif
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

ThreadPool::ThreadPool(int num_threads, std::chrono::microseconds spin) : spin_(spin) {
  if (num_threads <= 0) num_threads = num_usable_processors();
  threads_.reserve(num_threads - 1);
  try {
    for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this] { serve(); });
  } catch (const std::system_error& error) {
    const std::string text = join_message("the system started only ", threads_.size(), " of ",
                                          num_threads, " threads: ", error.what());
    stop();  // destroying a std::thread that runs would end the process
    throw std::runtime_error(text);
  }
}

ThreadPool::~ThreadPool() {
  stop();
}

void ThreadPool::stop() {
  stop_ = true;
  ++round_;
  round_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(int num_tasks, const std::function<void(int)>& task) {
  if (num_tasks <= 1 || threads_.empty()) {
    for (int i = 0; i < num_tasks; ++i) task(i);
    return;
  }
  const std::lock_guard turn(turn_);
  task_ = &task;
  unfinished_ = num_tasks;
  const std::uint64_t round = round_ + 1;
  open_ = round << 32 | static_cast<std::uint32_t>(num_tasks);
  ++round_;
  round_.notify_all();
  take_tasks();
  for (std::uint32_t left = unfinished_; left != 0; left = unfinished_)
    await_change(unfinished_, left, spin_);
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ThreadPool::serve() {
  for (std::uint32_t seen = 0; !stop_;) {
    await_change(round_, seen, spin_);
    seen = round_;
    take_tasks();
  }
}

void ThreadPool::take_tasks() {
  // The round in open_ keeps a thread that slept through the end of one round from taking a task of
  // the next by an old count. Whoever holds a task holds the round: task_ then belongs to it.
  for (std::uint64_t open = open_; (open & kLeft) != 0;) {
    if (!open_.compare_exchange_weak(open, open - 1)) continue;
    run_task(static_cast<int>(open & kLeft) - 1);
    if (--unfinished_ == 0) unfinished_.notify_one();
    open = open_;
  }
}

void ThreadPool::run_task(int i) {
  try {
    (*task_)(i);
  } catch (...) {
    const std::lock_guard lock(failure_guard_);
    if (!failure_) failure_ = std::current_exception();
  }
}

}  // namespace dpiframe
