// The one-kernel forward pass; forward.h has the formulas, forward_layout.h where things lie.
//
// Shapes: ids [F, B], tables and activations of 16 bits, sums and scores float32.
// A cluster of two blocks owns 64 rows. Each block gathers half of the fields, makes half of each
// level's columns, sends both to the other (one bulk copy a level) and scores 32 of the rows. Warps
// 0-7 gather and multiply; warps 8 and 10 stream the block's half of all weights from L2 from the
// very start; warp 9 adds up FM's squares and counts blocks, of which the last tells the host of
// bad ids. Behind that and the scores, warp 0 tells the host that the block is done.
//
// Bytes a cluster: ids and rows of its samples once; all weights once.
#include "common/check.h"
#include "cuda/completion_flag.cuh"
#include "kernels/fused/launch.cuh"
#include "kernels/fused/mlp/gather.cuh"
#include "kernels/fused/mlp/kernel.h"
#include "kernels/fused/mlp/mainloop.cuh"
#include "kernels/fused/report_bad_ids.cuh"

namespace dpiframe {
namespace {

#ifdef DPIF_HOPPER

// By the copying warp, before any other touches a barrier.
__device__ void init_barriers(const ForwardPlaces& places, const ForwardArguments& a, int rank) {
  const int lane = threadIdx.x % 32;
  if (lane < kForwardMaxSlots) {
    barrier_init(places.full(lane), 1);
    barrier_init(places.empty(lane), 8);
  } else if (lane < kForwardMaxSlots + kForwardMaxLevels) {
    barrier_init(places.received(lane - kForwardMaxSlots), 1);
  } else if (lane == 28) {
    barrier_init(places.vectors_there(), 1);
  } else if (lane == 29) {
    barrier_init(places.looked_up(), 256);
  } else if (lane == 30) {
    barrier_init(places.squared(), 1);
  } else if (lane == 31) {
    barrier_init(places.to_score(), 2);
    barrier_expect(places.to_score(), 32 * 4 * (8 + 2 * a.has_fm + a.first_extra[4]));
  }
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  publish_to_async();
  __syncwarp();
  if (lane >= a.num_levels) return;
  const int chunks = lane == 0 ? a.chunks[1 - rank] : forward_chunks(a.tile) / 2;
  barrier_expect(places.received(lane), chunks * kChunkStride);
}

// Biases and head, then a filler's part of the weights; by one thread.
template <int kTile>
__device__ void stream_weights(const ForwardPlaces& places, const ForwardArguments& a, int rank,
                               int filler) {
  const int vector_bytes = (a.num_levels + 1) * 2 * kTile * 4;
  const int steps = (a.chunks[0] + a.chunks[1] + (a.num_levels - 1) * forward_chunks(kTile)) / 2;
  const auto* weights = static_cast<const char*>(a.weights) +
                        static_cast<std::int64_t>(rank) * steps * forward_step_bytes(kTile);
  if (filler == 0) {
    barrier_expect(places.vectors_there(), vector_bytes);
    copy_in(places.base + places.offsets.vectors,
            reinterpret_cast<const char*>(a.vectors) + rank * vector_bytes, vector_bytes,
            places.vectors_there());
  }
  WeightRing<kTile>{places}.fill(weights, steps, filler);
}

// By one warp, once all that belongs to the block's rows is there: a row a lane.
__device__ void score_rows(const BatchMemory& inputs, const ForwardArguments& a,
                           const ForwardPlaces& places, std::int64_t first_row) {
  const int lane = threadIdx.x % 32;
  const std::uint32_t extras =
      places.base + places.offsets.extras + 4 * lane * places.offsets.extras_stride;
  barrier_wait(places.to_score(), 0);
  float sum = a.bias;
  for (int part = 0; part < 4 + 2 * a.has_fm; ++part)
    sum += load_float(places.base + places.offsets.sides + (part * 32 + lane) * 4);
  for (int part = 0; part < 4; ++part)
    sum += load_float(places.base + places.offsets.dots + (part * 32 + lane) * 4);
  float alpha = 1.0f;
  for (int i = 0; i < a.num_shifts; ++i)
    alpha = fmaf(alpha, 1.0f + load_float(extras + 4 * i), 0.0f) + a.shifts[i];
  if (a.has_cross != 0) sum = fmaf(alpha, load_float(extras + 4 * a.num_shifts), sum);
  float fm = 0.0f;
  for (int i = a.num_shifts + a.has_cross; i < a.first_extra[4]; ++i) {
    const float one = load_float(extras + 4 * i);
    fm = fmaf(one, one, fm);
  }
  sum = fmaf(0.5f, fm, sum);
  const std::int64_t b = first_row + lane;
  if (b >= inputs.batch) return;
  if (inputs.logits != nullptr) inputs.logits[b] = sum;
  if (inputs.scores != nullptr) inputs.scores[b] = 1.0f / (1.0f + expf(-sum));
}

// The rows that this thread's side sums and dots are of belong to block row / 32.
__device__ void store_for_row(const ForwardPlaces& places, int array, int part, int row,
                              float value) {
  store_in(address_in(places.base + array + (part * 32 + row % 32) * 4, row / 32), value,
           address_in(places.to_score(), row / 32));
}

__device__ void look_up(const BatchMemory& inputs, const ForwardArguments& a,
                        const ForwardPlaces& places, int rank, std::int64_t first_row,
                        ForwardField* fields) {
  const ForwardSample sample(first_row, inputs.batch);
  const float side = gather_half(inputs, a, rank, sample, fields, places.base);
  publish_to_async();
  cluster_wait();
  if (sample.half == 0)
    store_for_row(places, places.offsets.sides, rank * 2 + threadIdx.x / 128, sample.row, side);
  barrier_arrive(places.looked_up());
}

// FM's squares of the block's half of x0, by one warp.
template <class T>
__device__ void add_squares(const ForwardArguments& a, const ForwardPlaces& places, int rank) {
  const ForwardHalves halves{a.chunks[0], a.chunks[1]};
  const int lane = threadIdx.x % 32;
  for (int row = lane; row < kForwardRows; row += 32) {
    const std::uint32_t x = places.activations(0) + halves.offset(rank) + row * 16;
    const float squares = sum_of_squares<T>(x, halves.chunks(rank));
    store_for_row(places, places.offsets.sides, 4 + rank, row, -0.5f * squares);
  }
  __syncwarp();
  if (lane == 0) barrier_arrive(places.squared());
}

// Own half of a level's activations to the other block, once all of it is written.
__device__ void send_half(const ForwardPlaces& places, int level, const ForwardHalves& halves,
                          int rank) {
  block_barrier();
  if (threadIdx.x == 0) {
    const std::uint32_t half = places.activations(level) + halves.offset(rank);
    copy_to_peer(address_in(half, 1 - rank), half, halves.chunks(rank) * kChunkStride,
                 address_in(places.received(level), 1 - rank));
  }
  __syncwarp();
}

template <class T, int kTile>
__device__ void run_levels(const ForwardArguments& a, const ForwardPlaces& places, int rank) {
  const ForwardThread thread;
  WeightRing<kTile> ring{places};
  const int quarter_chunks = kTile / 8;
  const std::uint32_t vectors =
      places.base + places.offsets.vectors + (thread.group * kTile + thread.own()) * 4;
  float dots[2] = {};
#pragma unroll 1
  for (int level = 0; level < a.num_levels; ++level) {
    const ForwardHalves halves{level == 0 ? a.chunks[0] : 2 * quarter_chunks,
                               level == 0 ? a.chunks[1] : 2 * quarter_chunks};
    send_half(places, level, halves, rank);
    float sums[kTile / 2] = {};
    ring.template multiply<T>(level, halves, rank, sums);
    if (level == 0) barrier_wait(places.vectors_there(), 0);
    const std::uint32_t bias = vectors + level * 2 * kTile * 4;
    const std::uint32_t target = places.activations(level + 1) +
                                 (rank * 2 + thread.group) * quarter_chunks * kChunkStride +
                                 thread.warp * 256 + thread.lane * 4;
    const int width = quarter_width(a.columns[level], rank * 2 + thread.group);
    if (level == 0) take_extras<kTile>(sums, bias, a, rank, places);
    if (level + 1 < a.num_levels) {
      store_level<T, kTile>(sums, bias, target);
      clear_rest<kTile>(width, target);
    } else {
      add_head<kTile>(sums, bias, bias + 2 * kTile * 4, width, dots);
    }
    publish_to_async();
    // The next level but one goes where x0 is.
    if (level == 0 && a.has_fm != 0) barrier_wait(places.squared(), 0);
  }
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    float dot = dots[r];
    dot += __shfl_xor_sync(0xffffffffu, dot, 1);
    dot += __shfl_xor_sync(0xffffffffu, dot, 2);
    if (thread.lane % 4 == 0)
      store_for_row(places, places.offsets.dots, rank * 2 + thread.group,
                    thread.first_row() + 8 * r, dot);
  }
  __syncwarp();
}

#endif  // DPIF_HOPPER

template <class T, int kTile>
__global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(kForwardThreads, 1)
    forward_kernel(const __grid_constant__ BatchMemory inputs,
                   const __grid_constant__ ForwardArguments a) {
#ifdef DPIF_HOPPER
  const std::int64_t first_row = static_cast<std::int64_t>(blockIdx.x / 2) * kForwardRows;
  if (first_row >= inputs.batch) return;  // both blocks
  extern __shared__ __align__(128) unsigned char shared[];
  const ForwardPlaces places{
      forward_shared(kTile, a.num_levels, a.chunks[0] + a.chunks[1], a.first_extra[4]),
      shared_address(shared)};
  const int rank = static_cast<int>(cluster_rank());
  const int warp = threadIdx.x / 32;
  if (warp == 8) init_barriers(places, a, rank);
  __syncwarp();
  cluster_arrive();
  if (warp < 8) {
    auto* fields = reinterpret_cast<ForwardField*>(shared + places.offsets.fields);
    look_up(inputs, a, places, rank, first_row, fields);
    run_levels<T, kTile>(a, places, rank);
  } else if (warp == 8) {
    if (threadIdx.x % 32 == 0) stream_weights<kTile>(places, a, rank, 0);
    __syncwarp();
    cluster_wait();
  } else if (warp > 9) {
    cluster_wait();
    if (threadIdx.x % 32 == 0) stream_weights<kTile>(places, a, rank, warp - 9);
  } else {
    cluster_wait();
    barrier_wait(places.looked_up(), 0);
    if (a.has_fm != 0) add_squares<T>(a, places, rank);
    report_bad_ids(inputs, a.tickets, a.num_report, busy_blocks(inputs));
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

template <class T>
const void* kernel_of_tile(int tile) {
  switch (tile) {
    case 64:
      return reinterpret_cast<const void*>(forward_kernel<T, 64>);
    case 104:
      return reinterpret_cast<const void*>(forward_kernel<T, 104>);
    case 128:
      return reinterpret_cast<const void*>(forward_kernel<T, 128>);
    default:
      DPIF_CHECK(false, "no kernel has quarters of ", tile, " columns");
  }
}

}  // namespace

ForwardKernel forward_kernel_for(DataType type, const ForwardArguments& arguments) {
  const int chunks = arguments.chunks[0] + arguments.chunks[1];
  const void* function = type == DataType::kHalf ? kernel_of_tile<__half>(arguments.tile)
                                                 : kernel_of_tile<__nv_bfloat16>(arguments.tile);
  return load_forward_kernel(
      function,
      forward_shared(arguments.tile, arguments.num_levels, chunks, arguments.first_extra[4]).bytes);
}

void forward_hopper(const ForwardKernel& kernel, std::int64_t rows, const BatchMemory& inputs,
                    const ForwardArguments& arguments, cudaStream_t stream) {
  if (rows == 0) return;
  const auto blocks = static_cast<unsigned>((rows + kForwardRows - 1) / kForwardRows * 2);
  launch_forward(kernel, blocks, kForwardThreads, inputs, arguments, stream);
}

}  // namespace dpiframe
