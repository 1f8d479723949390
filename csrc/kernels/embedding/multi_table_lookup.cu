// GPU multi-table lookup: one launch for all tables of a batch, with FM, the wide sum and the dense
// features.
//
// Why one launch: a launch for each table costs more than copying its rows, and small tables leave
// the GPU idle. The work is divided output-first (arXiv 2606.21101): threads own parts of the
// output, so every thread has the same work whatever the tables' sizes.
//
// Shapes: ids [F, B], out [B, W] of the tables' type (fp32, fp16, bf16), fm [B] and wide [B] fp32;
// multi_table_lookup.h has the formulas.
// A CTA owns a tile of samples and all their fields. It first reads their ids, coalesced along B,
// checks them and keeps the address of each embedding row in shared memory (checked_rows.cuh). Then
// a team of at most 32 threads of one warp owns a sample at a time: `row_threads` neighbouring
// threads read one embedding row, a team reads `rows_at_once` rows of neighbouring fields side by
// side, so that a warp writes whole lines of out. kUnroll rows a thread are loaded before the first
// is stored; at 39 fields of 16 floats that is all of them. Where a sample has more, and few
// samples leave the GPU room, several teams share its copies. The sums of FM and of the wide part
// are reduced by shuffles, in an order that depends on the shape alone. FM cancels, so fp32 sums it
// in double. Dense features [N, B] are copied to shared memory while the ids are read; as rows they
// are multiplied by their weights where the team copies embedding rows.
//
// Bytes a sample: F ids, and for each field dim numbers read and dim written, once. The vector
// width of an access is 16 bytes where every dim and column is a multiple of that and all is
// aligned, else the half of it that is, down to a number.
#include <cuda_pipeline_primitives.h>

#include <algorithm>
#include <limits>

#include "cuda/completion_flag.cuh"
#include "cuda/programmatic_launch.cuh"
#include "kernels/elementwise/matrix.cuh"
#include "kernels/embedding/checked_rows.cuh"
#include "kernels/embedding/row_vectors.cuh"

namespace dpiframe {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kMinBlocks = 4;                   // a multiprocessor: at most 64 registers a thread
constexpr std::int64_t kMultiprocessors = 132;  // of a large GPU
constexpr std::int64_t kThreadsAtOnce = kMultiprocessors * kMinBlocks * kMaxThreads;
constexpr std::size_t kSharedBytes = 48 * 1024;  // the default limit of every device

struct LookupArguments {
  MultiTableLookupParams params;
  LookupConfig config;
  const void* zeros;  // read in place of missing embedding rows
};

// The shared-memory layout; a sample's fields are padded to what a team reads at once.
struct Shared {
  LookupColumns* columns;  // [padded_fields], dim 0 past the fields
  const char** rows;       // [tile, stride]: where each field's row starts
  float* weights;          // [tile, stride]: of the wide sum
  int stride;
  float* dense;  // [dense columns, dense_stride]: of the tile's samples
  int dense_stride;
};

// Odd, so that reads of many features of a sample have no bank conflicts.
__host__ __device__ int dense_stride_of(const LookupConfig& config) {
  return config.tile | 1;
}

__device__ Shared shared_arrays(char* memory, const LookupConfig& config) {
  const int stride = rows_stride(config.padded_fields);
  auto* columns = reinterpret_cast<LookupColumns*>(memory);
  auto* rows = reinterpret_cast<const char**>(columns + config.padded_fields);
  auto* weights = reinterpret_cast<float*>(rows + config.tile * stride);
  return {columns, rows, weights, stride, weights + config.tile * stride, dense_stride_of(config)};
}

// Stores the addresses of a sample's embedding rows.
struct RowStarts {
  const char** rows;
  const char* zeros;
  template <class Row>
  __device__ void found(int f, Row row, const LookupTable& table) const {
    rows[f] = table.table + std::uint64_t{row} * table.row_bytes;
  }
  __device__ void missing(int f) const { rows[f] = zeros; }
};

// The same, and starts the copies of the wide weights to shared memory.
struct RowStartsAndWeights {
  RowStarts starts;
  float* weights;
  template <class Row>
  __device__ void found(int f, Row row, const LookupTable& table) const {
    starts.found(f, row, table);
    if (table.wide != nullptr)
      __pipeline_memcpy_async(weights + f, table.wide + row, sizeof(float));
    else
      weights[f] = 0.0f;
  }
  __device__ void missing(int f) const {
    starts.missing(f);
    weights[f] = 0.0f;
  }
};

// Starts the copies of the tile's dense features.
__device__ void load_dense_columns(const BatchMemory& inputs, const LookupArguments& arguments,
                                   std::int64_t first_sample, int num_samples, int thread,
                                   const Shared& shared) {
  const LookupConfig& config = arguments.config;
  const int sample = thread & (config.tile - 1);
  if (sample >= num_samples) return;
  const int step = config.team * config.num_teams >> config.tile_bits;
  for (int n = thread >> config.tile_bits; n < arguments.params.shape.dense_columns; n += step)
    __pipeline_memcpy_async(shared.dense + n * shared.dense_stride + sample,
                            inputs.dense + n * inputs.dense_stride + first_sample + sample,
                            sizeof(float));
}

// Writes the dense features that stay numbers.
__device__ void store_dense_numbers(const DenseSlot& slot, std::int64_t first_sample,
                                    int num_samples, int thread, int num_threads,
                                    const Shared& shared) {
  const int total = num_samples * slot.count;
  for (int i = thread; i < total; i += num_threads) {
    const int sample = i / slot.count;
    const int n = i - sample * slot.count;
    float value = shared.dense[(slot.first + n) * shared.dense_stride + sample];
    if (slot.weight != nullptr) value *= slot.weight[n];
    if (slot.shift != nullptr) value += slot.shift[n];
    store(slot.numbers, first_sample + sample, n, value);
  }
}

// The addresses of all embedding rows of the tile, and its dense features.
template <bool kDense>
__device__ void load_row_starts(const BatchMemory& inputs, const LookupArguments& arguments,
                                std::int64_t first_sample, int num_samples, const Shared& shared) {
  launch_dependents();
  const MultiTableLookupParams& params = arguments.params;
  const LookupConfig& config = arguments.config;
  const int thread = threadIdx.y * config.team + threadIdx.x;
  const int num_threads = config.team * config.num_teams;
  for (int f = thread; f < config.padded_fields; f += num_threads) {
    if (f < params.shape.num_fields)
      __pipeline_memcpy_async(shared.columns + f, &params.fields[f].columns, sizeof(LookupColumns));
    else
      shared.columns[f] = {};
  }
  if constexpr (kDense)
    load_dense_columns(inputs, arguments, first_sample, num_samples, thread, shared);
  __pipeline_commit();
  const LookupIds lookup{params.fields, params.shape.num_fields, params.shape.first_ids_row,
                         inputs.report + params.report};
  const int sample = thread & (config.tile - 1);
  const RowsShare share{first_sample + sample, sample < num_samples, thread >> config.tile_bits,
                        num_threads >> config.tile_bits};
  const int index = sample * shared.stride;
  const RowStarts starts{shared.rows + index, static_cast<const char*>(arguments.zeros)};
  if (params.wide == nullptr)
    for_each_row(inputs, lookup, share, starts);
  else
    for_each_row(inputs, lookup, share, RowStartsAndWeights{starts, shared.weights + index});
  __pipeline_commit();
  __pipeline_wait_prior(1);
  __syncthreads();
}

// One CTA's tile.
template <class T, int kWidth, bool kDense>
__device__ void look_up(const BatchMemory& inputs, const LookupArguments& arguments) {
  const MultiTableLookupParams& params = arguments.params;
  const LookupConfig& config = arguments.config;
  const std::int64_t first_sample = static_cast<std::int64_t>(blockIdx.x) * config.tile;
  const std::int64_t left = inputs.batch - first_sample;
  if (left <= 0) return;
  const int num_samples = static_cast<int>(min(left, static_cast<std::int64_t>(config.tile)));
  extern __shared__ __align__(16) char memory[];
  const Shared shared = shared_arrays(memory, config);
  load_row_starts<kDense>(inputs, arguments, first_sample, num_samples, shared);
  for (int i = 0; kDense && i < params.num_dense; ++i)
    if (params.dense[i].numbers.data != nullptr)
      store_dense_numbers(params.dense[i], first_sample, num_samples,
                          threadIdx.y * config.team + threadIdx.x, config.team * config.num_teams,
                          shared);

  T* block_out = static_cast<T*>(params.out) + first_sample * params.out_stride;
  const int lane = threadIdx.x & (config.row_threads - 1);
  const int place = static_cast<int>(threadIdx.y) & ((1 << config.share_bits) - 1);
  const int first_row = (place * config.team + static_cast<int>(threadIdx.x)) >> config.row_bits;
  for (int sample = threadIdx.y >> config.share_bits; sample < config.tile;
       sample += config.samples_at_once) {
    const bool writes = params.out != nullptr && sample < num_samples;
    T* out = block_out + sample * params.out_stride;
    typename Sums<T, kWidth>::Number fm = 0;
    for (int v = lane; v - lane < config.num_vectors; v += config.row_threads) {
      Sums<T, kWidth> sums;
      for (int f = first_row; f < config.padded_fields; f += config.rows_at_once * kUnroll)
        copy_vectors(shared.columns + f, shared.rows + sample * shared.stride + f,
                     config.rows_at_once, v, writes ? out + v * kWidth : nullptr,
                     params.fm != nullptr, sums);
      for (int i = 0; kDense && i < params.num_dense; ++i)
        if (v * kWidth < params.dense[i].dim)
          scale_vectors(params.dense[i], shared.dense + sample, shared.dense_stride, first_row,
                        config.rows_at_once, v, writes ? out : nullptr, sums);
      if (params.fm != nullptr) fm += fm_of_vector(sums, config.row_threads, config.team);
    }
    if (params.fm == nullptr) continue;
    fm = sum_over(fm, 1, config.row_threads) / 2;
    if (threadIdx.x == 0 && sample < num_samples)
      params.fm[first_sample + sample] = static_cast<float>(fm);
  }
  if (params.wide == nullptr) return;
  __pipeline_wait_prior(0);
  __syncthreads();
  for (int sample = threadIdx.y; sample < config.tile; sample += config.num_teams) {
    float wide = 0.0f;
    for (int f = threadIdx.x; f < params.shape.num_fields; f += config.team)
      wide += shared.weights[sample * shared.stride + f];
    for (int i = 0; kDense && i < params.num_dense; ++i) {
      const DenseSlot& slot = params.dense[i];
      for (int n = threadIdx.x; slot.wide != nullptr && n < slot.count; n += config.team)
        wide =
            fmaf(shared.dense[(slot.first + n) * shared.dense_stride + sample], slot.wide[n], wide);
    }
    wide = sum_over(wide, 1, config.team);
    if (threadIdx.x == 0 && sample < num_samples) params.wide[first_sample + sample] = wide;
  }
}

// kDense: whether it brings dense features along.
template <class T, int kWidth, bool kDense>
__global__ void __launch_bounds__(kMaxThreads, kMinBlocks)
    lookup_kernel(const __grid_constant__ BatchMemory inputs,
                  const __grid_constant__ LookupArguments arguments) {
  BatchMemory* const copy = arguments.params.batch_memory;
  if (copy != nullptr && blockIdx.x == 0 && threadIdx.x == 0 && threadIdx.y == 0) *copy = inputs;
  look_up<T, kWidth, kDense>(inputs, arguments);
  if (arguments.params.completion.flag != nullptr) signal_completion(arguments.params.completion);
}

template <class T, bool kDense>
void launch(const LookupArguments& arguments, const BatchMemory& inputs, unsigned num_blocks,
            cudaStream_t stream) {
  constexpr int kWidest = 16 / sizeof(T);
  const LookupConfig& config = arguments.config;
  auto* kernel = lookup_kernel<T, 1, kDense>;
  if (arguments.params.shape.width == 2) kernel = lookup_kernel<T, 2, kDense>;
  if (arguments.params.shape.width == 4) kernel = lookup_kernel<T, 4, kDense>;
  if (arguments.params.shape.width == kWidest) kernel = lookup_kernel<T, kWidest, kDense>;
  const auto shared = static_cast<int>(config.shared_bytes);
  if (config.shared_bytes > kSharedBytes)  // one sample with thousands of fields
    DPIF_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  kernel<<<num_blocks, dim3(config.team, config.num_teams), shared, stream>>>(inputs, arguments);
}

template <class T>
void launch(const LookupArguments& arguments, const BatchMemory& inputs, unsigned num_blocks,
            cudaStream_t stream) {
  if (arguments.params.num_dense > 0)
    launch<T, true>(arguments, inputs, num_blocks, stream);
  else
    launch<T, false>(arguments, inputs, num_blocks, stream);
}

int width_of_out(const MultiTableLookupParams& params) {
  int width = params.shape.width;
  const auto address = reinterpret_cast<std::uintptr_t>(params.out);
  const auto fits = [&](int w) {
    return address % (w * bytes_of(params.shape.type)) == 0 && params.out_stride % w == 0;
  };
  while (!fits(width)) width /= 2;
  return width;
}

}  // namespace

LookupConfig lookup_config(const LookupShape& shape, std::int64_t rows, bool fm) {
  LookupConfig config{};
  config.num_vectors = (shape.max_dim + shape.width - 1) / shape.width;
  while (1 << config.row_bits < std::min(32, config.num_vectors)) ++config.row_bits;
  config.row_threads = 1 << config.row_bits;
  config.rows_at_once = 1;
  while (config.row_threads * config.rows_at_once < 32 &&
         config.rows_at_once * kUnroll < shape.num_fields)
    config.rows_at_once *= 2;
  config.team = config.row_threads * config.rows_at_once;
  config.num_teams = kMaxThreads / config.team;
  // One team would wait for memory once for each of its steps.
  int sharing = 1;
  while (!fm && sharing < config.num_teams && config.rows_at_once * kUnroll < shape.num_fields &&
         2 * sharing * config.team * rows <= kThreadsAtOnce) {
    sharing *= 2;
    config.rows_at_once *= 2;
    ++config.share_bits;
  }
  config.tile = config.num_teams / sharing;
  const int at_once = config.rows_at_once * kUnroll;
  config.padded_fields = (shape.num_fields + at_once - 1) / at_once * at_once;
  const auto shared_bytes = [&] {
    return config.padded_fields * sizeof(LookupColumns) +
           config.tile * rows_stride(config.padded_fields) * (sizeof(char*) + sizeof(float)) +
           shape.dense_columns * dense_stride_of(config) * sizeof(float);
  };
  // With two samples a team fewer CTAs pay for the first step; not where a multiprocessor would get
  // no CTA, or teams share a sample.
  if (sharing == 1 && rows >= 2 * kMultiprocessors * config.tile && 2 * config.tile <= kMaxThreads)
    config.tile *= 2;
  while (config.tile > 1 && shared_bytes() > kSharedBytes) config.tile /= 2;
  while (1 << config.tile_bits < config.tile) ++config.tile_bits;
  config.num_teams = std::min(config.num_teams, config.tile * sharing);
  config.samples_at_once = config.num_teams / sharing;
  config.shared_bytes = shared_bytes();
  return config;
}

void multi_table_lookup(std::int64_t rows, const MultiTableLookupParams& params,
                        const BatchMemory& inputs, cudaStream_t stream) {
  DPIF_CHECK(rows >= 0, "rows must not be negative, got ", rows);
  if (rows == 0) return;
  LookupArguments arguments{params, {}, params.fields + params.shape.num_fields};
  arguments.params.shape.width = width_of_out(params);
  arguments.config = lookup_config(arguments.params.shape, rows, params.fm != nullptr);
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
