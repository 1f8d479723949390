// The one-kernel forward pass with cross layers; forward_cross.h has the formulas,
// forward_cross_layout.h where things lie and in which order products are made.
//
// Shapes: ids [F, B], tables and activations of 16 bits, sums and scores float32.
// A cluster of two blocks owns 64 rows, as in forward_hopper.cu: each block gathers half of the
// fields, makes half of each product's columns, sends both to the other and scores 32 of the rows.
// Warps 0-7 gather and multiply, warps 8 and 10 stream the block's half of all weights from L2 from
// the very start, warp 9 sends and reports bad ids, warp 0 the end.
//
// Bytes a cluster: ids and rows of its samples once; all weights once.
#include "cuda/completion_flag.cuh"
#include "kernels/fused/cross/gather.cuh"
#include "kernels/fused/cross/kernel.h"
#include "kernels/fused/cross/mainloop.cuh"
#include "kernels/fused/launch.cuh"
#include "kernels/fused/report_bad_ids.cuh"

namespace dpiframe {
namespace {

#ifdef DPIF_HOPPER

// By a copying warp, before any other touches a barrier.
__device__ void init_barriers(const ForwardCrossArguments& a, const CrossPlaces& places, int rank) {
  const int lane = threadIdx.x % 32;
  if (lane < kCrossPiecesAhead) {
    barrier_init(places.full(lane), 1);
    barrier_init(places.empty(lane), kMultiplyingWarps);
  }
  if (lane < kCrossMaxExchanges) {
    barrier_init(places.received(lane), 1);
    barrier_init(places.ready(lane), kMultiplyingWarps);
    barrier_init(places.taken(lane), 1);
  }
  if (lane == 0) {
    barrier_init(places.vectors_there(), 1);
    barrier_init(places.looked_up(), 32 * kMultiplyingWarps);
    barrier_init(places.written(), 32 * kMultiplyingWarps);
    barrier_init(places.to_score(), 2);
    barrier_expect(places.to_score(), 32 * 4 * 8);
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  publish_to_async();
  __syncwarp();
  if (lane >= a.form.num_deep + a.form.num_cross - 1) return;
  const bool is_x = lane == 0 || lane >= a.form.num_deep;
  const int chunks = is_x ? a.common.chunks[1 - rank] : forward_chunks(a.form.deep_tile) / 2;
  barrier_expect(places.received(lane), chunks * kChunkStride);
}

// Biases, heads and where the pieces go, then a filler's part of the weights; by one thread.
__device__ void stream_weights(const ForwardCrossArguments& a, const CrossPlaces& places, int rank,
                               int filler) {
  if (filler == 0) {
    const int vectors = places.offsets.pieces - places.offsets.vectors;
    const int pieces = a.num_pieces * static_cast<int>(sizeof(ForwardCrossPiece));
    barrier_expect(places.vectors_there(), vectors + pieces);
    copy_in(places.base + places.offsets.vectors,
            reinterpret_cast<const char*>(a.common.vectors) + rank * vectors, vectors,
            places.vectors_there());
    copy_in(places.base + places.offsets.pieces, a.pieces + rank * a.num_pieces, pieces,
            places.vectors_there());
  }
  copy_pieces(a, places, rank, filler);
}

__device__ void look_up(const BatchMemory& inputs, const ForwardCrossArguments& a,
                        const CrossPlaces& places, int rank, std::int64_t first_row,
                        ForwardField* fields) {
  const ForwardSample sample(first_row, inputs.batch);
  const float side = gather_half<CrossGather>(inputs, a.common, rank, sample, fields, places.base);
  cluster_wait();
  if (sample.half == 0)
    store_for_row(places, places.offsets.sides, rank * 2 + threadIdx.x / 128, sample.row, side);
  barrier_arrive(places.looked_up());
}

// By one warp, once all that belongs to the block's rows is there: a row a lane.
__device__ void score_rows(const BatchMemory& inputs, const ForwardCrossArguments& a,
                           const CrossPlaces& places, std::int64_t first_row) {
  const int lane = threadIdx.x % 32;
  barrier_wait(places.to_score(), 0);
  float sum = a.common.bias;
  for (int part = 0; part < 4; ++part)
    sum += load_float(places.base + places.offsets.sides + (part * 32 + lane) * 4);
  for (int part = 0; part < 4; ++part)
    sum += load_float(places.base + places.offsets.dots + (part * 32 + lane) * 4);
  const std::int64_t b = first_row + lane;
  if (b >= inputs.batch) return;
  if (inputs.logits != nullptr) inputs.logits[b] = sum;
  if (inputs.scores != nullptr) inputs.scores[b] = 1.0f / (1.0f + expf(-sum));
}

#endif  // DPIF_HOPPER

template <class T, int kCrossTile, int kDeepTile>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kForwardThreads, 1)
    forward_cross_kernel(const __grid_constant__ BatchMemory inputs,
                         const __grid_constant__ ForwardCrossArguments a) {
#ifdef DPIF_HOPPER
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x / 2) * kForwardRows;
  if (first_row >= inputs.batch) return;  // both blocks
  extern __shared__ __align__(128) unsigned char shared[];
  const CrossPlaces places{a.shared, shared_address(shared)};
  const int rank = static_cast<int>(cluster_rank());
  const int warp = threadIdx.x / 32;
  if (warp == 8) init_barriers(a, places, rank);
  __syncwarp();
  cluster_arrive();
  if (warp < kMultiplyingWarps) {
    auto* fields = reinterpret_cast<ForwardField*>(shared + places.offsets.fields);
    look_up(inputs, a, places, rank, first_row, fields);
    CrossProducts<T, kCrossTile, kDeepTile>{a, places, rank}.run();
  } else if (warp == 8) {
    if (threadIdx.x % 32 == 0) stream_weights(a, places, rank, 0);
    __syncwarp();
    cluster_wait();
  } else if (warp > 9) {
    cluster_wait();
    if (threadIdx.x % 32 == 0) stream_weights(a, places, rank, warp - 9);
  } else {
    cluster_wait();
    send_halves<kDeepTile>(a, places, rank);
    barrier_wait(places.looked_up(), 0);
    report_bad_ids(inputs, a.common.tickets, a.common.num_report, busy_blocks(inputs));
    __syncwarp();
    if (threadIdx.x % 32 == 0) barrier_arrive(places.to_score());
  }
  if (warp != 0) return;
  score_rows(inputs, a, places, first_row + rank * 32);
  __syncwarp();
  if (threadIdx.x == 0 && inputs.completion.flag != nullptr)
    signal_cta_done(inputs.completion, busy_blocks(inputs));
#endif
}

}  // namespace

ForwardKernel forward_cross_kernel_for(DataType type, const ForwardCrossArguments& arguments) {
  const auto kernel_of = []<class T, int kCross, int kDeep>(ForwardTiles<T, kCross, kDeep>) {
    return reinterpret_cast<const void*>(forward_cross_kernel<T, kCross, kDeep>);
  };
  return load_forward_kernel(type, arguments.form, arguments.shared.bytes, kernel_of);
}

void forward_cross_hopper(const ForwardKernel& kernel, std::int64_t rows, const BatchMemory& inputs,
                          const ForwardCrossArguments& arguments, cudaStream_t stream) {
  if (rows == 0) return;
  const auto blocks = static_cast<unsigned>((rows + kForwardRows - 1) / kForwardRows * 2);
  launch_forward(kernel, blocks, kForwardThreads, inputs, arguments, stream);
}

}  // namespace dpiframe
