#include "kernels/forward_split_layout.h"

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

bool overlap(const ForwardSplitPiece& a, const ForwardSplitPiece& b) {
  return a.place < b.place + b.bytes && b.place < a.place + a.bytes;
}

// h's quarters lie where x's were.
bool h_has_place(const ForwardSplitForm& form) {
  for (int level = 0; level + 1 < form.num_deep; ++level)
    for (int quarter = 0; quarter < 4; ++quarter)
      if (forward_split_count(form.h_strips[level], quarter) >
          forward_split_count(form.x_strips, quarter))
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

std::vector<ForwardSplitPiece> forward_split_pieces(const ForwardSplitForm& form) {
  const int ring_bytes = forward_split_shared(form).ring_bytes;
  std::vector<ForwardSplitPiece> pieces;
  int source = 0;
  int place = 0;
  for (const ForwardSplitProduct& product : forward_split_products(form)) {
    const int bytes = forward_split_piece_bytes(product.tile);
    for (int i = 0; i < 2 * product.in_strips; ++i) {
      if (place + bytes > ring_bytes) place = 0;
      pieces.push_back(
          {static_cast<std::uint32_t>(source), static_cast<std::uint32_t>(place), bytes, 0});
      source += bytes;
      place += bytes;
    }
  }
  const auto count = static_cast<int>(pieces.size());
  for (int i = 0; i < count; ++i) {
    int& behind = pieces[i].behind;
    for (behind = 1; behind < kSplitMostPieces; ++behind)
      if (overlap(pieces[i], pieces[(i - behind + count) % count])) break;
  }
  return pieces;
}

ForwardSplitShared forward_split_shared(const ForwardSplitForm& form) {
  ForwardSplitShared s{};
  const int barrier_bytes = (2 * kSplitMostPieces + kSplitBarriers) * 8;
  const int vector_bytes = forward_split_vector_bytes(std::max(form.cross_tile, form.deep_tile));
  s.ring = forward_split_place(form.x_strips, 4);
  s.barriers = kForwardSharedLimit - barrier_bytes;
  s.values = s.barriers - 6 * 32 * 4;
  s.vectors = (s.values - vector_bytes) / 128 * 128;
  s.ring_bytes = s.vectors - s.ring;
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
  const bool fits =
      form.cross_tile > 0 && form.deep_tile > 0 && h_has_place(form) &&
      forward_split_shared(form).ring_bytes >=
          kFewestPieces * forward_split_piece_bytes(std::max(form.cross_tile, form.deep_tile));
  return fits ? form : ForwardSplitForm{};
}

}  // namespace dpiframe
