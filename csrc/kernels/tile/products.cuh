// Products of a tile, and attention, by warps (mma.sync).
#pragma once

#include "kernels/tile/fragments.cuh"
#include "kernels/tile/rows.cuh"

namespace tile {

// Each warp owns kRowTiles x 16 rows and kColumnTiles x 16 columns at a time.
template <class T, int kProducts, int kRows, int kOuter, int kInner, int kColumns, int kRowTiles,
          int kColumnTiles, class A, class B, class Write>
DPIF_DEVICE void multiply(const A& a, const B& b, const Write& write) {
  constexpr int kRowBlocks = (kRows + kRowTiles * 16 - 1) / (kRowTiles * 16);
  constexpr int kAllColumnTiles = (kColumns + 15) / 16;
  constexpr int kColumnBlocks = (kAllColumnTiles + kColumnTiles - 1) / kColumnTiles;
  constexpr int kBlocks = kProducts * kRowBlocks * kColumnBlocks;
  constexpr int kSteps = padded(kInner, 16) / 16;
  // Of a small block many steps are on their way: there is little else to hide their latency.
  constexpr int kAtOnce = kSteps <= 8 ? kSteps : kRowTiles * kColumnTiles <= 2 ? 8 : 2;
  const int lane = thread() % 32;
  for (int block = thread() / 32; block < kBlocks; block += kThreads / 32) {
    const int column_block = block % kColumnBlocks;
    const int row_block = block / kColumnBlocks % kRowBlocks;
    const int product = block / kColumnBlocks / kRowBlocks;
    const int first_row = row_block * kRowTiles * 16 + lane / 4;
    float sums[kRowTiles][kColumnTiles][2][4] = {};
    const RowFragments<T, kOuter, kInner, kRows, kRowTiles, A> fragments(a, product, first_row);
#pragma unroll(kOuter > 1 && padded(kInner, 16) <= 64 ? 2 : 1)
    for (int outer = 0; outer < kOuter; ++outer) {
#pragma unroll(kAtOnce)
      for (int first = 0; first < padded(kInner, 16); first += 16) {
        Fragment<T> rows[kRowTiles];
        fragments.read(rows, outer, first / 16);
#pragma unroll
        for (int j = 0; j < kColumnTiles; ++j) {
          const int column_tile = column_block * kColumnTiles + j;
          if (kAllColumnTiles % kColumnTiles != 0 && column_tile >= kAllColumnTiles) break;
          Columns<T> columns;
          ReadColumns<T, kInner, kColumns>::read(columns, b, product, outer, first, column_tile);
#pragma unroll
          for (int i = 0; i < kRowTiles; ++i)
            columns.multiply(sums[i][j][0], sums[i][j][1], rows[i]);
        }
      }
    }
    write_sums<kRows, kColumns>(sums, product, first_row, column_block * kColumnTiles, write);
  }
}

// Attention: a product's result, of which score(product, row)(column, sum) makes a score, its
// softmax over columns or itself, and the product [kRows, kColumns] x [kColumns, kOut] with v. Each
// warp owns kRowTiles x 16 rows with all columns, which never leave its registers.
template <class T, Weigh kWeigh, int kProducts, int kRows, int kInner, int kColumns, int kOut,
          int kRowTiles, class A, class B, class Score, class V, class Write>
DPIF_DEVICE void attend(const A& a, const B& b, const Score& score, const V& v,
                        const Write& write) {
  constexpr bool kGuarded = kWeigh == Weigh::kGuarded;
  const float outside = kWeigh == Weigh::kPlain ? 0.0f : Max::start();
  constexpr int kRowBlocks = (kRows + kRowTiles * 16 - 1) / (kRowTiles * 16);
  constexpr int kTiles = padded(kColumns, 16) / 16;
  constexpr int kOutTiles = padded(kOut, 16) / 16;
  const int lane = thread() % 32;
  for (int block = thread() / 32; block < kProducts * kRowBlocks; block += kThreads / 32) {
    const int product = block / kRowBlocks;
    const int first_row = block % kRowBlocks * kRowTiles * 16 + lane / 4;
    float weights[kRowTiles][kTiles][2][4] = {};
    const RowFragments<T, 1, kInner, kRows, kRowTiles, A> fragments(a, product, first_row);
#pragma unroll(padded(kInner, 16) / 16 <= 4 ? padded(kInner, 16) / 16 : 2)
    for (int first = 0; first < padded(kInner, 16); first += 16) {
      Fragment<T> rows[kRowTiles];
      fragments.read(rows, 0, first / 16);
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        Columns<T> columns;
        ReadColumns<T, kInner, kColumns>::read(columns, b, product, 0, first, j);
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i)
          columns.multiply(weights[i][j][0], weights[i][j][1], rows[i]);
      }
    }
    float scales[kRowTiles][2];
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const auto of = score(product, fragments.row(i, half));
        const auto each = [&](const auto& body) {
#pragma unroll
          for (int k = 0; k < kTiles * 4; ++k) {
            const int column = k / 2 * 8 + lane % 4 * 2 + k % 2;
            body(column, weights[i][k / 4][k / 2 % 2][half * 2 + k % 2]);
          }
        };
        float largest = Max::start();
        each([&](int column, float& x) {
          const bool inside = kColumns % 16 == 0 || column < kColumns;
          x = inside ? of(column, x) : outside;
          largest = larger(largest, x);
        });
        scales[i][half] = 1.0f;
        if constexpr (kWeigh != Weigh::kPlain) {
          largest = base_of<kGuarded>(over_lanes<4, Max>(largest));
          float total = 0.0f;
          each([&](int, float& x) { total += x = fn::exp_below(x, largest); });
          scales[i][half] = scale_of<kGuarded>(over_lanes<4, Sum>(total));
        }
      }
    float sums[kRowTiles][kOutTiles][2][4] = {};
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      Fragment<T> rows[kRowTiles];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) rows[i].narrow_sums(weights[i][j]);
#pragma unroll
      for (int t = 0; t < kOutTiles; ++t) {
        Columns<T> columns;
        ReadColumns<T, kColumns, kOut, true>::read(columns, v, product, 0, j * 16, t);
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) columns.multiply(sums[i][t][0], sums[i][t][1], rows[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int k = 0; k < kOutTiles * 8; ++k)
        sums[i][k / 8][k / 4 % 2][k % 4] *= scales[i][k % 4 / 2];
    write_sums<kRows, kOut>(sums, product, first_row, 0, write);
  }
}

}  // namespace tile
