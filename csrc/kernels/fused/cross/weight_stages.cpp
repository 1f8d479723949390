// Where each piece of the weights goes: the place that is free first.
//
// What a place was last used for, says a piece: its products are done when it is released. So are
// those before it, for pieces are used in order.
#include <algorithm>

#include "kernels/fused/cross/smem_layout.h"

namespace dpiframe {
namespace {

struct Range {
  int begin;
  int end;

  bool overlaps(const Range& other) const { return begin < other.end && other.begin < end; }
};

// Where a product's weights may go while its operands are alive and nothing of its output is.
struct Room {
  Range all;
  Range late;     // free once ..
  int last_user;  // .. this piece is used, and all products before with it
};

// first_pieces: of each product before this one, and of this one.
Room room_of(const ForwardCrossForm& form, int number, const std::vector<int>& first_pieces) {
  const ForwardCrossShared s = forward_cross_shared(form);
  const ForwardCrossProduct product = forward_cross_product(form, number);
  const Range none{0, 0};
  if (!product.is_cross)  // beside x0, and h_l where there is one
    return {{s.weights, product.level == 0 ? s.fields : s.deep}, none, -1};
  if (product.level == 0)  // beside x0; the last deep level has read h_l
    return {{s.weights, s.fields}, {s.deep, s.fields}, first_pieces[number] - 1};
  // Beside x_l; the first cross layer was the last to read x0.
  return {{0, s.cross}, {0, s.weights}, first_pieces[form.num_deep + 1] - 1};
}

int first_free(const Range& place, const Room& room, const std::vector<ForwardCrossPiece>& pieces) {
  int wait = place.overlaps(room.late) ? room.last_user : -1;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const auto begin = static_cast<int>(pieces[i].place);
    if (place.overlaps({begin, begin + pieces[i].bytes}))
      wait = std::max(wait, static_cast<int>(i));
  }
  return wait;
}

}  // namespace

std::vector<ForwardCrossPiece> forward_cross_pieces(const ForwardCrossForm& form, int block) {
  std::vector<ForwardCrossPiece> pieces;
  std::vector<int> first_pieces;
  int source = 0;
  for (int number = 0; number < form.num_deep + form.num_cross; ++number) {
    first_pieces.push_back(static_cast<int>(pieces.size()));
    const ForwardCrossProduct product = forward_cross_product(form, number);
    const Room room = room_of(form, number, first_pieces);
    const int step_bytes = forward_step_bytes(product.tile);
    const int most = forward_cross_piece_steps(product.tile);
    const int places = (room.all.end - room.all.begin) / (most * step_bytes);
    if (places < 2) return {};
    for (const int half : {block, 1 - block})
      for (int step = 0; step < product.steps[half]; step += most) {
        const int bytes = std::min(most, product.steps[half] - step) * step_bytes;
        Range best{};
        int wait = static_cast<int>(pieces.size());
        for (int i = 0; i < places; ++i) {
          const int begin = room.all.begin + i * most * step_bytes;
          const int free = first_free({begin, begin + bytes}, room, pieces);
          if (free >= wait) continue;
          wait = free;
          best = {begin, begin + bytes};
        }
        pieces.push_back({static_cast<std::uint32_t>(source),
                          static_cast<std::uint32_t>(best.begin), bytes, wait});
        source += bytes;
      }
  }
  return pieces;
}

}  // namespace dpiframe
