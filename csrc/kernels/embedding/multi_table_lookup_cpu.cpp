// CPU multi-table lookup: output-first, so every thread has the same work whatever the tables'
// sizes.
//
// A thread takes chunks of samples and walks a chunk in tiles of kTile samples. While the rows of
// one tile are copied, the ids of the next are read (field-major), checked, turned into row
// pointers and prefetched: kTile * F independent cache misses are in flight, which is what bounds a
// lookup into tables larger than the cache. A sample's output row is then written front to back.
// Bytes moved a sample: F ids, sum of dim_f * 4 read and as many written.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>

#include "common/check.h"
#include "kernels/embedding/multi_table_lookup.h"

namespace dpiframe {
namespace {

constexpr int kTile = 8;
constexpr std::int64_t kCacheLine = 64;
constexpr std::int64_t kMaxDim = 4096;
constexpr std::int64_t kChunk = 128;               // samples that a thread takes at a time
constexpr std::int64_t kMaxPrefetchedBytes = 512;  // the hardware's own prefetch takes over there

std::int64_t load_id(const IdColumn& column, std::int64_t sample) {
  const char* index = static_cast<const char*>(column.data) + sample * column.stride;
  if (column.is_int64) {
    std::int64_t id;
    std::memcpy(&id, index, sizeof(id));
    return id;
  }
  std::int32_t id;
  std::memcpy(&id, index, sizeof(id));
  return id;
}

bool is_inside(std::int64_t id, std::int64_t rows) {
  return static_cast<std::uint64_t>(id) < static_cast<std::uint64_t>(rows);
}

void prefetch_row(const float* row, std::int64_t dim) {
  const char* first = reinterpret_cast<const char*>(row);
  const char* last = first + std::min(dim * 4, kMaxPrefetchedBytes) - 1;
  for (const char* line = first; line < last; line += kCacheLine) __builtin_prefetch(line);
  __builtin_prefetch(last);
}

}  // namespace

// What one thread owns during a call. Two slots: the tile being copied and the one being fetched.
struct MultiTableLookup::Worker {
  std::vector<const float*> rows;       // [2, kTile, F] in gather order
  std::vector<const float*> wide_rows;  // [2, num_wide, kTile]
  std::vector<std::int64_t> bad_counts;
  std::vector<double> fm_sums;  // [2, dim], for dims without a compiled loop
  std::int64_t first_row;
  std::int64_t first_field;

  void note_bad(std::int64_t row, std::int64_t field) {
    ++bad_counts[field];
    if (first_row < 0 || row < first_row || (row == first_row && field < first_field)) {
      first_row = row;
      first_field = field;
    }
  }
};

MultiTableLookup::MultiTableLookup(std::vector<LookupField> fields, int num_threads)
    : fields_(std::move(fields)), order_(fields_.size()), team_(num_threads) {
  DPIF_CHECK(!fields_.empty(), "a lookup needs at least one field");
  std::int64_t max_dim = 0;
  const LookupField* fm_field = nullptr;
  for (std::size_t f = 0; f < fields_.size(); ++f) {
    const LookupField& field = fields_[f];
    DPIF_CHECK(field.rows >= 1, "a table must have at least 1 row, got ", field.rows, " (field ", f,
               ")");
    DPIF_CHECK(field.dim >= 1 && field.dim <= kMaxDim, "dim must be in [1, ", kMaxDim, "], got ",
               field.dim, " (field ", f, ")");
    DPIF_CHECK(field.out_column >= 0, "out_column must not be negative, got ", field.out_column,
               " (field ", f, ")");
    DPIF_CHECK(field.oov_row >= -1 && field.oov_row < field.rows, "oov_row must be -1 or in [0, ",
               field.rows, "), got ", field.oov_row, " (field ", f, ")");
    if (field.in_fm && fm_field == nullptr) fm_field = &field;
    DPIF_CHECK(!field.in_fm || field.dim == fm_field->dim,
               "fields in FM must have equal dims, got ", fm_field->dim, " and ", field.dim,
               " (field ", f, ")");
    max_dim = std::max(max_dim, field.dim);
  }
  std::iota(order_.begin(), order_.end(), 0);
  std::stable_sort(order_.begin(), order_.end(), [this](int a, int b) {
    return std::pair(fields_[a].in_fm, fields_[a].dim) <
           std::pair(fields_[b].in_fm, fields_[b].dim);
  });
  for (std::size_t index = 0; index < order_.size(); ++index) {
    const LookupField& field = fields_[order_[index]];
    if (groups_.empty() || groups_.back().dim != field.dim || groups_.back().in_fm != field.in_fm)
      groups_.push_back({static_cast<int>(index), 0, field.dim, field.in_fm,
                         gather_rows_for(field.dim, field.in_fm)});
    ++groups_.back().count;
    columns_.push_back(field.out_column);
    wide_slot_.push_back(field.wide != nullptr ? num_wide_++ : -1);
  }
  zeros_.assign(max_dim, 0.0f);
  for (int w = 0; w < team_.num_threads(); ++w) {
    workers_.push_back(std::make_unique<Worker>());
    workers_.back()->rows.resize(2 * kTile * fields_.size());
    workers_.back()->wide_rows.resize(2 * kTile * num_wide_);
    workers_.back()->fm_sums.resize(2 * max_dim);
  }
}

MultiTableLookup::~MultiTableLookup() = default;

void MultiTableLookup::check(const LookupBatch& batch) const {
  DPIF_CHECK(batch.ids.size() == fields_.size(), "expected ids of ", fields_.size(),
             " fields, got ", batch.ids.size());
  DPIF_CHECK(batch.out_stride >= batch.out_width || batch.size <= 1, "rows of out overlap: stride ",
             batch.out_stride, " floats, width ", batch.out_width);
  for (std::size_t f = 0; f < fields_.size(); ++f) {
    const std::int64_t end = fields_[f].out_column + fields_[f].dim;
    DPIF_CHECK(end <= batch.out_width, "out must have at least ", end, " columns, got ",
               batch.out_width, " (field ", f, ")");
  }
  DPIF_CHECK(batch.fm == nullptr || groups_.back().in_fm, "fm was asked for and no field is in FM");
  DPIF_CHECK(batch.wide == nullptr || num_wide_ > 0,
             "wide was asked for and no field has wide weights");
}

LookupReport MultiTableLookup::run(const LookupBatch& batch) {
  check(batch);
  const std::lock_guard turn(turn_);
  for (const auto& worker : workers_) {
    worker->bad_counts.assign(fields_.size(), 0);
    worker->first_row = worker->first_field = -1;
  }
  const std::int64_t num_chunks = (batch.size + kChunk - 1) / kChunk;
  const std::int64_t num_workers = std::min<std::int64_t>(num_chunks, team_.num_threads());
  std::atomic<std::int64_t> next_chunk = 0;
  team_.run(static_cast<int>(num_workers), [&](int w) {
    for (std::int64_t chunk = next_chunk++; chunk < num_chunks; chunk = next_chunk++) {
      const std::int64_t begin = chunk * kChunk;
      run_samples(batch, begin, std::min(batch.size, begin + kChunk), *workers_[w]);
    }
  });
  LookupReport report;
  report.bad_counts.assign(fields_.size(), 0);
  for (const auto& worker : workers_) {
    for (std::size_t f = 0; f < fields_.size(); ++f) report.bad_counts[f] += worker->bad_counts[f];
    if (worker->first_row < 0) continue;
    if (report.first_row < 0 || std::pair(worker->first_row, worker->first_field) <
                                    std::pair(report.first_row, report.first_field)) {
      report.first_row = worker->first_row;
      report.first_field = worker->first_field;
      report.first_value = load_id(batch.ids[report.first_field], report.first_row);
    }
  }
  return report;
}

void MultiTableLookup::run_samples(const LookupBatch& batch, std::int64_t begin, std::int64_t end,
                                   Worker& worker) {
  const int num_fields = static_cast<int>(fields_.size());
  const int fields_a_sample = (num_fields + kTile - 1) / kTile;
  int slot = 0;
  resolve(batch, begin, slot, 0, num_fields, worker);
  for (std::int64_t tile = begin; tile < end; tile += kTile, slot ^= 1) {
    for (int lane = 0; lane < kTile; ++lane) {
      const int first = std::min(num_fields, lane * fields_a_sample);
      const int last = std::min(num_fields, first + fields_a_sample);
      if (tile + kTile < end) resolve(batch, tile + kTile, slot ^ 1, first, last, worker);
      if (tile + lane < end) gather(batch, tile + lane, slot, lane, worker);
    }
    if (batch.wide != nullptr) sum_wide(batch, tile, std::min(end, tile + kTile), slot, worker);
  }
}

// Row pointers of the tile at `begin` for the fields [first, last) of the gather order.
void MultiTableLookup::resolve(const LookupBatch& batch, std::int64_t begin, int slot, int first,
                               int last, Worker& worker) const {
  const int num_fields = static_cast<int>(fields_.size());
  const int num_lanes = static_cast<int>(std::min<std::int64_t>(kTile, batch.size - begin));
  for (int index = first; index < last; ++index) {
    const LookupField& field = fields_[order_[index]];
    std::int64_t ids[kTile];
    bool all_good = true;
    for (int lane = 0; lane < num_lanes; ++lane) {
      ids[lane] = load_id(batch.ids[order_[index]], begin + lane);
      all_good &= is_inside(ids[lane], field.rows);
    }
    if (!all_good) [[unlikely]] {
      for (int lane = 0; lane < num_lanes; ++lane) {
        if (is_inside(ids[lane], field.rows)) continue;
        worker.note_bad(begin + lane, order_[index]);
        ids[lane] = batch.use_oov ? field.oov_row : -1;
      }
    }
    const float** rows = worker.rows.data() + slot * kTile * num_fields + index;
    for (int lane = 0; lane < num_lanes; ++lane) {
      const float* row = ids[lane] >= 0 ? field.table + ids[lane] * field.dim : zeros_.data();
      prefetch_row(row, field.dim);
      rows[lane * num_fields] = row;
    }
    if (batch.wide == nullptr || field.wide == nullptr) continue;
    const float** wide_rows =
        worker.wide_rows.data() + (slot * num_wide_ + wide_slot_[index]) * kTile;
    for (int lane = 0; lane < num_lanes; ++lane) {
      wide_rows[lane] = ids[lane] >= 0 ? field.wide + ids[lane] : zeros_.data();
      __builtin_prefetch(wide_rows[lane]);
    }
  }
}

void MultiTableLookup::gather(const LookupBatch& batch, std::int64_t sample, int slot, int lane,
                              Worker& worker) const {
  const float* const* rows = worker.rows.data() + (slot * kTile + lane) * fields_.size();
  for (const Group& group : groups_) {
    const float fm =
        group.gather({rows + group.first, columns_.data() + group.first, group.count, group.dim,
                      batch.out + sample * batch.out_stride, worker.fm_sums.data()});
    if (group.in_fm && batch.fm != nullptr) batch.fm[sample] = fm;
  }
}

void MultiTableLookup::sum_wide(const LookupBatch& batch, std::int64_t begin, std::int64_t end,
                                int slot, Worker& worker) const {
  const float* const* rows = worker.wide_rows.data() + slot * num_wide_ * kTile;
  for (std::int64_t sample = begin; sample < end; ++sample) {
    float sum = 0.0f;
    for (int k = 0; k < num_wide_; ++k) sum += *rows[k * kTile + (sample - begin)];
    batch.wide[sample] = sum;
  }
}

}  // namespace dpiframe
