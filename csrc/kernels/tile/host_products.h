// Products on the host, by one thread (DPIF_TILE_HOST).
#pragma once

#include "kernels/tile/operands.cuh"
#include "kernels/tile/rows.cuh"

namespace tile {

template <class T, int kProducts, int kRows, int kOuter, int kInner, int kColumns, int kRowTiles,
          int kColumnTiles, class A, class B, class Write>
void multiply(const A& a, const B& b, const Write& write) {
  for (int p = 0; p < kProducts; ++p)
    for (int row = 0; row < kRows; ++row) {
      const auto results = write(p, row);
      float total = 0.0f;
      for (int column = 0; column < kColumns; ++column) {
        float sum = 0.0f;
        for (int o = 0; o < kOuter; ++o)
          for (int i = 0; i < kInner; ++i) sum += a.one(p, row, o, i) * b.one(p, column, o, i);
        if constexpr (kIsSummed<decltype(results)>)
          total += results.one(column, sum);
        else
          results.one(column, sum, true);
      }
      if constexpr (kIsSummed<decltype(results)>) results.take(total, true);
    }
}

template <class T, int kProducts, int kRows, int kOuter, int kInner, int kColumns, int kRowTiles,
          int kColumnTiles, int kStages, class A, class B, class Write>
void multiply_staged(unsigned char*, const A& a, const B& b, const Write& write) {
  multiply<T, kProducts, kRows, kOuter, kInner, kColumns, kRowTiles, kColumnTiles>(a, b, write);
}

template <int kBytes>
void fetch_matrix(unsigned char*, const void*) {}
DPIF_DEVICE void matrix_arrives() {}
template <class T, int kProducts, int kRows, int kOuter, int kInner, int kColumns, int kRowTiles,
          int kColumnTiles, class A, class B, class Write>
void multiply_resident(unsigned char*, const A& a, const B& b, const Write& write) {
  multiply<T, kProducts, kRows, kOuter, kInner, kColumns, kRowTiles, kColumnTiles>(a, b, write);
}

template <class T, Weigh kWeigh, int kProducts, int kRows, int kInner, int kColumns, int kOut,
          int kRowTiles, class A, class B, class Score, class V, class Write>
void attend(const A& a, const B& b, const Score& score, const V& v, const Write& write) {
  constexpr bool kGuarded = kWeigh == Weigh::kGuarded;
  for (int p = 0; p < kProducts; ++p)
    for (int row = 0; row < kRows; ++row) {
      float weights[kColumns];
      float largest = Max::start();
      for (int column = 0; column < kColumns; ++column) {
        float sum = 0.0f;
        for (int i = 0; i < kInner; ++i) sum += a.one(p, row, 0, i) * b.one(p, column, 0, i);
        weights[column] = score(p, row)(column, sum);
        largest = larger(largest, weights[column]);
      }
      largest = base_of<kGuarded>(largest);
      float total = 0.0f;
      for (float& x : weights)
        total += kWeigh == Weigh::kPlain ? 0.0f : x = fn::exp_below(x, largest);
      const float scale = kWeigh == Weigh::kPlain ? 1.0f : scale_of<kGuarded>(total);
      for (int to = 0; to < kOut; ++to) {
        float sum = 0.0f;
        for (int i = 0; i < kColumns; ++i) sum += weights[i] * v.one(p, to, 0, i);
        write(p, row).one(to, sum * scale, true);
      }
    }
}

// b of a constant matrix, as the generator packed it: in lanes' order, or in blocks.
template <class T, int kOuter, int kInner, int kColumns>
struct Blocks {
  const void* data;
  float one(int p, int column, int o, int i) const {
    constexpr int kSteps = padded(kInner, 16) / 16;
    constexpr int kTiles = padded(kColumns, 16) / 8;
    const long long step = (static_cast<long long>(p) * kOuter + o) * kSteps + i / 16;
    const long long block = (step * 2 + i % 16 / 8) * kTiles + column / 8;
    return load(static_cast<const T*>(data) + block * 64 + column % 8 * 8 + i % 8);
  }
};
template <int kProducts, int kOuter, int kInner, int kColumns>
struct Fp16x3Blocks {
  const void* data;
  float one(int p, int column, int o, int i) const {
    constexpr int kSize = padded(kInner, 16) * padded(kColumns, 16);
    const Half* chunk = static_cast<const Half*>(data) + (p * kOuter + o) * 2LL * kSize;
    const auto part = [&](const Half* of) {
      return Blocks<Half, 1, kInner, kColumns>{of}.one(0, column, 0, i);
    };
    const void* behind = static_cast<const Half*>(data) + kProducts * kOuter * 2LL * kSize;
    const float inverse = static_cast<const float*>(behind)[p * padded(kColumns, 16) + column];
    return (part(chunk) + part(chunk + kSize)) * inverse;
  }
};
template <class T, int kOuter, int kInner, int kColumns>
struct Packed {
  const void* data;
  float one(int p, int column, int o, int i) const {
    constexpr int kSteps = padded(kInner, 16) / 16;
    constexpr int kTiles = padded(kColumns, 16) / 16;
    const long long step = (static_cast<long long>(p) * kOuter + o) * kSteps + i / 16;
    const int k = i % 16;
    const int n = column % 16;
    if (sizeof(T) == 2) {
      // of lane (n % 8) * 4 + k % 8 / 2: register n / 8 * 2 + k / 8, half k % 2
      const long long lane = (step * kTiles + column / 16) * 32 + n % 8 * 4 + k % 8 / 2;
      return load(static_cast<const T*>(data) + (lane * 4 + n / 8 * 2 + k / 8) * 2 + k % 2);
    }
    // a step of 16 is two of 8; of lane (n % 8) * 4 + k % 4: register n / 8 * 2 + k % 8 / 4
    const long long lane = ((step * 2 + k / 8) * kTiles + column / 16) * 32 + n % 8 * 4 + k % 4;
    return load(static_cast<const T*>(data) + lane * 4 + n / 8 * 2 + k % 8 / 4);
  }
};

}  // namespace tile
