#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/forward_weights.h"

namespace dpiframe {
namespace {

std::uint16_t bits_of(DataType type, float value) {
  if (type == DataType::kHalf) return __half_as_ushort(__float2half_rn(value));
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

// The column of a product's output at a place of a level's 4 tile columns; -1: none.
int column_at(const ForwardArguments& a, const ForwardProduct& product, bool first_level,
              int place) {
  const int quarter = place / a.tile;
  const int own = forward_first_column(product.columns, quarter);
  const int width = forward_first_column(product.columns, quarter + 1) - own;
  const int c = place % a.tile;
  if (c < width) return own + c;
  const int extra = a.first_extra[quarter] + c - width;
  return first_level && extra < a.first_extra[quarter + 1] ? product.columns + extra : -1;
}

// The column of a product's input at number `i` of chunk `chunk`; -1: none.
int input_at(const ForwardArguments& a, const std::vector<int>& x_columns,
             const ForwardProduct* before, int chunk, int i) {
  if (before == nullptr) return x_columns[chunk] < 0 ? -1 : x_columns[chunk] + i;
  return column_at(a, *before, false, chunk * 8 + i);
}

}  // namespace

std::vector<std::uint16_t> forward_weights(DataType type, const ForwardArguments& a,
                                           const std::vector<int>& x_columns,
                                           const std::vector<ForwardProduct>& products) {
  std::vector<std::uint16_t> numbers;
  for (int block = 0; block < 2; ++block) {
    const ForwardProduct* before = nullptr;
    for (const ForwardProduct& product : products) {
      const int h_chunks = forward_chunks(a.tile) / 2;
      const int chunks[] = {before == nullptr ? a.chunks[0] : h_chunks,
                            before == nullptr ? a.chunks[1] : h_chunks};
      for (int turn = 0; turn < 2; ++turn) {
        const int half = block ^ turn;
        const int first = half == 0 ? 0 : chunks[0];
        for (int chunk = first; chunk < first + chunks[half]; ++chunk)
          for (int c = 0; c < 2 * a.tile; ++c)
            for (int i = 0; i < 8; ++i) {
              const int row = column_at(a, product, before == nullptr, block * 2 * a.tile + c);
              const int column = input_at(a, x_columns, before, chunk, i);
              const bool inside = row >= 0 && column >= 0;
              numbers.push_back(bits_of(
                  type,
                  inside ? product.w[static_cast<std::int64_t>(row) * product.k + column] : 0.0f));
            }
      }
      before = &product;
    }
  }
  return numbers;
}

std::vector<float> forward_vectors(const ForwardArguments& a,
                                   const std::vector<ForwardProduct>& products, const float* head) {
  std::vector<float> numbers;
  for (int block = 0; block < 2; ++block) {
    const auto append = [&](const ForwardProduct& product, const float* values, bool first_level) {
      for (int c = 0; c < 2 * a.tile; ++c) {
        const int column = column_at(a, product, first_level, block * 2 * a.tile + c);
        numbers.push_back(column < 0 || values == nullptr ? 0.0f : values[column]);
      }
    };
    for (const ForwardProduct& product : products)
      append(product, product.bias, &product == &products.front());
    append(products.back(), head, false);
  }
  return numbers;
}

}  // namespace dpiframe
