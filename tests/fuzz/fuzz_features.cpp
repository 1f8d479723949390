// Rows of raw values, from Arrow arrays whose offsets and indices may lie: each is the row that the
// plainest code gives, or the array is refused.
#include <fuzzer/FuzzedDataProvider.h>

#include <set>
#include <vector>

#include "features/encode_rows.h"
#include "fuzz_case.h"

using namespace dpiframe;
using fuzz::Record;

namespace {

constexpr int kMostValues = 200;

std::vector<std::uint8_t> bytes_of(FuzzedDataProvider& from, std::size_t most) {
  return from.ConsumeBytes<std::uint8_t>(from.ConsumeIntegralInRange<std::size_t>(0, most));
}

// Validity bits of `size` values, or none.
struct Nulls {
  Nulls(FuzzedDataProvider& from, std::int64_t size) {
    if (from.ConsumeBool()) return;
    offset = from.ConsumeIntegralInRange<std::int64_t>(0, 9);
    bits = from.ConsumeBytes<std::uint8_t>((offset + size + 7) / 8);
    bits.resize((offset + size + 7) / 8);
    some = true;
  }
  Validity view() const { return some ? Validity{bits.data(), offset} : Validity{}; }
  bool there(std::int64_t i) const { return !some || view()[i]; }

  std::vector<std::uint8_t> bits;
  std::int64_t offset = 0;
  bool some = false;
};

int next_length(FuzzedDataProvider& from, std::size_t left) {
  return from.ConsumeIntegralInRange(0, left < 12 ? static_cast<int>(left) : 12);
}

// Strings of which most have offsets as they should be.
template <class Offset>
struct Texts {
  explicit Texts(FuzzedDataProvider& from) : data(bytes_of(from, 1000)) {
    const int size = from.ConsumeIntegralInRange(0, kMostValues);
    const bool lies = from.ConsumeIntegralInRange(0, 9) == 0;
    Offset at = 0;
    for (int i = 0; i <= size; ++i) {
      offsets.push_back(at);
      at = lies ? from.ConsumeIntegral<Offset>() : at + next_length(from, data.size() - at);
    }
  }
  Strings<Offset> view() const {
    return {offsets.data(), data.data(), static_cast<std::int64_t>(data.size()),
            static_cast<std::int64_t>(offsets.size()) - 1};
  }

  std::vector<std::uint8_t> data;
  std::vector<Offset> offsets;
};

// The usual rows of known values, or rows of their own.
struct Rows {
  Rows(FuzzedDataProvider& from, std::int64_t size) {
    if (from.ConsumeBool()) return;
    for (std::int64_t i = 0; i < size; ++i) of.push_back(from.ConsumeIntegral<std::int32_t>());
    numbering = {of.data(), from.ConsumeIntegral<std::int32_t>(),
                 from.ConsumeIntegral<std::int32_t>()};
  }
  std::int32_t row(std::int64_t position) const {
    if (position < 0) return numbering.unseen;
    return of.empty() ? static_cast<std::int32_t>(2 + position) : of[position];
  }

  std::vector<std::int32_t> of;
  Numbering numbering;
};

template <class Offset>
void hash_strings(FuzzedDataProvider& from) {
  const Texts<Offset> texts(from);
  const auto strings = texts.view();
  const Nulls nulls(from, strings.size);
  const HashParams params{from.ConsumeIntegral<std::uint64_t>(),
                          from.ConsumeIntegralInRange<std::uint64_t>(1, INT32_MAX - 2)};
  std::vector<std::int32_t> rows(strings.size);
  if (fuzz::refusal([&] { hashed_string_rows(strings, nulls.view(), params, rows.data()); }))
    return Record::get().count("strings refused");
  for (std::int64_t i = 0; i < strings.size; ++i) {
    const auto text = strings[i];
    const auto hash = xxh64(text.data(), static_cast<std::int64_t>(text.size()), params.seed);
    const auto row = static_cast<std::int32_t>(2 + hash % params.modulus);
    fuzz::require(rows[i] == (nulls.there(i) && !text.empty() ? row : 0), "a row of a hash");
  }
  Record::get().count("strings hashed");
}

template <class Offset>
void find_strings(FuzzedDataProvider& from) {
  const Texts<std::int32_t> known(from);
  const Rows known_rows(from, known.view().size);
  const Texts<Offset> texts(from);
  const auto strings = texts.view();
  const Nulls nulls(from, strings.size);
  std::vector<std::int32_t> rows(strings.size);
  const auto refused = fuzz::refusal([&] {
    known.view().check();
    const ValueIndex<Strings<std::int32_t>> index(known.view());
    known_string_rows(index, known_rows.numbering, strings, nulls.view(), rows.data());
  });
  if (refused.has_value()) return Record::get().count("known strings refused");
  for (std::int64_t i = 0; i < strings.size; ++i) {
    std::int64_t position = -1;
    for (std::int64_t k = 0; k < known.view().size; ++k)
      if (known.view()[k] == strings[i]) position = k;
    const bool missing = !nulls.there(i) || (strings[i].empty() && position < 0);
    const auto row = missing ? known_rows.numbering.missing : known_rows.row(position);
    fuzz::require(rows[i] == row, "a known string");
  }
  Record::get().count("strings found");
}

void find_integers(FuzzedDataProvider& from) {
  std::vector<std::int64_t> known, values;
  for (auto* numbers : {&known, &values})
    for (int left = from.ConsumeIntegralInRange(0, kMostValues); left > 0; --left)
      numbers->push_back(from.ConsumeIntegralInRange<std::int64_t>(-20, 300));
  const auto size = static_cast<std::int64_t>(values.size());
  const Rows known_rows(from, static_cast<std::int64_t>(known.size()));
  const Nulls nulls(from, size);
  std::vector<std::int32_t> rows(values.size());
  const auto refused = fuzz::refusal([&] {
    const ValueIndex<Integers> index({known.data(), static_cast<std::int64_t>(known.size())});
    known_int64_rows(index, known_rows.numbering, values.data(), size, nulls.view(), rows.data());
  });
  const bool distinct = std::set<std::int64_t>(known.begin(), known.end()).size() == known.size();
  fuzz::require(refused.has_value() == !distinct, "values that are known twice");
  if (refused.has_value()) return Record::get().count("known integers refused");
  for (std::int64_t i = 0; i < size; ++i) {
    const auto at = std::find(known.begin(), known.end(), values[i]);
    const auto row = known_rows.row(at == known.end() ? -1 : at - known.begin());
    fuzz::require(rows[i] == (nulls.there(i) ? row : known_rows.numbering.missing),
                  "a known integer");
  }
  Record::get().count("integers found");
}

void gather(FuzzedDataProvider& from) {
  std::vector<std::int32_t> codes(from.ConsumeIntegralInRange(0, 50));
  for (auto& code : codes) code = from.ConsumeIntegral<std::int32_t>();
  std::vector<std::int32_t> indices(from.ConsumeIntegralInRange(0, kMostValues));
  const bool lies = from.ConsumeBool();
  for (auto& index : indices)
    index = lies ? from.ConsumeIntegral<std::int32_t>() : from.ConsumeIntegralInRange(0, 50);
  const auto size = static_cast<std::int64_t>(indices.size());
  const Nulls nulls(from, size);
  std::vector<std::int32_t> out(indices.size());
  const auto refused = fuzz::refusal([&] {
    gather_codes(std::span<const std::int32_t>(codes), indices.data(), size, nulls.view(),
                 out.data());
  });
  if (refused.has_value()) return Record::get().count("indices refused");
  for (std::int64_t i = 0; i < size; ++i)
    fuzz::require(out[i] == (nulls.there(i) ? codes[indices[i]] : codes.back()), "a code");
  Record::get().count("codes gathered");
}

template <class Integer>
void bucket(FuzzedDataProvider& from) {
  std::vector<std::int32_t> small(from.ConsumeIntegralInRange(0, 20));
  for (std::size_t i = 0; i < small.size(); ++i) small[i] = static_cast<std::int32_t>(i / 2 + 2);
  std::set<std::int64_t> ascending;
  const std::int64_t lowest = from.ConsumeIntegralInRange<std::int64_t>(-5, 5);
  const std::int64_t end = lowest + static_cast<std::int64_t>(small.size());
  for (int left = from.ConsumeIntegralInRange(0, 20); left > 0; --left)
    ascending.insert(from.ConsumeIntegralInRange<std::int64_t>(end, INT64_MAX));
  const std::vector<std::int64_t> steps(ascending.begin(), ascending.end());
  std::vector<Integer> values(from.ConsumeIntegralInRange(0, kMostValues));
  for (auto& value : values)
    value = from.ConsumeBool() ? from.ConsumeIntegral<Integer>()
                               : from.ConsumeIntegralInRange<Integer>(-9, 40);
  const auto size = static_cast<std::int64_t>(values.size());
  const Nulls nulls(from, size);
  std::vector<std::int32_t> rows(values.size());
  const auto refused = fuzz::refusal(
      [&] { bucket_rows(values.data(), size, nulls.view(), {lowest, small, steps}, rows.data()); });
  fuzz::require(refused.has_value() == small.empty(), "buckets without rows");
  if (refused.has_value()) return Record::get().count("buckets refused");
  for (std::int64_t i = 0; i < size; ++i) {
    const auto value = std::max<std::int64_t>(values[i], lowest);
    std::int32_t row = value < end ? small[value - lowest] : small.back();
    for (const std::int64_t step : steps) row += value >= step;
    fuzz::require(rows[i] == (nulls.there(i) ? row : 0), "a row of a bucket");
  }
  Record::get().count("integers in buckets");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const fuzz::Case fuzz_case(static_cast<std::int64_t>(size));
  FuzzedDataProvider from(data, size);
  constexpr void (*kKinds[])(FuzzedDataProvider&) = {hash_strings<std::int32_t>,
                                                     hash_strings<std::int64_t>,
                                                     find_strings<std::int32_t>,
                                                     find_strings<std::int64_t>,
                                                     find_integers,
                                                     gather,
                                                     bucket<std::int32_t>,
                                                     bucket<std::int64_t>};
  from.PickValueInArray(kKinds)(from);
  return 0;
}
