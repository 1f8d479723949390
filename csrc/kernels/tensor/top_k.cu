// out = the k largest (or smallest) of the last axis in order, or their places there.
//
// Each element becomes a 64-bit key: the number's order in the high half, its place in the low one,
// so that keys are distinct and of equal numbers the first place comes first. NaN counts as larger
// than any number, as in torch.sort. Two kernels:
// - few to pick, or a long axis: a warp or a block owns a row of the axis and finds the next
// largest
//   key k times, reading the axis from cache each time;
// - up to 4,096 elements: a block sorts the keys in shared memory (bitonic, 32 KiB).
#include "kernels/tensor/launch.cuh"

namespace dpiframe {
namespace {

using Key = unsigned long long;

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

// 0 is below every key.
__device__ Key key_of(float value, bool largest, int place) {
  unsigned order = __float_as_uint(value == 0.0f ? 0.0f : value);  // -0 is 0
  order = (order >> 31) != 0 ? ~order : order | 0x80000000u;
  if (value != value) order = 0xffffffffu;
  if (!largest) order = ~order;
  return (static_cast<Key>(order) << 32) | (0xffffffffu - static_cast<unsigned>(place));
}

__device__ int place_of(Key key) {
  return static_cast<int>(0xffffffffu - static_cast<unsigned>(key));
}

__device__ void write(const TopKParams& p, const RowPlace& at, int column, int i, Key key) {
  const int place = place_of(key);
  const float value =
      p.places ? static_cast<float>(place) : load(p.x, at.row, column + place * p.step);
  store(p.out, at.row, static_cast<std::int64_t>(at.place) * p.k + i, value);
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
    if (threadIdx.x % kGroup == 0) write(p, at, column, i, before);
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
  for (int i = threadIdx.x; i < p.k; i += kGroupThreads) write(p, at, column, i, keys[i]);
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
  const bool sorts = op.k > 8 && params.size > 32 && params.size <= kMostSorted;
  const int group = params.size <= 2048 ? 32 : kGroupThreads;
  return [params, sorts, group](std::int64_t rows, cudaStream_t stream) {
    in_row_ranges(rows, params.outer.elements, [&](const RowRange& range) {
      if (sorts)
        sort_kernel<<<range.places, kGroupThreads, sizeof(Key) * params.padded, stream>>>(range,
                                                                                          params);
      else if (group == 32)
        select_kernel<32>
            <<<blocks_of(range.places, kGroupThreads / 32), kGroupThreads, 0, stream>>>(range,
                                                                                        params);
      else
        select_kernel<kGroupThreads><<<range.places, kGroupThreads, 0, stream>>>(range, params);
      DPIF_CUDA_CHECK(cudaGetLastError());
    });
  };
}

}  // namespace dpiframe
