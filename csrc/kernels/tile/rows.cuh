// Loops over elements and rows: reductions, softmax, norms.
#pragma once

#include "kernels/tile/functions.cuh"

namespace tile {

// body(i) for each i below kCount, by all threads.
template <int kCount, class Body>
DPIF_DEVICE void each(const Body& body) {
  constexpr int kTurns = (kCount + kThreads - 1) / kThreads;
#pragma unroll(kTurns <= 8 ? kTurns : 4)
  for (int turn = 0; turn < kTurns; ++turn) {
    const int i = thread() + turn * kThreads;
    if (kCount % kThreads == 0 || i < kCount) body(i);
  }
}

// The same of a body that also takes what load(i) gives. The loads of kAtOnce turns are on their
// way before the first is used: a compiler does not move loads ahead of stores that might change
// what they read.
template <int kCount, int kAtOnce, class Load, class Body>
DPIF_DEVICE void each_ahead(const Load& load, const Body& body) {
  constexpr int kTurns = (kCount + kThreads - 1) / kThreads;
  constexpr bool kWhole = kCount % kThreads == 0 && kTurns % kAtOnce == 0;
#pragma unroll(kTurns <= 8 ? kTurns : 1)
  for (int first = 0; first < kTurns; first += kAtOnce) {
    decltype(load(0)) loads[kAtOnce];
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int i = thread() + (first + k) * kThreads;
      loads[k] = load(kWhole || i < kCount ? i : kCount - 1);
    }
#pragma unroll
    for (int k = 0; k < kAtOnce; ++k) {
      const int i = thread() + (first + k) * kThreads;
      if (kWhole || i < kCount) body(i, loads[k]);
    }
  }
}

// Asks L2 for the input of the tile that is about to follow on this multiprocessor, where kCtas are
// at once: columns kFirst .. kEnd of samples, the first of this tile's at `from`, of `rows` behind.
template <int kSamples, int kCtas, int kFirst, int kEnd, class T>
DPIF_DEVICE void fetch_next(const T* from, long long stride, long long rows) {
  constexpr int kEach = 128 / sizeof(T);  // columns of a line
  constexpr int kLines = (kEnd - kFirst + kEach - 1) / kEach + 1;
  const long long next = static_cast<long long>(kSamples) * kCtas * multiprocessors();
  each<kSamples * kLines>([&](int i) {
    const long long sample = next + quotient<kLines>(i);
    const int column = kFirst + remainder<kLines>(i) * kEach;
    if (sample < rows) prefetch(from + sample * stride + (column < kEnd ? column : kEnd - 1));
  });
}

struct Sum {
  static DPIF_DEVICE float start() { return 0.0f; }
  static DPIF_DEVICE float join(float a, float b) { return a + b; }
};
struct Prod {
  static DPIF_DEVICE float start() { return 1.0f; }
  static DPIF_DEVICE float join(float a, float b) { return a * b; }
};
struct Max {
  static DPIF_DEVICE float start() { return bits_to_float(0xff800000u); }
  static DPIF_DEVICE float join(float a, float b) { return larger(a, b); }
};
struct Min {
  static DPIF_DEVICE float start() { return bits_to_float(0x7f800000u); }
  static DPIF_DEVICE float join(float a, float b) { return smaller(a, b); }
};

// Lanes side by side that share a row.
template <int kLanes, class F>
DPIF_DEVICE float over_lanes(float value) {
#ifndef DPIF_TILE_HOST
#pragma unroll
  for (int lane = kLanes / 2; lane > 0; lane /= 2) value = F::join(value, shuffled(value, lane));
#endif
  return value;
}

// A row of kSize elements, a part of which each of the lanes holds: blocks of kWidth neighbours, in
// turn. read(block, x) and write(block, x) take a block's elements.
template <int kLanes, int kSize, int kWidth>
struct Row {
#ifdef DPIF_TILE_HOST
  static constexpr int kStep = 1;
  static DPIF_DEVICE int lane() { return 0; }
#else
  static constexpr int kStep = kLanes;
  static DPIF_DEVICE int lane() { return thread() % kLanes; }
#endif
  static constexpr int kBlocks = kSize / kWidth;
  static constexpr int kEach = (kBlocks + kStep - 1) / kStep;
  float of[kEach][kWidth];

  template <class Read>
  DPIF_DEVICE explicit Row(const Read& read) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
#pragma unroll
      for (auto& x : of[i]) x = 0.0f;
      if (lane() + i * kStep < kBlocks) read(lane() + i * kStep, of[i]);
    }
  }
  // change(x) for each element.
  template <class Change>
  DPIF_DEVICE void each(const Change& change) {
#pragma unroll
    for (auto& block : of)
#pragma unroll
      for (auto& x : block) x = change(x);
  }
  template <class F, class Change>
  DPIF_DEVICE float reduced(const Change& change) const {
    float total = F::start();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if (lane() + i * kStep >= kBlocks) continue;
#pragma unroll
      for (const float x : of[i]) total = F::join(total, change(x));
    }
    return over_lanes<kLanes, F>(total);
  }
  template <class Write>
  DPIF_DEVICE void write(const Write& write) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (lane() + i * kStep < kBlocks) write(lane() + i * kStep, of[i]);
  }
};

// body(row, valid) for each row, by kLanes threads; whole warps go through it, so that lanes meet.
// The first row is that of thread kStart, a multiple of 32.
template <int kLanes, int kRows, int kStart, class Body>
DPIF_DEVICE void each_row(const Body& body) {
#ifdef DPIF_TILE_HOST
  for (int row = 0; row < kRows; ++row) body(row, true);
#else
  constexpr int kAtOnce = kThreads / kLanes;
  const int own = (thread() + kThreads - kStart) % kThreads;
  for (int first = 0; first < kRows; first += kAtOnce) {
    if (first + own / 32 * 32 / kLanes >= kRows) break;
    const int row = first + own / kLanes;
    const bool valid = row < kRows;
    body(valid ? row : kRows - 1, valid);
  }
#endif
}

// write(row, F over all elements of the row); read(row, block, x).
template <class F, int kLanes, int kRows, int kSize, int kWidth, int kStart, class Read,
          class Write>
DPIF_DEVICE void reduce(const Read& read, const Write& write) {
  using Lanes = Row<kLanes, kWidth, kWidth>;
  constexpr int kBlocks = kSize / kWidth;
  constexpr int kTurns = (kBlocks + Lanes::kStep - 1) / Lanes::kStep;
  each_row<kLanes, kRows, kStart>([&](int row, bool valid) {
    float total = F::start();
#pragma unroll(kWidth == 1 ? 8 : 4)
    for (int turn = 0; turn < kTurns; ++turn) {
      const int i = Lanes::lane() + turn * Lanes::kStep;
      if (kBlocks % Lanes::kStep != 0 && i >= kBlocks) break;
      float block[kWidth];
      read(row, i, block);
#pragma unroll
      for (const float x : block) total = F::join(total, x);
    }
    total = over_lanes<kLanes, F>(total);
    if (valid && Lanes::lane() == 0) write(row, total);
  });
}

// The same of rows whose elements lie apart and that lie side by side themselves, kRows blocks of
// kWidth of them: read(block, i, x) takes element i of each. Lanes side by side have neighbouring
// blocks, so that a warp reads what lies together.
template <class F, int kLanes, int kRows, int kSize, int kWidth, int kStart, class Read,
          class Write>
DPIF_DEVICE void reduce_columns(const Read& read, const Write& write) {
#ifdef DPIF_TILE_HOST
  constexpr int kStep = 1;
  constexpr int kAtOnce = 1;
  const int lane = 0;
  const int own = 0;
#else
  constexpr int kStep = kLanes;
  constexpr int kTogether = 32 / kLanes;
  constexpr int kAtOnce = kThreads / kLanes;
  const int place = (thread() + kThreads - kStart) % kThreads;
  const int lane = place % 32 / kTogether;
  const int own = place / 32 * kTogether + place % kTogether;
#endif
  constexpr int kTurns = (kSize + kStep - 1) / kStep;
  for (int first = 0; first < kRows; first += kAtOnce) {
#ifndef DPIF_TILE_HOST
    if (first + place / 32 * kTogether >= kRows) break;  // whole warps go through it
#endif
    const bool valid = first + own < kRows;
    const int row = valid ? first + own : kRows - 1;
    float total[kWidth];
#pragma unroll
    for (auto& x : total) x = F::start();
#pragma unroll(kWidth > 2 ? 4 : 8)
    for (int turn = 0; turn < kTurns; ++turn) {
      const int i = lane + turn * kStep;
      if (kSize % kStep != 0 && i >= kSize) break;
      float x[kWidth];
      read(row, i, x);
#pragma unroll
      for (int u = 0; u < kWidth; ++u) total[u] = F::join(total[u], x[u]);
    }
#ifndef DPIF_TILE_HOST
#pragma unroll
    for (int bits = kTogether * kLanes / 2; bits >= kTogether; bits /= 2) {
#pragma unroll
      for (auto& x : total) x = F::join(x, shuffled(x, bits));
    }
#endif
    if (!valid || lane != 0) continue;
#pragma unroll
    for (int u = 0; u < kWidth; ++u) write(row * kWidth + u, total[u]);
  }
}

// The least number of a half in the place of those below, which are -inf in a half: a row of these
// alone, of which a mask leaves nothing, has the same number everywhere then, as in float32.
DPIF_DEVICE float held(float x, Half) {
  return x < -65504.0f ? -65504.0f : x;
}
template <class Element>
DPIF_DEVICE float held(float x, Element) {
  return x;
}

// What a score weighs in attention: its softmax, the same guarded, or as much as it is.
enum class Weigh { kSoftmax, kGuarded, kPlain };

// Of a row of scores whose largest is given: what to take from them, and the scale of their powers,
// whose sum is given; guarded: 0 where all of the row is -infinity.
template <bool kGuarded>
DPIF_DEVICE float base_of(float largest) {
  return kGuarded && largest == Max::start() ? 0.0f : largest;
}
template <bool kGuarded>
DPIF_DEVICE float scale_of(float total) {
  return kGuarded && total == 0.0f ? 0.0f : fn::inverse(total);
}

// read(row, block, x), then change(row's elements), then write(row, block, x), of each row; of
// short rows two are read before the first is changed.
template <int kLanes, int kRows, int kSize, int kWidth, int kStart, class Read, class Change,
          class Write>
DPIF_DEVICE void change_rows(const Read& read, const Change& change, const Write& write) {
  using Elements = Row<kLanes, kSize, kWidth>;
  constexpr int kAtOnce = kThreads / kLanes;
  if constexpr (kRows <= kAtOnce || Elements::kEach * kWidth > 16) {
    each_row<kLanes, kRows, kStart>([&](int r, bool valid) {
      Elements row([&](int i, auto& x) { read(r, i, x); });
      change(row);
      if (valid) row.write([&](int i, const auto& x) { write(r, i, x); });
    });
  } else {
    each_row<kLanes, (kRows + 1) / 2, kStart>([&](int r, bool valid) {
      const int next = r + (kRows + 1) / 2;
      const bool both = kRows % 2 == 0 || next < kRows;
      Elements row([&](int i, auto& x) { read(r, i, x); });
      Elements other([&](int i, auto& x) { read(both ? next : r, i, x); });
      change(row);
      change(other);
      if (valid) row.write([&](int i, const auto& x) { write(r, i, x); });
      if (valid && both) other.write([&](int i, const auto& x) { write(next, i, x); });
    });
  }
}

// A row that is too long for registers, of the same interface but for changes: it is read again for
// each reduction and as it is written. read(block, x) takes a block's elements.
template <int kLanes, int kSize, int kWidth, class Read>
struct LongRow {
  using Held = Row<kLanes, kWidth, kWidth>;
  static constexpr int kBlocks = kSize / kWidth;
  static constexpr int kTurns = (kBlocks + Held::kStep - 1) / Held::kStep;
  const Read& read;

  // body(block, x) of each of this lane's blocks.
  template <class Body>
  DPIF_DEVICE void each(const Body& body) const {
#pragma unroll 4
    for (int turn = 0; turn < kTurns; ++turn) {
      const int i = Held::lane() + turn * Held::kStep;
      if (kBlocks % Held::kStep != 0 && i >= kBlocks) break;
      float x[kWidth];
      read(i, x);
      body(i, x);
    }
  }
  template <class F, class Change>
  DPIF_DEVICE float reduced(const Change& change) const {
    float total = F::start();
    each([&](int, const auto& block) {
#pragma unroll
      for (const float x : block) total = F::join(total, change(x));
    });
    return over_lanes<kLanes, F>(total);
  }
  template <class Change, class Write>
  DPIF_DEVICE void write(const Change& change, const Write& write) const {
    each([&](int i, auto& block) {
#pragma unroll
      for (auto& x : block) x = change(x);
      write(i, block);
    });
  }
};
// A row of which a lane would have more elements is not held in registers.
constexpr int kMostHeld = 32;
template <int kLanes, int kSize, int kWidth>
constexpr bool kIsLong = (kSize / kWidth + kLanes - 1) / kLanes * kWidth > kMostHeld;
template <int kLanes, int kRows, int kSize, int kWidth, int kStart, class Read, class Body>
DPIF_DEVICE void each_long_row(const Read& read, const Body& body) {
  each_row<kLanes, kRows, kStart>([&](int r, bool valid) {
    const auto of_row = [&](int i, auto& x) { read(r, i, x); };
    body(LongRow<kLanes, kSize, kWidth, decltype(of_row)>{of_row}, r, valid);
  });
}

template <class Element, bool kGuarded, int kLanes, int kRows, int kSize, int kWidth, int kStart,
          class Read, class Write>
DPIF_DEVICE void softmax(const Read& read, const Write& write) {
  if constexpr (kIsLong<kLanes, kSize, kWidth>) {
    each_long_row<kLanes, kRows, kSize, kWidth, kStart>(
        read, [&](const auto& row, int r, bool valid) {
          const auto own = [](float x) { return kGuarded ? x : held(x, Element{}); };
          const float largest = base_of<kGuarded>(row.template reduced<Max>(own));
          const auto power = [&](float x) { return fn::exp_below(own(x), largest); };
          const float scale = scale_of<kGuarded>(row.template reduced<Sum>(power));
          if (!valid) return;
          row.write([&](float x) { return power(x) * scale; },
                    [&](int i, const auto& x) { write(r, i, x); });
        });
    return;
  }
  const auto change = [](auto& row) {
    if (!kGuarded) row.each([](float x) { return held(x, Element{}); });
    const float largest = base_of<kGuarded>(row.template reduced<Max>([](float x) { return x; }));
    row.each([&](float x) { return fn::exp_below(x, largest); });
    const float scale = scale_of<kGuarded>(row.template reduced<Sum>([](float x) { return x; }));
    row.each([&](float x) { return x * scale; });
  };
  change_rows<kLanes, kRows, kSize, kWidth, kStart>(read, change, write);
}

// Normalised: weight and bias are the writer's.
template <int kLanes, int kRows, int kSize, int kWidth, int kStart, class Read, class Write>
DPIF_DEVICE void layer_norm(float eps, const Read& read, const Write& write) {
  const auto moments = [&](const auto& row, const auto& use) {
    const float mean = row.template reduced<Sum>([](float x) { return x; }) * (1.0f / kSize);
    const float variance = row.template reduced<Sum>([&](float x) {
      return (x - mean) * (x - mean);
    }) * (1.0f / kSize);
    const float scale = 1.0f / sqrtf(variance + eps);
    use([=](float x) { return (x - mean) * scale; });
  };
  if constexpr (kIsLong<kLanes, kSize, kWidth>) {
    each_long_row<kLanes, kRows, kSize, kWidth, kStart>(
        read, [&](const auto& row, int r, bool valid) {
          moments(row, [&](const auto& normed) {
            if (valid) row.write(normed, [&](int i, const auto& x) { write(r, i, x); });
          });
        });
    return;
  }
  const auto change = [&](auto& row) {
    moments(row, [&](const auto& normed) { row.each(normed); });
  };
  change_rows<kLanes, kRows, kSize, kWidth, kStart>(read, change, write);
}

}  // namespace tile
