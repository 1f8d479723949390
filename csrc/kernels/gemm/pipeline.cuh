// Hopper: the pipeline of a product. A producer thread fills stages of shared memory by TMA, one or
// two consumer warpgroups empty them. A stage holds one k tile (128 bytes of each row) of a tile's
// rows of x and of w, with a full and an empty barrier.
//
// Where there are few tiles for a long k, the CTAs of a cluster share a tile (split k): each has a
// part of its k tiles, and split_k.cuh adds up what they have.
#pragma once

#include <cuda.h>

#include <cstdint>

#ifndef __CUDACC_RTC__
#include <algorithm>
#include <bit>

#include "common/check.h"
#include "cuda/cuda_check.h"
#endif
#include "common/fast_division.h"
#include "cuda/programmatic_launch.cuh"
#include "cuda/racecheck.h"
#include "kernels/gemm/epilogue_columns.cuh"
#include "kernels/gemm/sm90_linear.h"
#include "kernels/gemm/tile_config.h"
#include "kernels/gemm/tma_boxes.cuh"
#include "ptx/fence.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/named_barrier.cuh"
#include "ptx/registers.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"

namespace dpiframe {

constexpr int kKTileBytes = 128;
constexpr int kStepBytes = 32;  // of k that a wgmma takes
constexpr int kBarrierBytes = 256;
constexpr int kMostStages = 8;
constexpr int kSharedLimit = 227 * 1024;
constexpr int kLongKTiles = 48;  // by a sweep

constexpr int consumer_threads(int tile_rows) {
  return tile_rows == kShortTileRows ? 128 : 256;
}
// The producer has a warp where registers are as the compiler gives them, and a warpgroup where it
// leaves its own to the consumers (setmaxnreg).
constexpr int cta_threads(int tile_rows) {
  return consumer_threads(tile_rows) + (tile_rows == kShortTileRows ? 32 : 128);
}

// What a kernel is compiled for: the tiles of a LinearConfig. kBlocks: of 64 rows a consumer
// warpgroup has of a tile; 2: pingpong.
template <int kTileN_, int kBlocks_ = 1, int kRows_ = kTileRows>
struct TileForm {
  static constexpr int kTileN = kTileN_;
  static constexpr int kBlocks = kBlocks_;
  static constexpr int kRows = kRows_;
  static constexpr bool kShort = kRows == kShortTileRows;
  static constexpr int kConsumerThreads = consumer_threads(kRows);
  static constexpr int kThreads = cta_threads(kRows);
  static constexpr int kCtas = kShort ? 2 : 1;  // a multiprocessor, at most

  static constexpr bool is_of(const LinearConfig& config) {
    return config.is_kernel_of({kTileN, kBlocks == 2, 1, kRows});
  }

  // Shared memory: stages, TMA boxes a warp, barriers, column vectors a warpgroup.
  static constexpr int kXBytes = kRows * kKTileBytes;
  static constexpr int kStageBytes = kXBytes + kTileN * kKTileBytes;
  static constexpr int kColumnBytes = ColumnVectors::kVectors * kTileN * 4;

#ifdef __CUDACC__
  // By the producer's warps and by the consumers'.
  __device__ static void leave_registers() {
    if constexpr (!kShort) warpgroup_reg_dealloc<24>();
  }
  __device__ static void take_registers() {
    if constexpr (!kShort) warpgroup_reg_alloc<240>();
  }
#endif
};

// The order of a persistent kernel's tiles: by rows, so that tiles that share rows of x run side by
// side. What the host can divide, a kernel does not: before its first tile nothing hides it.
struct TileScheduler {
  std::int64_t num_tiles;
  FastDivision tiles_n;
  int step_rows;  // from a tile of a CTA to its next one: tiles of rows, and of columns
  int step_part;
  int num_k_tiles;
  int last_steps;  // wgmma steps of the last k tile
  int num_stages;
  int shared_bytes;
  int box_bytes;      // a warp; 0: its boxes lie where the stages were
  int split;          // CTAs of a cluster that share a tile, which is then their only one
  int split_bits;     // its logarithm
  int tiles_a_place;  // of tiles_n
  int place_columns;  // of out

#ifdef __CUDACC__
  // The k tiles of this CTA are [first_k_tile(), first_k_tile() + own_k_tiles()); the last of them
  // takes own_last_steps().
  __device__ int first_k_tile() const { return k_part(split_rank()); }
  __device__ int own_k_tiles() const { return k_part(split_rank() + 1) - first_k_tile(); }
  __device__ int own_last_steps() const {
    return split_rank() == split - 1 ? last_steps : kKTileBytes / kStepBytes;
  }
  __device__ int split_rank() const { return static_cast<int>(blockIdx.x) & (split - 1); }
  __device__ int k_part(int rank) const { return num_k_tiles * rank >> split_bits; }
  __device__ int first_tile() const { return static_cast<int>(blockIdx.x) >> split_bits; }
  __device__ int step() const { return static_cast<int>(gridDim.x) >> split_bits; }
#endif
};

#ifdef __CUDACC__
// The columns of a tile: of several products that are one (mapped_linear.h), those of one place.
template <bool kPlaces, int kTileN>
struct TileColumns {
  int place;
  int first;
  int end;  // of the place

  __device__ TileColumns(const TileScheduler& scheduler, int part)
      : place(kPlaces ? part / scheduler.tiles_a_place : 0),
        first(part * kTileN + place * (scheduler.place_columns - scheduler.tiles_a_place * kTileN)),
        end((place + 1) * scheduler.place_columns) {}
};

// The tiles of a CTA, one after the other: at least one, of short tiles no other.
template <class Form>
class TileWalk {
 public:
  __device__ explicit TileWalk(const TileScheduler& scheduler)
      : left_(scheduler.num_tiles - scheduler.first_tile()),
        step_(scheduler.step()),
        tiles_n_(static_cast<int>(scheduler.tiles_n.divisor)),
        rows_(static_cast<int>(scheduler.tiles_n.quotient(scheduler.first_tile()))),
        part_(scheduler.first_tile() - rows_ * tiles_n_),
        step_rows_(scheduler.step_rows),
        step_part_(scheduler.step_part) {}

  // To the next tile; whether there is one.
  __device__ bool advance() {
    if constexpr (Form::kShort) return false;
    left_ -= step_;
    rows_ += step_rows_;
    part_ += step_part_;
    if (part_ >= tiles_n_) {
      part_ -= tiles_n_;
      ++rows_;
    }
    return left_ > 0;
  }
  // The tile's first row, and its place among the tiles of these rows.
  __device__ std::int64_t row() const { return std::int64_t{rows_} * Form::kRows; }
  __device__ int part() const { return part_; }

 private:
  std::int64_t left_;  // tiles, this one included
  int step_;
  int tiles_n_;
  int rows_;  // of tiles
  int part_;
  int step_rows_;
  int step_part_;
};
#endif

// What a thread works out before it takes none of the kernel's time.
__device__ inline void await_kernels_ahead() {
  await_predecessor();
  launch_dependents();
}

// A warp's view of the pipeline: the next stage and its phase.
template <class Form>
class Pipeline {
 public:
  __device__ Pipeline(unsigned char* shared, const TileScheduler& scheduler)
      : base_((smem_address(shared) + 1023) & ~1023u),
        num_stages_(scheduler.num_stages),
        box_bytes_(scheduler.box_bytes),
        barriers_(boxes_base() + Form::kConsumerThreads / 32 * box_bytes_) {}

  // Once, by all threads. A stage is empty when `consumer_warps` have released it.
  __device__ void init(int consumer_warps, const CUtensorMap& x_map, const CUtensorMap& w_map,
                       const WarpBoxes& boxes) const {
    if (threadIdx.x < num_stages_) {
      mbarrier_init(full(threadIdx.x), 1);
      mbarrier_init(empty(threadIdx.x), (kRacecheck ? 32 : 1) * consumer_warps);
      fence_mbarrier_init();
    }
    if (threadIdx.x < Form::kConsumerThreads && threadIdx.x % 32 == 0) boxes.init();
    if (threadIdx.x == Form::kConsumerThreads) {
      tma_prefetch_map(&x_map);
      tma_prefetch_map(&w_map);
    }
    __syncthreads();
  }
  // The warp's TMA boxes for the epilogue, after the stages or where they were; their barriers
  // follow the stages'.
  __device__ WarpBoxes boxes(const EpilogueMaps& maps, unsigned char* shared) const {
    const int warp = threadIdx.x / 32;
    const bool apart = !Form::kShort || box_bytes_ > 0;
    const int bytes = apart ? box_bytes_ : 2 * kBoxBytes;
    const std::uint32_t offset =
        (apart ? boxes_base() : base_) - smem_address(shared) + warp * bytes;
    return {maps, shared + offset, bytes / 2, barriers_ + 128 + 16 * warp};
  }
  // The warpgroup's column vectors, after both.
  __device__ ColumnVectors columns(unsigned char* shared) const {
    const std::uint32_t offset = barriers_ - smem_address(shared) + kBarrierBytes;
    return {reinterpret_cast<float*>(shared + offset + threadIdx.x / 128 * Form::kColumnBytes),
            Form::kTileN};
  }
  __device__ std::uint32_t x() const { return base_ + stage_ * Form::kStageBytes; }
  __device__ std::uint32_t w() const { return x() + Form::kXBytes; }
  // The stages as plain memory, once nothing is loaded any more.
  __device__ std::uint32_t memory() const { return base_; }
  __device__ int stage() const { return stage_; }
  __device__ void wait_full() const { mbarrier_wait(full(stage_), phase_); }
  __device__ void release(int stage) const {
    if (kRacecheck || threadIdx.x % 32 == 0) mbarrier_arrive(empty(stage));
  }
  __device__ void advance() {
    if (++stage_ == num_stages_) {
      stage_ = 0;
      phase_ ^= 1;
    }
  }
  __device__ void skip(int steps) {
    for (int i = 0; i < steps; ++i) advance();
  }

  // The producer: every k tile of every tile of this CTA, in the order of use, once the kernels
  // ahead have ended. x_step, w_step: columns of the two maps a k tile. x's map has three
  // dimensions if there are places.
  template <bool kPlaces = false>
  __device__ void produce(const CUtensorMap* x_map, const CUtensorMap* w_map,
                          const TileScheduler& scheduler, int x_step, int w_step) {
    const int first_k_tile = scheduler.first_k_tile();
    const int end_k_tile = first_k_tile + scheduler.own_k_tiles();
    TileWalk<Form> walk(scheduler);
    await_kernels_ahead();
    do {
      const int row = static_cast<int>(walk.row());
      const TileColumns<kPlaces, Form::kTileN> columns(scheduler, walk.part());
#pragma unroll 1
      for (int k_tile = first_k_tile; k_tile < end_k_tile; ++k_tile, advance()) {
        mbarrier_wait(empty(stage_), phase_ ^ 1);
        mbarrier_arrive_expect_tx(full(stage_), Form::kStageBytes);
        if constexpr (kPlaces)
          tma_load_3d(x(), x_map, k_tile * x_step, columns.place, row, full(stage_));
        else
          tma_load_2d(x(), x_map, k_tile * x_step, row, full(stage_));
        tma_load_2d(w(), w_map, k_tile * w_step, columns.first, full(stage_));
      }
    } while (walk.advance());
  }

 private:
  __device__ std::uint32_t boxes_base() const { return base_ + num_stages_ * Form::kStageBytes; }
  __device__ std::uint32_t full(int i) const { return barriers_ + 16 * i; }
  __device__ std::uint32_t empty(int i) const { return barriers_ + 16 * i + 8; }

  std::uint32_t base_;
  int num_stages_;
  int box_bytes_;
  std::uint32_t barriers_;
  int stage_ = 0;
  int phase_ = 0;
};

// Of the 128 threads of a consumer warpgroup.
__device__ inline void warpgroup_barrier() {
  named_barrier_sync<128>(3 + threadIdx.x / 128);
}

#ifndef __CUDACC_RTC__

// Dynamic shared memory of a CTA. Two CTAs of short tiles share a multiprocessor, where each takes
// 1 KiB more; but where each has one for itself and a long k, the stages are worth more than that
// the kernel behind begins early. And behind another kernel than a
// product's those few take a little more than a half, so that two do not share one while others
// have none, and one of the product behind still fits beside each.
inline int shared_bytes(const LinearConfig& config, const LinearParams& p, std::int64_t num_tiles,
                        int num_k_tiles) {
  constexpr int kHalf = (kSharedLimit + 1024) / 2 - 1024;
  const bool few = num_tiles * config.split <= num_multiprocessors();
  if (config.rows != kShortTileRows || (few && num_k_tiles > kLongKTiles * config.split))
    return kSharedLimit;
  return few && p.behind_other ? kHalf + 2048 : kHalf - 2048;
}

// Stages that fit beside what else a CTA has in shared memory; 1,024 to align them.
inline int num_stages(const LinearConfig& config, int shared_bytes, int box_bytes) {
  const int warps = consumer_threads(config.rows) / 32;
  const int columns = warps / 4 * ColumnVectors::kVectors * config.tile_n * 4;
  const int stage = (config.rows + config.tile_n) * kKTileBytes;
  const int left = shared_bytes - 1024 - kBarrierBytes - columns - warps * box_bytes;
  return std::min(kMostStages, left / stage);
}

// As many persistent CTAs as run at once, or fewer where there are fewer tiles. Short tiles, and
// those that CTAs share, have CTAs of their own.
inline unsigned num_ctas(const TileScheduler& scheduler, const LinearConfig& config) {
  if (config.split > 1 || config.rows == kShortTileRows)
    return static_cast<unsigned>(scheduler.num_tiles * config.split);
  return static_cast<unsigned>(std::min<std::int64_t>(scheduler.num_tiles, num_multiprocessors()));
}

// `k_bytes`: of a row of x, in one of the `places` that n's columns are of.
inline TileScheduler tile_scheduler(const EpilogueParams& e, int k_bytes,
                                    const LinearConfig& config, int places = 1) {
  const LinearParams& p = e.linear;
  const int num_k_tiles = (k_bytes + kKTileBytes - 1) / kKTileBytes;
  const int last_bytes = k_bytes - (num_k_tiles - 1) * kKTileBytes;
  const int place_columns = p.n / places;
  const int tiles_a_place = (place_columns + config.tile_n - 1) / config.tile_n;
  const int tiles_n = tiles_a_place * places;
  // Where nothing is loaded into boxes, and no tile follows, they need no room of their own.
  const bool is_apart = config.rows != kShortTileRows;
  const int box_bytes = p.cross_begin < p.cross_end ? 2 * kSlotBytes : is_apart ? 2 * kBoxBytes : 0;
  const std::int64_t num_tiles = (p.rows + config.rows - 1) / config.rows * tiles_n;
  const int shared = shared_bytes(config, p, num_tiles, num_k_tiles);
  DPIF_CHECK(config.rows == kTileRows || (config.rows == kShortTileRows && !config.pingpong),
             "no kernel has tiles of ", config.rows, " x ", config.tile_n);
  DPIF_CHECK(config.split >= 1 &&
                 config.split <= std::min(kMostSplit * config.rows / kTileRows, num_k_tiles) &&
                 kMostSplit % config.split == 0 && (config.split == 1 || !config.pingpong),
             "k of ", num_k_tiles, " k tiles can't be split in ", config.split);
  TileScheduler scheduler{num_tiles,
                          FastDivision(static_cast<std::uint32_t>(tiles_n)),
                          0,
                          0,
                          num_k_tiles,
                          (last_bytes + kStepBytes - 1) / kStepBytes,
                          num_stages(config, shared, box_bytes),
                          shared,
                          box_bytes,
                          config.split,
                          std::countr_zero(static_cast<unsigned>(config.split)),
                          tiles_a_place,
                          place_columns};
  const int step = static_cast<int>(num_ctas(scheduler, config)) / config.split;
  scheduler.step_rows = step / tiles_n;
  scheduler.step_part = step % tiles_n;
  return scheduler;
}

// Whether CTAs may be placed while the kernel ahead runs. Those that take a multiprocessor's whole
// shared memory can begin only one by one, as that kernel's CTAs end, and a long k then takes a
// third longer, most likely for where they come to lie (docs/decisions/gemm.md).
inline bool is_placed_early(const TileScheduler& scheduler) {
  return scheduler.shared_bytes < kSharedLimit || scheduler.split > 1 ||
         scheduler.num_k_tiles <= kLongKTiles || scheduler.num_tiles > num_multiprocessors();
}

template <class Form, class... Args>
void launch_product(void (*kernel)(Args...), const TileScheduler& scheduler,
                    const LinearConfig& config, cudaStream_t stream, const Args&... args) {
  DPIF_CUDA_CHECK(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedLimit));
  const KernelLaunch launch(num_ctas(scheduler, config), Form::kThreads, scheduler.shared_bytes,
                            stream, static_cast<unsigned>(config.split),
                            is_placed_early(scheduler));
  DPIF_CUDA_CHECK(cudaLaunchKernelEx(launch.config(), kernel, args...));
}

#endif

}  // namespace dpiframe
