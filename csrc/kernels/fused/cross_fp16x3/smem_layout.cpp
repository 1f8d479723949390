#include "kernels/fused/cross_fp16x3/smem_layout.h"

#include <algorithm>
#include <cstddef>

namespace dpiframe {
namespace {

// The narrowest of the kernel's tiles for a quarter of so many strips; 0: none is wide enough.
int tile_of(int strips, std::initializer_list<int> tiles) {
  for (const int tile : tiles)
    if (forward_split_count(strips, 0) * kSplitStrip <= tile) return tile;
  return 0;
}

std::uint32_t source_of(SplitSource kind, int offset) {
  return static_cast<std::uint32_t>(kind) << kSplitSourceBits | static_cast<std::uint32_t>(offset);
}

// A cross layer's vectors and x0; `vectors`: where the former begin.
void append_cross_end(int tile, int vectors, std::vector<RingPiece>& pieces) {
  for (int first = 0; first < tile / kSplitStrip; first += kSplitPieceStrips) {
    const int strips = forward_split_strips_end(tile, first) - first;
    const int bytes = forward_split_vector_bytes(strips * kSplitStrip);
    pieces.push_back({source_of(SplitSource::kVectors, vectors), 0, bytes, 0});
    vectors += bytes;
    pieces.push_back(
        {source_of(SplitSource::kOwn, first * kSplitX0Bytes), 0, strips * kSplitX0Bytes, 0});
  }
}

// h's quarters lie where x's of the other block were.
bool h_has_place(const ForwardSplitForm& form) {
  for (int level = 0; level + 1 < form.num_deep; ++level)
    for (int quarter = 0; quarter < 4; ++quarter)
      if (forward_split_count(form.h_strips[level], quarter) >
          forward_split_count(form.x_strips, (quarter + 2) % 4))
        return false;
  return true;
}

}  // namespace

std::vector<ForwardSplitProduct> forward_split_products(const ForwardSplitForm& form) {
  std::vector<ForwardSplitProduct> products;
  const auto deep = [&](int level) {
    const int in_strips = level == 0 ? form.x_strips : form.h_strips[level - 1];
    products.push_back({false, level, form.deep_tile, in_strips, form.h_strips[level]});
  };
  deep(0);
  for (int level = 0; level < form.num_cross; ++level)
    products.push_back({true, level, form.cross_tile, form.x_strips, form.x_strips});
  for (int level = 1; level < form.num_deep; ++level) deep(level);
  return products;
}

std::vector<RingPiece> forward_split_pieces(const ForwardSplitForm& form) {
  std::vector<RingPiece> pieces;
  int weights = 0;
  int vectors = 0;
  for (const ForwardSplitProduct& product : forward_split_products(form)) {
    const int parts = forward_split_parts(product.tile);
    const int bytes = parts * forward_split_part_bytes(product.tile);
    for (int i = 0; i < 2 * product.in_strips / parts; ++i, weights += bytes)
      pieces.push_back({source_of(SplitSource::kWeights, weights), 0, bytes, 0});
    const int vector_bytes = forward_split_vector_bytes(product.tile);
    if (product.is_cross)
      append_cross_end(product.tile, vectors, pieces);
    else
      pieces.push_back({source_of(SplitSource::kVectors, vectors), 0, vector_bytes, 0});
    vectors += vector_bytes;
  }
  place_in_ring(pieces, forward_split_shared(form).ring_bytes);
  return pieces;
}

ForwardSplitShared forward_split_shared(const ForwardSplitForm& form) {
  ForwardSplitShared s{};
  s.ring = forward_split_place(form.x_strips, 4);
  s.barriers = kForwardSharedLimit - (2 * kRingMostPieces + kSplitBarriers) * 8;
  s.values = s.barriers - 4 * 32 * 4;
  s.ring_bytes = s.values - s.ring;
  s.bytes = kForwardSharedLimit;
  return s;
}

ForwardSplitForm forward_split_form(const ForwardSplitShape& shape) {
  constexpr int kFewestPieces = 4;
  std::int64_t columns = 0;
  for (const std::int64_t dim : shape.dims) {
    if (dim < 0 || dim > 4 * 160 || dim % 4 != 0) return {};
    columns += dim;
  }
  const auto num_deep = static_cast<int>(shape.columns.size());
  const bool is_counted = shape.num_cross >= 1 && shape.num_cross <= kSplitMaxLevels &&
                          num_deep >= 1 && num_deep <= kSplitMaxLevels;
  if (!is_counted || columns < 4 * kSplitStrip || columns > 4 * 160 ||
      shape.num_ids > kForwardMaxIds || shape.most_rows >= std::int64_t{1} << 32)
    return {};
  ForwardSplitForm form{};
  form.x_strips = static_cast<int>((columns + kSplitStrip - 1) / kSplitStrip);
  form.num_cross = shape.num_cross;
  form.num_deep = num_deep;
  form.cross_tile = tile_of(form.x_strips, {112, 160});
  int most = 0;
  for (int level = 0; level < num_deep; ++level) {
    if (shape.columns[level] < 1 || shape.columns[level] > 512) return {};
    form.h_strips[level] = (shape.columns[level] + kSplitStrip - 1) / kSplitStrip;
    most = std::max(most, form.h_strips[level]);
  }
  form.deep_tile = tile_of(most, {112, 128});
  const bool fits = form.cross_tile > 0 && form.deep_tile > 0 && h_has_place(form) &&
                    forward_split_shared(form).ring_bytes >=
                        kFewestPieces * std::max(forward_split_part_bytes(form.cross_tile) *
                                                     forward_split_parts(form.cross_tile),
                                                 forward_split_part_bytes(form.deep_tile) *
                                                     forward_split_parts(form.deep_tile));
  return fits ? form : ForwardSplitForm{};
}

}  // namespace dpiframe
