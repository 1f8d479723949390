// An engine serves one thread at a time, in the process that made it.
#pragma once

#include <atomic>

namespace dpiframe {

class OneCaller {
 public:
  OneCaller();

  // Until `leave`, on whatever thread. std::runtime_error while another caller is in, and in a fork
  // of the process that made this.
  void enter();
  void leave() { busy_.store(false, std::memory_order_release); }

 private:
  std::atomic<bool> busy_{false};
  int born_;
};

// A caller's turn, for as long as this lives.
class CallersTurn {
 public:
  explicit CallersTurn(OneCaller& caller) : caller_(caller) { caller.enter(); }
  ~CallersTurn() { caller_.leave(); }
  CallersTurn(const CallersTurn&) = delete;
  CallersTurn& operator=(const CallersTurn&) = delete;

 private:
  OneCaller& caller_;
};

}  // namespace dpiframe
