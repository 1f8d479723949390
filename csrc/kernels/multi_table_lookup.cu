// GPU multi-table lookup: one launch for all tables of a batch, with FM and the wide sum.
//
// Why one launch: a table's own launch costs more than its rows, and small tables leave the GPU
// empty. The work is allotted by output, so every block has the same whatever the tables' sizes.
//
// Shapes: ids [F, B], out [B, W], fm [B], wide [B]; fp32; multi_table_lookup.h has the formulas.
// A block owns `tile` samples and all their fields. It first reads their ids, coalesced along B,
// checks them and keeps them in shared memory. Then a thread owns one piece (`lane`) of the rows of
// one sample for every `slices`-th field: `lanes` neighbouring threads read one row, a warp writes
// neighbouring pieces of out. kUnroll rows a thread are in flight before the first is written.
// FM's sums stay in registers and meet once in shared memory; sums have a fixed order.
//
// Bytes a sample: F ids, and for each field dim * 4 read and dim * 4 written, once. Accesses are
// 16 bytes where every dim and column is a multiple of 4 and all is aligned, else 4 bytes.
#include <algorithm>
#include <limits>

#include "common/cuda_check.h"
#include "common/vec.h"
#include "kernels/multi_table_lookup_cuda.h"

namespace dpiframe {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kUnroll = 4;
constexpr std::size_t kSharedBytes = 48 * 1024;  // what every device gives a block unasked

// A block's ids as rows of their tables, -1 where zeros are due: rows [F, tile].
template <class Id>
__device__ void read_rows(const MultiTableLookupParams& params, int tile, std::int64_t* rows) {
  for (int i = threadIdx.x; i < params.shape.num_fields * tile; i += blockDim.x) {
    const int f = i / tile;
    const std::int64_t b = static_cast<std::int64_t>(blockIdx.x) * tile + i % tile;
    std::int64_t row = -1;
    if (b < params.batch) {
      const LookupField& field = params.fields[f];
      row = static_cast<const Id*>(params.ids)[f * params.ids_stride + b];
      if (row < 0 || row >= field.rows) {
        atomicAdd(params.bad_counts + f, 1ull);
        atomicMin(params.first_bad,
                  static_cast<unsigned long long>(b) * params.shape.num_fields + f);
        row = params.use_oov ? field.oov_row : -1;
      }
    }
    rows[i] = row;
  }
}

// Piece v of every slices-th row of one sample, from table to out. For the fields in FM, the pieces
// are added to `sum` and their squares to `squares`.
template <int kWidth>
__device__ void copy_pieces(const MultiTableLookupParams& params, const LookupConfig& config,
                            const std::int64_t* rows, int slice, int v, float* out,
                            FloatVec<kWidth>& sum, FloatVec<kWidth>& squares) {
  using Vec = FloatVec<kWidth>;
  const int num_fields = params.shape.num_fields;
  for (int f0 = slice; f0 < num_fields; f0 += config.slices * kUnroll) {
    Vec pieces[kUnroll];
    std::int64_t columns[kUnroll];  // -1: nothing to write
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int f = f0 + u * config.slices;
      columns[u] = -1;
      if (f >= num_fields || v * kWidth >= params.fields[f].dim) continue;
      const LookupField& field = params.fields[f];
      const std::int64_t row = rows[f * config.tile];
      columns[u] = field.out_column + v * kWidth;
      if (row >= 0)
        pieces[u] = *reinterpret_cast<const Vec*>(field.table + row * field.dim + v * kWidth);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (columns[u] < 0) continue;
      if (out != nullptr) *reinterpret_cast<Vec*>(out + columns[u]) = pieces[u];
      if (params.fm == nullptr || !params.fields[f0 + u * config.slices].in_fm) continue;
      for (int k = 0; k < kWidth; ++k) {
        sum.values[k] += pieces[u].values[k];
        squares.values[k] += pieces[u].values[k] * pieces[u].values[k];
      }
    }
  }
}

// Adds up the slices' sums of one piece; the answer is slice 0's: sum_k (sum^2 - squares).
template <int kWidth>
__device__ float fm_of_piece(const FloatVec<kWidth>& sum, const FloatVec<kWidth>& squares,
                             int slices, FloatVec<kWidth>* scratch) {
  const int stride = blockDim.x / slices;
  scratch[threadIdx.x] = sum;
  scratch[blockDim.x + threadIdx.x] = squares;
  __syncthreads();
  float fm = 0.0f;
  if (threadIdx.x < stride) {
    for (int k = 0; k < kWidth; ++k) {
      float total = 0.0f;
      float total_squares = 0.0f;
      for (int s = 0; s < slices; ++s) {
        total += scratch[s * stride + threadIdx.x].values[k];
        total_squares += scratch[blockDim.x + s * stride + threadIdx.x].values[k];
      }
      fm += total * total - total_squares;
    }
  }
  __syncthreads();
  return fm;
}

// target[b] = factor * the sum of `part` over all threads of each sample, in the order of threads.
__device__ void sum_of_sample(float part, float factor, const LookupConfig& config,
                              std::int64_t batch, float* scratch, float* target) {
  scratch[threadIdx.x] = part;
  __syncthreads();
  const std::int64_t b = static_cast<std::int64_t>(blockIdx.x) * config.tile + threadIdx.x;
  if (threadIdx.x < config.tile && b < batch) {
    float total = 0.0f;
    for (int slice = 0; slice < config.slices; ++slice)
      for (int lane = 0; lane < config.lanes; ++lane)
        total += scratch[(slice * config.tile + threadIdx.x) * config.lanes + lane];
    target[b] = factor * total;
  }
  __syncthreads();
}

template <class Id, int kWidth>
__global__ void __launch_bounds__(kMaxThreads)
    lookup_kernel(const __grid_constant__ MultiTableLookupParams params,
                  const __grid_constant__ LookupConfig config) {
  extern __shared__ __align__(16) char shared[];
  auto* scratch = reinterpret_cast<FloatVec<kWidth>*>(shared);  // [2, threads]
  auto* rows = reinterpret_cast<std::int64_t*>(scratch + 2 * blockDim.x);
  read_rows<Id>(params, config.tile, rows);
  __syncthreads();

  const int lane = threadIdx.x % config.lanes;
  const int sample = threadIdx.x / config.lanes % config.tile;
  const int slice = threadIdx.x / (config.lanes * config.tile);
  const std::int64_t b = static_cast<std::int64_t>(blockIdx.x) * config.tile + sample;
  float* out = b < params.batch ? params.out + b * params.out_stride : nullptr;

  float fm = 0.0f;
  for (int v = lane; v - lane < (params.shape.max_dim + kWidth - 1) / kWidth; v += config.lanes) {
    FloatVec<kWidth> sum, squares;
    copy_pieces<kWidth>(params, config, rows + sample, slice, v, out, sum, squares);
    if (params.fm != nullptr) fm += fm_of_piece(sum, squares, config.slices, scratch);
  }
  float* sums = reinterpret_cast<float*>(scratch);
  if (params.fm != nullptr) sum_of_sample(fm, 0.5f, config, params.batch, sums, params.fm);
  if (params.wide != nullptr) {
    float part = 0.0f;
    const int num_threads = config.lanes * config.slices;
    for (int f = slice * config.lanes + lane; f < params.shape.num_fields; f += num_threads) {
      const std::int64_t row = rows[f * config.tile + sample];
      if (row >= 0 && params.fields[f].wide != nullptr) part += params.fields[f].wide[row];
    }
    sum_of_sample(part, 1.0f, config, params.batch, sums, params.wide);
  }
}

template <class Id>
void launch(const MultiTableLookupParams& params, const LookupConfig& config, int num_blocks,
            cudaStream_t stream) {
  const int num_threads = config.lanes * config.tile * config.slices;
  if (params.shape.vectors)
    lookup_kernel<Id, 4><<<num_blocks, num_threads, config.shared_bytes, stream>>>(params, config);
  else
    lookup_kernel<Id, 1><<<num_blocks, num_threads, config.shared_bytes, stream>>>(params, config);
}

}  // namespace

LookupConfig lookup_config(const LookupShape& shape) {
  const int width = shape.vectors ? 4 : 1;
  LookupConfig config{1, 0, shape.num_fields >= 8 ? 4 : 1, 0};
  while (config.lanes < 32 && config.lanes * width < shape.max_dim) config.lanes *= 2;
  config.tile = kMaxThreads / (config.lanes * config.slices);
  const auto shared_bytes = [&] {
    return config.tile * (2 * config.lanes * config.slices * width * sizeof(float) +
                          shape.num_fields * sizeof(std::int64_t));
  };
  while (config.tile > 1 && shared_bytes() > kSharedBytes) config.tile /= 2;
  config.shared_bytes = shared_bytes();
  return config;
}

void multi_table_lookup(const MultiTableLookupParams& params, cudaStream_t stream) {
  DPIF_CHECK(params.batch >= 0, "batch must not be negative, got ", params.batch);
  DPIF_CHECK(params.ids_stride >= params.batch, "ids_stride must be at least the batch of ",
             params.batch, ", got ", params.ids_stride);
  if (params.batch == 0) return;
  MultiTableLookupParams checked = params;
  checked.shape.vectors &=
      reinterpret_cast<std::uintptr_t>(params.out) % 16 == 0 && params.out_stride % 4 == 0;
  const LookupConfig config = lookup_config(checked.shape);
  const std::int64_t num_blocks = (params.batch + config.tile - 1) / config.tile;
  DPIF_CHECK(num_blocks <= std::numeric_limits<int>::max(), "batch must be at most ",
             std::int64_t{std::numeric_limits<int>::max()} * config.tile, ", got ", params.batch);
  if (params.ids_are_int64)
    launch<std::int64_t>(checked, config, static_cast<int>(num_blocks), stream);
  else
    launch<std::int32_t>(checked, config, static_cast<int>(num_blocks), stream);
  DPIF_CUDA_CHECK(cudaGetLastError());
}

}  // namespace dpiframe
