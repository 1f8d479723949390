// Products with a constant matrix in shared memory: whole, or a ring of chunks. On Hopper by
// warpgroups (wgmma).
#pragma once

#include "kernels/tile/fp16x3.cuh"
#include "kernels/tile/products.cuh"

namespace tile {

// A ring of kStages chunks in shared memory, through which a constant matrix goes: all threads fill
// it ahead by asynchronous copies, chunk by chunk.
template <int kStages, int kBytes, int kChunks>
struct Ring {
  unsigned base;
  const char* from;

  DPIF_DEVICE unsigned chunk(int number) const { return base + number % kStages * kBytes; }
  DPIF_DEVICE void fill(int number) const {
    if (number < kChunks)
      each<kBytes / 16>([&](int i) {
        copy_async(chunk(number) + i * 16, from + static_cast<long long>(number) * kBytes + i * 16);
      });
    commit_copies();
  }
};

// 16 columns of a chunk for a step of 16, of kTiles in all.
template <class T, int kOuter, int kInner, int kColumns>
DPIF_DEVICE void read_chunk(Columns<T>& to, const Packed<T, kOuter, kInner, kColumns>&,
                            unsigned chunk, int step, int column_tile) {
  constexpr int kTiles = padded(kColumns, 16) / 16;
#pragma unroll
  for (int part = 0; part < 2; ++part)
    Packed<T, kOuter, kInner, kColumns>::put(
        to, part,
        load_shared(chunk + ((step * 2 + part) * kTiles + column_tile) * 512 + thread() % 32 * 16));
}
template <class T, int kOuter, int kInner, int kColumns>
DPIF_DEVICE void read_chunk(Columns<T>& to, const Blocks<T, kOuter, kInner, kColumns>&,
                            unsigned chunk, int step, int column_tile) {
  read_chunk(to, chunk, padded(kColumns, 16) / 16, step, column_tile);
}

template <int kProducts, int kOuter, int kInner, int kColumns>
DPIF_DEVICE void read_chunk(Columns<Fp16x3>& to,
                            const Fp16x3Blocks<kProducts, kOuter, kInner, kColumns>&,
                            unsigned chunk, int step, int column_tile) {
  constexpr int kTiles = padded(kColumns, 16) / 16;
  constexpr int kLargeBytes = padded(kInner, 16) * padded(kColumns, 16) * 2;
  read_chunk(to.large, chunk, kTiles, step, column_tile);
  read_chunk(to.small, chunk + kLargeBytes, kTiles, step, column_tile);
}

// A product with b through a ring, of kInner places a chunk. Each warp keeps its sums while all of
// b goes by, once for each round of blocks.
template <class T, int kProducts, int kRows, int kOuter, int kInner, int kColumns, int kRowTiles,
          int kColumnTiles, int kStages, class A, class B, class Write>
DPIF_DEVICE void multiply_by_warps(unsigned char* ring, const A& a, const B& b,
                                   const Write& write) {
  constexpr int kSteps = padded(kInner, 16) / 16;  // a chunk
  constexpr int kAllColumnTiles = (kColumns + 15) / 16;
  constexpr int kChunkBytes = kSteps * 16 * kAllColumnTiles * 16 * static_cast<int>(sizeof(T));
  constexpr int kRowBlocks = (kRows + kRowTiles * 16 - 1) / (kRowTiles * 16);
  constexpr int kColumnBlocks = (kAllColumnTiles + kColumnTiles - 1) / kColumnTiles;
  constexpr int kBlocks = kRowBlocks * kColumnBlocks;
  constexpr int kWarps = kThreads / 32;
  constexpr int kRounds = (kBlocks + kWarps - 1) / kWarps;
  const int lane = thread() % 32;
  for (int product = 0; product < kProducts; ++product) {
    const Ring<kStages, kChunkBytes, kOuter> chunks{
        shared_address(ring),
        static_cast<const char*>(b.data) + static_cast<long long>(product) * kOuter * kChunkBytes};
    for (int round = 0; round < kRounds; ++round) {
      const int block = round * kWarps + thread() / 32;
      const int column_block = block % kColumnBlocks;
      const int row_block = block / kColumnBlocks;
      const bool works = block < kBlocks;
      const int first_row = row_block * kRowTiles * 16 + lane / 4;
      meet();  // the ring is no longer read
#pragma unroll
      for (int chunk = 0; chunk < kStages - 1; ++chunk) chunks.fill(chunk);
      float sums[kRowTiles][kColumnTiles][2][4] = {};
      const RowFragments<T, kOuter, kInner, kRows, kRowTiles, A> fragments(a, product,
                                                                           works ? first_row : 0);
      for (int outer = 0; outer < kOuter; ++outer) {
        wait_copies<kStages - 2>();
        meet();
        chunks.fill(outer + kStages - 1);
        if (!works) continue;
#pragma unroll(kSteps <= 8 ? kSteps : 2)
        for (int step = 0; step < kSteps; ++step) {
          Fragment<T> rows[kRowTiles];
          fragments.read(rows, outer, step);
#pragma unroll
          for (int j = 0; j < kColumnTiles; ++j) {
            const int column_tile = column_block * kColumnTiles + j;
            if (kAllColumnTiles % kColumnTiles != 0 && column_tile >= kAllColumnTiles) break;
            Columns<T> columns;
            read_chunk(columns, b, chunks.chunk(outer), step, column_tile);
#pragma unroll
            for (int i = 0; i < kRowTiles; ++i)
              columns.multiply(sums[i][j][0], sums[i][j][1], rows[i]);
          }
        }
      }
      wait_copies<0>();
      if (!works) continue;
      fragments.finish(sums, b, column_block * kColumnTiles);
      write_sums<kRows, kColumns>(sums, product, first_row, column_block * kColumnTiles, write);
    }
  }
}

#ifdef DPIF_TILE_WARPGROUPS

// sums of 64 rows and 16 x kTiles columns += rows b, in as few instructions as there are widths.
template <class T, int kTiles, int kTile = 0>
DPIF_DEVICE void multiply_columns(float* sums, const Fragment<T>& rows, unsigned b, int step) {
  constexpr int kLeft = kTiles - kTile;
  if constexpr (kLeft > 0) {
    constexpr int kTaken = kLeft >= 8 ? 8 : kLeft >= 4 ? 4 : kLeft >= 2 ? 2 : 1;
    multiply_warpgroup<kTaken * 16, T>(sums + kTile * 8, rows.of, b + kTile * 256, step);
    multiply_columns<T, kTiles, kTile + kTaken>(sums, rows, b, step);
  }
}

// A step of 16. kLargeBytes: from large parts of a chunk to small ones.
template <int kTiles, int kLargeBytes, class T>
DPIF_DEVICE void multiply_step(float* sums, const Fragment<T>& rows, unsigned b, int step) {
  multiply_columns<T, kTiles>(sums, rows, b, step);
}
template <int kTiles, int kLargeBytes>
DPIF_DEVICE void multiply_step(float* sums, const Fragment<Fp16x3>& rows, unsigned b, int step) {
#ifndef DPIF_TILE_TF32
  multiply_columns<Half, kTiles>(sums, rows.large, b + kLargeBytes, step);
  multiply_columns<Half, kTiles>(sums, rows.small, b, step);
#endif
  multiply_columns<Half, kTiles>(sums, rows.large, b, step);
}

template <class T>
constexpr bool kByWarpgroups = true;
template <>
constexpr bool kByWarpgroups<float> = false;

// Which 64 rows and how many columns, up to 128, a warpgroup owns at a time; kWhole: all.
template <int kRows, int kColumns, bool kWhole = false>
struct WarpgroupBlocks {
  static constexpr int kGroups = kThreads / 128;
  static constexpr int kAllTiles = padded(kColumns, 16) / 16;
  static constexpr int kRowBlocks = (kRows + 63) / 64;
  static constexpr int kWide = (kAllTiles + 7) / 8;
  static constexpr bool kNarrower =
      !kWhole && kRowBlocks * kWide % kGroups != 0 && kAllTiles >= kWide * kGroups;
  static constexpr int kColumnBlocks = kNarrower ? kWide * kGroups : kWide;
  static constexpr int kTiles = (kAllTiles + kColumnBlocks - 1) / kColumnBlocks;
  static constexpr int kCount = kRowBlocks * kColumnBlocks;
  static constexpr int kRounds = (kCount + kGroups - 1) / kGroups;

  bool works;   // this warpgroup
  bool exists;  // this warp's rows
  int row;      // the first of this warp
  int tile;     // the first of 16 columns

  // The last block of columns ends with them: some are computed twice.
  DPIF_DEVICE explicit WarpgroupBlocks(int round) {
    const int block = round * kGroups + thread() / 128;
    const int own_tile = block % kColumnBlocks * kTiles;
    works = kCount % kGroups == 0 || block < kCount;
    row = block / kColumnBlocks * 64 + thread() % 128 / 32 * 16;
    exists = works && row < kRows;
    tile = own_tile + kTiles <= kAllTiles ? own_tile : kAllTiles - kTiles;
  }
  // This lane's first row, or one that there is.
  DPIF_DEVICE int lane_row() const { return (exists ? row : 0) + thread() % 32 / 4; }
};

// The same by warpgroups. While one makes its rows of a chunk, which it cannot beside a product of
// its own, others multiply.
template <class T, int kProducts, int kRows, int kOuter, int kInner, int kColumns, int kStages,
          class A, class B, class Write>
DPIF_DEVICE void multiply_by_warpgroups(unsigned char* ring, const A& a, const B& b,
                                        const Write& write) {
  using Own = WarpgroupBlocks<kRows, kColumns>;
  constexpr int kSteps = padded(kInner, 16) / 16;  // a chunk
  constexpr int kStepBytes = Own::kAllTiles * 512;
  constexpr int kParts = sizeof(T) / 2;  // of a number
  constexpr int kChunkBytes = kSteps * kStepBytes * kParts;
  for (int product = 0; product < kProducts; ++product) {
    const Ring<kStages, kChunkBytes, kOuter> chunks{
        shared_address(ring),
        static_cast<const char*>(b.data) + static_cast<long long>(product) * kOuter * kChunkBytes};
    for (int round = 0; round < Own::kRounds; ++round) {
      const Own own(round);
      meet();  // the ring is no longer read
#pragma unroll
      for (int chunk = 0; chunk < kStages - 1; ++chunk) chunks.fill(chunk);
      float sums[1][Own::kTiles][2][4] = {};
      const RowFragments<T, kOuter, kInner, kRows, 1, A> fragments(a, product, own.lane_row());
      Fragment<T> rows[2][kSteps][1];
      const auto make = [&](Fragment<T>(&of)[kSteps][1], int outer) {
#pragma unroll
        for (int step = 0; step < kSteps; ++step) fragments.read(of[step], outer, step);
      };
      make(rows[0], 0);
#pragma unroll 1
      for (int pair = 0; pair < kOuter; pair += 2)
#pragma unroll
        for (int odd = 0; odd < 2; ++odd) {
          const int outer = pair + odd;
          if (kOuter % 2 != 0 && outer == kOuter) break;
          wait_copies<kStages - 2>();
          publish_copies();
          meet();
          chunks.fill(outer + kStages - 1);
          if (own.works) {
            begin_products();
#pragma unroll
            for (int step = 0; step < kSteps; ++step)
              multiply_step<Own::kTiles, kSteps * kStepBytes>(
                  &sums[0][0][0][0], rows[odd][step][0],
                  chunks.chunk(outer) + step * kStepBytes + own.tile * 256, kStepBytes / 2);
            commit_products();
          }
          if (outer + 1 < kOuter) make(rows[1 - odd], outer + 1);
          if (own.works) wait_products<0>();
        }
      wait_copies<0>();
      if (!own.exists) continue;
      fragments.finish(sums, b, own.tile);
      write_sums<kRows, kColumns>(sums, product, own.lane_row(), own.tile, write);
    }
  }
}
// With all of b in shared memory.
template <class T, int kProducts, int kRows, int kOuter, int kInner, int kColumns, class A,
          class Write>
DPIF_DEVICE void multiply_by_warpgroups(const A& a, const Resident<T, kOuter, kInner, kColumns>& b,
                                        const Write& write) {
  using Own = WarpgroupBlocks<kRows, kColumns, kIsSummed<const decltype(write(0, 0))>>;
  constexpr int kSteps = padded(kInner, 16) / 16;
  constexpr int kAtOnce = kSteps < 4 ? kSteps : 4;
  constexpr int kStepBytes = Own::kAllTiles * 512;
  for (int product = 0; product < kProducts; ++product) {
    for (int round = 0; round < Own::kRounds; ++round) {
      const Own own(round);
      if (!own.works) break;
      float sums[1][Own::kTiles][2][4] = {};
      const RowFragments<T, kOuter, kInner, kRows, 1, A> fragments(a, product, own.lane_row());
      for (int outer = 0; outer < kOuter; ++outer) {
        const unsigned chunk = b.chunk(product, outer) + own.tile * 256;
#pragma unroll(kSteps <= 16 ? (kSteps + kAtOnce - 1) / kAtOnce : 1)
        for (int first = 0; first < kSteps; first += kAtOnce) {
          Fragment<T> rows[kAtOnce][1];
#pragma unroll
          for (int step = 0; step < kAtOnce; ++step)
            if (kSteps % kAtOnce == 0 || first + step < kSteps)
              fragments.read(rows[step], outer, first + step);
          begin_products();
#pragma unroll
          for (int step = 0; step < kAtOnce; ++step)
            if (kSteps % kAtOnce == 0 || first + step < kSteps)
              multiply_columns<T, Own::kTiles>(&sums[0][0][0][0], rows[step][0],
                                               chunk + (first + step) * kStepBytes, kStepBytes / 2);
          commit_products();
          wait_products<0>();
        }
      }
      if (own.exists) write_sums<kRows, kColumns>(sums, product, own.lane_row(), own.tile, write);
    }
  }
}

#endif

// A product with b through shared memory.
template <class T, int kProducts, int kRows, int kOuter, int kInner, int kColumns, int kRowTiles,
          int kColumnTiles, int kStages, class A, class B, class Write>
DPIF_DEVICE void multiply_staged(unsigned char* ring, const A& a, const B& b, const Write& write) {
#ifdef DPIF_TILE_WARPGROUPS
  if constexpr (kByWarpgroups<T>)
    multiply_by_warpgroups<T, kProducts, kRows, kOuter, kInner, kColumns, kStages>(ring, a, b,
                                                                                   write);
  else
#endif
    multiply_by_warps<T, kProducts, kRows, kOuter, kInner, kColumns, kRowTiles, kColumnTiles,
                      kStages>(ring, a, b, write);
}

// All of a constant matrix on its way to shared memory, where it is when threads that called
// matrix_arrives() have met.
template <int kBytes>
DPIF_DEVICE void fetch_matrix(unsigned char* to, const void* from) {
  const unsigned base = shared_address(to);
  each<kBytes / 16>(
      [&](int i) { copy_async(base + i * 16, static_cast<const char*>(from) + i * 16); });
  commit_copies();
}
DPIF_DEVICE void matrix_arrives() {
  wait_copies<0>();
#ifdef DPIF_TILE_WARPGROUPS
  publish_copies();
#endif
}
// A product with that matrix.
template <class T, int kProducts, int kRows, int kOuter, int kInner, int kColumns, int kRowTiles,
          int kColumnTiles, class A, class B, class Write>
DPIF_DEVICE void multiply_resident(unsigned char* matrix, const A& a, const B&,
                                   const Write& write) {
  const Resident<T, kOuter, kInner, kColumns> b{shared_address(matrix)};
#ifdef DPIF_TILE_WARPGROUPS
  multiply_by_warpgroups<T, kProducts, kRows>(a, b, write);
#else
  multiply<T, kProducts, kRows, kOuter, kInner, kColumns, kRowTiles, kColumnTiles>(a, b, write);
#endif
}

}  // namespace tile
