// Operands in the registers of a warp, in the layout of tensor cores, and its sums.
#pragma once

#include "kernels/tile/operands.cuh"
#include "kernels/tile/rows.cuh"

namespace tile {

// 16 places from `first_place` on times 16 inner ones from `first` on: of register i two
// neighbours, of which those behind kInner are 0. kPlaceFirst: blocks are 8 places, then 8 inner
// ones apart.
template <int kPlaces, int kInner, bool kPlaceFirst, Lie kHow, class At>
DPIF_DEVICE void read_blocks(u32 (&to)[4], const Stored<kHow, At>& from, int product,
                             int first_place, int outer, int first) {
  const int block = thread() % 32 / 8;
  const int row = thread() % 8;
  const int places = (kPlaceFirst ? block % 2 : block / 2) * 8;
  const int inners = (kPlaceFirst ? block / 2 : block % 2) * 8;
  constexpr bool kTransposed = kHow == Lie::kColumns;
  int place = first_place + places + (kTransposed ? 0 : row);
  int inner = first + inners + (kTransposed ? row : 0);
  constexpr int kLastPlace = kPlaces - (kTransposed ? 8 : 1);
  if (kPlaces % 16 != 0 && place > kLastPlace) place = kLastPlace;
  if (kInner % 16 != 0 && inner >= kInner) inner = kTransposed ? kInner - 1 : first;
  load_blocks<kTransposed>(to, shared_address(from.at(product, place, outer, inner)));
  if (kInner % 16 == 0 || first + 16 <= kInner) return;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int left = kInner - (first + (kPlaceFirst ? i / 2 : i % 2) * 8 + thread() % 4 * 2);
    to[i] = left >= 2 ? to[i] : left == 1 ? to[i] & 0xffffu : 0u;
  }
}

// A step of 16 along the inner axis of one row tile of a.
template <class T>
struct Fragment {
  u32 of[4];

  // rows: of lanes / 4, and 8 below; both exist.
  template <int kInner, class A>
  DPIF_DEVICE void read(const A& a, int product, int row0, int row1, int outer, int first) {
    const int lane = thread() % 4 * 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int inner = first + half * 8 + lane;
      of[half * 2] = two<kInner>(a, product, row0, outer, inner);
      of[half * 2 + 1] = two<kInner>(a, product, row1, outer, inner);
    }
  }
  // Of 16 columns of a product's sums.
  DPIF_DEVICE void narrow_sums(const float (&sums)[2][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) of[i] = pair<T>(sums[i / 2][i % 2 * 2], sums[i / 2][i % 2 * 2 + 1]);
  }
  template <class A>
  DPIF_DEVICE Fragment scaled(const A& a, int product, int row0, int row1, int outer) const {
    const u32 scales[2] = {a.scale_two(product, row0, outer), a.scale_two(product, row1, outer)};
    Fragment found;
#pragma unroll
    for (int i = 0; i < 4; ++i) found.of[i] = times<T>(of[i], scales[i % 2]);
    return found;
  }
  template <int kInner, class A>
  static DPIF_DEVICE u32 two(const A& a, int product, int row, int outer, int inner) {
    if (kInner % 16 == 0 || inner + 1 < kInner) return a.two(product, row, outer, inner);
    return inner < kInner ? pair<T>(a.one(product, row, outer, inner), 0.0f) : 0u;
  }
};
template <>
struct Fragment<float> {
  float of[2][4];  // two steps of 8

  // Inner places in the order of read_columns_float, paired.
  DPIF_DEVICE void narrow_sums(const float (&sums)[2][4]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) of[i / 4][i % 4] = sums[i / 4][i % 2 * 2 + i % 4 / 2];
  }
  template <class A>
  DPIF_DEVICE Fragment scaled(const A& a, int product, int row0, int row1, int outer) const {
    const float scales[2] = {a.scale_one(product, row0, outer), a.scale_one(product, row1, outer)};
    Fragment found;
#pragma unroll
    for (int i = 0; i < 8; ++i) found.of[i / 4][i % 4] = of[i / 4][i % 4] * scales[i % 2];
    return found;
  }

  template <int kInner, class A>
  DPIF_DEVICE void read(const A& a, int product, int row0, int row1, int outer, int first) {
#pragma unroll
    for (int step = 0; step < 2; ++step)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int inner = first + step * 8 + half * 4 + thread() % 4;
        const bool inside = kInner % 16 == 0 || inner < kInner;
        of[step][half * 2] = inside ? a.one(product, row0, outer, inner) : 0.0f;
        of[step][half * 2 + 1] = inside ? a.one(product, row1, outer, inner) : 0.0f;
      }
  }
};

// 16 columns of b for a step of 16.
template <class T>
struct Columns {
  u32 of[2][2];
  DPIF_DEVICE void multiply(float (&low)[4], float (&high)[4], const Fragment<T>& a) const {
    mma(low, a.of, of[0][0], of[0][1], T{});
    mma(high, a.of, of[1][0], of[1][1], T{});
  }
};
template <>
struct Columns<float> {
  float of[2][2][2];  // step of 8, tile of 8 columns, register
  // float32 from tf32 products: a b = large large + large small + small large, the rest is below
  // float32's own rounding (Ootomo and Yokota, 2022). DPIF_TILE_TF32: large large alone.
  DPIF_DEVICE void multiply(float (&low)[4], float (&high)[4], const Fragment<float>& a) const {
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      u32 large[4];
      u32 small[4];
      split(a.of[step], large, small);
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        float (&sums)[4] = tile ? high : low;
        u32 b_large[2];
        u32 b_small[2];
        split(of[step][tile], b_large, b_small);
#ifndef DPIF_TILE_TF32
        mma_tf32(sums, large, b_small[0], b_small[1]);
        mma_tf32(sums, small, b_large[0], b_large[1]);
#endif
        mma_tf32(sums, large, b_large[0], b_large[1]);
      }
    }
  }
  // Tensor cores ignore the lower 13 bits, so small, of 12 bits at most, goes there as it is. NaN,
  // which the addition may spoil, remains in small. A conversion instruction would take as long as
  // several.
  template <int kCount>
  static DPIF_DEVICE void split(const float (&x)[kCount], u32 (&large)[kCount],
                                u32 (&small)[kCount]) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#ifdef DPIF_TILE_TF32
      large[i] = to_tf32(x[i]);
#else
      large[i] = (float_to_bits(x[i]) + 0x1000u) & 0xffffe000u;
      small[i] = float_to_bits(x[i] - bits_to_float(large[i]));
#endif
    }
  }
};

// A constant matrix in device memory in the order in which lanes read it.
template <class T, int kOuter, int kInner, int kColumns>
struct Packed {
  const void* data;

  template <int kUnused>
  DPIF_DEVICE void read(Columns<T>& to, int product, int outer, int first, int column_tile) const {
    constexpr int kSteps = padded(kInner, 16) / 16;
    constexpr int kTiles = padded(kColumns, 16) / 16;
    const long long step = (static_cast<long long>(product) * kOuter + outer) * kSteps + first / 16;
    constexpr int kParts = sizeof(T) == 2 ? 1 : 2;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const long long lane = ((step * kParts + part) * kTiles + column_tile) * 32 + thread() % 32;
      put(to, part, load_constant(static_cast<const char*>(data) + lane * 16));
    }
  }

  template <class U>
  static DPIF_DEVICE void put(Columns<U>& to, int, const Four& f) {
    to.of[0][0] = f.x;
    to.of[0][1] = f.y;
    to.of[1][0] = f.z;
    to.of[1][1] = f.w;
  }
  static DPIF_DEVICE void put(Columns<float>& to, int part, const Four& f) {
    to.of[part][0][0] = bits_to_float(f.x);
    to.of[part][0][1] = bits_to_float(f.y);
    to.of[part][1][0] = bits_to_float(f.z);
    to.of[part][1][1] = bits_to_float(f.w);
  }
};

// The same of 16 bits in blocks of 8 columns x 8 inner places, by columns, for a ring: all columns
// of 8 inner places, then those of the next 8.
template <class T, int kOuter, int kInner, int kColumns>
struct Blocks {
  const void* data;
};
// 16 columns of a step of 16 of a chunk in shared memory, of kTiles in all.
template <class T>
DPIF_DEVICE void read_chunk(Columns<T>& to, unsigned chunk, int kTiles, int step, int tile) {
  const int block = thread() % 32 / 8;
  const int place = (step * 2 + block % 2) * kTiles * 2 + tile * 2 + block / 2;
  u32 found[4];
  load_blocks<false>(found, chunk + place * 128 + thread() % 8 * 16);
#pragma unroll
  for (int i = 0; i < 4; ++i) to.of[i / 2][i % 2] = found[i];
}
// All of it in shared memory.
template <class T, int kOuter, int kInner, int kColumns>
struct Resident {
  unsigned first;

  DPIF_DEVICE unsigned chunk(int product, int outer) const {
    return first + (product * kOuter + outer) * (padded(kInner, 16) * padded(kColumns, 16) * 2);
  }
};

// b as the generator reads it, element by element; columns beyond the last one are read as it.
template <class T, int kInner, int kColumns, class B>
DPIF_DEVICE void read_columns(Columns<T>& to, const B& b, int product, int outer, int first,
                              int column_tile) {
  if constexpr (kInBlocks<B>) {
    u32 found[4];
    read_blocks<kColumns, kInner, false>(found, b, product, column_tile * 16, outer, first);
#pragma unroll
    for (int i = 0; i < 4; ++i) to.of[i / 2][i % 2] = found[i];
    return;
  }
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    int column = column_tile * 16 + tile * 8 + thread() % 32 / 4;
    if (kColumns % 16 != 0 && column >= kColumns) column = kColumns - 1;
#pragma unroll
    for (int half = 0; half < 2; ++half)
      to.of[tile][half] = Fragment<T>::template two<kInner>(b, product, column, outer,
                                                            first + half * 8 + thread() % 4 * 2);
  }
}
// kPaired: a lane's inner places are neighbours, as its sums' columns are.
template <int kInner, int kColumns, bool kPaired, class B>
DPIF_DEVICE void read_columns_float(Columns<float>& to, const B& b, int product, int outer,
                                    int first, int column_tile) {
#pragma unroll
  for (int tile = 0; tile < 2; ++tile) {
    int column = column_tile * 16 + tile * 8 + thread() % 32 / 4;
    if (kColumns % 16 != 0 && column >= kColumns) column = kColumns - 1;
#pragma unroll
    for (int step = 0; step < 2; ++step)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int lane = thread() % 4;
        const int inner = first + step * 8 + (kPaired ? lane * 2 + half : half * 4 + lane);
        const bool inside = kInner % 16 == 0 || inner < kInner;
        to.of[step][tile][half] = inside ? b.one(product, column, outer, inner) : 0.0f;
      }
  }
}

template <class T, int kInner, int kColumns, bool kPaired = false>
struct ReadColumns {
  template <int kOuter>
  static DPIF_DEVICE void read(Columns<T>& to, const Packed<T, kOuter, kInner, kColumns>& b,
                               int product, int outer, int first, int column_tile) {
    b.template read<0>(to, product, outer, first, column_tile);
  }
  template <int kOuter>
  static DPIF_DEVICE void read(Columns<T>& to, const Resident<T, kOuter, kInner, kColumns>& b,
                               int product, int outer, int first, int column_tile) {
    read_chunk(to, b.chunk(product, outer), padded(kColumns, 16) / 16, first / 16, column_tile);
  }
  template <class B>
  static DPIF_DEVICE void read(Columns<T>& to, const B& b, int product, int outer, int first,
                               int column_tile) {
    if constexpr (sizeof(T) == 2)
      read_columns<T, kInner, kColumns>(to, b, product, outer, first, column_tile);
    else
      read_columns_float<kInner, kColumns, kPaired>(to, b, product, outer, first, column_tile);
  }
};

// Sums of a product to where they go: each, or what those of a row add up to, all of whose columns
// the warp has.
template <int kRows, int kColumns, int kRowTiles, int kColumnTiles, class Write>
DPIF_DEVICE void write_sums(const float (&sums)[kRowTiles][kColumnTiles][2][4], int product,
                            int first_row, int first_tile, const Write& write) {
#pragma unroll
  for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      // Rows that do not exist are computed as the last one, without a branch, and not stored.
      const int row = first_row + i * 16 + half * 8;
      const bool exists = kRows % (kRowTiles * 16) == 0 || row < kRows;
      const auto results = write(product, exists ? row : kRows - 1);
      constexpr bool kOfRow = kIsSummed<decltype(results)>;
      static_assert(!kOfRow || kColumnTiles * 16 >= kColumns);
      float total = 0.0f;
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j)
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          const int column = (first_tile + j) * 16 + part * 8 + thread() % 4 * 2;
          const float x = sums[i][j][part][half * 2];
          const float y = sums[i][j][part][half * 2 + 1];
          const bool both = kColumns % (kColumnTiles * 16) == 0 || column + 1 < kColumns;
          if constexpr (kOfRow) {
            if (both)
              total += results.two(column, x, y);
            else if (column < kColumns)
              total += results.one(column, x);
          } else if (both) {
            results.two(column, x, y, exists);
          } else if (column < kColumns) {
            results.one(column, x, exists);
          }
        }
      if constexpr (kOfRow) {
        total = over_lanes<4, Sum>(total);
        if (thread() % 4 == 0) results.take(total, exists);
      }
    }
}

// Which rows a lane reads of a warp's row tiles: its own, or the last one where there are no more.
template <int kRows, int kRowTiles>
struct RowsOfLane {
  int first_row;
  DPIF_DEVICE int row(int tile, int half) const {
    const int row = first_row + tile * 16 + half * 8;
    return kRows % (kRowTiles * 16) == 0 || row < kRows ? row : kRows - 1;
  }
  // What is left to do to sums of columns from `first_tile` on.
  template <class Sums, class B>
  DPIF_DEVICE void finish(Sums&, const B&, int) const {}
};

// A warp's row tiles of a, step by step.
template <class T, int kOuter, int kInner, int kRows, int kRowTiles, class A>
struct RowFragments : RowsOfLane<kRows, kRowTiles> {
  using RowsOfLane<kRows, kRowTiles>::row;
  const A& a;
  int product;
  DPIF_DEVICE RowFragments(const A& a, int product, int first_row)
      : RowsOfLane<kRows, kRowTiles>{first_row}, a(a), product(product) {}
  DPIF_DEVICE void read(Fragment<T> (&to)[kRowTiles], int outer, int step) const {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
      if constexpr (kInBlocks<A>) {
        int first = this->first_row - thread() % 32 / 4 + i * 16;
        // A tile behind the last row reads the last 16; read_blocks sees to one that it ends amid.
        if (kRows % 16 == 0 && kRows % (kRowTiles * 16) != 0 && first >= kRows) first = kRows - 16;
        read_blocks<kRows, kInner, true>(to[i].of, a, product, first, outer, step * 16);
      } else {
        to[i].template read<kInner>(a, product, row(i, 0), row(i, 1), outer, step * 16);
      }
  }
};
template <class T, int kOuter, int kInner, int kRows, int kRowTiles, class... F>
  requires(!kIsFp16x3<T>)
struct RowFragments<T, kOuter, kInner, kRows, kRowTiles, Separable<F...>>
    : RowsOfLane<kRows, kRowTiles> {
  using A = Separable<F...>;
  static constexpr int kSteps = padded(kInner, 16) / 16;
  using RowsOfLane<kRows, kRowTiles>::row;
  const A& a;
  int product;
  Fragment<T> fixed[kRowTiles][kSteps];
  DPIF_DEVICE RowFragments(const A& a, int product, int first_row)
      : RowsOfLane<kRows, kRowTiles>{first_row}, a(a), product(product) {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
        fixed[i][step].template read<kInner>(Fixed<A>{a}, product, row(i, 0), row(i, 1), 0,
                                             step * 16);
  }
  DPIF_DEVICE void read(Fragment<T> (&to)[kRowTiles], int outer, int step) const {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
      to[i] = fixed[i][step].scaled(a, product, row(i, 0), row(i, 1), outer);
  }
};

}  // namespace tile
