// Split k: the CTAs of a cluster share a tile, each has the sums of its part of k. Each CTA
// finishes the rows of some of its consumer warps, so all of them run a part of the epilogue: the
// other warps send their sums to the same warp of the CTA that finishes their rows (DSMEM), which
// adds them in the order of the CTAs: the same bits every time, and of a sample in whatever row.
//
// The sums arrive where the stages were: (split - 1) / split of a tile in float32, at most 112 KiB.
#pragma once

#include "kernels/gemm/pipeline.cuh"

namespace dpiframe {

template <int kTileN>
class SplitK {
 public:
  __device__ SplitK(const Pipeline<kTileN>& pipeline, const TileScheduler& scheduler)
      : pipeline_(pipeline), split_(scheduler.split), rank_(scheduler.split_rank()) {}

  // Whether this CTA finishes the rows of this warp, one of the consumers.
  __device__ bool finishes() const { return warp() % split_ == rank_; }

  // By all consumer warps, whose loads have all been multiplied; afterwards those that finish have
  // the tile's sums. The producer's warps call meet() meanwhile.
  __device__ __forceinline__ void add(unsigned char* shared, float (&sums)[kTileN / 2]) const {
    sync();
    const int own = warp() / split_ * (split_ - 1);
    if (!finishes()) {
      const int owner = warp() % split_;
      const int sender = rank_ < owner ? rank_ : rank_ - 1;
      const std::uint32_t target = mapa(pipeline_.memory() + place(own + sender), owner);
#pragma unroll
      for (int i = 0; i < kVectors; ++i)
        st_cluster(target + i * kVectorBytes,
                   make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]));
    }
    sync();
    if (!finishes()) return;
    // The sums of the CTAs before this one, its own, those of the CTAs behind it.
    const unsigned char* received = shared + (pipeline_.memory() - smem_address(shared));
    const unsigned char* from = received + place(own);
    constexpr int kWarpBytes = kVectors * kVectorBytes;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const auto part = [&](int sender) {
        return *reinterpret_cast<const float4*>(from + sender * kWarpBytes + i * kVectorBytes);
      };
      float4 total{sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]};
      if (rank_ > 0) {
        float4 before = part(0);
#pragma unroll 1
        for (int sender = 1; sender < rank_; ++sender) accumulate(before, part(sender));
        accumulate(total, before);
      }
#pragma unroll 1
      for (int sender = rank_; sender < split_ - 1; ++sender) accumulate(total, part(sender));
      sums[4 * i] = total.x;
      sums[4 * i + 1] = total.y;
      sums[4 * i + 2] = total.z;
      sums[4 * i + 3] = total.w;
    }
  }
  // By the other warps, for each tile.
  __device__ void meet() const {
    sync();
    sync();
  }

 private:
  // Of all threads of the cluster: what a CTA was sent is there, and none leaves before.
  __device__ static void sync() {
    __syncwarp();
    cluster_sync();
  }
  static constexpr int kVectors = kTileN / 8;   // of four sums a thread
  static constexpr int kVectorBytes = 32 * 16;  // of a warp

  __device__ __forceinline__ static void accumulate(float4& total, const float4& part) {
    total.x += part.x;
    total.y += part.y;
    total.z += part.z;
    total.w += part.w;
  }
  __device__ static int warp() { return threadIdx.x / 32; }
  // Where a thread's part of so many warps' sums begins.
  __device__ static std::uint32_t place(int warps) {
    return warps * kVectors * kVectorBytes + threadIdx.x % 32 * 16;
  }

  const Pipeline<kTileN>& pipeline_;
  int split_;
  int rank_;
};

}  // namespace dpiframe
