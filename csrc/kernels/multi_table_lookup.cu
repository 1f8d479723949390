// GPU multi-table lookup: one launch for all tables of a batch, with FM and the wide sum.
//
// Why one launch: a table's own launch costs more than its rows, and small tables leave the GPU
// empty. The work is allotted by output, so every block has the same whatever the tables' sizes.
//
// Shapes: ids [F, B], out [B, W] of the tables' type (fp32, fp16, bf16), fm [B] and wide [B] fp32;
// multi_table_lookup.h has the formulas.
// A block owns `tile` samples and all their fields. It first reads their ids, coalesced along B,
// checks them and keeps them in shared memory. Then a thread owns one piece (`lane`) of the rows of
// one sample for every `slices`-th field: `lanes` neighbouring threads read one row, a warp writes
// neighbouring pieces of out. kUnroll rows a thread are in flight before the first is written.
// FM's sums stay in registers and meet once in shared memory; sums have a fixed order.
//
// Bytes a sample: F ids, and for each field dim numbers read and dim written, once. Accesses are
// 16 bytes where every dim and column is a multiple of that and all is aligned, else 2 numbers
// or 1.
#include <algorithm>
#include <limits>

#include "common/cuda_check.h"
#include "common/numbers.cuh"
#include "common/vec.h"
#include "kernels/lookup_rows.cuh"

namespace dpiframe {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kUnroll = 4;
constexpr int kSlices = 4;
constexpr std::int64_t kFewThreads = 132 * 1024;  // half of what a large GPU holds
constexpr std::size_t kSharedBytes = 48 * 1024;   // what every device gives a block unasked

struct LookupArguments {
  MultiTableLookupParams params;
  LookupConfig config;
};

// A piece's sum and sum of squares over fields, for FM.
template <int kWidth>
struct Sums {
  float sum[kWidth] = {};
  float squares[kWidth] = {};
};

// Piece v of every slices-th row of one sample, from table to out; the fields in FM are added to
// `sums`. Returns the sum of the fields' wide weights, which travel beside the rows, to the thread
// of piece 0.
template <class T, int kWidth>
__device__ float copy_pieces(const MultiTableLookupParams& params, const LookupConfig& config,
                             const std::int64_t* rows, int slice, int v, T* out,
                             Sums<kWidth>& sums) {
  using Piece = Vec<T, kWidth>;
  const int num_fields = params.shape.num_fields;
  float wide = 0.0f;
  for (int f0 = slice; f0 < num_fields; f0 += config.slices * kUnroll) {
    Piece pieces[kUnroll] = {};
    float weights[kUnroll] = {};
    std::int64_t columns[kUnroll];  // -1: nothing to write
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int f = f0 + u * config.slices;
      columns[u] = -1;
      if (f >= num_fields) continue;
      const PackedLookupField& field = params.fields[f];
      const PackedLookupField::Place& place = field.place;
      const std::int64_t row = rows[f];
      if (v == 0 && params.wide != nullptr && field.wide != nullptr && row >= 0)
        weights[u] = field.wide[row];
      if (v * kWidth >= place.dim) continue;
      columns[u] = place.out_column + v * kWidth;
      if (row >= 0)
        pieces[u] = *reinterpret_cast<const Piece*>(static_cast<const T*>(place.table) +
                                                    row * place.dim + v * kWidth);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      wide += weights[u];
      if (columns[u] < 0) continue;
      if (out != nullptr) *reinterpret_cast<Piece*>(out + columns[u]) = pieces[u];
      if (params.fm == nullptr || !params.fields[f0 + u * config.slices].place.in_fm) continue;
      for (int k = 0; k < kWidth; ++k) {
        const float value = to_float(pieces[u].values[k]);
        sums.sum[k] += value;
        sums.squares[k] += value * value;
      }
    }
  }
  return wide;
}

// Adds up the slices' sums of one piece; the answer is slice 0's: sum_k (sum^2 - squares).
template <int kWidth>
__device__ float fm_of_piece(const Sums<kWidth>& sums, int slices, Sums<kWidth>* scratch) {
  const int stride = blockDim.x / slices;
  scratch[threadIdx.x] = sums;
  __syncthreads();
  float fm = 0.0f;
  if (threadIdx.x < stride) {
    for (int k = 0; k < kWidth; ++k) {
      float total = 0.0f;
      float total_squares = 0.0f;
      for (int s = 0; s < slices; ++s) {
        total += scratch[s * stride + threadIdx.x].sum[k];
        total_squares += scratch[s * stride + threadIdx.x].squares[k];
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

template <class T, int kWidth>
__global__ void __launch_bounds__(kMaxThreads)
    lookup_kernel(const __grid_constant__ RunInputs inputs,
                  const __grid_constant__ LookupArguments arguments) {
  const MultiTableLookupParams& params = arguments.params;
  const LookupConfig& config = arguments.config;
  extern __shared__ __align__(16) char shared[];
  auto* scratch = reinterpret_cast<Sums<kWidth>*>(shared);  // [threads]
  auto* rows = reinterpret_cast<std::int64_t*>(scratch + blockDim.x);
  const LookupIds lookup{params.fields, params.shape.num_fields, params.shape.first_ids_row,
                         inputs.report + params.report};
  read_rows(inputs, lookup, static_cast<std::int64_t>(blockIdx.x) * config.tile, config.tile,
            threadIdx.x, blockDim.x, rows);
  __syncthreads();

  const int lane = threadIdx.x % config.lanes;
  const int sample = threadIdx.x / config.lanes % config.tile;
  const int slice = threadIdx.x / (config.lanes * config.tile);
  const std::int64_t b = static_cast<std::int64_t>(blockIdx.x) * config.tile + sample;
  T* out = params.out != nullptr && b < inputs.batch
               ? static_cast<T*>(params.out) + b * params.out_stride
               : nullptr;

  float fm = 0.0f;
  float wide = 0.0f;
  const int num_pieces = max(1, (params.shape.max_dim + kWidth - 1) / kWidth);
  for (int v = lane; v - lane < num_pieces; v += config.lanes) {
    Sums<kWidth> sums;
    wide += copy_pieces<T, kWidth>(
        params, config, rows + sample * rows_stride(params.shape.num_fields), slice, v, out, sums);
    if (params.fm != nullptr) fm += fm_of_piece(sums, config.slices, scratch);
  }
  float* parts = reinterpret_cast<float*>(scratch);
  if (params.fm != nullptr) sum_of_sample(fm, 0.5f, config, inputs.batch, parts, params.fm);
  if (params.wide != nullptr) sum_of_sample(wide, 1.0f, config, inputs.batch, parts, params.wide);
}

template <class T>
void launch(const LookupArguments& arguments, const RunInputs& inputs, unsigned num_blocks,
            cudaStream_t stream) {
  constexpr int kWidest = 16 / sizeof(T);
  const LookupConfig& config = arguments.config;
  const dim3 threads(config.lanes * config.tile * config.slices);
  const std::size_t shared = config.shared_bytes;
  if (arguments.params.shape.width == kWidest)
    lookup_kernel<T, kWidest><<<num_blocks, threads, shared, stream>>>(inputs, arguments);
  else if (arguments.params.shape.width == 2)
    lookup_kernel<T, 2><<<num_blocks, threads, shared, stream>>>(inputs, arguments);
  else
    lookup_kernel<T, 1><<<num_blocks, threads, shared, stream>>>(inputs, arguments);
}

int width_of_out(const MultiTableLookupParams& params) {
  const int width = params.shape.width;
  const auto address = reinterpret_cast<std::uintptr_t>(params.out);
  const auto fits = [&](int w) {
    return address % (w * bytes_of(params.shape.type)) == 0 && params.out_stride % w == 0;
  };
  if (fits(width)) return width;
  return width > 1 && fits(2) ? 2 : 1;
}

}  // namespace

LookupConfig lookup_config(const LookupShape& shape, std::int64_t rows, bool sums) {
  const int width = shape.width;
  LookupConfig config{1, 0, shape.num_fields >= 8 ? kSlices : 1, 0};
  while (config.lanes < 32 && config.lanes * width < shape.max_dim) config.lanes *= 2;
  // Small batches need more threads a sample to fill the GPU. The order of FM's and the wide sums
  // follows from the slices, and must not depend on the batch.
  const bool small = rows * config.lanes * config.slices < kFewThreads;
  if (!sums && small && shape.num_fields >= 16) config.slices *= 2;
  config.tile = kMaxThreads / (config.lanes * config.slices);
  const auto shared_bytes = [&] {
    return config.tile * (2 * config.lanes * config.slices * width * sizeof(float) +
                          rows_stride(shape.num_fields) * sizeof(std::int64_t));
  };
  while (config.tile > 1 && shared_bytes() > kSharedBytes) config.tile /= 2;
  config.shared_bytes = shared_bytes();
  return config;
}

void multi_table_lookup(std::int64_t rows, const MultiTableLookupParams& params,
                        const RunInputs& inputs, cudaStream_t stream) {
  DPIF_CHECK(rows >= 0, "rows must not be negative, got ", rows);
  if (rows == 0) return;
  LookupArguments arguments{params, {}};
  arguments.params.shape.width = width_of_out(params);
  const bool sums = params.fm != nullptr || params.wide != nullptr;
  arguments.config = lookup_config(arguments.params.shape, rows, sums);
  const int tile = arguments.config.tile;
  const std::int64_t num_blocks = (rows + tile - 1) / tile;
  DPIF_CHECK(num_blocks <= std::numeric_limits<int>::max(), "batch must be at most ",
             std::int64_t{std::numeric_limits<int>::max()} * tile, ", got ", rows);
  const auto blocks = static_cast<unsigned>(num_blocks);
  const DataType type = params.shape.type;
  if (type == DataType::kHalf) launch<__half>(arguments, inputs, blocks, stream);
  if (type == DataType::kBfloat16) launch<__nv_bfloat16>(arguments, inputs, blocks, stream);
  if (type == DataType::kFloat) launch<float>(arguments, inputs, blocks, stream);
  DPIF_CUDA_CHECK(cudaGetLastError());
}

}  // namespace dpiframe
