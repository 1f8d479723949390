// Where things lie in the one-kernel forward pass: pure functions of a model's shapes, shared by
// the kernel and by what prepares for it.
//
// A cluster is two blocks, a block two warpgroups that multiply: four quarters of each level's
// output columns. A quarter is `tile` columns wide, its own columns first, then extras, then zeros.
// Activations lie in shared memory as chunks of 8 columns of all 64 rows, 16 bytes a row (wgmma's
// layout without swizzle), those that block 0 makes first.
#pragma once

#include <cstdint>
#include <vector>

#include "common/host_device.h"

namespace dpiframe {

constexpr int kForwardRows = 64;      // of a cluster
constexpr int kForwardFillers = 2;    // warps that copy weights
constexpr int kForwardThreads = 352;  // two warpgroups, one that reports, those that copy
constexpr int kForwardMaxFields = 64;
constexpr int kForwardMaxLevels = 4;
constexpr int kForwardMaxExtras = 32;
constexpr int kForwardMaxShifts = 8;
constexpr int kForwardMaxSlots = 8;
constexpr std::int64_t kForwardMaxIds = 65536;  // rows of a batch's ids
constexpr int kForwardSharedLimit = 227 * 1024;
// 16 bytes more than the rows take, so that neighbouring chunks of a row meet in other banks.
constexpr int kChunkStride = kForwardRows * 16 + 16;

// 16 columns of a field at most; wider fields are several of these.
struct alignas(16) ForwardField {
  const char* table;  // its columns' first; null: the field has a wide part only
  const float* wide;  // or null
  std::uint32_t rows;
  std::uint32_t row_bytes;
  std::uint32_t place;   // bytes from the start of x0 to its first piece
  std::int32_t pieces;   // of 8 columns
  std::int64_t oov_row;  // -1: none
  std::int32_t slot;     // where bad ids are counted; -1: another part of the field does
};

struct ForwardArguments {
  const void* weights;   // of block 0, then of block 1, in the order of their use
  const float* vectors;  // [2, levels + 1, 2 tile]: biases of each block's columns, then the head
  const ForwardField* fields;
  unsigned* tickets;  // 0 between launches
  std::int64_t report;
  int num_report;
  int num_slots;
  int tile;
  int num_levels;
  int columns[kForwardMaxLevels];  // of each level, without extras
  int chunks[2];                   // of x0 in each half, even
  int zero_chunk[2];               // of x0, filled with zeros; -1: none
  int fields_end[2];               // each block's last field and one
  int first_extra[5];              // of each quarter; then how many there are in all
  int has_fm;
  int num_shifts;  // the extras: a dot for each, c, and all others are FM's sums
  int has_cross;
  float shifts[kForwardMaxShifts];
  float bias;
  std::uint16_t ids_rows[kForwardMaxFields];  // of each of `fields`
};

// Bytes from the start of a block's shared memory.
struct ForwardShared {
  int h;     // behind x; the levels' outputs lie in h and x in turn
  int ring;  // of weights: `slots` times forward_slot_steps steps
  int slots;
  int fields;   // the block's own
  int vectors;  // [levels + 1, 2 tile]
  int sides;    // [6, 32]: wide sums of both blocks' halves, then FM's squares
  int dots;     // [4, 32]: the head's parts
  int extras;   // [32, extras_stride]
  int extras_stride;
  int barriers;
  int bytes;
};

// A block's weights for 16 columns of k: one step.
DPIF_HOST_DEVICE constexpr int forward_step_bytes(int tile) {
  return 2 * tile * 32;
}
// Steps that are copied at once: about 16 KiB, as much as L2 gives in the time that any copy takes.
DPIF_HOST_DEVICE constexpr int forward_slot_steps(int tile) {
  return tile == 64 ? 4 : 2;
}
DPIF_HOST_DEVICE constexpr int forward_chunks(int tile) {
  return 4 * tile / 8;
}

DPIF_HOST_DEVICE constexpr ForwardShared forward_shared(int tile, int num_levels, int x_chunks,
                                                       int num_extras) {
  ForwardShared s{};
  const int h_chunks = num_levels > 1 ? forward_chunks(tile) : 0;
  s.h = (x_chunks > h_chunks || num_levels < 3 ? x_chunks : h_chunks) * kChunkStride;
  s.extras_stride = num_extras | 1;
  const int vector_bytes = (num_levels + 1) * 2 * tile * 4;
  const int extra_bytes = (32 * s.extras_stride * 4 + 15) / 16 * 16;
  const int barrier_bytes = (2 * kForwardMaxSlots + kForwardMaxLevels + 4) * 8;
  s.ring = (s.h + h_chunks * kChunkStride + 127) / 128 * 128;
  const int field_bytes = kForwardMaxFields / 2 * static_cast<int>(sizeof(ForwardField));
  const int slot_bytes = forward_slot_steps(tile) * forward_step_bytes(tile);
  const int others = field_bytes + vector_bytes + 1280 + extra_bytes + barrier_bytes;
  s.slots = (kForwardSharedLimit - s.ring - others) / slot_bytes;
  if (s.slots > kForwardMaxSlots) s.slots = kForwardMaxSlots;
  s.fields = s.ring + (s.slots > 0 ? s.slots : 0) * slot_bytes;
  s.vectors = s.fields + field_bytes;
  s.sides = s.vectors + vector_bytes;
  s.dots = s.sides + 768;
  s.extras = s.dots + 512;
  s.barriers = s.extras + extra_bytes;
  s.bytes = s.barriers + barrier_bytes;
  return s;
}

// The columns of a level that quarter `quarter` makes: [first, next quarter's first).
DPIF_HOST_DEVICE constexpr int forward_first_column(int columns, int quarter) {
  return columns * quarter / 4;
}

// The narrowest tile for levels of these columns and the first level's extras; 0: there is none.
int forward_tile(const std::vector<int>& columns, int num_extras);

// Fields by 16 columns, how many pieces of 8 each part has; dim 0: a field with a wide part only.
std::vector<int> forward_parts(const std::vector<std::int64_t>& dims);
// The chunks of x0 that block `block` makes of its half of the parts.
int forward_x_chunks(const std::vector<int>& parts, int block);

// Whether fields of these dims can be gathered; `num_ids` rows of ids, tables of up to `most_rows`.
bool forward_lookup_fits(const std::vector<std::int64_t>& dims, std::int64_t num_ids,
                         std::int64_t most_rows);

// What decides whether a model fits.
struct ForwardShape {
  std::vector<std::int64_t> dims;  // of the lookup's fields
  std::vector<int> columns;        // of the levels, without extras
  int num_shifts;
  bool has_cross;
  int num_fm;              // FM's sums
  std::int64_t num_ids;    // rows of a batch's ids
  std::int64_t most_rows;  // of a table
};
bool forward_fits(const ForwardShape& shape);

// The most rows of a batch for which every cluster has its two multiprocessors; 0: no such kernel.
std::int64_t forward_max_rows(int compute_capability_major, int multiprocessors);

}  // namespace dpiframe
