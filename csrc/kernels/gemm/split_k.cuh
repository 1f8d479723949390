// Split k: the CTAs of a cluster share a tile, each has the sums of its part of k. Each CTA
// finishes the rows of some of its consumer warps, so all of them run a part of the epilogue: the
// other warps send their sums to the same warp of the CTA that finishes their rows (DSMEM), which
// adds them in the order of the CTAs: the same bits every time, and of a sample in whatever row.
//
// The sums arrive where the stages were: (split - 1) / split of a tile in float32, at most 112 KiB.
#pragma once

#include "kernels/gemm/pipeline.cuh"
#include "ptx/cluster.cuh"

namespace dpiframe {

template <class Form>
class SplitK {
 public:
  __device__ SplitK(const Pipeline<Form>& pipeline, const TileScheduler& scheduler)
      : pipeline_(pipeline),
        split_(scheduler.split),
        bits_(scheduler.split_bits),
        rank_(scheduler.split_rank()) {}

  // Whether this CTA finishes the rows of this warp, one of the consumers.
  __device__ bool finishes() const { return (warp() & (split_ - 1)) == rank_; }

  // By all consumer warps, whose loads have all been multiplied; afterwards those that finish have
  // the tile's sums. The producer's warps call meet() meanwhile.
  __device__ __forceinline__ void add(unsigned char* shared,
                                      float (&sums)[Form::kTileN / 2]) const {
    sync();
    const int own = (warp() >> bits_) * (split_ - 1);
    if (!finishes()) {
      const int owner = warp() & (split_ - 1);
      const int sender = rank_ < owner ? rank_ : rank_ - 1;
      const std::uint32_t target = mapa(pipeline_.memory() + place(own + sender), owner);
#pragma unroll
      for (int i = 0; i < kVectors; ++i)
        st_cluster(target + i * kVectorBytes,
                   make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]));
    }
    sync();
    if (!finishes()) return;
    // The sums of the CTAs before this one, its own, those of the CTAs behind it; kAtOnce loads are
    // on their way at a time.
    const unsigned char* received = shared + (pipeline_.memory() - smem_address(shared));
    const unsigned char* from = received + place(own);
#pragma unroll
    for (int first = 0; first < kVectors; first += kAtOnce) {
      float4 before[kAtOnce] = {};
#pragma unroll 1
      for (int sender = 0; sender < rank_; ++sender) accumulate(before, from, first, sender);
      float4 total[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i >= kVectors) break;
        const float* mine = sums + 4 * (first + i);
        total[i] = make_float4(before[i].x + mine[0], before[i].y + mine[1], before[i].z + mine[2],
                               before[i].w + mine[3]);
      }
#pragma unroll 1
      for (int sender = rank_; sender < split_ - 1; ++sender)
        accumulate(total, from, first, sender);
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        if (first + i >= kVectors) break;
        float* mine = sums + 4 * (first + i);
        mine[0] = total[i].x;
        mine[1] = total[i].y;
        mine[2] = total[i].z;
        mine[3] = total[i].w;
      }
    }
  }
  // By the other warps, for each tile.
  __device__ void meet() const {
    sync();
    sync();
  }

 private:
  static constexpr int kTileN = Form::kTileN;

  // Of all threads of the cluster: what a CTA was sent is there, and none leaves before.
  __device__ static void sync() {
    __syncwarp();
    cluster_sync();
  }
  static constexpr int kVectors = kTileN / 8;   // of four sums a thread
  static constexpr int kVectorBytes = 32 * 16;  // of a warp
  static constexpr int kAtOnce = 4;

  __device__ __forceinline__ static void accumulate(float4 (&totals)[kAtOnce],
                                                    const unsigned char* from, int first,
                                                    int sender) {
    float4 parts[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + i < kVectors)
        parts[i] =
            *reinterpret_cast<const float4*>(from + (sender * kVectors + first + i) * kVectorBytes);
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= kVectors) break;
      totals[i].x += parts[i].x;
      totals[i].y += parts[i].y;
      totals[i].z += parts[i].z;
      totals[i].w += parts[i].w;
    }
  }
  // Uniform to the compiler: a branch on it that were not would send the stages and descriptors of
  // all that follows through ordinary registers.
  __device__ static int warp() { return warp_uniform(threadIdx.x / 32); }
  // Where a thread's part of so many warps' sums begins.
  __device__ static std::uint32_t place(int warps) {
    return warps * kVectors * kVectorBytes + threadIdx.x % 32 * 16;
  }

  const Pipeline<Form>& pipeline_;
  int split_;
  int bits_;
  int rank_;
};

}  // namespace dpiframe
