// A chain of products in one kernel, compiled at load for the program at hand: what one product
// makes for the next stays in shared memory.
//
// A CTA owns a tile of 64 samples at a time and makes all columns of each layer, half of them in
// each of two warpgroups (wgmma m64). A thread streams all weights through a ring of stages, ahead
// of their use also across layers and tiles, and from before the kernels ahead have ended; another
// loads the tile's inputs.
//
// Bytes a tile: inputs and all weights once, from L2. Nothing else but results that other steps
// read.
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
// Chain::Layer<i>:
//   kK, kN           terms and columns of the product
//   kOwn             columns of a warpgroup: a multiple of 16
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
//   kDot             whether the head's dot is made; float dot(float value, const float (&v), int
//                    column): an element's part
//   Multiply         wgmma of kOwn columns
#pragma once

#include <cstdint>

#include "cuda/conversions.cuh"
#include "cuda/programmatic_launch.cuh"
#include "kernels/chain/chain_params.h"
#include "ptx/fence.cuh"
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
constexpr int kInputsFull = 0, kInputsEmpty = 1;

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
  for (int tile = blockIdx.x; tile < p.num_tiles; tile += gridDim.x) {
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
                        &p.weights[decltype(index)::value], (tile_k + t) * 64, group * L::kOwn,
                        ring.full());
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
  for (int tile = blockIdx.x; tile < p.num_tiles; tile += gridDim.x, phase ^= 1) {
    mbarrier_wait(chain_barrier<Chain>(base, kInputsEmpty), phase);
    mbarrier_arrive_expect_tx(full, bytes);
#pragma unroll
    for (int i = 0; i < Chain::kInputs; ++i)
      for (int chunk = 0; chunk < Chain::input(i).chunks; ++chunk)
        tma_load_2d(base + Chain::input(i).area + chunk * kChunkBytes, &p.inputs[i], chunk * 64,
                    tile * kChainRows, full);
  }
}

// All warps that multiply: what they wrote before is there for all behind it, wgmma among them.
__device__ __forceinline__ void meet_consumers() {
  fence_proxy_async_shared();
  named_barrier_sync<1, kChainConsumers>();
}

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

// A thread has, of each group of 16 of its warpgroup's columns, four in two rows (physical_row).
template <class Chain, class L>
__device__ __forceinline__ void finish_layer(const ChainParams& p, const ChainOut& out,
                                             std::uint32_t base, int group, long long first_row,
                                             const float* constants,
                                             const float (&sums)[L::kOwn / 2], float (&dots)[2]) {
  using T = typename Chain::T;
  constexpr int kColumns = (L::kN + 15) / 16 * 16;
  const int lane = threadIdx.x % 32;
  const int row = threadIdx.x / 32 % 4 * 16 + lane / 4;
  const int first = group * L::kOwn + lane % 4 * 4;
#pragma unroll
  for (int g = 0; g < L::kOwn / 16; ++g) {
    const int column = first + g * 16;
    // Both warpgroups' columns are those of the layer, or 16 more: the second's last group.
    if (2 * L::kOwn > kColumns && g == L::kOwn / 16 - 1 && group == 1) break;
    float4 vectors[L::kVectors];
#pragma unroll
    for (int v = 0; v < L::kVectors; ++v)
      vectors[v] = __ldg(reinterpret_cast<const float4*>(constants + v * kColumns + column));
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
        float own[L::kOperands + 1];
#pragma unroll
        for (int o = 0; o < L::kOperands; ++o) own[o] = x[o][i];
        float v[L::kVectors];
#pragma unroll
        for (int o = 0; o < L::kVectors; ++o) v[o] = at_column(vectors[o], i);
        const bool there = L::kN % 16 == 0 || column + i < L::kN;
        const float sum = sums[8 * g + 2 * r + i / 2 * 4 + i % 2] + v[0];
        values[i] = there ? L::of(sum, own, v, column + i) : 0.0f;
        if (L::kDot && there) dots[r] += L::dot(values[i], v, column + i);
      }
      const uint2 words = pack_four<T>(values);
      if constexpr (L::kOut >= 0) {
        st_shared_v2(base + L::kOut + place_in_area(row + 8 * r, L::kOutColumn + column), words);
      }
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

// The dot of a row: of both warpgroups, one behind the other.
template <class Chain>
__device__ void store_dot(const ChainParams& p, const ChainOut& out, std::uint32_t base,
                          long long first_row) {
  const int row = threadIdx.x;
  if (row >= kChainRows || first_row + row >= p.rows) return;
  const std::uint32_t dots = base + Chain::kDotArea + row * 4;
  out.partial[first_row + row] = ld_shared_f32(dots) + ld_shared_f32(dots + kChainRows * 4);
  for (int part = 1; part < out.num_partials; ++part)
    out.partial[part * out.ld_partial + first_row + row] = 0.0f;
}

template <class Chain>
__device__ void consume(const ChainParams& p, std::uint32_t base) {
  const int group = warp_uniform(threadIdx.x / 128);
  ChainRing<Chain> ring{base};
  int phase = 0;
  for (int tile = blockIdx.x; tile < p.num_tiles; tile += gridDim.x, phase ^= 1) {
    const long long first_row = static_cast<long long>(tile) * kChainRows;
    mbarrier_wait(chain_barrier<Chain>(base, kInputsFull), phase);
    each_layer<Chain>([&](auto index) {
      constexpr int kIndex = decltype(index)::value;
      using L = typename Chain::template Layer<kIndex>;
      const ChainOut& out = p.outs[kIndex];
      float sums[L::kOwn / 2];
      float dots[2] = {};
      multiply_layer<Chain, L>(ring, base, group, sums);
      if constexpr (L::kInPlace) meet_consumers();
      finish_layer<Chain, L>(p, out, base, group, first_row, p.vectors[kIndex], sums, dots);
      if constexpr (L::kDot) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          dots[r] += __shfl_xor_sync(0xffffffffu, dots[r], 1);
          dots[r] += __shfl_xor_sync(0xffffffffu, dots[r], 2);
          const int row = threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4 + 8 * r;
          if (threadIdx.x % 4 == 0)
            st_shared_u32(base + Chain::kDotArea + (group * kChainRows + row) * 4,
                          __float_as_uint(dots[r]));
        }
      }
      meet_consumers();
      if constexpr (L::kDot) {
        store_dot<Chain>(p, out, base, first_row);
        meet_consumers();  // another layer's parts come into the same place
      }
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
    fence_mbarrier_init();
  }
  __syncthreads();
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
