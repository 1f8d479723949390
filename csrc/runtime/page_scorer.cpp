#include "runtime/page_scorer.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>

#include "cuda/cuda_check.h"
#include "cuda/stream.h"
#include "parquet/gpu/decode_pages.h"
#include "parquet/gpu/decompress_pages.h"
#include "parquet/gpu/refused_page.h"
#include "parquet/page_bytes.cuh"

namespace dpiframe {
namespace {

// Short, because a unit takes milliseconds and other threads need the cores.
constexpr std::chrono::microseconds kSpin{20};
constexpr std::size_t kLine = 256;
// Units have about one size: an eighth more than the first one needs is enough for nearly all.
constexpr std::size_t kSpareOf = 8;

std::size_t padded(std::size_t bytes) {
  return (bytes + kLine - 1) / kLine * kLine;
}

// The lists that kernels need of a unit's pages, one after the other on host and device.
struct PageLists {
  std::size_t pages;  // bytes of each part, padded
  std::size_t order;
  std::size_t words;  // `next` of each codec, and `failed`

  explicit PageLists(std::size_t num_pages)
      : pages(padded(sizeof(parquet::Page) * num_pages)),
        order(padded(sizeof(std::int32_t) * num_pages)),
        words(padded((kGpuCodecs.size() + 1) * sizeof(unsigned))) {}

  std::size_t bytes() const { return pages + order + words; }
};

// How many pages each codec has.
using CodecPages = std::array<std::int32_t, kGpuCodecs.size()>;

// Compressed pages by codec, the longest first: a long one that begins last would delay all.
CodecPages write_order(const std::vector<parquet::Page>& pages, std::int32_t* order) {
  CodecPages found{};
  for (std::size_t c = 0; c < kGpuCodecs.size(); ++c) {
    std::int32_t* end = order;
    for (std::size_t p = 0; p < pages.size(); ++p)
      if (pages[p].codec == kGpuCodecs[c]) *end++ = static_cast<std::int32_t>(p);
    std::stable_sort(order, end, [&](std::int32_t a, std::int32_t b) {
      return pages[a].uncompressed_bytes > pages[b].uncompressed_bytes;
    });
    found[c] = static_cast<std::int32_t>(end - order);
    order = end;
  }
  return found;
}

}  // namespace

void* GrowingBuffer::take(std::size_t bytes) {
  if (bytes > buffer_.bytes()) {
    buffer_ = DeviceBuffer();  // freed before more is taken
    buffer_ = DeviceBuffer::zeros(padded(bytes + bytes / kSpareOf));
  }
  return buffer_.get();
}

void* GrowingPinnedBuffer::take(std::size_t bytes) {
  if (bytes > buffer_.bytes()) {
    buffer_ = PinnedBuffer();
    buffer_ = PinnedBuffer(padded(bytes + bytes / kSpareOf));
  }
  return buffer_.get();
}

struct PageScorer::Slot {
  explicit Slot(int num_report) : report(num_report) {}

  Stream stream;
  GrowingBuffer lists, compressed, uncompressed, literals, ids, dense, scores;
  GrowingPinnedBuffer host_lists, host_scores;
  PinnedBuffer failed{sizeof(unsigned)};
  BadIdReport report;
  TimedEvent begun, copied, decompressed, started, done;
  std::vector<TimedEvent> batches;  // the end of each
  CodecPages num_compressed{};

  std::size_t device_bytes() const {
    std::size_t bytes = 0;
    for (const GrowingBuffer* buffer :
         {&lists, &compressed, &uncompressed, &literals, &ids, &dense, &scores})
      bytes += buffer->bytes();
    return bytes;
  }

  // Why a page is refused, after `decompressed`; empty: none is.
  std::string refusal(const parquet::ColumnPages& ids) const {
    const unsigned word = *static_cast<const unsigned*>(failed.get());
    if (word == 0) return {};
    const parquet::Page& page = ids.pages[pages::page_of_refused(word)];
    const bool unpacked = pages::what_of_refused(word) == pages::Failed::kDecode;
    return join_message("the page of rows ", page.row, " to ", page.row + page.values - 1,
                        " of the unit, of column ", page.column, " of its ids (codec ",
                        static_cast<int>(page.codec), ", ", page.compressed_bytes, " bytes, ",
                        page.uncompressed_bytes, " unpacked), ",
                        unpacked ? "is corrupt or holds nulls" : "does not unpack");
  }
};

// Holds a slot for the duration of a call.
class PageScorer::Turn {
 public:
  explicit Turn(PageScorer& scorer) : scorer_(scorer) {
    std::unique_lock lock(scorer.guard_);
    scorer.freed_.wait(lock, [&] { return !scorer.free_.empty(); });
    slot_ = scorer.free_.back();
    scorer.free_.pop_back();
  }
  ~Turn() {
    // The caller may free its memory after a failed call: nothing may read it any more.
    drain(slot_->stream.get());
    {
      const std::lock_guard lock(scorer_.guard_);
      scorer_.free_.push_back(slot_);
    }
    scorer_.freed_.notify_one();
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

  Slot& slot() const { return *slot_; }

 private:
  PageScorer& scorer_;
  Slot* slot_;
};

PageScorer::PageScorer(CudaProgram& program, BatchRing& ring, int num_fields, int num_dense,
                       int num_slots)
    : program_(program), ring_(ring), num_fields_(num_fields), num_dense_(num_dense) {
  DPIF_CHECK(num_slots >= 1, "num_slots must be at least 1, got ", num_slots);
  const DeviceGuard guard(program.device());
  for (int s = 0; s < num_slots; ++s) {
    slots_.push_back(std::make_unique<Slot>(program.num_report()));
    free_.push_back(slots_.back().get());
  }
}

PageScorer::~PageScorer() {
  // The program's stream must not use the memory while it is freed.
  drain(program_.stream().get());
}

std::size_t PageScorer::device_bytes() const {
  return std::accumulate(
      slots_.begin(), slots_.end(), std::size_t{0},
      [](std::size_t bytes, const auto& slot) { return bytes + slot->device_bytes(); });
}

void PageScorer::check(const UnitPages& unit, std::size_t out_size) const {
  const parquet::ColumnPages& ids = unit.ids;
  DPIF_CHECK(ids.columns == num_fields_, "expected ids of ", num_fields_, " fields, got ",
             ids.columns);
  DPIF_CHECK(out_size == static_cast<std::size_t>(ids.rows), "a unit of ", ids.rows,
             " rows, but room for ", out_size, " scores");
  DPIF_CHECK(unit.bytes.size() >= static_cast<std::size_t>(ids.compressed_bytes), "a unit of ",
             ids.compressed_bytes, " stored bytes, but memory of ", unit.bytes.size());
  DPIF_CHECK(ids.pages.size() <= INT32_MAX, "a unit of ", ids.pages.size(), " pages");
  DPIF_CHECK(unit.num_dense == num_dense_, "expected ", num_dense_, " dense features, got ",
             unit.num_dense);
  DPIF_CHECK(num_dense_ == 0 || unit.dense_stride >= ids.rows, "dense features of ",
             unit.dense_stride, " rows, expected ", ids.rows);
}

ScoredUnit PageScorer::score(const UnitPages& unit, std::span<float> out) {
  check(unit, out.size());
  if (out.empty()) return {};
  const DeviceGuard guard(program_.device());
  const Turn turn(*this);
  Slot& slot = turn.slot();
  send(unit, slot);
  unpack(unit, slot);
  slot.decompressed.synchronize(kSpin);
  if (const std::string why = slot.refusal(unit.ids); !why.empty()) throw std::runtime_error(why);
  try {
    compute(unit, slot);
    return finish(unit, slot, out);
  } catch (...) {  // what was enqueued must not use the slot's memory after this call
    drain(program_.stream().get());
    throw;
  }
}

std::string PageScorer::decode(const UnitPages& unit, std::span<std::byte> out) {
  check(unit, unit.ids.rows);
  const std::size_t numbers = static_cast<std::size_t>(unit.ids.rows) * num_fields_;
  DPIF_CHECK(out.size() == numbers * unit.ids.number_bytes, "ids of ",
             numbers * unit.ids.number_bytes, " bytes, but room for ", out.size());
  if (out.empty()) return {};
  const DeviceGuard guard(program_.device());
  const Turn turn(*this);
  Slot& slot = turn.slot();
  send(unit, slot);
  unpack(unit, slot);
  DPIF_CUDA_CHECK(cudaMemcpyAsync(out.data(), slot.ids.take(0), out.size(), cudaMemcpyDeviceToHost,
                                  slot.stream.get()));
  slot.stream.synchronize();
  return slot.refusal(unit.ids);
}

void PageScorer::send(const UnitPages& unit, Slot& slot) {
  const parquet::ColumnPages& ids = unit.ids;
  const PageLists lists(ids.pages.size());
  auto* host = static_cast<char*>(slot.host_lists.take(lists.bytes()));
  std::memcpy(host, ids.pages.data(), sizeof(parquet::Page) * ids.pages.size());
  slot.num_compressed = write_order(ids.pages, reinterpret_cast<std::int32_t*>(host + lists.pages));
  std::memset(host + lists.pages + lists.order, 0, lists.words);
  void* on_device = slot.lists.take(lists.bytes());
  void* compressed = slot.compressed.take(ids.compressed_bytes + kLine);
  const std::int64_t rows = ids.rows;
  void* dense = slot.dense.take(sizeof(float) * rows * num_dense_);
  (void)slot.scores.take(sizeof(float) * rows);
  (void)slot.host_scores.take(sizeof(float) * rows);
  const cudaStream_t stream = slot.stream.get();
  slot.begun.record(slot.stream);
  DPIF_CUDA_CHECK(cudaMemcpyAsync(on_device, host, lists.bytes(), cudaMemcpyHostToDevice, stream));
  DPIF_CUDA_CHECK(cudaMemcpyAsync(compressed, unit.bytes.data(), ids.compressed_bytes,
                                  cudaMemcpyHostToDevice, stream));
  if (num_dense_ > 0)
    DPIF_CUDA_CHECK(cudaMemcpy2DAsync(dense, sizeof(float) * rows, unit.dense,
                                      sizeof(float) * unit.dense_stride, sizeof(float) * rows,
                                      num_dense_, cudaMemcpyHostToDevice, stream));
  slot.copied.record(slot.stream);
}

void PageScorer::unpack(const UnitPages& unit, Slot& slot) {
  const parquet::ColumnPages& ids = unit.ids;
  const PageLists parts(ids.pages.size());
  auto* lists = static_cast<char*>(slot.lists.take(parts.bytes()));
  auto* words = reinterpret_cast<unsigned*>(lists + parts.pages + parts.order);
  const auto* pages = reinterpret_cast<const parquet::Page*>(lists);
  const auto* compressed = static_cast<const std::uint8_t*>(slot.compressed.take(0));
  const std::size_t room = ids.uncompressed_bytes + kLine;
  auto* uncompressed = static_cast<std::uint8_t*>(slot.uncompressed.take(room));
  auto* literals = static_cast<std::uint8_t*>(slot.literals.take(room));
  void* out = slot.ids.take(static_cast<std::size_t>(ids.number_bytes) * ids.rows * num_fields_);
  const cudaStream_t stream = slot.stream.get();
  unsigned* failed = words + kGpuCodecs.size();
  const auto* order = reinterpret_cast<const std::int32_t*>(lists + parts.pages);
  for (std::size_t c = 0; c < kGpuCodecs.size(); ++c) {
    const std::int32_t num = slot.num_compressed[c];
    decompress_pages(kGpuCodecs[c],
                     {pages, order, num, compressed, uncompressed, literals, words + c, failed},
                     stream);
    order += num;
  }
  const auto count = [&](auto is_one) {
    return static_cast<std::int32_t>(
        std::ranges::count_if(ids.pages, is_one, &parquet::Page::kind));
  };
  const std::int32_t num_rare = count(pages::is_rare), num_raw = count(pages::is_raw);
  decode_pages({pages, static_cast<std::int32_t>(ids.pages.size()), num_rare, num_raw, compressed,
                uncompressed, out, ids.rows, ids.number_bytes, failed},
               stream);
  DPIF_CUDA_CHECK(
      cudaMemcpyAsync(slot.failed.get(), failed, sizeof(unsigned), cudaMemcpyDeviceToHost, stream));
  slot.decompressed.record(slot.stream);
}

void PageScorer::compute(const UnitPages& unit, Slot& slot) {
  const std::int64_t rows = unit.ids.rows;
  const std::int64_t most = program_.max_rows();
  const std::int64_t number_bytes = unit.ids.number_bytes;
  auto* scores = static_cast<float*>(slot.scores.take(0));
  const auto* dense = static_cast<const float*>(slot.dense.take(0));
  std::vector<BatchMemory> batches;
  for (std::int64_t row = 0; row < rows; row += most) {
    BatchMemory batch{};
    batch.ids = static_cast<const char*>(slot.ids.take(0)) + row * number_bytes;
    batch.ids_are_int64 = number_bytes == sizeof(std::int64_t);
    batch.dense = num_dense_ > 0 ? dense + row : nullptr;
    batch.ids_stride = batch.dense_stride = rows;
    batch.batch = std::min(most, rows - row);
    batch.scores = scores + row;
    batch.report = slot.report.device();
    batch.use_oov = unit.use_oov;
    batches.push_back(batch);
  }
  batches.back().report_copy = slot.report.host();
  while (slot.batches.size() < batches.size()) slot.batches.emplace_back();
  ring_.enqueue(batches, slot.started, slot.batches);
}

ScoredUnit PageScorer::finish(const UnitPages& unit, Slot& slot, std::span<float> out) {
  const std::int64_t most = program_.max_rows();
  const std::size_t num_batches = (unit.ids.rows + most - 1) / most;
  const TimedEvent& computed = slot.batches[num_batches - 1];
  void* host = slot.host_scores.take(0);
  slot.stream.wait_for(computed.get());
  DPIF_CUDA_CHECK(cudaMemcpyAsync(host, slot.scores.take(0), out.size_bytes(),
                                  cudaMemcpyDeviceToHost, slot.stream.get()));
  slot.done.record(slot.stream);
  slot.done.synchronize(kSpin);
  std::memcpy(out.data(), host, out.size_bytes());
  ScoredUnit scored;
  scored.report.resize(program_.num_report());
  if (!slot.report.take(scored.report, program_.stream())) scored.report.clear();
  const TimedEvent* before = &slot.started;
  for (std::size_t b = 0; b < num_batches; before = &slot.batches[b++])
    scored.batch_seconds.push_back(seconds_between(*before, slot.batches[b]));
  scored.seconds = {seconds_between(slot.begun, slot.copied),
                    seconds_between(slot.copied, slot.decompressed),
                    seconds_between(slot.started, computed), seconds_between(computed, slot.done)};
  return scored;
}

}  // namespace dpiframe
