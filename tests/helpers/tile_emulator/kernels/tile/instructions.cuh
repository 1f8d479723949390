// The instructions of csrc/kernels/tile/instructions.cuh on the host: the threads of a CTA are
// fibers, of which one runs until it waits for others: the next one after it, or with
// DPIF_TILE_DESCENDING the one before it, so that what is not waited for shows in one of both.
// Asynchronous copies, and products of warpgroups (with DPIF_TILE_WARPGROUPS), are made when they
// are waited for, the latest that a GPU may.
#pragma once

#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <vector>

#include "kernels/tile/host.h"

#define __global__
#define __device__ static
#define __shared__
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes)

inline struct {
  long long x;
} blockIdx;
extern unsigned char shared[];

namespace tile {

constexpr int kThreads = DPIF_TILE_THREADS;

struct Group {  // of threads that meet
  int size = 0;
  int waiting = 0;
  unsigned turn = 0;
};
struct Copy {
  unsigned to;
  const void* from;
};
struct WarpgroupProduct {
  float* sums;
  int columns;
  u32 rows[4][4];  // this lane's, of four lanes' registers
  unsigned b;
  int step;
  float (*widen)(u32 pair, int i);
};
struct Cta {
  ucontext_t back;
  ucontext_t contexts[kThreads];
  std::unique_ptr<char[]> stacks[kThreads];
  bool done[kThreads];
  int running = 0;
  Group all;
  Group warps[kThreads / 32];
  u32 exchanged[kThreads][6];
  std::deque<std::vector<Copy>> copies[kThreads];
  std::deque<std::vector<WarpgroupProduct>> products[kThreads];
  long idle = 0;
};
inline Cta cta;

#ifdef DPIF_TILE_DESCENDING
constexpr int kStep = kThreads - 1;
constexpr int kFirst = kThreads - 1;
#else
constexpr int kStep = 1;
constexpr int kFirst = 0;
#endif

inline void next_thread() {
  const int from = cta.running;
  for (int i = 1; i <= kThreads; ++i) {
    const int to = (from + i * kStep) % kThreads;
    if (cta.done[to]) continue;
    cta.running = to;
    if (to != from) swapcontext(&cta.contexts[from], &cta.contexts[to]);
    return;
  }
  setcontext(&cta.back);
}
inline void wait_for(Group& group) {
  const unsigned turn = group.turn;
  if (++group.waiting == group.size) {
    group.waiting = 0;
    ++group.turn;
    cta.idle = 0;
    return;
  }
  while (group.turn == turn) {
    if (++cta.idle > 100L * kThreads) {
      std::fputs("threads wait for one another\n", stderr);
      std::abort();
    }
    next_thread();
  }
}

inline void begin() {}
inline int thread() {
  return cta.running;
}
inline void meet() {
  wait_for(cta.all);
}
// Each lane gives registers; `use` reads those of its warp, by lane.
template <int kCount, class Use>
void exchange(const u32 (&own)[kCount], const Use& use) {
  Group& warp = cta.warps[thread() / 32];
  for (int i = 0; i < kCount; ++i) cta.exchanged[thread()][i] = own[i];
  wait_for(warp);
  use(&cta.exchanged[thread() / 32 * 32]);
  wait_for(warp);
}
inline float shuffled(float value, int bits) {
  float found = 0.0f;
  exchange<1>({float_to_bits(value)},
              [&](auto* of) { found = bits_to_float(of[(thread() % 32) ^ bits][0]); });
  return found;
}

inline u32 to_tf32(float x) {
  return (float_to_bits(x) + 0x1000u) & ~0x1fffu;
}

template <class T>
void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1, T type) {
  exchange<6>({a[0], a[1], a[2], a[3], b0, b1}, [&](auto* of) {
    const int lane = thread() % 32;
    for (int i = 0; i < 4; ++i) {
      const int row = i / 2;  // 8 apart
      const int column = lane % 4 * 2 + i % 2;
      for (int k = 0; k < 16; ++k) {
        const int holder = k % 8 / 2;
        const auto part = [&](int other, int number) {
          return widen_part(of[other][number], k % 2, type);
        };
        d[i] += part(lane / 4 * 4 + holder, k / 8 * 2 + row) * part(column * 4 + holder, 4 + k / 8);
      }
    }
  });
}
inline void mma_tf32(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  exchange<6>({a[0], a[1], a[2], a[3], b0, b1}, [&](auto* of) {
    const auto part = [&](int lane, int number) {
      return bits_to_float(of[lane][number] & 0xffffe000u);  // the rest is ignored
    };
    const int lane = thread() % 32;
    for (int i = 0; i < 4; ++i) {
      const int column = lane % 4 * 2 + i % 2;
      for (int k = 0; k < 8; ++k)
        d[i] += part(lane / 4 * 4 + k % 4, k / 4 * 2 + i / 2) * part(column * 4 + k % 4, 4 + k / 4);
    }
  });
}

struct Four {
  u32 x, y, z, w;
};
inline Four load_constant(const void* from) {
  return *static_cast<const Four*>(from);
}

inline int multiprocessors() {
  return 1;
}
inline unsigned prefetched = 0;  // what is there
inline void prefetch(const void* from) {
  prefetched += *static_cast<const unsigned char*>(from);
}
inline void copy_async(unsigned to, const void* from) {
  auto& groups = cta.copies[thread()];
  if (groups.empty()) groups.emplace_back();
  groups.back().push_back({to, from});
}
inline void commit_copies() {
  auto& groups = cta.copies[thread()];
  if (groups.empty()) groups.emplace_back();
  groups.emplace_back();  // what is not committed yet
}
template <int kPending>
void wait_copies() {
  auto& groups = cta.copies[thread()];
  while (groups.size() > kPending + 1) {
    for (const Copy& copy : groups.front()) std::memcpy(shared + copy.to, copy.from, 16);
    groups.pop_front();
  }
}
inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(static_cast<const unsigned char*>(pointer) - shared);
}
template <bool kTransposed>
void load_blocks(u32 (&to)[4], unsigned from) {
  if (from % 16 != 0) {
    std::fputs("a block's row is not aligned\n", stderr);
    std::abort();
  }
  exchange<1>({from}, [&](auto* of) {
    const int lane = thread() % 32;
    for (int i = 0; i < 4; ++i) {
      u16 parts[2];
      for (int part = 0; part < 2; ++part) {
        const int other = lane % 4 * 2 + part;
        const int block_row = kTransposed ? other : lane / 4;
        const int column = kTransposed ? lane / 4 : other;
        std::memcpy(&parts[part], shared + of[i * 8 + block_row][0] + column * 2, 2);
      }
      to[i] = parts[0] | static_cast<u32>(parts[1]) << 16;
    }
  });
}
inline Four load_shared(unsigned from) {
  return *reinterpret_cast<const Four*>(shared + from);
}

#ifdef DPIF_TILE_WARPGROUPS
inline void publish_copies() {}
inline void begin_products() {
  if (cta.products[thread()].empty()) cta.products[thread()].emplace_back();
}
inline void commit_products() {
  cta.products[thread()].emplace_back();
}
template <int kColumns, class T>
void multiply_warpgroup(float* d, const u32 (&a)[4], unsigned b, int step) {
  WarpgroupProduct product{d, kColumns, {},
                           b, step,     [](u32 pair, int i) { return widen_part(pair, i, T{}); }};
  exchange<4>({a[0], a[1], a[2], a[3]}, [&](auto* of) {
    for (int lane = 0; lane < 4; ++lane)
      std::memcpy(product.rows[lane], of[thread() % 32 / 4 * 4 + lane], sizeof product.rows[lane]);
  });
  cta.products[thread()].back().push_back(product);
}
inline void multiply_now(const WarpgroupProduct& p) {
  for (int i = 0; i < p.columns / 2; ++i) {
    const int row = i % 4 / 2;  // 8 apart
    const int column = i / 4 * 8 + thread() % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) {
      u16 b;
      std::memcpy(
          &b, shared + p.b + k / 8 * p.step + column / 8 * 128 + column % 8 * 16 + k % 8 * 2, 2);
      p.sums[i] += p.widen(p.rows[k % 8 / 2][k / 8 * 2 + row], k % 2) * p.widen(b, 0);
    }
  }
}
template <int kPending>
void wait_products() {
  auto& groups = cta.products[thread()];
  while (groups.size() > kPending + 1) {
    for (const WarpgroupProduct& product : groups.front()) multiply_now(product);
    groups.pop_front();
  }
}
#endif

// Runs a CTA: `body` by each thread.
inline void (*body)();
inline void thread_main() {
  body();
  cta.done[cta.running] = true;
  next_thread();
}
inline void run_cta(long long block, void (*kernel)()) {
  constexpr std::size_t kStack = 128 * 1024;
  blockIdx.x = block;
  body = kernel;
  cta.all = {kThreads};
  for (Group& warp : cta.warps) warp = {32};
  for (int t = 0; t < kThreads; ++t) {
    if (cta.stacks[t] == nullptr) cta.stacks[t] = std::make_unique<char[]>(kStack);
    cta.done[t] = false;
    cta.copies[t].clear();
    cta.products[t].clear();
    getcontext(&cta.contexts[t]);
    cta.contexts[t].uc_stack.ss_sp = cta.stacks[t].get();
    cta.contexts[t].uc_stack.ss_size = kStack;
    cta.contexts[t].uc_link = nullptr;
    makecontext(&cta.contexts[t], thread_main, 0);
  }
  cta.running = kFirst;
  cta.idle = 0;
  swapcontext(&cta.back, &cta.contexts[kFirst]);
}

}  // namespace tile
