#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/fused/weight_layout.h"

namespace dpiframe {
namespace {

// The column of a level's output at a place of its 4 tile columns; -1: none.
int column_at(const ForwardArguments& a, int level, int place) {
  const int columns = a.columns[level];
  const int quarter = place / a.tile;
  const int own = forward_first_column(columns, quarter);
  const int width = forward_first_column(columns, quarter + 1) - own;
  const int c = place % a.tile;
  if (c < width) return own + c;
  const int extra = a.first_extra[quarter] + c - width;
  return level == 0 && extra < a.first_extra[quarter + 1] ? columns + extra : -1;
}

// The column of a level's input at number `i` of chunk `chunk`; -1: none.
int input_at(const ForwardArguments& a, const std::vector<int>& x_columns, int level, int chunk,
             int i) {
  if (level == 0) return x_columns[chunk] < 0 ? -1 : x_columns[chunk] + i;
  const int column = column_at(a, level - 1, chunk * 8 + i);
  return column < a.columns[level - 1] ? column : -1;
}

// A chunk of k of one block: its 2 tile columns by 8 numbers.
void append_chunk(DataType type, const ForwardArguments& a, const std::vector<int>& x_columns,
                  const ForwardLevel& level, int number, int block, int chunk,
                  std::vector<std::uint16_t>& numbers) {
  for (int c = 0; c < 2 * a.tile; ++c) {
    const int row = column_at(a, number, block * 2 * a.tile + c);
    for (int i = 0; i < 8; ++i) {
      const int column = input_at(a, x_columns, number, chunk, i);
      const bool inside = row >= 0 && column >= 0;
      const auto place = static_cast<std::size_t>(row) * level.k + column;
      numbers.push_back(forward_bits(type, inside ? level.w[place] : 0.0f));
    }
  }
}

}  // namespace

std::uint16_t forward_bits(DataType type, float value) {
  if (type == DataType::kHalf) return __half_as_ushort(__float2half_rn(value));
  return __bfloat16_as_ushort(__float2bfloat16_rn(value));
}

float forward_half(std::uint16_t bits) {
  return __half2float(__ushort_as_half(bits));
}

std::vector<std::uint16_t> forward_weights(DataType type, const ForwardArguments& a,
                                           const std::vector<int>& x_columns,
                                           const std::vector<ForwardLevel>& levels) {
  std::vector<std::uint16_t> numbers;
  const int half_chunks = forward_chunks(a.tile) / 2;
  for (int block = 0; block < 2; ++block)
    for (int level = 0; level < a.num_levels; ++level) {
      const int chunks[] = {level == 0 ? a.chunks[0] : half_chunks,
                            level == 0 ? a.chunks[1] : half_chunks};
      for (const int half : {block, 1 - block}) {
        const int first = half == 0 ? 0 : chunks[0];
        for (int chunk = first; chunk < first + chunks[half]; ++chunk)
          append_chunk(type, a, x_columns, levels[level], level, block, chunk, numbers);
      }
    }
  return numbers;
}

std::vector<float> forward_vectors(const ForwardArguments& a,
                                   const std::vector<ForwardLevel>& levels,
                                   const std::vector<float>& head) {
  std::vector<float> numbers;
  for (int block = 0; block < 2; ++block) {
    const auto append = [&](int level, const std::vector<float>& values) {
      for (int c = 0; c < 2 * a.tile; ++c) {
        const int column = column_at(a, level, block * 2 * a.tile + c);
        const bool inside = column >= 0 && column < static_cast<int>(values.size());
        numbers.push_back(inside ? values[column] : 0.0f);
      }
    };
    for (int level = 0; level < a.num_levels; ++level) append(level, levels[level].bias);
    append(a.num_levels - 1, head);
  }
  return numbers;
}

}  // namespace dpiframe
