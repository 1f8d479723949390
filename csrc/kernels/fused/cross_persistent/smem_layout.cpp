#include "kernels/fused/cross_persistent/smem_layout.h"

#include <algorithm>

namespace dpiframe {
namespace {

// Of the products in the order in which they are made: where each one's weights lie among the
// block's, which has those of all deep levels first.
std::vector<RingPiece> pieces_by_source(const ForwardCrossForm& form) {
  const int x_steps = forward_tall_steps(form, true);
  const int h_steps = forward_tall_steps(form, false);
  const int deep_bytes = forward_step_bytes(form.deep_tile);
  const int cross_bytes = forward_step_bytes(form.cross_tile);
  const int all_deep = (x_steps + (form.num_deep - 1) * h_steps) * deep_bytes;
  std::vector<RingPiece> pieces;
  const auto append = [&](int source, int steps, int bytes) {
    for (int step = 0; step < steps; ++step)
      pieces.push_back({static_cast<std::uint32_t>(source + step * bytes), 0, bytes, 0});
  };
  append(0, x_steps, deep_bytes);
  append(all_deep, form.num_cross * x_steps, cross_bytes);
  append(x_steps * deep_bytes, (form.num_deep - 1) * h_steps, deep_bytes);
  return pieces;
}

}  // namespace

std::vector<RingPiece> forward_tall_pieces(const ForwardCrossForm& form, int ring_bytes) {
  std::vector<RingPiece> pieces = pieces_by_source(form);
  place_in_ring(pieces, ring_bytes);
  return pieces;
}

ForwardTallShared forward_tall_shared(const ForwardCrossForm& form, int most_parts) {
  ForwardTallShared s{};
  s.panel = (form.x_chunks[0] + form.x_chunks[1]) * kChunkStride;
  s.vector_bytes = 2 * 2 * std::max(form.cross_tile, form.deep_tile) * 4;
  const int field_bytes = most_parts * static_cast<int>(sizeof(ForwardField));
  const int value_bytes = 2 * 4 * kForwardRows * 4;
  const int barrier_bytes = (2 * kRingMostPieces + kTallBarriers) * 8;
  const int others = 2 * s.vector_bytes + field_bytes + value_bytes + barrier_bytes;
  s.ring = (2 * s.panel + 127) / 128 * 128;
  s.vectors = (kForwardSharedLimit - others) / 128 * 128;
  s.ring_bytes = s.vectors - s.ring;
  s.fields = s.vectors + 2 * s.vector_bytes;
  s.values = s.fields + field_bytes;
  s.barriers = s.values + value_bytes;
  s.bytes = s.barriers + barrier_bytes;
  return s;
}

int forward_tall_scratch_bytes(const ForwardCrossForm& form) {
  return std::max(forward_tall_rows_place(form, 0, 2, 0), forward_tall_rows_place(form, 1, 2, 0));
}

int forward_tall_parts(const ForwardCrossShape& shape) {
  return (static_cast<int>(forward_parts(shape.dims).size()) + 1) / 2;
}

bool forward_tall_pays(std::int64_t weights, std::int64_t padded) {
  return weights * 100 >= padded * 85;
}

bool forward_tall_fits(const ForwardCrossForm& form, int most_parts) {
  constexpr int kFewestPieces = 4;
  const int h_chunks = forward_chunks(form.deep_tile) / 2;
  const bool h_has_place =
      form.num_deep == 1 || std::min(form.x_chunks[0], form.x_chunks[1]) >= h_chunks;
  const int piece_bytes = forward_step_bytes(std::max(form.cross_tile, form.deep_tile));
  return h_has_place && forward_tall_steps(form, true) > kRingMostPieces &&
         forward_tall_shared(form, most_parts).ring_bytes >= kFewestPieces * piece_bytes;
}

}  // namespace dpiframe
