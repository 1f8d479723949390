// Bad ids are rare, so a block is first asked whether it holds any, by a loop with no branch that
// the compiler vectorises: id | (rows - 1 - id) has its sign bit set just where id is outside.
#include <algorithm>
#include <cstring>
#include <limits>
#include <type_traits>

#include "common/check.h"
#include "kernels/embedding/find_bad_ids.h"

namespace dpiframe {
namespace {

constexpr std::int64_t kBlock = 4096;  // samples: their mask and one column of ids fit in L1

template <class Id>
Id load(const char* data, std::int64_t stride, std::int64_t sample) {
  Id id;
  std::memcpy(&id, data + sample * stride, sizeof(id));
  return id;
}

template <class Id>
bool any_outside(const char* data, std::int64_t stride, std::int64_t size, Id last) {
  using Word = std::make_unsigned_t<Id>;
  Word seen = 0;
  for (std::int64_t b = 0; b < size; ++b) {
    const Word id = static_cast<Word>(load<Id>(data, stride, b));
    seen |= id | (static_cast<Word>(last) - id);
  }
  return static_cast<Id>(seen) < 0;
}

template <class Id>
std::int64_t mark_block(const char* data, std::int64_t stride, std::int64_t size, std::int64_t rows,
                        std::uint8_t* mask) {
  const Id last = static_cast<Id>(
      std::min(rows - 1, static_cast<std::int64_t>(std::numeric_limits<Id>::max())));
  const bool contiguous = stride == sizeof(Id);
  if (!(contiguous ? any_outside<Id>(data, sizeof(Id), size, last)
                   : any_outside<Id>(data, stride, size, last)))
    return 0;
  std::int64_t count = 0;
  for (std::int64_t b = 0; b < size; ++b) {
    const Id id = load<Id>(data, stride, b);
    const bool outside = id < 0 || id > last;
    mask[b] |= outside;
    count += outside;
  }
  return count;
}

}  // namespace

void find_bad_ids(std::span<const IdColumn> ids, std::span<const std::int64_t> rows,
                  std::int64_t size, std::uint8_t* mask, std::int64_t* counts) {
  DPIF_CHECK(ids.size() == rows.size(), "expected rows of ", ids.size(), " fields, got ",
             rows.size());
  for (std::size_t f = 0; f < rows.size(); ++f)
    DPIF_CHECK(rows[f] >= 1, "a table must have at least 1 row, got ", rows[f], " (field ", f, ")");
  std::fill(mask, mask + size, std::uint8_t{0});
  std::fill(counts, counts + ids.size(), std::int64_t{0});
  for (std::int64_t begin = 0; begin < size; begin += kBlock) {
    const std::int64_t length = std::min(kBlock, size - begin);
    for (std::size_t f = 0; f < ids.size(); ++f) {
      const char* data = static_cast<const char*>(ids[f].data) + begin * ids[f].stride;
      counts[f] +=
          ids[f].is_int64
              ? mark_block<std::int64_t>(data, ids[f].stride, length, rows[f], mask + begin)
              : mark_block<std::int32_t>(data, ids[f].stride, length, rows[f], mask + begin);
    }
  }
}

}  // namespace dpiframe
