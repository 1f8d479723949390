// Product on Hopper's tensor cores, operands in shared memory; linear.h has the formulas.
//
// fp16 and bf16 as they are, tf32 from float32 (the hardware ignores the low 13 bits of x; w was
// rounded when it was prepared). Sums in float32.
//
// A block is two warpgroups that multiply and one thread that copies, on one multiprocessor, and
// walks over tiles of 128 x kTileN. The copying thread runs ahead through a ring of stages, also
// into the next tile. kBlocks 1: both warpgroups work on each tile, 64 rows each. kBlocks 2: they
// take tiles in turn, 128 rows each, so that one stores while the other multiplies.
//
// Bytes: x once from memory (its other reads, one for each tile of columns, hit L2), w from L2, out
// once. Rows beyond `rows`, and columns beyond n and k, are zeros in shared memory and never
// stored.
#include "common/check.h"
#include "kernels/gemm/epilogue.cuh"
#include "kernels/gemm/pipeline.cuh"
#include "kernels/gemm/sm90_linear.h"

namespace dpiframe {
namespace {

// One tile's sums: a chunk's four steps are issued while the chunk before is still being
// multiplied.
template <class T, int kTileN, int kBlocks>
__device__ void multiply(Ring<kTileN>& ring, int num_chunks, int first_row,
                         float (&sums)[kBlocks][kTileN / 2]) {
  int last = 0;
  for (int chunk = 0; chunk < num_chunks; ++chunk) {
    ring.wait_full();
    const std::uint64_t x = wgmma_descriptor_swizzle128(ring.x() + first_row * kChunkBytes);
    const std::uint64_t w = wgmma_descriptor_swizzle128(ring.w());
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 4; ++step) {
#pragma unroll
      for (int b = 0; b < kBlocks; ++b)
        Wgmma<kTileN>::template ss<T>(sums[b], x + b * 64 * kChunkBytes / 16 + step * 2,
                                          w + step * 2, chunk + step);
    }
    wgmma_commit();
    if (chunk > 0) {
      wgmma_wait<1>();
      ring.release(last);
    }
    last = ring.stage();
    ring.advance();
  }
  wgmma_wait<0>();
#pragma unroll
  for (auto& block : sums) wgmma_fence_operands(block);
  ring.release(last);
}

// The order of two warpgroups: the ring's parity tells a stage from the one before, not from one
// two rounds away, so a warpgroup enters it only when the other has left.
__device__ void await_turn(int group) {
  named_barrier_sync<256>(1 + group);
}
__device__ void pass_turn(int group) {
  named_barrier_arrive<256>(1 + group);
}

template <class T, int kTileN, int kBlocks>
__global__ void __launch_bounds__(kThreads, 1)
    linear_kernel(const __grid_constant__ CUtensorMap x_map,
                  const __grid_constant__ CUtensorMap w_map,
                  const __grid_constant__ EpilogueMaps maps,
                  const __grid_constant__ EpilogueParams e, const TileWalk walk) {
  extern __shared__ unsigned char shared[];
  Ring<kTileN> ring(shared, walk);
  const int group = threadIdx.x / 128;
  if (threadIdx.x == 0) ring.init(kBlocks == 1 ? 8 : 4);
  WarpBoxes boxes = ring.boxes(maps, shared);
  if (threadIdx.x < kConsumerThreads && threadIdx.x % 32 == 0) boxes.init();
  if (threadIdx.x == kConsumerThreads) {
    tma_prefetch_map(&x_map);
    tma_prefetch_map(&w_map);
  }
  __syncthreads();
  await_predecessor();
  launch_dependents();
  if (group == 2) {
    warpgroup_reg_dealloc<24>();
    constexpr int kStep = kChunkBytes / sizeof(T);
    if (threadIdx.x == kConsumerThreads) ring.fill(&x_map, &w_map, walk, kStep, kStep);
  } else {
    warpgroup_reg_alloc<240>();
    const ColumnVectors columns = ring.columns(shared);
    const int warp = threadIdx.x / 32 % 4;
    int turn = 0;
    if (kBlocks == 2 && group == 1) pass_turn(0);
    for (std::int64_t tile = blockIdx.x; tile < walk.num_tiles; tile += gridDim.x, turn ^= 1) {
      if (kBlocks == 2 && turn != group) {
        ring.skip(walk.num_chunks);
        continue;
      }
      const int part = static_cast<int>(tile % walk.tiles_n);
      const int first = kBlocks == 1 ? group * 64 : 0;
      const std::int64_t row = tile / walk.tiles_n * kTileRows + first + warp * 16;
      using Epilogue = TileEpilogue<T, kTileN, false>;
      columns.start_copies(e, part * kTileN, kTileN, threadIdx.x % 128, 128);
      Epilogue(e, columns, boxes, row, part * kTileN).start();
      if (kBlocks == 2) await_turn(group);
      float sums[kBlocks][kTileN / 2];
      multiply<T, kTileN, kBlocks>(ring, walk.num_chunks, first, sums);
      if (kBlocks == 2) pass_turn(1 - group);
      ColumnVectors::wait_copies();
      warpgroup_barrier();
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
        Epilogue epilogue(e, columns, boxes, row + b * 64, part * kTileN);
        if (b > 0) epilogue.start();
        epilogue.finish(sums[b], part);
      }
      warpgroup_barrier();
    }
    WarpBoxes::finish_stores();
  }
}

template <class T, int kTileN, int kBlocks>
void launch(Precision precision, const LinearParams& p, cudaStream_t stream) {
  const WeightLayout layout(precision, p.n, p.k);
  const DataType type = activation_type(precision);
  const CUtensorMap x_map = tensor_map(type, p.x, p.rows, p.k, p.ldx, kTileRows);
  const std::int64_t width = std::int64_t{layout.chunk} * layout.chunks;
  const CUtensorMap w_map = tensor_map(type, p.w, layout.rows, width, width, kTileN);
  const EpilogueParams e = epilogue_params(p, sizeof(T));
  const TileWalk walk = tile_walk<kTileN>(e, layout.chunks);
  launch_walk<kTileN>(linear_kernel<T, kTileN, kBlocks>, walk, stream, x_map, w_map,
                      epilogue_maps(type, e), e, walk);
}

template <class T>
void launch_config(Precision precision, const LinearParams& params, const LinearConfig& config,
                   cudaStream_t stream) {
  switch (config.tile_n + (config.alternate ? 1 : 0)) {
    case 64:
      return launch<T, 64, 1>(precision, params, stream);
    case 112:
      return launch<T, 112, 1>(precision, params, stream);
    case 160:
      return launch<T, 160, 1>(precision, params, stream);
    case 256:
      return launch<T, 256, 1>(precision, params, stream);
    case 129:
      return launch<T, 128, 2>(precision, params, stream);
    case 145:
      return launch<T, 144, 2>(precision, params, stream);
    default:
      DPIF_CHECK(false, "no kernel has tiles of ", config.tile_n, " columns");
  }
}

}  // namespace

void linear_hopper(Precision precision, const LinearParams& params, const LinearConfig& config,
                   cudaStream_t stream) {
  if (precision == Precision::kFp16) launch_config<__half>(precision, params, config, stream);
  if (precision == Precision::kBf16)
    launch_config<__nv_bfloat16>(precision, params, config, stream);
  if (precision == Precision::kTf32) launch_config<float>(precision, params, config, stream);
}

}  // namespace dpiframe
