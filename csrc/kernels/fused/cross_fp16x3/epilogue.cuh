// The epilogues of the fused FP16x3 cross kernel: activations as two float16 each, and the head's
// dots.
//
// Of each strip of 16 columns a thread has four neighbours of two samples: of first_sample() sums
// {0, 1, 4, 5} of the strip's eight, of the sample 8 on {2, 3, 6, 7}. Its numbers of x_0 are its
// own: they go to global memory and come back through the weight pipeline.
#pragma once

#include "kernels/fused/cross_fp16x3/smem_layout.h"
#include "kernels/fused/tile_scheduler.cuh"
#include "kernels/fused/weight_pipeline.cuh"
#include "kernels/gemm/fp16x3_rows.cuh"
#include "ptx/global_memory.cuh"
#include "ptx/shared_memory.cuh"

namespace dpiframe {

// A CTA's shared memory by address.
struct FusedCrossFp16x3Smem {
  const FusedCrossFp16x3SmemLayout& at;
  std::uint32_t base;

  __device__ WeightRing ring() const {
    return {base + at.ring, static_cast<std::uint32_t>(at.ring_bytes), {base + at.barriers}};
  }
  __device__ std::uint32_t value(int quarter, int sample) const {
    return base + at.values + (quarter * 32 + sample) * 4;
  }
  template <BarrierGroup kGroup>
  __device__ std::uint32_t barrier(int i = 0) const {
    return ring().barriers.at<kGroup>(i);
  }
};

using Fp16x3TileScheduler = PersistentTileScheduler<kTileSamples>;

constexpr int kFp16x3Producers = 6;  // threads, each in a warp of its own

// A consumer warp's way through the ring: products of its warpgroup's tile of columns, and what
// their epilogues read.
//
// kRacecheck: each thread releases a stage itself, if it has read it or the stage is one of the
// product's first kFp16x3Producers. So every producer waits, before it fills memory that a thread
// has read, for that thread's own arrival: racecheck follows barriers from thread to thread, not
// over __syncwarp to a lane that arrives for its warp. It takes longer.
struct Fp16x3WeightConsumer {
  RingPosition ring;
  std::uint32_t pending = 0;    // barrier of the stage whose products may be under way
  int per_thread_releases = 0;  // stages of the product that each thread releases, if kRacecheck

  // A product begins.
  __device__ void start() { per_thread_releases = kFp16x3Producers; }

  // sums = `strips` strips of input from x on by the next weights.
  template <int kTile>
  __device__ void multiply(std::uint32_t x, int strips, float (&sums)[kTile / 2]) {
    SmemOperand large(x, 1024);
    bool add = false;
#pragma unroll 1
    for (; strips > 0; --strips) {
      if constexpr (parts_a_stage(kTile) == 2) {
        with_stage<kTile>([&](const SmemOperand& w) {
          multiply<kTile>(large.at(kSmallPart), w.at(0), add, sums);
          multiply<kTile>(large.at(0), w.at(weight_part_bytes(kTile)), true, sums);
          multiply<kTile>(large.at(0), w.at(0), true, sums);
        });
      } else {
        with_stage<kTile>([&](const SmemOperand& w) {
          multiply<kTile>(large.at(kSmallPart), w.at(0), add, sums);
          multiply<kTile>(large.at(0), w.at(0), true, sums);
        });
        with_stage<kTile>(
            [&](const SmemOperand& w) { multiply<kTile>(large.at(0), w.at(0), true, sums); });
      }
      add = true;
      large.low = keep_in_register(large.low + kStripBytes / 16);
    }
    wgmma_wait<0>();
    wgmma_fence_operands(sums);
    release();
    pending = 0;
  }

  // Waits for the next stage, of no weights: returns its address, and its barrier for
  // release_stage. A warp that does not read the stage has to wait for it, too: then all warps have
  // finished with the stage that used its barriers before. Stages are released in the order in
  // which they were acquired (assign_ring_offsets).
  __device__ std::uint32_t acquire_stage(int bytes, std::uint32_t& barrier) {
    ring.start(bytes);
    const std::uint32_t stage_address = ring.stage;
    const int phase = ring.phase;
    barrier = ring.full;
    ring.advance(bytes);
    mbarrier_wait(barrier, phase);
    return stage_address;
  }
  // By all of a warp's threads, which have read it.
  __device__ void release_stage(std::uint32_t barrier) const {
    __syncwarp();
    if (kRacecheck || threadIdx.x % 32 == 0) mbarrier_arrive(barrier + 8);
  }

 private:
  static constexpr int kSmallPart = kStripBytes / 2;  // of a strip, behind the large one

  template <int kTile>
  __device__ static void multiply(std::uint64_t x, std::uint64_t w, bool add,
                                  float (&sums)[kTile / 2]) {
    Wgmma<kTile>::template ss<__half>(sums, x, w, add);
  }
  // Of a stage that no thread has read.
  __device__ void release() {
    const bool is_first = threadIdx.x % 32 == 0;
    if constexpr (!kRacecheck) {
      if (pending != 0 && is_first) mbarrier_arrive(pending + 8);
    } else if (pending != 0) {
      const bool is_single = --per_thread_releases >= 0;
      if (is_single || is_first) mbarrier_arrive(pending + 8, is_single ? 1 : 32);
    }
  }
  // Issues the products by the next stage to the tensor cores; all but the last before are done
  // then. Without a branch but the wait's own: one that could leave a stage early, or a look at the
  // next stage, takes longer than it saves.
  template <int kTile, class Issue>
  __device__ __forceinline__ void with_stage(const Issue& issue) {
    constexpr int kGroupBytes = kTile / 8 * 128;
    constexpr int kStageBytes = parts_a_stage(kTile) * weight_part_bytes(kTile);
    ring.start(kStageBytes);
    const SmemOperand w(ring.stage + threadIdx.x / 128 * kGroupBytes, 2 * kGroupBytes);
    mbarrier_wait(ring.full, ring.phase);
    wgmma_fence();
    issue(w);
    wgmma_commit();
    const std::uint32_t used = ring.full;
    ring.advance(kStageBytes);
    wgmma_wait<1>();
    release();
    pending = used;
  }
};

// Which of a strip's eight sums is number i of the thread's sample r.
__device__ constexpr int sum_index(int r, int i) {
  return i / 2 * 4 + r * 2 + i % 2;
}

// From the start of a quarter to the large parts of the thread's first two numbers of its first
// sample; the other two are a chunk behind. A warp's are 128 contiguous bytes of either chunk.
__device__ inline int quarter_thread_offset(const ConsumerThread& thread) {
  return thread.first_sample() * 16 + thread.lane % 4 * 4;
}

struct ToShared {
  std::uint32_t target;

  __device__ void word(int offset, std::uint32_t word) const {
    st_shared_u32(target + offset, word);
  }
  __device__ void byte(int offset, std::uint32_t byte) const {
    st_shared_u8(target + offset, byte);
  }
};
struct ToGlobal {
  char* target;

  __device__ void word(int offset, std::uint32_t word) const {
    st_global_u32(target + offset, word);
  }
  __device__ void byte(int offset, std::uint32_t byte) const {
    st_global_u8(target + offset, byte);
  }
};

// The thread's numbers, split in two float16 (arXiv 2203.03341), to a quarter of `count` strips at
// `to`. tops: their largest magnitudes, of either sample.
template <int kTile, class To>
__device__ void store_quarter(const float (&values)[kTile / 2], const float (&tops)[2], int count,
                              const To& to) {
  const ConsumerThread thread;
  const RowPowers powers(tops[0], tops[1]);
  const int offset = static_cast<int>(keep_in_register(quarter_thread_offset(thread)));
#pragma unroll
  for (int i = 0; i < kTile / kStripColumns; ++i)
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float by = powers.factor[r];
      const Fp16x3Pair low(values[8 * i + sum_index(r, 0)] * by,
                           values[8 * i + sum_index(r, 1)] * by);
      const Fp16x3Pair high(values[8 * i + sum_index(r, 2)] * by,
                            values[8 * i + sum_index(r, 3)] * by);
      if (i >= count) continue;
      const int at = offset + i * kStripBytes + r * 128;
      to.word(at, low.large);
      to.word(at + kStripChunkBytes, high.large);
      to.word(at + kStripBytes / 2, low.small);
      to.word(at + kStripBytes / 2 + kStripChunkBytes, high.small);
    }
  if (thread.lane % 4 == 0)
#pragma unroll
    for (int r = 0; r < 2; ++r)
      to.byte(count * kStripBytes + thread.first_sample() + 8 * r,
              __float_as_uint(powers.inverse[r]) >> 23);
  __syncwarp();
}
// The inverse power of two of a sample of a quarter of `count` strips.
__device__ inline float load_inverse(std::uint32_t quarter, int count, int sample) {
  const std::uint32_t exponent = ld_shared_u8(quarter + count * kStripBytes + sample);
  return __uint_as_float(exponent << 23);
}

// Vectors of the thread's columns of `kColumns` of either tile, a strip at a time.
template <int kColumns>
struct EpilogueVectors {
  std::uint32_t address;

  __device__ explicit EpilogueVectors(std::uint32_t vectors)
      : address(
            keep_in_register(vectors + threadIdx.x / 128 * kColumns * 4 + threadIdx.x % 4 * 16)) {}
  __device__ float4 bias(int i) const { return ld_shared_f32x4(address + i * 64); }
  __device__ float4 inverse(int i) const {
    return ld_shared_f32x4(address + 2 * kColumns * 4 + i * 64);
  }
  // The head, or what leads to the next cross layer's powers of two.
  __device__ float4 last(int i) const {
    return ld_shared_f32x4(address + 4 * kColumns * 4 + i * 64);
  }
};

__device__ inline float in_four(const float4& four, int i) {
  return i == 0 ? four.x : i == 1 ? four.y : i == 2 ? four.z : four.w;
}

// A cross layer's epilogue, of a warpgroup's quarter. As x_{l+1} is x_l + x_0 * (W_l x_l + b_l), it
// is x_0 + x_0 * (all layers' products so far + all their biases): values = that. products: in the
// powers of two of this layer's w, then of the next one's. tops: the largest magnitudes. The last
// layer's dots += the head's.
template <int kTile>
struct CrossEpilogue {
  Fp16x3WeightConsumer& stream;
  bool is_last;

  // Of the strips from kFirst on, a stage of vectors and one of x_0 after the other.
  template <int kFirst = 0>
  __device__ void run(float (&products)[kTile / 2], float (&values)[kTile / 2], float (&dots)[2],
                      float (&tops)[2]) {
    constexpr int kEnd = epilogue_strips_end(kTile, kFirst);
    constexpr int kColumns = (kEnd - kFirst) * kStripColumns;
    std::uint32_t barriers[2];
    const EpilogueVectors<kColumns> vectors(
        stream.acquire_stage(vector_stage_bytes(kColumns), barriers[0]));
    const std::uint32_t x0 = stream.acquire_stage((kEnd - kFirst) * kX0StripBytes, barriers[1]) +
                             threadIdx.x / 128 * 2 * kX0WordBytes + threadIdx.x % 128 * 16;
#pragma unroll
    for (int i = kFirst; i < kEnd; ++i) {
      const float4 bias = vectors.bias(i - kFirst);
      const float4 inverse = vectors.inverse(i - kFirst);
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const float4 first = ld_shared_f32x4(x0 + (i - kFirst) * kX0StripBytes + r * kX0WordBytes);
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const int at = 8 * i + sum_index(r, k);
          const float factor = fmaf(products[at], in_four(inverse, k), in_four(bias, k));
          values[at] = fmaf(in_four(first, k), factor, in_four(first, k));
          tops[r] = fmaxf(tops[r], fabsf(values[at]));
        }
      }
    }
#pragma unroll
    for (int i = kFirst; i < kEnd; ++i) {
      const float4 last = vectors.last(i - kFirst);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const int at = 8 * i + sum_index(j / 4, j % 4);
        if (is_last)
          dots[j / 4] = fmaf(values[at], in_four(last, j % 4), dots[j / 4]);
        else
          products[at] *= in_four(last, j % 4);
      }
    }
    stream.release_stage(barriers[0]);
    stream.release_stage(barriers[1]);
    if constexpr (kEnd < kTile / kStripColumns) run<kEnd>(products, values, dots, tops);
  }
};

// values = max(sums + bias, 0); the rest as above.
template <int kTile>
__device__ void deep_epilogue(float (&values)[kTile / 2], const EpilogueVectors<kTile>& vectors,
                              bool is_last, float (&dots)[2], float (&tops)[2]) {
#pragma unroll
  for (int i = 0; i < kTile / kStripColumns; ++i) {
    const float4 bias = vectors.bias(i);
    const float4 scale = vectors.inverse(i);
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        float& value = values[8 * i + sum_index(r, k)];
        value = at_least(fmaf(value, in_four(scale, k), in_four(bias, k)), 0.0f);
        tops[r] = fmaxf(tops[r], value);
      }
  }
  if (!is_last) return;
#pragma unroll
  for (int i = 0; i < kTile / kStripColumns; ++i) {
    const float4 head = vectors.last(i);
#pragma unroll
    for (int r = 0; r < 2; ++r)
#pragma unroll
      for (int k = 0; k < 4; ++k)
        dots[r] = fmaf(values[8 * i + sum_index(r, k)], in_four(head, k), dots[r]);
  }
}

}  // namespace dpiframe
