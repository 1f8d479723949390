// The one-kernel forward pass with cross layers for float32; forward_cross.h has the formulas,
// forward_split_layout.h where things lie and in which order products are made.
//
// Numbers are two float16 as in linear_hopper_split.cu, but split where they are made, and once:
// with a power of two for each row of a quarter of the columns.
//
// Shapes: ids [F, B], tables, sums and scores float32.
// A cluster of two blocks takes 64 rows at a time: each of their four warpgroups gathers a quarter
// of x0's columns and makes a quarter of each product's. Warp 8 looks over the ids and scores, warp
// 9 sends each quarter to the other block, 10 to 15 stream weights, vectors and x0.
//
// Bytes a tile: rows of its samples once, ids by the gather and by who looks them over; all weights
// once, from L2, 4 bytes each; x0 to L2 and back for each cross layer, h of the first deep level
// once.
#include <algorithm>

#include "cuda/completion_flag.cuh"
#include "kernels/fused/cross_fp16x3/exchange.cuh"
#include "kernels/fused/cross_fp16x3/kernel.h"
#include "kernels/fused/cross_fp16x3/mainloop.cuh"
#include "kernels/fused/cross_fp16x3/score.cuh"
#include "kernels/fused/launch.cuh"

namespace dpiframe {
namespace {

constexpr int kSplitThreads = 512;

#ifdef DPIF_HOPPER

// By one thread.
__device__ void init_barriers(const SplitPlaces& places, bool each_thread_leaves) {
  places.ring().init(each_thread_leaves ? 32 * kRingUsers : kRingUsers);
  for (int g = 0; g < 2; ++g) {
    barrier_init(places.loaded(g), 1);
    barrier_init(places.received(g), 1);
    barrier_init(places.taken(g), 1);
    barrier_init(places.written(g), 128);
  }
  barrier_init(places.ready(), kRingUsers);
  barrier_init(places.h_stored(), kRingUsers);
  barrier_init(places.other_h_stored(), 1);
  barrier_init(places.x0_stored(), kRingUsers);
  barrier_init(places.x_done(), kRingUsers);
  barrier_init(places.to_score(), 1);
  barrier_init(places.scored(), 2);
  barrier_expect(places.to_score(), kSplitValueBytes);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  publish_to_async();
}

// By one thread of kSplitFillers.
template <bool kWaitsForEach>
__device__ void stream(const ForwardSplitArguments& a, const SplitPlaces& places, int rank,
                       int filler, const SplitTiles& tiles) {
  const auto* weights = static_cast<const char*>(a.weights) + std::int64_t{rank} * a.weight_bytes;
  const auto* vectors = reinterpret_cast<const char*>(a.vectors + rank * a.vector_floats);
  const char* own = a.scratch + static_cast<std::size_t>(blockIdx.x) * a.scratch_bytes;
  const auto from = [&](std::uint32_t source, int tile) {
    const auto kind = static_cast<SplitSource>(source >> kSplitSourceBits);
    const std::uint32_t offset = source & ((1u << kSplitSourceBits) - 1);
    if (kind == SplitSource::kWeights) return weights + offset;
    if (kind == SplitSource::kVectors) return vectors + offset;
    barrier_wait(places.x0_stored(), tile & 1);
    return own + offset;
  };
  fill_ring<kSplitFillers, 2, kWaitsForEach>(a.pieces, a.num_pieces, places.ring(), filler,
                                             tiles.count(), from);
}

#endif  // DPIF_HOPPER

template <int kCrossTile, int kDeepTile, bool kEachLeaves>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kSplitThreads, 1)
    forward_split_kernel(const __grid_constant__ BatchMemory inputs,
                         const __grid_constant__ ForwardSplitArguments a) {
#ifdef DPIF_HOPPER
  const SplitTiles tiles(inputs.batch);
  if (tiles.first >= tiles.end) return;  // both blocks
  extern __shared__ __align__(128) char shared[];
  const SplitPlaces places{a.shared, shared_address(shared)};
  const int rank = static_cast<int>(cluster_rank());
  const int warp = threadIdx.x / 32;
  if (warp < kRingUsers) [[likely]] {
    cluster_arrive();  // before barriers are there: the lookup needs none
    asm volatile("setmaxnreg.inc.sync.aligned.u32 208;");
    SplitProducts<kCrossTile, kDeepTile, kEachLeaves>{inputs, a, places, rank}.run(tiles);
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 48;");
    if (threadIdx.x == 32 * kRingUsers) init_barriers(places, kEachLeaves);
    __syncwarp();
    cluster_arrive();
    cluster_wait();
    if (warp == kRingUsers)
      SplitScores{inputs, a, places, rank}.run(tiles);
    else if (threadIdx.x % 32 == 0 && warp == kRingUsers + 1)
      SplitSender{a, places, rank}.run(tiles);
    else if (threadIdx.x % 32 == 0)
      stream<kEachLeaves>(a, places, rank, warp - kRingUsers - 2, tiles);
    __syncwarp();
  }
  cluster_sync();  // nobody leaves while the other block may still write here
#endif
}

template <int kCrossTile, bool kEachLeaves>
const void* kernel_of_tiles(int deep) {
  switch (deep) {
    case 112:
      return reinterpret_cast<const void*>(forward_split_kernel<kCrossTile, 112, kEachLeaves>);
    case 128:
      return reinterpret_cast<const void*>(forward_split_kernel<kCrossTile, 128, kEachLeaves>);
    default:
      DPIF_CHECK(false, "no kernel has quarters of ", deep, " columns");
  }
}

template <bool kEachLeaves>
const void* kernel_of(const ForwardSplitForm& form) {
  return form.cross_tile == 112 ? kernel_of_tiles<112, kEachLeaves>(form.deep_tile)
                                : kernel_of_tiles<160, kEachLeaves>(form.deep_tile);
}

}  // namespace

ForwardKernel forward_split_kernel_for(const ForwardSplitArguments& arguments,
                                       bool each_thread_leaves) {
  const ForwardSplitForm& form = arguments.form;
  return load_forward_kernel(each_thread_leaves ? kernel_of<true>(form) : kernel_of<false>(form),
                             arguments.shared.bytes);
}

void forward_split_hopper(const ForwardKernel& kernel, std::int64_t rows, const BatchMemory& inputs,
                          const ForwardSplitArguments& arguments, int blocks, cudaStream_t stream) {
  if (rows == 0) return;
  const auto needed = static_cast<unsigned>((rows + kForwardRows - 1) / kForwardRows * 2);
  launch_forward(kernel, std::min(needed, static_cast<unsigned>(blocks)), kSplitThreads, inputs,
                 arguments, stream);
}

}  // namespace dpiframe
