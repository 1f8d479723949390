#include "kernels/fused/cross/smem_layout.h"

#include <algorithm>

namespace dpiframe {
namespace {

int pieces_of(const ForwardCrossProduct& product) {
  const int most = forward_cross_piece_steps(product.tile);
  return (product.steps[0] + most - 1) / most + (product.steps[1] + most - 1) / most;
}

// The narrowest of the kernel's tiles for one warpgroup's share of half of x0's columns.
int cross_tile(const ForwardCrossShape& shape) {
  const std::vector<int> parts = forward_parts(shape.dims);
  const int chunks = std::max(forward_x_chunks(parts, 0), forward_x_chunks(parts, 1));
  for (const int tile : {104, 160})
    if ((chunks + 1) / 2 * 8 <= tile) return tile;
  return 0;
}

}  // namespace

ForwardCrossProduct forward_cross_product(const ForwardCrossForm& form, int number) {
  ForwardCrossProduct product{};
  product.is_cross = number >= form.num_deep;
  product.level = product.is_cross ? number - form.num_deep : number;
  product.tile = product.is_cross ? form.cross_tile : form.deep_tile;
  for (int half = 0; half < 2; ++half)
    product.steps[half] = product.is_cross || product.level == 0
                              ? form.x_chunks[half] / 2
                              : forward_chunks(form.deep_tile) / 2 / 2;
  return product;
}

int forward_cross_num_pieces(const ForwardCrossForm& form) {
  int pieces = 0;
  for (int number = 0; number < form.num_deep + form.num_cross; ++number)
    pieces += pieces_of(forward_cross_product(form, number));
  return pieces;
}

int forward_cross_vector_floats(const ForwardCrossForm& form) {
  return (form.num_cross + 1) * 2 * form.cross_tile + (form.num_deep + 1) * 2 * form.deep_tile;
}

ForwardCrossShared forward_cross_shared(const ForwardCrossForm& form) {
  const int x = (form.x_chunks[0] + form.x_chunks[1]) * kChunkStride;
  const int h = form.num_deep > 1 ? forward_chunks(form.deep_tile) * kChunkStride : 0;
  const int field_bytes = kForwardMaxFields / 2 * static_cast<int>(sizeof(ForwardField));
  const int vector_bytes = forward_cross_vector_floats(form) * 4;
  const int piece_bytes =
      forward_cross_num_pieces(form) * static_cast<int>(sizeof(ForwardCrossPiece));
  const int barrier_bytes = (2 * kCrossPiecesAhead + 3 * kCrossMaxExchanges + 4) * 8;
  const int others = field_bytes + vector_bytes + piece_bytes + 2 * 4 * 32 * 4 + barrier_bytes;
  ForwardCrossShared s{};
  s.fields = (kForwardSharedLimit - others) / 128 * 128;
  s.weights = (x + 127) / 128 * 128;
  s.cross = s.fields - std::max(form.num_cross > 1 ? x : 0, h);
  s.deep = s.fields - h;
  s.vectors = s.fields + field_bytes;
  s.pieces = s.vectors + vector_bytes;
  s.sides = s.pieces + piece_bytes;
  s.dots = s.sides + 4 * 32 * 4;
  s.barriers = s.dots + 4 * 32 * 4;
  s.bytes = s.barriers + barrier_bytes;
  return s;
}

ForwardCrossForm forward_cross_form(const ForwardCrossShape& shape) {
  const auto num_deep = static_cast<int>(shape.columns.size());
  const int fewest = shape.columns.empty() ? 0 : *std::ranges::min_element(shape.columns);
  if (!forward_lookup_fits(shape.dims, shape.num_ids, shape.most_rows) || shape.num_cross < 1 ||
      shape.num_cross > kCrossMaxLevels || num_deep > kForwardMaxLevels || fewest < 1)
    return {};
  const std::vector<int> parts = forward_parts(shape.dims);
  const int deep = forward_tile(shape.columns, 0);
  const ForwardCrossForm form{{forward_x_chunks(parts, 0), forward_x_chunks(parts, 1)},
                              shape.num_cross,
                              cross_tile(shape),
                              num_deep,
                              std::max(deep, 104)};
  const bool has_both = form.x_chunks[0] > 0 && form.x_chunks[1] > 0;
  return deep > 0 && form.cross_tile > 0 && has_both ? form : ForwardCrossForm{};
}

bool forward_cross_fits(const ForwardCrossShape& shape) {
  const ForwardCrossForm form = forward_cross_form(shape);
  return form.num_cross > 0 && !forward_cross_pieces(form, 0).empty();
}

}  // namespace dpiframe
