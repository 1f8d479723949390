#include "common/one_caller.h"

#include <pthread.h>

#include <stdexcept>

namespace dpiframe {
namespace {

int forks = 0;  // between the first process of this program and this one
[[maybe_unused]] const int kWatched = pthread_atfork(nullptr, nullptr, [] { ++forks; });

}  // namespace

OneCaller::OneCaller() : born_(forks) {}

void OneCaller::enter() {
  if (born_ != forks)
    throw std::runtime_error("this process was forked after the engine was loaded: load it here");
  if (busy_.exchange(true, std::memory_order_acquire))
    throw std::runtime_error(
        "another thread, or a stream that has not ended, is using this engine: load one engine a "
        "thread");
}

}  // namespace dpiframe
