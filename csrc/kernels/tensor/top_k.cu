// out = the k largest (or smallest) of the last axis in order, or their places there.
//
// Each element becomes a 64-bit key: the number's order in the high half, its place in the low one,
// so that keys are distinct and of equal numbers the first place comes first. NaN counts as larger
// than any number, as in torch.sort. By the length of a row:
// - up to 32 elements: a thread has a row in registers and counts for each element those before it,
//   which is its place in the result;
// - up to 64: so does a warp, a row's elements spread over its lanes;
// - few to pick, or a long row: a warp or a block owns it and finds the next largest key k times,
//   reading the row from cache each time;
// - up to 4,096: a block sorts the keys in shared memory (bitonic, 32 KiB).
#include "kernels/tensor/launch.cuh"

namespace dpiframe {
namespace {

using Key = unsigned long long;

constexpr int kMostCounted = 32;
constexpr int kMostInWarp = 64;
constexpr int kMostSorted = 4096;

struct TopKParams {
  Matrix x;
  Axes outer;
  AxisStrides outer_x;
  int step;  // along the last axis
  int size;  // of it
  int k;
  bool largest;
  bool places;
  int padded;  // the power of two that is sorted
  Matrix out;
};

// The larger, the earlier it comes.
__device__ unsigned order_of(float value, bool largest) {
  unsigned order = __float_as_uint(value == 0.0f ? 0.0f : value);  // -0 is 0
  order = (order >> 31) != 0 ? ~order : order | 0x80000000u;
  if (value != value) order = 0xffffffffu;
  return largest ? order : ~order;
}

// 0 is below every key.
__device__ Key key_of(float value, bool largest, int place) {
  return (static_cast<Key>(order_of(value, largest)) << 32) |
         (0xffffffffu - static_cast<unsigned>(place));
}

__device__ int place_of(Key key) {
  return static_cast<int>(0xffffffffu - static_cast<unsigned>(key));
}

// The element at `place` of the axis is the result's i-th.
__device__ void write(const TopKParams& p, const RowPlace& at, int column, int i, int place) {
  const float value =
      p.places ? static_cast<float>(place) : load(p.x, at.row, column + place * p.step);
  store(p.out, at.row, static_cast<std::int64_t>(at.place) * p.k + i, value);
}

// A thread a row of at most kMost elements.
template <int kMost>
__global__ void __launch_bounds__(kGroupThreads)
    count_kernel(const RowRange range, const __grid_constant__ TopKParams p) {
  const std::uint32_t place = group_place<1>();
  if (place >= range.places) return;
  const RowPlace at = row_place(range, place);
  const int column = column_at(p.outer, p.outer_x, at.place);
  unsigned order[kMost];
  int before[kMost];  // elements that come before it
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    order[i] = i < p.size ? order_of(load(p.x, at.row, column + i * p.step), p.largest) : 0;
    before[i] = 0;
  }
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
#pragma unroll
    for (int j = i + 1; j < kMost; ++j) {
      const int later = order[j] > order[i] ? 1 : 0;  // of equal ones the first comes first
      before[i] += later;
      before[j] += 1 - later;
    }
  }
#pragma unroll
  for (int i = 0; i < kMost; ++i)
    if (i < p.size && before[i] < p.k) write(p, at, column, before[i], i);
}

// A warp a row of at most 32 kEach elements.
template <int kEach>
__global__ void __launch_bounds__(kGroupThreads)
    count_in_warp_kernel(const RowRange range, const __grid_constant__ TopKParams p) {
  const std::uint32_t place = group_place<32>();
  if (place >= range.places) return;  // the whole warp
  const RowPlace at = row_place(range, place);
  const int column = column_at(p.outer, p.outer_x, at.place);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  unsigned order[kEach];
  int before[kEach];
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int i = lane + e * 32;
    order[e] = i < p.size ? order_of(load(p.x, at.row, column + i * p.step), p.largest) : 0;
    before[e] = 0;
  }
#pragma unroll
  for (int whose = 0; whose < kEach; ++whose) {
#pragma unroll 8
    for (int source = 0; source < 32; ++source) {
      const unsigned other = __shfl_sync(0xffffffffu, order[whose], source);
      const int j = source + whose * 32;
#pragma unroll
      for (int e = 0; e < kEach; ++e) {
        const bool first = other == order[e] && j < lane + e * 32;
        before[e] += other > order[e] || first ? 1 : 0;
      }
    }
  }
#pragma unroll
  for (int e = 0; e < kEach; ++e) {
    const int i = lane + e * 32;
    if (i < p.size && before[e] < p.k) write(p, at, column, before[e], i);
  }
}

template <int kGroup>
__global__ void __launch_bounds__(kGroupThreads)
    select_kernel(const RowRange range, const __grid_constant__ TopKParams p) {
  const std::uint32_t place = group_place<kGroup>();
  if (place >= range.places) return;  // the whole group
  const RowPlace at = row_place(range, place);
  const int column = column_at(p.outer, p.outer_x, at.place);
  Key before = 0;
  for (int i = 0; i < p.k; ++i) {
    Key best = 0;
    for (int j = threadIdx.x % kGroup; j < p.size; j += kGroup) {
      const Key key = key_of(load(p.x, at.row, column + j * p.step), p.largest, j);
      if ((i == 0 || key < before) && key > best) best = key;
    }
    before = over_group<kGroup>(best, [](Key a, Key b) { return a > b ? a : b; });
    if (threadIdx.x % kGroup == 0) write(p, at, column, i, place_of(before));
  }
}

__global__ void __launch_bounds__(kGroupThreads)
    sort_kernel(const RowRange range, const __grid_constant__ TopKParams p) {
  extern __shared__ Key keys[];  // [padded]
  const RowPlace at = row_place(range, blockIdx.x);
  const int column = column_at(p.outer, p.outer_x, at.place);
  for (int i = threadIdx.x; i < p.padded; i += kGroupThreads)
    keys[i] = i < p.size ? key_of(load(p.x, at.row, column + i * p.step), p.largest, i) : 0;
  for (int run = 2; run <= p.padded; run *= 2)
    for (int apart = run / 2; apart > 0; apart /= 2) {
      __syncthreads();
      for (int i = threadIdx.x; i < p.padded / 2; i += kGroupThreads) {
        const int low = i / apart * 2 * apart + i % apart;
        const int high = low + apart;
        const Key a = keys[low];
        const Key b = keys[high];
        const bool falling = (low & run) == 0;
        if (falling ? a < b : a > b) {
          keys[low] = b;
          keys[high] = a;
        }
      }
    }
  __syncthreads();
  for (int i = threadIdx.x; i < p.k; i += kGroupThreads) write(p, at, column, i, place_of(keys[i]));
}

enum class Way { kCount, kCountInWarp, kSelect, kSort };

// By a count of a warp's instructions a row.
Way way_of(int size, int k) {
  if (size <= kMostCounted) return Way::kCount;
  const int each = (size + 31) / 32;
  const int select = k * (12 * each + 45);
  if (size <= kMostInWarp && 32 * each * (1 + 4 * each) < select) return Way::kCountInWarp;
  return k > 8 && size <= kMostSorted ? Way::kSort : Way::kSelect;
}

void launch_count(const RowRange& range, const TopKParams& params, cudaStream_t stream) {
  const unsigned blocks = blocks_of(range.places, kGroupThreads);
  if (params.size <= 8)
    count_kernel<8><<<blocks, kGroupThreads, 0, stream>>>(range, params);
  else if (params.size <= 16)
    count_kernel<16><<<blocks, kGroupThreads, 0, stream>>>(range, params);
  else
    count_kernel<kMostCounted><<<blocks, kGroupThreads, 0, stream>>>(range, params);
}

void launch_count_in_warp(const RowRange& range, const TopKParams& params, cudaStream_t stream) {
  const unsigned blocks = blocks_of(range.places, kGroupThreads / 32);
  count_in_warp_kernel<kMostInWarp / 32><<<blocks, kGroupThreads, 0, stream>>>(range, params);
}

void launch_select(const RowRange& range, const TopKParams& params, cudaStream_t stream) {
  const int group = params.size <= 2048 ? 32 : kGroupThreads;
  const unsigned blocks = blocks_of(range.places, kGroupThreads / group);
  if (group == 32)
    select_kernel<32><<<blocks, kGroupThreads, 0, stream>>>(range, params);
  else
    select_kernel<kGroupThreads><<<blocks, kGroupThreads, 0, stream>>>(range, params);
}

void launch_sort(const RowRange& range, const TopKParams& params, cudaStream_t stream) {
  const std::size_t bytes = sizeof(Key) * params.padded;
  sort_kernel<<<range.places, kGroupThreads, bytes, stream>>>(range, params);
}

}  // namespace

TensorLaunch top_k_op(const TopKOp& op, const TensorOperands& operands) {
  check_inputs(operands, "a top k", 1, 1);
  const Operand& x = operands.inputs[0].operand;
  check_operation(!x.shape.empty() && op.k >= 1 && op.k <= x.shape.back(), "a top k");
  const std::size_t last = x.shape.size() - 1;
  const SharedAxes outer = shared_axes(between(x.shape, 0, last), {between(x.strides, 0, last)});
  check_out(operands, "a top k", static_cast<std::int64_t>(outer.axes.elements) * op.k);
  TopKParams params{from_offset(operands.inputs[0]),
                    outer.axes,
                    outer.strides[0],
                    x.strides.back(),
                    x.shape.back(),
                    op.k,
                    op.largest,
                    op.places,
                    2,
                    operands.out};
  while (params.padded < params.size) params.padded *= 2;
  const Way way = way_of(params.size, params.k);
  return [params, way](std::int64_t rows, cudaStream_t stream) {
    in_row_ranges(rows, params.outer.elements, [&](const RowRange& range) {
      if (way == Way::kCount) launch_count(range, params, stream);
      if (way == Way::kCountInWarp) launch_count_in_warp(range, params, stream);
      if (way == Way::kSelect) launch_select(range, params, stream);
      if (way == Way::kSort) launch_sort(range, params, stream);
      DPIF_CUDA_CHECK(cudaGetLastError());
    });
  };
}

}  // namespace dpiframe
