// The one-kernel forward pass with cross layers for large batches; forward_cross.h has the
// formulas, forward_tall_layout.h where things lie and in which order products are made.
//
// Shapes: ids [F, B], tables and activations of 16 bits, sums and scores float32.
// A cluster of two blocks takes 128 rows at a time: each block gathers half of the fields, makes
// half of each product's columns, sends both to the other and scores 64 of the rows. Warps 0-3 and
// 4-7 multiply a panel of 64 rows each, warps 8 and 9 look up and score, 10 and 11 stream weights.
//
// Bytes a tile: ids and rows of its samples once; all weights once, from L2; x0 and half of h to L2
// and back, x0 once for each cross layer.
#include "cuda/completion_flag.cuh"
#include "kernels/fused/cross_persistent/gather.cuh"
#include "kernels/fused/cross_persistent/kernel.h"
#include "kernels/fused/cross_persistent/mainloop.cuh"
#include "kernels/fused/launch.cuh"
#include "kernels/fused/report_bad_ids.cuh"

namespace dpiframe {
namespace {

constexpr int kTallThreads = 384;

#ifdef DPIF_HOPPER

// By one thread.
__device__ void init_barriers(const TallPlaces& places) {
  places.ring().init(kRingUsers);
  for (int i = 0; i < 2; ++i) {
    barrier_init(places.gathered(i), 1);
    barrier_init(places.loaded(i), 1);
    barrier_init(places.received(i), 1);
    barrier_init(places.taken(i), 1);
    barrier_init(places.ready(i), 4);
    barrier_init(places.stored(i), 8);
    barrier_init(places.x0_back(i), 1);
    barrier_init(places.multiplied(i), 4);
    barrier_init(places.vectors_there(i), 1);
    barrier_init(places.to_score(i), 1);
    barrier_expect(places.to_score(i), 4 * kForwardRows * 4);
  }
  barrier_init(places.rows_there(), kGatheringThreads);
  barrier_init(places.rows_taken(), kRingUsers);
  barrier_init(places.finished(), kRingUsers);
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  publish_to_async();
}

// What is known of the block's fields, to shared memory; by all threads.
__device__ ForwardField* copy_fields(const ForwardTallArguments& a, int rank,
                                     unsigned char* shared) {
  const int begin = rank == 0 ? 0 : a.common.fields_end[0];
  const int words = (a.common.fields_end[rank] - begin) * int(sizeof(ForwardField) / 16);
  auto* fields = reinterpret_cast<ForwardField*>(shared + a.shared.fields);
  for (int i = threadIdx.x; i < words; i += kTallThreads)
    reinterpret_cast<uint4*>(fields)[i] =
        __ldg(reinterpret_cast<const uint4*>(a.common.fields + begin) + i);
  return fields;
}

__device__ void look_up_and_score(const TallGather& gather, const TallTiles& tiles) {
  const BatchMemory& inputs = gather.inputs;
  gather.run(tiles);
  gather_barrier();
  if (gather.thread >= 32) return;
  const auto busy = static_cast<unsigned>(min(tiles.end, tiles.stride)) * 2;
  report_bad_ids(inputs, gather.a.common.tickets, gather.a.common.num_report, busy);
  __syncwarp();
  if (gather.thread == 0 && inputs.completion.flag != nullptr) signal_cta_done(inputs.completion, busy);
  __syncwarp();
}

#endif  // DPIF_HOPPER

template <class T, int kCrossTile, int kDeepTile>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kTallThreads, 1)
    forward_tall_kernel(const __grid_constant__ BatchMemory inputs,
                        const __grid_constant__ ForwardTallArguments a) {
#ifdef DPIF_HOPPER
  const TallTiles tiles(inputs.batch);
  if (tiles.first >= tiles.end) return;  // both blocks
  extern __shared__ __align__(128) unsigned char shared[];
  const TallPlaces places{a.shared, shared_address(shared)};
  const int rank = static_cast<int>(cluster_rank());
  const int warp = threadIdx.x / 32;
  const auto* block_weights =
      static_cast<const char*>(a.common.weights) + std::int64_t{rank} * a.weight_bytes;
  const ForwardField* fields = copy_fields(a, rank, shared);
  char* rows = forward_tall_scratch(a, blockIdx.x) + forward_tall_rows_place(a.form, rank, 0, 0);
  const TallGather gather{inputs,
                          a,
                          places,
                          fields,
                          rows,
                          rank,
                          static_cast<int>(threadIdx.x % kGatheringThreads),
                          rank == 0 ? 0 : a.common.fields_end[0],
                          a.common.fields_end[rank]};
  if (threadIdx.x == kFirstThreads) init_barriers(places);
  __syncthreads();
  cluster_arrive();
  if (threadIdx.x < kFirstThreads) gather.look_up_first(tiles.first);
  __syncthreads();
  cluster_wait();
  if (warp < kRingUsers) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 224;");
    TallProducts<T, kCrossTile, kDeepTile>{{a, places, rank}}.run(tiles);
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;");
    if (warp < 10)
      look_up_and_score(gather, tiles);
    else if (threadIdx.x % 32 == 0)
      fill_ring<2, 4, false>(a.pieces, a.num_pieces, places.ring(), warp - 10, tiles.count(),
                             [&](std::uint32_t source, int) { return block_weights + source; });
    __syncwarp();
  }
  cluster_sync();  // nobody leaves while the other block may still write here
#endif
}

}  // namespace

ForwardKernel forward_tall_kernel_for(DataType type, const ForwardTallArguments& arguments) {
  const auto kernel_of = []<class T, int kCross, int kDeep>(ForwardTiles<T, kCross, kDeep>) {
    return reinterpret_cast<const void*>(forward_tall_kernel<T, kCross, kDeep>);
  };
  return load_forward_kernel(type, arguments.form, arguments.shared.bytes, kernel_of);
}

void forward_tall_hopper(const ForwardKernel& kernel, std::int64_t rows, const BatchMemory& inputs,
                         const ForwardTallArguments& arguments, int blocks, cudaStream_t stream) {
  if (rows == 0) return;
  const auto needed = static_cast<unsigned>((rows + kTallRows - 1) / kTallRows * 2);
  launch_forward(kernel, std::min(needed, static_cast<unsigned>(blocks)), kTallThreads, inputs,
                 arguments, stream);
}

}  // namespace dpiframe
