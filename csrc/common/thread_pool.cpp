#include "common/thread_pool.h"

#include <algorithm>

#ifdef __linux__
#include <sched.h>
#endif

namespace dpiframe {
namespace {

constexpr std::uint64_t kLeft = 0xffffffff;  // the part of open_ that counts pieces

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Returns once `value` is not `old` any more; somebody must notify it of the change.
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
  for (int i = 1; i < num_threads; ++i) threads_.emplace_back([this] { serve(); });
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  ++round_;
  round_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run(int num_pieces, const std::function<void(int)>& work) {
  if (num_pieces <= 1 || threads_.empty()) {
    for (int i = 0; i < num_pieces; ++i) work(i);
    return;
  }
  const std::lock_guard turn(turn_);
  work_ = &work;
  unfinished_ = num_pieces;
  const std::uint64_t round = round_ + 1;
  open_ = round << 32 | static_cast<std::uint32_t>(num_pieces);
  ++round_;
  round_.notify_all();
  take_pieces();
  for (std::uint32_t left = unfinished_; left != 0; left = unfinished_)
    await_change(unfinished_, left, spin_);
}

void ThreadPool::serve() {
  for (std::uint32_t seen = 0; !stop_;) {
    await_change(round_, seen, spin_);
    seen = round_;
    take_pieces();
  }
}

void ThreadPool::take_pieces() {
  // The round in open_ keeps a thread that slept through the end of one from taking a piece of the
  // next by an old count. Whoever holds a piece holds the round: work_ is then its own.
  for (std::uint64_t open = open_; (open & kLeft) != 0;) {
    if (!open_.compare_exchange_weak(open, open - 1)) continue;
    (*work_)(static_cast<int>(open & kLeft) - 1);
    if (--unfinished_ == 0) unfinished_.notify_one();
    open = open_;
  }
}

}  // namespace dpiframe
