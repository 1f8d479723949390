#include "runtime/ring_call.h"

#include <algorithm>
#include <chrono>
#include <deque>

namespace dpiframe {
namespace {

using Clock = std::chrono::steady_clock;

// The same columns from a later row on.
std::vector<IdColumn> from_row(std::span<const IdColumn> columns, std::int64_t row) {
  std::vector<IdColumn> moved(columns.begin(), columns.end());
  for (IdColumn& column : moved)
    column.data = static_cast<const char*>(column.data) + row * column.stride;
  return moved;
}

struct InFlight {
  int slot;
  std::span<float> out;
};

class Call {
 public:
  Call(BatchRing& ring, int num_report) : ring_(ring), report_(num_report) {}

  // Leaves the ring empty, whatever happened: nothing may read the caller's memory afterwards.
  ~Call() {
    while (!waiting_.empty()) {
      try {
        collect();
      } catch (const std::exception&) {
        continue;  // the device failed before, and the caller knows
      }
    }
  }

  void submit(const HostBatch& batch, std::span<float> out) {
    if (static_cast<int>(waiting_.size()) == ring_.num_slots()) collect();
    waiting_.push_back({ring_.submit(batch), out});
  }

  RingCall finish() {
    while (!waiting_.empty()) collect();
    return std::move(result_);
  }

 private:
  void collect() {
    const InFlight batch = waiting_.front();
    waiting_.pop_front();
    if (ring_.collect(batch.slot, batch.out, report_)) result_.reports.push_back(report_);
    const Clock::time_point now = Clock::now();
    result_.batch_seconds.push_back(std::chrono::duration<double>(now - last_).count());
    last_ = now;
  }

  BatchRing& ring_;
  std::vector<std::int64_t> report_;
  std::deque<InFlight> waiting_;
  RingCall result_;
  Clock::time_point last_ = Clock::now();
};

}  // namespace

RingCall run_call(BatchRing& ring, const HostBatch& call, std::int64_t max_rows,
                  std::span<float> out, int num_report) {
  Call running(ring, num_report);
  for (std::int64_t row = 0; row < call.size; row += max_rows) {
    const std::vector<IdColumn> ids = from_row(call.ids.columns, row);
    const std::vector<IdColumn> dense = from_row(call.dense.columns, row);
    HostBatch batch = call;
    batch.size = std::min(max_rows, call.size - row);
    batch.ids.columns = ids;
    batch.dense.columns = dense;
    running.submit(batch, out.subspan(row, batch.size));
  }
  return running.finish();
}

}  // namespace dpiframe
