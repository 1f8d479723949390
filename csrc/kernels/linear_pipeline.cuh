// Hopper: a ring of stages in shared memory, filled by the bulk tensor copy engine, emptied by
// warpgroups that multiply. A stage holds one chunk (128 bytes of each row) of a tile's rows of x
// and of w.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>

#include "common/cuda_check.h"
#include "kernels/linear_config.h"
#include "kernels/linear_tile_epilogue.cuh"
#include "kernels/linear_hopper.h"
#include "kernels/linear_wgmma.cuh"

namespace dpiframe {

constexpr int kChunkBytes = 128;
constexpr int kXBytes = kTileRows * kChunkBytes;
constexpr int kConsumerThreads = 256;
constexpr int kThreads = kConsumerThreads + 128;
constexpr int kBarrierBytes = 256;
constexpr int kSharedLimit = 227 * 1024;

template <int kTileN>
struct Stages {
  static constexpr int kBytes = kXBytes + kTileN * kChunkBytes;
  static constexpr int kColumnBytes = ColumnVectors::kVectors * kTileN * 4;  // a warpgroup
  static constexpr int kAllBoxBytes = kConsumerThreads / 32 * kWarpBoxBytes;
  static constexpr int kOther = 1024 + kBarrierBytes + 2 * kColumnBytes + kAllBoxBytes;
  static constexpr int kFit = (kSharedLimit - kOther) / kBytes;
  static constexpr int kCount = kFit < 8 ? kFit : 8;
  static constexpr int kSharedBytes = kOther + kCount * kBytes;
};

// What a kernel walks over: tiles in row order, those that share rows of x beside one another.
struct TileWalk {
  std::int64_t num_tiles;
  int tiles_n;
  int num_chunks;
};

#ifdef DPIF_HOPPER

// One warp's place in the ring.
template <int kTileN>
class Ring {
 public:
  using Layout = Stages<kTileN>;

  __device__ explicit Ring(unsigned char* shared)
      : base_((shared_address(shared) + 1023) & ~1023u),
        barriers_(base_ + Layout::kCount * Layout::kBytes + Layout::kAllBoxBytes) {}

  // Once, by one thread: a stage is full when the copies are there, empty when `readers` are done.
  __device__ void init(int readers) const {
    for (int i = 0; i < Layout::kCount; ++i) {
      barrier_init(full(i), 1);
      barrier_init(empty(i), readers);
    }
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  // The warp's boxes for the epilogue, behind the stages; their barriers, behind the ring's.
  __device__ WarpBoxes boxes(const EpilogueMaps& maps, unsigned char* shared) const {
    const int warp = threadIdx.x / 32;
    const std::uint32_t offset = base_ - shared_address(shared) + Layout::kCount * Layout::kBytes;
    return {maps, shared + offset + warp * kWarpBoxBytes, barriers_ + 128 + 16 * warp};
  }
  // The warpgroup's column vectors, behind both.
  __device__ ColumnVectors columns(unsigned char* shared) const {
    const std::uint32_t offset = barriers_ - shared_address(shared) + kBarrierBytes;
    return {reinterpret_cast<float*>(shared + offset + threadIdx.x / 128 * Layout::kColumnBytes),
            kTileN};
  }
  __device__ std::uint32_t x() const { return base_ + stage_ * Layout::kBytes; }
  __device__ std::uint32_t w() const { return x() + kXBytes; }
  __device__ int stage() const { return stage_; }
  __device__ void wait_full() const { barrier_wait(full(stage_), phase_); }
  __device__ void release(int stage) const {
    if (threadIdx.x % 32 == 0) barrier_arrive(empty(stage));
  }
  __device__ void advance() {
    if (++stage_ == Layout::kCount) {
      stage_ = 0;
      phase_ ^= 1;
    }
  }
  __device__ void skip(int steps) {
    for (int i = 0; i < steps; ++i) advance();
  }

  // The copying thread: every chunk of every tile of this block, in the order of their use.
  // x_step, w_step: columns of the two maps a chunk.
  __device__ void fill(const CUtensorMap* x_map, const CUtensorMap* w_map, const TileWalk& walk,
                       int x_step, int w_step) {
    for (std::int64_t tile = blockIdx.x; tile < walk.num_tiles; tile += gridDim.x) {
      const int row = static_cast<int>(tile / walk.tiles_n) * kTileRows;
      const int column = static_cast<int>(tile % walk.tiles_n) * kTileN;
      for (int chunk = 0; chunk < walk.num_chunks; ++chunk, advance()) {
        barrier_wait(empty(stage_), phase_ ^ 1);
        barrier_expect(full(stage_), Layout::kBytes);
        copy_box(x(), x_map, chunk * x_step, row, full(stage_));
        copy_box(w(), w_map, chunk * w_step, column, full(stage_));
      }
    }
  }

 private:
  __device__ std::uint32_t full(int i) const { return barriers_ + 16 * i; }
  __device__ std::uint32_t empty(int i) const { return barriers_ + 16 * i + 8; }

  std::uint32_t base_;
  std::uint32_t barriers_;
  int stage_ = 0;
  int phase_ = 0;
};

// Where kernels follow one another on a stream, the next one is launched while this one still runs;
// it gets ready and waits here until all before it is done and can be read and overwritten.
__device__ inline void await_predecessor() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// Among the 128 threads of a warpgroup that multiplies.
__device__ inline void warpgroup_barrier() {
  asm volatile("bar.sync %0, 128;" ::"r"(3 + threadIdx.x / 128) : "memory");
}

template <int kCount>
__device__ void raise_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ void lower_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

#endif  // DPIF_HOPPER

#ifdef HARNESS
extern "C" int g_pdl;
#else
constexpr int g_pdl = 1;
#endif

// Launches a block on each multiprocessor, or fewer where there are fewer tiles.
template <int kTileN, class... Args>
void launch_walk(void (*kernel)(Args...), const TileWalk& walk, cudaStream_t stream,
                 const Args&... args) {
  constexpr int kShared = Stages<kTileN>::kSharedBytes;
  DPIF_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared));
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(std::min<std::int64_t>(walk.num_tiles, processor_count()));
  config.blockDim = kThreads;
  config.dynamicSmemBytes = kShared;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = g_pdl;
  DPIF_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, args...));
}

}  // namespace dpiframe
