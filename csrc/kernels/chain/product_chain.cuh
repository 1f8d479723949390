// A chain of products in one kernel, compiled at load for the program at hand: what one product
// makes for the next stays in shared memory.
//
// A CTA owns a tile of 64 samples at a time and makes all columns of each layer, half of them in
// each of two warpgroups (wgmma m64). A thread streams all weights through a ring of stages, ahead
// of their use also across layers and tiles, and from before the kernels ahead have ended; another
// loads the tile's inputs.
//
// Where tiles are few, the CTAs of a cluster share one: each makes a part of the columns of every
// layer, streams the weights of these alone, and writes its results into the memory of all, which
// have the whole of each activation. They meet behind every layer.
//
// Bytes a tile: all weights once, inputs once for each of its CTAs, from L2. Nothing else but
// results that other steps read.
//
// An activation is an area of shared memory: chunks of 64 columns, each 64 rows of 128 bytes under
// the 128-byte swizzle. The host places the areas (dpiframe_core/engine/cuda/chain/areas.py): what
// a layer writes may lie where its x does, not where its epilogue reads.
//
// Chain:
//   T                the activation type, of 16 bits
//   kLayers, Layer<i>
//   kInputs          inputs; ChainInput input(int i)
//   kStages, kStageBytes, kStageArea, kBarrierArea, kDotArea
//   kInputsFree      the layer after which the next tile's inputs may be loaded
//   kCtas            of a cluster, which share a tile; 1: each has tiles of its own
//   kMomentArea      the sums of rows
// Chain::Layer<i>:
//   kK, kN           terms and columns of the product
//   kOwn             columns of each warpgroup of the tile's CTAs: a multiple of 16
//   kTiles           k tiles of 64 columns in a stage
//   kX               where x begins: bytes to the chunk; kXStep: steps of 16 columns into it
//   kOut             bytes to the area that is written, at its column kOutColumn; -1: none
//   kInPlace         the area overlaps x
//   kVectors         numbers of float32 that each column has, bias first; ChainParams::vectors[i]
//   is
//                    [kVectors, kN rounded up to whole groups of 16]
//   kOperands        operands from areas; ChainOperand operand(int i)
//   float of(float sum, const float (&x)[kOperands + 1], const float (&v)[kVectors], int column)
//                    of one element: its product, operands and numbers
//   kStores          whether the result goes to device memory
//   kDot             the place of the head's dot, -1: it has none; float dot(float value, const
//                    float (&v), int column): an element's part
//   kMoments         the place of the sums of its rows and of their squares; -1: not made
//   kNorm            the place of the sums that the epilogue reads as mean and scale, which are
//                    `of`'s last operands, x[kOperands] and x[kOperands + 1]; -1: none
//   kNormColumns, kNormEps
//   Multiply         wgmma of kOwn columns
#pragma once

#include <cstdint>

#include "cuda/conversions.cuh"
#include "cuda/programmatic_launch.cuh"
#include "kernels/chain/chain_params.h"
#include "ptx/cluster.cuh"
#include "ptx/fence.cuh"
#include "ptx/global_memory.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/registers.cuh"
#include "ptx/shared_memory.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace dpiframe {

constexpr int kChainThreads = 384;  // two warpgroups that multiply, one whose first warps load
constexpr int kChainConsumers = 256;
constexpr int kChunkBytes = kChainRows * 128;

// What is loaded of device memory: bytes to its area, chunks of 64 columns.
struct ChainInput {
  int area;
  int chunks;
};
// What an epilogue reads: bytes to the area, the area's column that belongs to the layer's column
// `begin`, and the columns begin .. end - 1 of the layer for which it is there.
struct ChainOperand {
  int area;
  int column;
  int begin;
  int end;
};

// Four columns of an area: where they lie, from the area's first byte.
__device__ inline std::uint32_t place_in_area(int row, int column) {
  const int byte = column % 64 * 2;
  return column / 64 * kChunkBytes + row * 128 + ((byte / 16) ^ (row % 8)) * 16 + byte % 16;
}

// The ring of weights as one side sees it: the next stage and its phase.
template <class Chain>
struct ChainRing {
  std::uint32_t base;
  int stage = 0;
  int phase = 0;

  __device__ std::uint32_t full() const { return base + Chain::kBarrierArea + 16 * stage; }
  __device__ std::uint32_t empty(int of) const { return base + Chain::kBarrierArea + 16 * of + 8; }
  __device__ std::uint32_t memory() const {
    return base + Chain::kStageArea + stage * Chain::kStageBytes;
  }
  // By each warp that multiplies: the stage may be filled again.
  __device__ void release(int of) const {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(empty(of));
  }
  __device__ void advance() {
    if (++stage == Chain::kStages) {
      stage = 0;
      phase ^= 1;
    }
  }
};

// Barriers behind those of the stages.
template <class Chain>
__device__ std::uint32_t chain_barrier(std::uint32_t base, int i) {
  return base + Chain::kBarrierArea + 16 * Chain::kStages + 8 * i;
}
constexpr int kInputsFull = 0, kInputsEmpty = 1, kAllRead = 2, kAllWrote = 3;  // two, in turn

// The tile of a CTA, or of its cluster, and what lies between it and the next one.
template <class Chain>
__device__ int first_tile() {
  return static_cast<int>(blockIdx.x) / Chain::kCtas;
}
template <class Chain>
__device__ int tile_step() {
  return static_cast<int>(gridDim.x) / Chain::kCtas;
}
template <class Chain>
__device__ int rank_of_cta() {
  if constexpr (Chain::kCtas == 1) return 0;
  return static_cast<int>(cluster_cta_rank());
}

template <int kValue>
struct Constant {
  static constexpr int value = kValue;
};
// visit(Constant<i>()) for each layer, in order.
template <class Chain, int kIndex = 0, class Visit>
__device__ __forceinline__ void each_layer(const Visit& visit) {
  visit(Constant<kIndex>());
  if constexpr (kIndex + 1 < Chain::kLayers) each_layer<Chain, kIndex + 1>(visit);
}

// The loads of all weights of all tiles.
template <class Chain>
__device__ void produce_weights(const ChainParams& p, std::uint32_t base) {
  ChainRing<Chain> ring{base};
  const int first_group = 2 * rank_of_cta<Chain>();
  for (int tile = first_tile<Chain>(); tile < p.num_tiles; tile += tile_step<Chain>()) {
    each_layer<Chain>([&](auto index) {
      using L = typename Chain::template Layer<decltype(index)::value>;
      constexpr int kTiles = (L::kK + 63) / 64;
      constexpr int kTileBytes = 2 * L::kOwn * 128;
#pragma unroll 1
      for (int tile_k = 0; tile_k < kTiles; tile_k += L::kTiles, ring.advance()) {
        const int tiles = min(L::kTiles, kTiles - tile_k);
        mbarrier_wait(ring.empty(ring.stage), ring.phase ^ 1);
        mbarrier_arrive_expect_tx(ring.full(), tiles * kTileBytes);
        for (int t = 0; t < tiles; ++t)
          for (int group = 0; group < 2; ++group)
            tma_load_2d(ring.memory() + t * kTileBytes + group * L::kOwn * 128,
                        &p.weights[decltype(index)::value], (tile_k + t) * 64,
                        (first_group + group) * L::kOwn, ring.full());
      }
    });
  }
}

// The loads of the inputs of all tiles.
template <class Chain>
__device__ void produce_inputs(const ChainParams& p, std::uint32_t base) {
  int phase = 1;
  const std::uint32_t full = chain_barrier<Chain>(base, kInputsFull);
  int bytes = 0;
#pragma unroll
  for (int i = 0; i < Chain::kInputs; ++i) bytes += Chain::input(i).chunks * kChunkBytes;
  for (int tile = first_tile<Chain>(); tile < p.num_tiles; tile += tile_step<Chain>(), phase ^= 1) {
    mbarrier_wait(chain_barrier<Chain>(base, kInputsEmpty), phase);
    mbarrier_arrive_expect_tx(full, bytes);
#pragma unroll
    for (int i = 0; i < Chain::kInputs; ++i)
      for (int chunk = 0; chunk < Chain::input(i).chunks; ++chunk)
        tma_load_2d(base + Chain::input(i).area + chunk * kChunkBytes, &p.inputs[i], chunk * 64,
                    tile * kChainRows, full);
  }
}

// The warps that multiply, of all CTAs of a tile: what they write into all CTAs' memory, and where
// they meet. What comes from another CTA is counted in bytes by a barrier of the one that gets it.
// Each writes columns of every layer but the last, so none is more than a layer ahead of another
// one, and two barriers in turn are enough. A CTA ends when it has got all that it waits for, so
// its memory is there till then.
template <class Chain>
class ChainTeam {
 public:
  __device__ explicit ChainTeam(std::uint32_t base) : base_(base), rank_(rank_of_cta<Chain>()) {
#pragma unroll
    for (int i = 1; i < Chain::kCtas; ++i) others_[i] = mapa(base, (rank_ + i) % Chain::kCtas);
  }
  __device__ int rank() const { return rank_; }
  // Of this CTA's first warpgroup.
  __device__ int first_group() const { return 2 * rank_; }

  // To the same place in all CTAs' memory, or in the first one's.
  __device__ __forceinline__ void write(std::uint32_t place, const uint2& words) const {
    st_shared_v2(base_ + place, words);
#pragma unroll
    for (int i = 1; i < Chain::kCtas; ++i)
      st_async(others_[i] + place, words, others_[i] + wrote_place());
  }
  __device__ void write_to_first(std::uint32_t place, float value) const {
    if (rank_ == 0)
      st_shared_u32(base_ + place, __float_as_uint(value));
    else
      st_async(mapa(base_ + place, 0), value, mapa(base_ + wrote_place(), 0));
  }

  // All have multiplied: where x lies may be written. Only wgmma has read it, which has ended.
  __device__ __forceinline__ void meet_readers() {
    if constexpr (Chain::kCtas == 1) {
      meet_cta();
    } else {
      const std::uint32_t barrier = chain_barrier<Chain>(base_, kAllRead);
      const unsigned lane = threadIdx.x % 32;
      __syncwarp();
      if (lane < Chain::kCtas) mbarrier_arrive_remote(mapa(barrier, lane));
      mbarrier_wait(barrier, reads_++ & 1);
    }
  }
  // What all wrote into this CTA's memory is there for all of its warps, wgmma among them.
  template <class L>
  __device__ __forceinline__ void meet_writers() {
    if constexpr (Chain::kCtas == 1) {
      meet_cta();
    } else {
      const std::uint32_t barrier = base_ + wrote_place();
      if (threadIdx.x == 0) mbarrier_arrive_expect_tx(barrier, received<L>());
      meet_cta();
      mbarrier_wait(barrier, writes_ >> 1 & 1);
      ++writes_;
      fence_proxy_async_shared();
    }
  }

 private:
  __device__ __forceinline__ static void meet_cta() {
    fence_proxy_async_shared();
    named_barrier_sync<1, kChainConsumers>();
  }
  __device__ std::uint32_t wrote_place() const {
    return chain_barrier<Chain>(0, kAllWrote + (writes_ & 1));
  }
  // Bytes that the other CTAs write into this one's memory.
  template <class L>
  __device__ int received() const {
    constexpr int kColumns = (L::kN + 15) / 16 * 16, kCtaColumns = 2 * L::kOwn;
    constexpr int kSums = 2 * (Chain::kCtas - 1) * kChainRows;
    const int own = min(max(kColumns - rank_ * kCtaColumns, 0), kCtaColumns);
    const int dots = L::kDot >= 0 && rank_ == 0 ? kSums * 4 : 0;
    return (L::kOut >= 0 ? (kColumns - own) * kChainRows * 2 : 0) + dots +
           (L::kMoments >= 0 ? kSums * 8 : 0);
  }

  std::uint32_t base_;
  int rank_;
  std::uint32_t others_[Chain::kCtas];  // their `base`
  int reads_ = 0;
  int writes_ = 0;
};

template <class L, int kSteps, class T>
__device__ __forceinline__ void multiply_steps(float (&sums)[L::kOwn / 2], std::uint32_t x,
                                               std::uint32_t w, int adds) {
  constexpr int kTileBytes = 2 * L::kOwn * 128;
  const std::uint64_t a = wgmma_descriptor_swizzle128(x);
  const std::uint64_t b = wgmma_descriptor_swizzle128(w);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int place = L::kXStep + step;
    L::Multiply::template ss<T>(sums, a + place / 4 * (kChunkBytes / 16) + place % 4 * 2,
                                b + step / 4 * (kTileBytes / 16) + step % 4 * 2, adds + step);
  }
}

template <class Chain, class L>
__device__ __forceinline__ void multiply_layer(ChainRing<Chain>& ring, std::uint32_t base,
                                               int group, float (&sums)[L::kOwn / 2]) {
  using T = typename Chain::T;
  constexpr int kSteps = (L::kK + 15) / 16;
  constexpr int kStageSteps = 4 * L::kTiles;
  int before = -1;
  std::uint32_t x = base + L::kX;
  const auto stage = [&](auto steps) {
    mbarrier_wait(ring.full(), ring.phase);
    wgmma_fence();
    multiply_steps<L, decltype(steps)::value, T>(sums, x, ring.memory() + group * L::kOwn * 128,
                                                 before + 1);
    wgmma_commit();
    if (before >= 0) {
      wgmma_wait<1>();
      ring.release(before);
    }
    before = ring.stage;
    ring.advance();
    x += L::kTiles * kChunkBytes;
  };
#pragma unroll 1
  for (int i = 0; i < kSteps / kStageSteps; ++i) stage(Constant<kStageSteps>());
  if constexpr (kSteps % kStageSteps != 0) stage(Constant<kSteps % kStageSteps>());
  wgmma_wait<0>();
  wgmma_fence_operands(sums);
  ring.release(before);
}

__device__ inline float at_column(const float4& four, int i) {
  return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}
template <class T>
__device__ inline uint2 pack_four(const float (&values)[4]) {
  alignas(8) T packed[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) packed[i] = from_float<T>(values[i]);
  return *reinterpret_cast<const uint2*>(packed);
}
template <class T>
__device__ inline void unpack_four(const uint2& words, float (&values)[4]) {
  const auto* packed = reinterpret_cast<const T*>(&words);
#pragma unroll
  for (int i = 0; i < 4; ++i) values[i] = to_float(packed[i]);
}

// The numbers of a layer's columns, for four of these.
template <int kVectors>
struct ColumnNumbers {
  float4 of[kVectors];
};

// Of a thread's two rows: sums over its columns for the head's dot, and of values and squares.
struct ChainSums {
  float dots[2] = {};
  float2 moments[2] = {};
};

// Where a warpgroup's sums of a row lie: the first of 8 bytes of kMomentArea, of 4 of kDotArea.
template <class Chain>
__device__ int sums_place(int layer_place, int group, int row) {
  return (layer_place * 2 * Chain::kCtas + group) * kChainRows + row;
}

// The sums of a row and of its squares, of all warpgroups, one behind the other.
template <class Chain>
__device__ __forceinline__ float2 moments_of(std::uint32_t base, int layer_place, int row) {
  float2 sums{};
#pragma unroll
  for (int group = 0; group < 2 * Chain::kCtas; ++group) {
    const int place = sums_place<Chain>(layer_place, group, row);
    const float2 part = ld_shared_f32x2(base + Chain::kMomentArea + place * 8);
    sums.x += part.x;
    sums.y += part.y;
  }
  return sums;
}

// Mean and 1 / deviation of a row.
template <class Chain, class L>
__device__ __forceinline__ float2 row_norm(std::uint32_t base, int row) {
  const float2 sums = moments_of<Chain>(base, L::kNorm, row);
  const float mean = sums.x / L::kNormColumns;
  const float variance = sums.y / L::kNormColumns - mean * mean;
  // A variance below 0 is rounding; NaN stays NaN.
  return {mean, 1.0f / sqrtf((variance < 0.0f ? 0.0f : variance) + L::kNormEps)};
}

// A thread has, of each group of 16 of its warpgroup's columns, four in two rows (physical_row).
template <class Chain, class L>
__device__ __forceinline__ void finish_layer(const ChainParams& p, const ChainOut& out,
                                             const ChainTeam<Chain>& team, std::uint32_t base,
                                             long long first_row, const float* constants,
                                             const float (&sums)[L::kOwn / 2], ChainSums& made) {
  using T = typename Chain::T;
  constexpr int kColumns = (L::kN + 15) / 16 * 16;
  constexpr int kNormed = L::kNorm >= 0 ? 2 : 0;
  const int lane = threadIdx.x % 32;
  const int row = threadIdx.x / 32 % 4 * 16 + lane / 4;
  const int group = team.first_group() + warp_uniform(threadIdx.x / 128);
  float2 norms[2] = {};
#pragma unroll
  for (int r = 0; kNormed > 0 && r < 2; ++r) norms[r] = row_norm<Chain, L>(base, row + 8 * r);
  const auto load = [&](int column) {
    ColumnNumbers<L::kVectors> loaded;
#pragma unroll
    for (int v = 0; v < L::kVectors; ++v)
      loaded.of[v] = ld_global_nc_f32x4(constants + v * kColumns + min(column, kColumns - 4));
    return loaded;
  };
  const int first = group * L::kOwn + lane % 4 * 4;
  ColumnNumbers<L::kVectors> next = load(first);
#pragma unroll
  for (int g = 0; g < L::kOwn / 16; ++g) {
    // The last warpgroups may have fewer columns than others, or none.
    if (2 * Chain::kCtas * L::kOwn > kColumns && group * L::kOwn + g * 16 >= kColumns) break;
    const int column = first + g * 16;
    const ColumnNumbers<L::kVectors> vectors = next;
    if (g + 1 < L::kOwn / 16) next = load(column + 16);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float x[L::kOperands + 1][4];
#pragma unroll
      for (int o = 0; o < L::kOperands; ++o) {
        const ChainOperand from = L::operand(o);
        uint2 words{};
        if (column >= from.begin && column < from.end)
          words = ld_shared_v2(base + from.area +
                               place_in_area(row + 8 * r, from.column + column - from.begin));
        unpack_four<T>(words, x[o]);
      }
      float values[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float own[L::kOperands + kNormed + 1];
#pragma unroll
        for (int o = 0; o < L::kOperands; ++o) own[o] = x[o][i];
        if constexpr (kNormed > 0) {
          own[L::kOperands] = norms[r].x;
          own[L::kOperands + 1] = norms[r].y;
        }
        float v[L::kVectors];
#pragma unroll
        for (int o = 0; o < L::kVectors; ++o) v[o] = at_column(vectors.of[o], i);
        const bool there = L::kN % 16 == 0 || column + i < L::kN;
        const float sum = sums[8 * g + 2 * r + i / 2 * 4 + i % 2] + v[0];
        values[i] = there ? L::of(sum, own, v, column + i) : 0.0f;
        if (L::kDot >= 0 && there) made.dots[r] += L::dot(values[i], v, column + i);
        if constexpr (L::kMoments >= 0) {
          made.moments[r].x += values[i];
          made.moments[r].y = fmaf(values[i], values[i], made.moments[r].y);
        }
      }
      const uint2 words = pack_four<T>(values);
      if constexpr (L::kOut >= 0)
        team.write(L::kOut + place_in_area(row + 8 * r, L::kOutColumn + column), words);
      if (L::kStores && first_row + row + 8 * r < p.rows) {
        T* to = static_cast<T*>(out.data) + (first_row + row + 8 * r) * out.stride + column;
        const auto* packed = reinterpret_cast<const T*>(&words);
        if (column + 4 <= L::kN) {
          *reinterpret_cast<uint2*>(to) = words;
        } else {
#pragma unroll
          for (int i = 0; i < 4; ++i)
            if (column + i < L::kN) to[i] = packed[i];
        }
      }
    }
  }
}

// The sums of four threads, which share two rows.
__device__ __forceinline__ float sum_of_four(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

// What a warp's threads summed up, to where it is read.
template <class Chain, class L>
__device__ __forceinline__ void share_sums(const ChainTeam<Chain>& team, ChainSums& made) {
  const int group = team.first_group() + threadIdx.x / 128;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + 8 * r;
    if constexpr (L::kDot >= 0) {
      const float dot = sum_of_four(made.dots[r]);
      const int place = sums_place<Chain>(L::kDot, group, row);
      if (threadIdx.x % 4 == 0) team.write_to_first(Chain::kDotArea + place * 4, dot);
    }
    if constexpr (L::kMoments >= 0) {
      const uint2 words{__float_as_uint(sum_of_four(made.moments[r].x)),
                        __float_as_uint(sum_of_four(made.moments[r].y))};
      const int place = sums_place<Chain>(L::kMoments, group, row);
      if (threadIdx.x % 4 == 0) team.write(Chain::kMomentArea + place * 8, words);
    }
  }
}

// The first of so many parts gets a row's sum, the others 0.
__device__ inline void store_parts(float* parts, const ChainOut& out, long long row, float sum) {
  parts[row] = sum;
  for (int part = 1; part < out.num_partials; ++part) parts[part * out.ld_partial + row] = 0.0f;
}

// Sums of rows that other steps read: of all warpgroups, one behind the other.
template <class Chain, class L>
__device__ void store_sums(const ChainParams& p, const ChainOut& out, std::uint32_t base,
                           long long first_row) {
  const int row = threadIdx.x;
  if (row >= kChainRows || first_row + row >= p.rows) return;
  if constexpr (L::kDot >= 0) {
    float dot = 0.0f;
#pragma unroll
    for (int group = 0; group < 2 * Chain::kCtas; ++group)
      dot += ld_shared_f32(base + Chain::kDotArea + sums_place<Chain>(L::kDot, group, row) * 4);
    store_parts(out.partial, out, first_row + row, dot);
  }
  if (L::kMoments >= 0 && out.sums != nullptr) {
    const float2 sums = moments_of<Chain>(base, L::kMoments, row);
    store_parts(out.sums, out, first_row + row, sums.x);
    store_parts(out.squares, out, first_row + row, sums.y);
  }
}

// A layer's sums of a thread. Bare arrays of one type are merged as layers are inlined, and the
// compiler then keeps them in memory, as it does what is not set before the first product.
template <int kCount>
struct Accumulators {
  float of[kCount];
};

template <class Chain>
__device__ void consume(const ChainParams& p, std::uint32_t base) {
  const int group = warp_uniform(threadIdx.x / 128);
  ChainRing<Chain> ring{base};
  ChainTeam<Chain> team(base);
  int phase = 0;
  for (int tile = first_tile<Chain>(); tile < p.num_tiles; tile += tile_step<Chain>(), phase ^= 1) {
    const long long first_row = static_cast<long long>(tile) * kChainRows;
    mbarrier_wait(chain_barrier<Chain>(base, kInputsFull), phase);
    each_layer<Chain>([&](auto index) {
      constexpr int kIndex = decltype(index)::value;
      using L = typename Chain::template Layer<kIndex>;
      const ChainOut& out = p.outs[kIndex];
      Accumulators<L::kOwn / 2> sums{};
      ChainSums made;
      multiply_layer<Chain, L>(ring, base, group, sums.of);
      if constexpr (L::kInPlace) team.meet_readers();
      finish_layer<Chain, L>(p, out, team, base, first_row, p.vectors[kIndex], sums.of, made);
      share_sums<Chain, L>(team, made);
      team.template meet_writers<L>();
      // Sums of this place are written again by the next tile, behind another layer's meeting.
      if (team.rank() == 0) store_sums<Chain, L>(p, out, base, first_row);
      if constexpr (kIndex == Chain::kInputsFree)
        if (threadIdx.x % 32 == 0) mbarrier_arrive(chain_barrier<Chain>(base, kInputsEmpty));
    });
  }
}

// The kernel; its parameters are __grid_constant__.
template <class Chain>
__device__ __forceinline__ void run_chain(const ChainParams& p) {
  extern __shared__ unsigned char shared[];
  const std::uint32_t base = (smem_address(shared) + 1023) & ~1023u;
  if (threadIdx.x == 0) {
    for (int i = 0; i < Chain::kStages; ++i) {
      mbarrier_init(base + Chain::kBarrierArea + 16 * i, 1);
      mbarrier_init(base + Chain::kBarrierArea + 16 * i + 8, kChainConsumers / 32);
    }
    mbarrier_init(chain_barrier<Chain>(base, kInputsFull), 1);
    mbarrier_init(chain_barrier<Chain>(base, kInputsEmpty), kChainConsumers / 32);
    mbarrier_init(chain_barrier<Chain>(base, kAllRead), Chain::kCtas * kChainConsumers / 32);
    for (int turn = 0; turn < 2; ++turn)
      mbarrier_init(chain_barrier<Chain>(base, kAllWrote + turn), 1);
    fence_mbarrier_init();
  }
  if constexpr (Chain::kCtas == 1) {
    __syncthreads();
  } else {
    __syncwarp();
    cluster_arrive_relaxed();
    cluster_wait();
  }
  launch_dependents();
  if (threadIdx.x >= kChainConsumers) {
    warpgroup_reg_dealloc<24>();
    if (threadIdx.x == kChainConsumers) {
      for (int i = 0; i < Chain::kLayers; ++i) tma_prefetch_map(&p.weights[i]);
      produce_weights<Chain>(p, base);
    }
    if (threadIdx.x == kChainConsumers + 32) {
      for (int i = 0; i < Chain::kInputs; ++i) tma_prefetch_map(&p.inputs[i]);
      await_predecessor();
      produce_inputs<Chain>(p, base);
    }
    __syncwarp();
  } else {
    warpgroup_reg_alloc<240>();
    await_predecessor();
    consume<Chain>(p, base);
  }
}

}  // namespace dpiframe
