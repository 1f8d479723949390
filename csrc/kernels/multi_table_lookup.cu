// GPU multi-table lookup: one launch for all tables of a batch, with FM and the wide sum.
//
// Why one launch: a table's own launch costs more than its rows, and small tables leave the GPU
// empty. The work is allotted by output, so every thread has the same whatever the tables' sizes.
//
// Shapes: ids [F, B], out [B, W] of the tables' type (fp32, fp16, bf16), fm [B] and wide [B] fp32;
// multi_table_lookup.h has the formulas.
// A block owns a tile of samples and all their fields. It first reads their ids, coalesced along B,
// checks them and keeps them in shared memory (lookup_rows.cuh). Then a team of at most 32 threads,
// all of one warp, owns a sample at a time: `lanes` neighbouring threads read one row, the team's
// `slices` read rows of neighbouring fields, so that a warp writes whole lines of out. kUnroll rows
// a thread are in flight before the first is written; at 39 fields of 16 floats that is all of
// them. FM's and the wide sums stay in registers and meet by shuffles, in an order that depends on
// the shape alone. FM cancels, so fp32 adds it up in double.
//
// Bytes a sample: F ids, and for each field dim numbers read and dim written, once. Accesses are
// 16 bytes where every dim and column is a multiple of that and all is aligned, else 2 numbers
// or 1.
#include <cuda_pipeline_primitives.h>

#include <algorithm>
#include <limits>
#include <type_traits>

#include "common/cuda_check.h"
#include "common/numbers.cuh"
#include "common/vec.h"
#include "kernels/lookup_rows.cuh"

namespace dpiframe {
namespace {

constexpr int kMaxThreads = 256;
constexpr int kMinBlocks = 4;  // of a multiprocessor: at most 64 registers a thread
constexpr int kUnroll = 5;
constexpr int kWeights = 3;  // wide weights a thread has in flight
constexpr unsigned kAll = 0xffffffffu;
constexpr std::int64_t kWave = 132 * kMinBlocks;  // blocks that a large GPU holds at once
constexpr std::size_t kSharedBytes = 48 * 1024;   // what every device gives a block unasked

struct LookupArguments {
  MultiTableLookupParams params;
  LookupConfig config;
  const void* zeros;  // read in place of rows that are not there
};

// A piece's sum over fields, and its sum of squares over fields and numbers. Double for fp32: the
// two cancel, and what is left of 39 fields of deviation 1 must be right to 1e-5.
template <class T, int kWidth>
struct Sums {
  using Number = std::conditional_t<std::is_same_v<T, float>, double, float>;
  Number sum[kWidth] = {};
  Number squares = 0;
};

// Tells the compiler that a pointer it found in memory is one to device memory.
template <class T>
__device__ const T& in_device_memory(const T* pointer) {
  __builtin_assume(__isGlobal(pointer));
  return *pointer;
}

// *pointer by one access as wide as Access, which the members would not be read by.
template <class Access, class T>
__device__ T load_whole(const T* pointer) {
  static_assert(sizeof(Access) == sizeof(T));
  return __builtin_bit_cast(T, *reinterpret_cast<const Access*>(pointer));
}

// Copies piece v of kUnroll rows of one sample: those of fields f0, f0 + slices, ... Straight-line
// code up to the last load, so that nothing waits before it: missing rows are read from `zeros`.
// What the stores need is read after it, which saves registers and costs no time.
template <class T, int kWidth>
__device__ void copy_pieces(const Place* places, const std::int64_t* rows, int num_fields, int f0,
                            int slices, int v, const void* zeros, T* out, bool fm,
                            Sums<T, kWidth>& sums) {
  using Piece = Vec<T, kWidth>;
  const Piece* sources[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int f = min(f0 + u * slices, num_fields - 1);
    const Place place = load_whole<int4>(places + f);
    const std::int64_t row = rows[f];
    const T* source = static_cast<const T*>(place.table) + row * place.out.dim + v * kWidth;
    const bool exists = f0 + u * slices < num_fields && v * kWidth < place.out.dim && row >= 0;
    sources[u] = static_cast<const Piece*>(exists ? source : zeros);
  }
  Piece pieces[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) pieces[u] = in_device_memory(sources[u]);
  int columns[kUnroll];  // -1: nothing to write
  unsigned in_fm = 0;    // bit u
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int f = min(f0 + u * slices, num_fields - 1);
    const PlaceInOut place = load_whole<int2>(&places[f].out);
    const bool exists = f0 + u * slices < num_fields && v * kWidth < place.dim;
    columns[u] = exists ? place.column + v * kWidth : -1;
    in_fm |= static_cast<unsigned>(exists && place.in_fm) << u;
  }
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    if (out != nullptr && columns[u] >= 0) *reinterpret_cast<Piece*>(out + columns[u]) = pieces[u];
  }
  if (!fm) return;
  using Number = typename Sums<T, kWidth>::Number;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    if ((in_fm >> u & 1) == 0) continue;
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const Number value = to_float(pieces[u].values[k]);
      sums.sum[k] += value;
      sums.squares += value * value;
    }
  }
}

// Adds up `part` over the threads of a warp that differ in the bits [from, to) of their number.
template <class Number>
__device__ Number sum_over(Number part, int from, int to) {
  for (int offset = from; offset < to; offset *= 2) part += __shfl_xor_sync(kAll, part, offset);
  return part;
}

// A lane's share of sum_k (sum^2 - squares): the slices' sums of its piece, added up.
template <class T, int kWidth>
__device__ auto fm_of_piece(Sums<T, kWidth> sums, int lanes, int team) {
  for (int offset = lanes; offset < team; offset *= 2) {
#pragma unroll
    for (int k = 0; k < kWidth; ++k) sums.sum[k] += __shfl_xor_sync(kAll, sums.sum[k], offset);
    sums.squares += __shfl_xor_sync(kAll, sums.squares, offset);
  }
  auto fm = -sums.squares;
#pragma unroll
  for (int k = 0; k < kWidth; ++k) fm += sums.sum[k] * sums.sum[k];
  return fm;
}

// Adds the wide weights of kWeights fields of a sample: f0, f0 + team, ...
__device__ void load_weights(const PackedLookupField* fields, const std::int64_t* rows,
                             int num_fields, int f0, int team, float (&weights)[kWeights]) {
  const float* tables[kWeights];
#pragma unroll
  for (int u = 0; u < kWeights; ++u) tables[u] = fields[min(f0 + u * team, num_fields - 1)].wide;
#pragma unroll
  for (int u = 0; u < kWeights; ++u) {
    const int f = f0 + u * team;
    const std::int64_t row = rows[min(f, num_fields - 1)];
    if (f < num_fields && tables[u] != nullptr && row >= 0)
      weights[u] = in_device_memory(tables[u] + row);
  }
}

template <class T, int kWidth>
__global__ void __launch_bounds__(kMaxThreads, kMinBlocks)
    lookup_kernel(const __grid_constant__ RunInputs inputs,
                  const __grid_constant__ LookupArguments arguments) {
  const MultiTableLookupParams& params = arguments.params;
  const LookupConfig& config = arguments.config;
  const int num_fields = params.shape.num_fields;
  extern __shared__ Place places[];                                   // [F]
  auto* rows = reinterpret_cast<std::int64_t*>(places + num_fields);  // [tile, rows_stride(F)]

  const int num_threads = config.team * config.num_teams;
  const std::int64_t first_sample = static_cast<std::int64_t>(blockIdx.x) * config.tile;
  if (first_sample >= inputs.batch) return;
  const int thread = threadIdx.y * config.team + threadIdx.x;
  for (int f = thread; f < num_fields; f += num_threads)
    __pipeline_memcpy_async(places + f, &params.fields[f].place, sizeof(Place));
  const LookupIds lookup{params.fields, num_fields, params.shape.first_ids_row,
                         inputs.report + params.report};
  read_rows(inputs, lookup, first_sample, config.tile, thread, num_threads, rows);
  __pipeline_commit();
  __pipeline_wait_prior(0);
  __syncthreads();

  const int lane = threadIdx.x & (config.lanes - 1);
  const int slice = threadIdx.x >> config.lane_bits;
  for (int sample = threadIdx.y; sample < config.tile; sample += config.num_teams) {
    const std::int64_t b = first_sample + sample;
    const std::int64_t* sample_rows = rows + sample * rows_stride(num_fields);
    T* out = params.out != nullptr && b < inputs.batch
                 ? static_cast<T*>(params.out) + b * params.out_stride
                 : nullptr;
    float weights[kWeights] = {};
    if (params.wide != nullptr)
      load_weights(params.fields, sample_rows, num_fields, threadIdx.x, config.team, weights);
    typename Sums<T, kWidth>::Number fm = 0;
    for (int v = lane; v - lane < config.num_pieces; v += config.lanes) {
      Sums<T, kWidth> sums;
      for (int f = slice; f - slice < num_fields; f += config.slices * kUnroll)
        copy_pieces(places, sample_rows, num_fields, f, config.slices, v, arguments.zeros, out,
                    params.fm != nullptr, sums);
      if (params.fm != nullptr) fm += fm_of_piece(sums, config.lanes, config.team);
    }
    if (params.fm != nullptr) {
      fm = sum_over(fm, 1, config.lanes) / 2;
      if (threadIdx.x == 0 && b < inputs.batch) params.fm[b] = static_cast<float>(fm);
    }
    if (params.wide != nullptr) {
      float wide = 0.0f;
      for (int f = 0; f < num_fields; f += kWeights * config.team) {
        if (f > 0)
          load_weights(params.fields, sample_rows, num_fields, f + threadIdx.x, config.team,
                       weights);
        for (float& weight : weights) {
          wide += weight;
          weight = 0.0f;
        }
      }
      wide = sum_over(wide, 1, config.team);
      if (threadIdx.x == 0 && b < inputs.batch) params.wide[b] = wide;
    }
  }
}

template <class T>
void launch(const LookupArguments& arguments, const RunInputs& inputs, unsigned num_blocks,
            cudaStream_t stream) {
  constexpr int kWidest = 16 / sizeof(T);
  const LookupConfig& config = arguments.config;
  auto* kernel = lookup_kernel<T, 1>;
  if (arguments.params.shape.width == 2) kernel = lookup_kernel<T, 2>;
  if (arguments.params.shape.width == kWidest) kernel = lookup_kernel<T, kWidest>;
  const auto shared = static_cast<int>(config.shared_bytes);
  if (config.shared_bytes > kSharedBytes)  // of one sample with thousands of fields
    DPIF_CUDA_CHECK(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
  kernel<<<num_blocks, dim3(config.team, config.num_teams), shared, stream>>>(inputs, arguments);
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

LookupConfig lookup_config(const LookupShape& shape, std::int64_t rows) {
  LookupConfig config{};
  config.num_pieces = (shape.max_dim + shape.width - 1) / shape.width;
  while (1 << config.lane_bits < std::min(32, config.num_pieces)) ++config.lane_bits;
  config.lanes = 1 << config.lane_bits;
  config.slices = 1;
  while (config.lanes * config.slices < 32 && config.slices * kUnroll < shape.num_fields)
    config.slices *= 2;
  config.team = config.lanes * config.slices;
  config.num_teams = kMaxThreads / config.team;
  config.tile = config.num_teams;
  const auto shared_bytes = [&] {
    return shape.num_fields * sizeof(Place) +
           config.tile * rows_stride(shape.num_fields) * sizeof(std::int64_t);
  };
  // A large batch shares the wait for ids among several samples a team.
  for (int doubling = 0; doubling < 2; ++doubling)
    if (rows >= 2 * kWave * config.tile && 2 * config.tile <= kMaxThreads) config.tile *= 2;
  while (config.tile > 1 && shared_bytes() > kSharedBytes) config.tile /= 2;
  config.num_teams = std::min(config.num_teams, config.tile);
  config.shared_bytes = shared_bytes();
  return config;
}

void multi_table_lookup(std::int64_t rows, const MultiTableLookupParams& params,
                        const RunInputs& inputs, cudaStream_t stream) {
  DPIF_CHECK(rows >= 0, "rows must not be negative, got ", rows);
  if (rows == 0) return;
  LookupArguments arguments{params, {}, params.fields + params.shape.num_fields};
  arguments.params.shape.width = width_of_out(params);
  arguments.config = lookup_config(arguments.params.shape, rows);
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
