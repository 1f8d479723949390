// Float32 product on Hopper's float16 tensor cores; linear.h has the formulas.
//
// A value times a power of two s is the sum of two float16, v s = large + small, to 22 bits. Three
// products, large large + large small + small large, summed in float32, give a float32-grade result
// at a third of the float16 rate, five times what CUDA cores do. float16 has few exponents, so
// s is chosen for every row of x in every chunk of 32 columns (its largest value comes to lie
// in [2^14, 2^15)), and for every row of w when it is prepared: rows of any magnitude are as good.
//
// A chunk's products start from zero and are then added to the total, over s, in registers: the
// tensor cores cut their sums off instead of rounding, and so do it on few and small ones.
//
// Shapes, blocks and warps are those of linear_hopper.cu with 64 rows of a shared tile for a
// warpgroup. x goes from shared memory to registers, where it is split, and from there to the
// tensor cores; while one warpgroup splits and adds, the other multiplies.
#include "common/check.h"
#include "kernels/linear_hopper.h"
#include "kernels/linear_pipeline.cuh"

namespace dpiframe {
namespace {

#ifdef DPIF_HOPPER

// The power of two that brings `largest` into [2^14, 2^15), and its inverse.
struct PowerOfTwo {
  __device__ explicit PowerOfTwo(float largest) {
    const int exponent = max(static_cast<int>(__float_as_uint(largest) >> 23), 16);
    factor = __uint_as_float((127 + 14 + 127 - exponent) << 23);
    inverse = __uint_as_float((exponent - 14) << 23);
  }
  float factor;
  float inverse;
};

__device__ std::uint32_t as_bits(__half2 pair) {
  return *reinterpret_cast<const std::uint32_t*>(&pair);
}

// A thread's part of a chunk in wgmma's layout of a: for each of two steps, the columns
// 8 t + 4 step + {0, 1} of rows r and r + 8, then those + {2, 3} (t = lane % 4, r = lane / 4). That
// w has its columns in the same order is prepare_linear_weight's affair.
struct SplitRows {
  std::uint32_t large[2][4];
  std::uint32_t small[2][4];
  float inverse[2];  // of rows r, r + 8

  __device__ SplitRows(const unsigned char* x, int lane) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = lane / 4 + r * 8;
      float4 parts[2];
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        const int sixteen = (lane % 4 * 2 + step) ^ (row % 8);
        parts[step] = *reinterpret_cast<const float4*>(x + row * kChunkBytes + sixteen * 16);
      }
      const PowerOfTwo power(largest(parts));
      inverse[r] = power.inverse;
#pragma unroll
      for (int step = 0; step < 2; ++step) {
        split(parts[step].x * power.factor, parts[step].y * power.factor, step, r);
        split(parts[step].z * power.factor, parts[step].w * power.factor, step, r + 2);
      }
    }
  }

  // Keeps the registers from being used anew while a wgmma may still read them.
  __device__ void settle() {
#pragma unroll
    for (int i = 0; i < 8; ++i)
      asm volatile("" : "+r"(large[i / 4][i % 4]), "+r"(small[i / 4][i % 4])::"memory");
  }

 private:
  // Over the four threads that share a row.
  __device__ static float largest(const float4 (&parts)[2]) {
    float value = 0.0f;
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      value = fmaxf(value, fmaxf(fabsf(parts[step].x), fabsf(parts[step].y)));
      value = fmaxf(value, fmaxf(fabsf(parts[step].z), fabsf(parts[step].w)));
    }
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 1));
    return fmaxf(value, __shfl_xor_sync(0xffffffffu, value, 2));
  }
  __device__ void split(float a, float b, int step, int place) {
    const __half2 whole = __floats2half2_rn(a, b);
    const float2 taken = __half22float2(whole);
    large[step][place] = as_bits(whole);
    small[step][place] = as_bits(__floats2half2_rn(a - taken.x, b - taken.y));
  }
};

// Totals of one tile: while a chunk is multiplied, the next one is split.
template <int kTileN>
__device__ void multiply(Ring<kTileN>& ring, const unsigned char* shared, int num_chunks,
                         int first_row, float (&totals)[kTileN / 2]) {
  float sums[kTileN / 2];
#pragma unroll
  for (float& total : totals) total = 0.0f;
  const auto split_stage = [&] {
    const std::uint32_t offset = ring.x() - shared_address(shared) + first_row * kChunkBytes;
    return SplitRows(shared + offset, threadIdx.x % 32);
  };
  ring.wait_full();
  SplitRows x = split_stage();
  for (int chunk = 0; chunk < num_chunks; ++chunk) {
    const std::uint64_t w = shared_operand(ring.w());
    wgmma_fence();
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      Wgmma<kTileN>::split(sums, x.small[step], w + step * 2, step);
      Wgmma<kTileN>::split(sums, x.large[step], w + 4 + step * 2, 1);
      Wgmma<kTileN>::split(sums, x.large[step], w + step * 2, 1);
    }
    wgmma_commit();
    const int used = ring.stage();
    ring.advance();
    SplitRows next = x;
    if (chunk + 1 < num_chunks) {
      ring.wait_full();
      next = split_stage();
    }
    wgmma_wait<0>();
    wgmma_settle(sums);
    x.settle();
    ring.release(used);
#pragma unroll
    for (int i = 0; i < kTileN / 2; ++i) totals[i] = fmaf(sums[i], x.inverse[i / 2 % 2], totals[i]);
    x = next;
  }
}

#endif

template <int kTileN>
__global__ void __launch_bounds__(kThreads, 1)
    split_kernel(const __grid_constant__ CUtensorMap x_map,
                 const __grid_constant__ CUtensorMap w_map,
                 const __grid_constant__ EpilogueMaps maps,
                 const __grid_constant__ EpilogueParams e, const TileWalk walk) {
#ifdef DPIF_HOPPER
  extern __shared__ unsigned char shared[];
  Ring<kTileN> ring(shared, walk);
  const int group = threadIdx.x / 128;
  if (threadIdx.x == 0) ring.init(8);
  WarpBoxes boxes = ring.boxes(maps, shared);
  if (threadIdx.x < kConsumerThreads && threadIdx.x % 32 == 0) boxes.init();
  if (threadIdx.x == kConsumerThreads) {
    fetch_map(&x_map);
    fetch_map(&w_map);
  }
  __syncthreads();
  await_predecessor();
  launch_dependents();
  if (group == 2) {
    lower_registers<24>();
    if (threadIdx.x == kConsumerThreads) ring.fill(&x_map, &w_map, walk, 32, 64);
  } else {
    raise_registers<240>();
    const ColumnVectors columns = ring.columns(shared);
    const int first = threadIdx.x / 32 * 16;
    for (std::int64_t tile = blockIdx.x; tile < walk.num_tiles; tile += gridDim.x) {
      const int part = static_cast<int>(tile % walk.tiles_n);
      const std::int64_t row = tile / walk.tiles_n * kTileRows + first;
      columns.start_copies(e, part * kTileN, kTileN, threadIdx.x % 128, 128);
      TileEpilogue<float, kTileN, true> epilogue(e, columns, boxes, row, part * kTileN);
      epilogue.start();
      float totals[kTileN / 2];
      multiply<kTileN>(ring, shared, walk.num_chunks, first, totals);
      ColumnVectors::wait_copies();
      warpgroup_barrier();
      epilogue.finish(totals, part);
      warpgroup_barrier();
    }
    WarpBoxes::finish_stores();
  }
#endif
}

template <int kTileN>
void launch(const LinearParams& p, cudaStream_t stream) {
  const WeightLayout layout(Precision::kFp32, p.n, p.k);
  const CUtensorMap x_map = tensor_map(DataType::kFloat, p.x, p.rows, p.k, p.ldx, kTileRows);
  const std::int64_t width = std::int64_t{64} * layout.chunks;
  const CUtensorMap w_map = tensor_map(DataType::kHalf, p.w, layout.rows, width, width, kTileN);
  EpilogueParams e = epilogue_params(p, sizeof(float));
  const TileWalk walk = tile_walk<kTileN>(e, layout.chunks);
  e.column_scale =
      reinterpret_cast<const float*>(static_cast<const char*>(p.w) + layout.scale_offset);
  launch_walk<kTileN>(split_kernel<kTileN>, walk, stream, x_map, w_map,
                      epilogue_maps(DataType::kFloat, e), e, walk);
}

}  // namespace

void linear_hopper_split(const LinearParams& params, const LinearConfig& config,
                         cudaStream_t stream) {
  switch (config.tile_n) {
    case 64:
      return launch<64>(params, stream);
    case 112:
      return launch<112>(params, stream);
    case 128:
      return launch<128>(params, stream);
    case 144:
      return launch<144>(params, stream);
    case 160:
      return launch<160>(params, stream);
    default:
      DPIF_CHECK(false, "no kernel has tiles of ", config.tile_n, " columns");
  }
}

}  // namespace dpiframe
