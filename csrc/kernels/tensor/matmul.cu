// out [batch.., rows.., columns..] = a [batch.., rows.., inner..] b [batch.., inner.., columns..],
// a product for each sample and each place of the batch axes. Products with a constant matrix whose
// layout the gemm family takes do not come here (lowering/device/matmul_to_product.py).
//
// Two kernels, both with float32 sums:
// - small or thin products: a thread or a warp owns one number of the result and reads its row and
//   its column from cache;
// - others: a block owns a tile of the result of 16, 32 or 64 rows and columns, and walks the inner
//   axes in slices of 16 that it stages in shared memory as float32; a thread has 2 x 2 or 4 x 4
//   sums, strided, so that a warp's shared-memory reads are broadcasts or neighbours. Where all
//   samples read the same b, the rows of all samples are rows of one product.
#include "kernels/tensor/launch.cuh"

namespace dpiframe {
namespace {

struct MatMulParams {
  Matrix a;
  Matrix b;
  Matrix out;
  Axes batch;
  AxisStrides batch_a;
  AxisStrides batch_b;
  Axes rows;
  AxisStrides rows_a;
  Axes inner;
  AxisStrides inner_a;
  AxisStrides inner_b;
  Axes columns;
  AxisStrides columns_b;
  FastDivision product_size;  // rows * columns
  FastDivision num_columns;
  FastDivision num_rows;
  bool rows_of_samples;  // the rows of all samples are rows of one product
  bool inner_first;      // b's elements lie side by side along the inner axes
};

template <int kGroup>
__global__ void __launch_bounds__(kGroupThreads)
    dot_kernel(const RowRange range, const __grid_constant__ MatMulParams p) {
  const std::uint32_t place = group_place<kGroup>();
  if (place >= range.places) return;  // the whole group
  const RowPlace at = row_place(range, place);
  const std::uint32_t product = p.product_size.quotient(at.place);
  const std::uint32_t within = at.place - product * p.product_size.divisor;
  const std::uint32_t row = p.num_columns.quotient(within);
  const std::uint32_t column = within - row * p.num_columns.divisor;
  const int a = column_at(p.batch, p.batch_a, product) + column_at(p.rows, p.rows_a, row);
  const int b = column_at(p.batch, p.batch_b, product) + column_at(p.columns, p.columns_b, column);
  float sum = 0.0f;
  for (int i = threadIdx.x % kGroup; i < p.inner.elements; i += kGroup)
    sum = fmaf(load(p.a, at.row, a + column_at(p.inner, p.inner_a, i)),
               load(p.b, at.row, b + column_at(p.inner, p.inner_b, i)), sum);
  sum = over_group<kGroup>(sum, [](float x, float y) { return x + y; });
  if (threadIdx.x % kGroup == 0) store(p.out, at.row, at.place, sum);
}

constexpr int kSlice = 16;

// A row of the product: its sample, and its place among the sample's rows.
__device__ RowPlace product_row(const RowRange& range, const MatMulParams& p, std::int64_t sample,
                                std::uint32_t row) {
  if (!p.rows_of_samples) return {sample, row};
  const std::uint32_t of = p.num_rows.quotient(row);
  return {range.first + of, row - of * p.num_rows.divisor};
}

template <int kTile, int kEach>
__global__ void __launch_bounds__((kTile / kEach) * (kTile / kEach))
    tile_kernel(const RowRange range, const __grid_constant__ MatMulParams p,
                std::uint32_t num_rows, unsigned row_tiles, unsigned column_tiles) {
  constexpr int kSide = kTile / kEach;
  constexpr int kThreads = kSide * kSide;
  __shared__ float as[kSlice][kTile + 1];
  __shared__ float bs[kSlice][kTile + 1];
  const unsigned product = blockIdx.x / (row_tiles * column_tiles);
  const unsigned tile = blockIdx.x - product * row_tiles * column_tiles;
  const std::uint32_t row0 = tile / column_tiles * kTile;
  const std::uint32_t column0 = tile % column_tiles * kTile;
  const auto num_columns = p.num_columns.divisor;
  const RowPlace at = row_place(range, product);  // the sample, and the place in the batch axes
  const int batch_a = column_at(p.batch, p.batch_a, at.place);
  const int batch_b = column_at(p.batch, p.batch_b, at.place);
  const int tx = threadIdx.x % kSide;
  const int ty = threadIdx.x / kSide;
  float sums[kEach][kEach] = {};
  for (int k0 = 0; k0 < p.inner.elements; k0 += kSlice) {
    for (int i = threadIdx.x; i < kTile * kSlice; i += kThreads) {
      const std::uint32_t row = row0 + i / kSlice;
      const int k = k0 + i % kSlice;
      float value = 0.0f;
      if (row < num_rows && k < p.inner.elements) {
        const RowPlace place = product_row(range, p, at.row, row);
        value = load(
            p.a, place.row,
            batch_a + column_at(p.rows, p.rows_a, place.place) + column_at(p.inner, p.inner_a, k));
      }
      as[i % kSlice][i / kSlice] = value;
    }
    for (int i = threadIdx.x; i < kTile * kSlice; i += kThreads) {
      const int slice = p.inner_first ? i % kSlice : i / kTile;
      const int side = p.inner_first ? i / kSlice : i % kTile;
      const std::uint32_t column = column0 + side;
      const int k = k0 + slice;
      float value = 0.0f;
      if (column < num_columns && k < p.inner.elements)
        value = load(
            p.b, at.row,
            batch_b + column_at(p.columns, p.columns_b, column) + column_at(p.inner, p.inner_b, k));
      bs[slice][side] = value;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kSlice; ++k)
#pragma unroll
      for (int i = 0; i < kEach; ++i)
#pragma unroll
        for (int j = 0; j < kEach; ++j)
          sums[i][j] = fmaf(as[k][ty + i * kSide], bs[k][tx + j * kSide], sums[i][j]);
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i)
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const std::uint32_t row = row0 + ty + i * kSide;
      const std::uint32_t column = column0 + tx + j * kSide;
      if (row >= num_rows || column >= num_columns) continue;
      const RowPlace place = product_row(range, p, at.row, row);
      const std::int64_t out = static_cast<std::int64_t>(at.place) * p.product_size.divisor +
                               static_cast<std::int64_t>(place.place) * num_columns + column;
      store(p.out, place.row, out, sums[i][j]);
    }
}

template <int kTile, int kEach>
void launch_tiles(const RowRange& range, const MatMulParams& p, cudaStream_t stream) {
  constexpr int kThreads = (kTile / kEach) * (kTile / kEach);
  // One product of all rows, or one a place of the range.
  const std::uint32_t rows =
      p.rows_of_samples ? range.places * p.num_rows.divisor : p.num_rows.divisor;
  const std::uint32_t products = p.rows_of_samples ? 1 : range.places;
  const unsigned row_tiles = blocks_of(rows, kTile);
  const unsigned column_tiles = blocks_of(p.num_columns.divisor, kTile);
  tile_kernel<kTile, kEach><<<products * row_tiles * column_tiles, kThreads, 0, stream>>>(
      range, p, rows, row_tiles, column_tiles);
  DPIF_CUDA_CHECK(cudaGetLastError());
}

MatMulParams matmul_params(const MatMulOp& op, const TensorOperands& operands) {
  const Operand& a = operands.inputs[0].operand;
  const Operand& b = operands.inputs[1].operand;
  const int axes_a = static_cast<int>(a.shape.size());
  const int axes_b = static_cast<int>(b.shape.size());
  const int before = op.batch + op.rows;  // a's axes before the inner ones
  const int after = op.batch + op.inner;  // b's axes before the columns
  check_operation(std::min({op.batch, op.rows, op.inner}) >= 0 && axes_a == before + op.inner &&
                      axes_b >= after,
                  "a product");
  check_operation(between(a.shape, 0, op.batch) == between(b.shape, 0, op.batch), "a product");
  check_operation(between(a.shape, before, axes_a) == between(b.shape, op.batch, after),
                  "a product");
  const auto part = [](const Operand& o, int begin, int end) {
    return between(o.strides, begin, end);
  };
  const SharedAxes batch =
      shared_axes(between(a.shape, 0, op.batch), {part(a, 0, op.batch), part(b, 0, op.batch)});
  const SharedAxes rows =
      shared_axes(between(a.shape, op.batch, before), {part(a, op.batch, before)});
  const SharedAxes inner = shared_axes(between(a.shape, before, axes_a),
                                       {part(a, before, axes_a), part(b, op.batch, after)});
  const SharedAxes columns = shared_axes(between(b.shape, after, axes_b), {part(b, after, axes_b)});
  const Matrix from_b = from_offset(operands.inputs[1]);
  const std::int64_t product_size =
      static_cast<std::int64_t>(rows.axes.elements) * columns.axes.elements;
  check_out(operands, "a product", product_size * batch.axes.elements);
  return {from_offset(operands.inputs[0]),
          from_b,
          operands.out,
          batch.axes,
          batch.strides[0],
          batch.strides[1],
          rows.axes,
          rows.strides[0],
          inner.axes,
          inner.strides[0],
          inner.strides[1],
          columns.axes,
          columns.strides[0],
          FastDivision(static_cast<std::uint32_t>(product_size)),
          FastDivision(columns.axes.elements),
          FastDivision(rows.axes.elements),
          from_b.row_stride == 0 && batch.axes.elements == 1,
          inner.strides[1].of[inner.axes.count - 1] == 1};
}

// The product on one thread or one warp a number; 0: in tiles.
int dot_group(const MatMulParams& p) {
  const int rows = p.rows.elements;
  const int columns = p.columns.elements;
  if (columns == 1) return p.inner.elements <= 32 ? 1 : 32;
  const bool thin = rows == 1 && !p.rows_of_samples;
  return thin || rows * columns <= 16 ? 1 : 0;
}

}  // namespace

TensorLaunch matmul_op(const MatMulOp& op, const TensorOperands& operands) {
  check_inputs(operands, "a product", 2, 2);
  const MatMulParams params = matmul_params(op, operands);
  const int group = dot_group(params);
  if (group > 0)
    return [params, group](std::int64_t rows, cudaStream_t stream) {
      in_row_ranges(rows, params.out.width, [&](const RowRange& range) {
        const unsigned blocks = blocks_of(range.places, kGroupThreads / group);
        if (group == 1)
          dot_kernel<1><<<blocks, kGroupThreads, 0, stream>>>(range, params);
        else
          dot_kernel<32><<<blocks, kGroupThreads, 0, stream>>>(range, params);
        DPIF_CUDA_CHECK(cudaGetLastError());
      });
    };
  const int columns = params.columns.elements;
  const int rows_a_sample = params.rows_of_samples ? columns : params.rows.elements;
  const int thin = std::min(columns, rows_a_sample);
  return [params, thin](std::int64_t rows, cudaStream_t stream) {
    // Ranges of so few samples that rows and tiles are counted in 31 bits as well.
    in_row_ranges(rows, params.out.width, [&](const RowRange& range) {
      RowRange products = range;
      const auto samples = range.places / params.out.width;
      products.places = samples * params.batch.elements;
      products.places_a_row = FastDivision(params.batch.elements);
      if (thin <= 16)
        launch_tiles<16, 2>(products, params, stream);
      else if (thin <= 32)
        launch_tiles<32, 4>(products, params, stream);
      else
        launch_tiles<64, 4>(products, params, stream);
    });
  };
}

}  // namespace dpiframe
