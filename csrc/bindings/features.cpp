#include "bindings/families.h"
#include "bindings/numpy_args.h"
#include "features/encode_rows.h"
#include "features/value_encoder.h"

namespace dpiframe {
namespace {

// The validity bitmap of an Arrow array and the position of its first value there, or None.
using ValidityArgument = std::optional<std::pair<py::array, std::int64_t>>;

Validity validity_argument(const ValidityArgument& validity, py::ssize_t size) {
  if (!validity.has_value()) return {};
  const auto bits = contiguous_argument<std::uint8_t>(validity->first, "validity", 1);
  const std::int64_t offset = validity->second;
  DPIF_CHECK(offset >= 0 && offset + size <= 8 * bits.size(), "validity must have ", offset + size,
             " bits, got ", 8 * bits.size());
  return {bits.data(), offset};
}

// Strings and the arrays whose memory they are.
template <class Offset>
struct StringsArgument {
  StringsArgument(const py::array& offsets, const py::array& data)
      : offsets_(contiguous_argument<Offset>(offsets, "offsets", 1)),
        data_(contiguous_argument<std::uint8_t>(data, "data", 1)) {
    DPIF_CHECK(offsets_.size() >= 1, "offsets must have at least 1 entry, got 0");
    strings = {offsets_.data(), data_.data(), data_.size(), offsets_.size() - 1};
  }

  Strings<Offset> strings;

 private:
  Array<Offset> offsets_;
  Array<std::uint8_t> data_;
};

template <class Offset>
void hashed_strings(const StringsArgument<Offset>& argument, const ValidityArgument& validity,
                    HashParams params, const py::array& out) {
  const Strings<Offset>& strings = argument.strings;
  auto* rows = writable_argument<std::int32_t>(out, "out", strings.size);
  const Validity valid = validity_argument(validity, strings.size);
  const py::gil_scoped_release release;
  hashed_string_rows(strings, valid, params, rows);
}

HashParams hash_params(std::uint64_t seed, std::int64_t modulus) {
  DPIF_CHECK(modulus >= 1 && modulus <= INT32_MAX - kFirstValueRow, "modulus must be in 1 .. ",
             INT32_MAX - kFirstValueRow, ", got ", modulus);
  return {seed, static_cast<std::uint64_t>(modulus)};
}

void hashed_strings_argument(const py::array& offsets, const py::array& data,
                             const ValidityArgument& validity, std::uint64_t seed,
                             std::int64_t modulus, const py::array& out) {
  const HashParams params = hash_params(seed, modulus);
  if (py::isinstance<Array<std::int32_t>>(offsets))
    return hashed_strings(StringsArgument<std::int32_t>(offsets, data), validity, params, out);
  hashed_strings(StringsArgument<std::int64_t>(offsets, data), validity, params, out);
}

void hashed_int64_argument(const py::array& values, const ValidityArgument& validity,
                           std::uint64_t seed, std::int64_t modulus, const py::array& out) {
  const HashParams params = hash_params(seed, modulus);
  const auto checked = contiguous_argument<std::int64_t>(values, "values", 1);
  auto* rows = writable_argument<std::int32_t>(out, "out", checked.size());
  const Validity valid = validity_argument(validity, checked.size());
  const py::gil_scoped_release release;
  hashed_int64_rows(checked.data(), checked.size(), valid, params, rows);
}

template <class Integer>
void bucketed(const Array<Integer>& values, const ValidityArgument& validity,
              const Buckets& buckets, const py::array& out) {
  auto* rows = writable_argument<std::int32_t>(out, "out", values.size());
  const Validity valid = validity_argument(validity, values.size());
  const py::gil_scoped_release release;
  bucket_rows(values.data(), values.size(), valid, buckets, rows);
}

void bucketed_argument(const py::array& values, const ValidityArgument& validity,
                       std::int64_t lowest, const py::array& small, const py::array& steps,
                       const py::array& out) {
  const auto rows = contiguous_argument<std::int32_t>(small, "small", 1);
  const auto beyond = contiguous_argument<std::int64_t>(steps, "steps", 1);
  const Buckets buckets{lowest,
                        {rows.data(), static_cast<std::size_t>(rows.size())},
                        {beyond.data(), static_cast<std::size_t>(beyond.size())}};
  if (py::isinstance<Array<std::int32_t>>(values))
    return bucketed(contiguous_argument<std::int32_t>(values, "values", 1), validity, buckets, out);
  bucketed(contiguous_argument<std::int64_t>(values, "values", 1), validity, buckets, out);
}

template <class Code>
void gathered(const py::array& codes, const py::array& indices, const ValidityArgument& validity,
              const py::array& out) {
  const auto known = contiguous_argument<Code>(codes, "codes", 1);
  const auto checked = contiguous_argument<std::int32_t>(indices, "indices", 1);
  auto* result = writable_argument<Code>(out, "out", checked.size());
  const Validity valid = validity_argument(validity, checked.size());
  const py::gil_scoped_release release;
  gather_codes<Code>({known.data(), static_cast<std::size_t>(known.size())}, checked.data(),
                     checked.size(), valid, result);
}

void gathered_argument(const py::array& codes, const py::array& indices,
                       const ValidityArgument& validity, const py::array& out) {
  if (py::isinstance<Array<float>>(codes)) return gathered<float>(codes, indices, validity, out);
  gathered<std::int32_t>(codes, indices, validity, out);
}

// The rows of `size` known values, or None, and the array whose memory they are.
struct NumberingArgument {
  NumberingArgument(const std::optional<py::array>& rows, std::int32_t missing, std::int32_t unseen,
                    std::int64_t size)
      : numbering{nullptr, missing, unseen} {
    if (!rows.has_value()) return;
    rows_ = contiguous_argument<std::int32_t>(*rows, "rows_of_values", 1);
    DPIF_CHECK(rows_.size() == size, "rows_of_values must be of ", size, " values, got ",
               rows_.size());
    numbering.of = rows_.data();
  }

  Numbering numbering;

 private:
  Array<std::int32_t> rows_;
};

class StringIndex : public ValueEncoder {
 public:
  StringIndex(const py::array& offsets, const py::array& data, const std::optional<py::array>& rows,
              std::int32_t missing, std::int32_t unseen)
      : ValueEncoder(missing),
        argument_(offsets, data),
        numbering_(rows, missing, unseen, argument_.strings.size),
        known_(checked(argument_.strings)) {}

  void rows(const py::array& offsets, const py::array& data, const ValidityArgument& validity,
            const py::array& out) const {
    if (py::isinstance<Array<std::int32_t>>(offsets))
      return write(StringsArgument<std::int32_t>(offsets, data), validity, out);
    write(StringsArgument<std::int64_t>(offsets, data), validity, out);
  }

  void strings(std::span<const std::string_view> values, Code* out) const override {
    known_string_rows(known_, numbering_.numbering, StringViews{values}, {}, out);
  }

 private:
  static Strings<std::int32_t> checked(const Strings<std::int32_t>& strings) {
    strings.check();
    return strings;
  }

  template <class Offset>
  void write(const StringsArgument<Offset>& argument, const ValidityArgument& validity,
             const py::array& out) const {
    const Strings<Offset>& strings = argument.strings;
    auto* rows = writable_argument<std::int32_t>(out, "out", strings.size);
    const Validity valid = validity_argument(validity, strings.size);
    const py::gil_scoped_release release;
    known_string_rows(known_, numbering_.numbering, strings, valid, rows);
  }

  StringsArgument<std::int32_t> argument_;
  NumberingArgument numbering_;
  ValueIndex<Strings<std::int32_t>> known_;
};

class Int64Index : public ValueEncoder {
 public:
  Int64Index(const py::array& values, const std::optional<py::array>& rows, std::int32_t missing,
             std::int32_t unseen)
      : ValueEncoder(missing),
        values_(contiguous_argument<std::int64_t>(values, "values", 1)),
        numbering_(rows, missing, unseen, values_.size()),
        known_(Integers{values_.data(), values_.size()}) {}

  void rows(const py::array& values, const ValidityArgument& validity, const py::array& out) const {
    const auto checked = contiguous_argument<std::int64_t>(values, "values", 1);
    auto* rows = writable_argument<std::int32_t>(out, "out", checked.size());
    const Validity valid = validity_argument(validity, checked.size());
    const py::gil_scoped_release release;
    known_int64_rows(known_, numbering_.numbering, checked.data(), checked.size(), valid, rows);
  }

  void integers(std::span<const std::int64_t> values, Code* out) const override {
    known_int64_rows(known_, numbering_.numbering, values.data(), std::ssize(values), {}, out);
  }

 private:
  Array<std::int64_t> values_;
  NumberingArgument numbering_;
  ValueIndex<Integers> known_;
};

std::unique_ptr<ValueEncoder> hash_encoder(std::uint64_t seed, std::int64_t modulus) {
  return std::make_unique<HashEncoder>(hash_params(seed, modulus));
}

std::unique_ptr<ValueEncoder> modulo_encoder(std::int64_t modulus) {
  DPIF_CHECK(modulus >= 1 && modulus <= INT32_MAX - kFirstValueRow, "modulus must be in 1 .. ",
             INT32_MAX - kFirstValueRow, ", got ", modulus);
  return std::make_unique<ModuloEncoder>(static_cast<std::uint64_t>(modulus));
}

std::unique_ptr<ValueEncoder> bucket_encoder(std::int64_t lowest, std::vector<std::int32_t> small,
                                             std::vector<std::int64_t> steps) {
  return std::make_unique<BucketEncoder>(lowest, std::move(small), std::move(steps));
}

std::unique_ptr<ValueEncoder> dense_encoder(bool log1p, double mean, double std, double fill) {
  return std::make_unique<DenseEncoder>(DenseEncoder::Params{log1p, mean, std, fill});
}

void standardise(const ValueEncoder& encoder, const py::array& values, const py::array& out) {
  const auto reals = contiguous_argument<double>(values, "values", 1);
  auto* codes = writable_argument<float>(out, "out", reals.size());
  const py::gil_scoped_release release;
  encoder.reals({reals.data(), static_cast<std::size_t>(reals.size())},
                reinterpret_cast<Code*>(codes));
}

}  // namespace

void bind_encode(py::module_& module) {
  py::class_<ValueEncoder>(module, "ValueEncoder")
      .def("standardise", &standardise, py::arg("values"), py::arg("out"));
  module.def("hash_encoder", &hash_encoder, py::arg("seed"), py::arg("modulus"));
  module.def("modulo_encoder", &modulo_encoder, py::arg("modulus"));
  module.def("bucket_encoder", &bucket_encoder, py::arg("lowest"), py::arg("small"),
             py::arg("steps"));
  module.def("dense_encoder", &dense_encoder, py::arg("log1p"), py::arg("mean"), py::arg("std"),
             py::arg("fill"));
  py::class_<StringIndex, ValueEncoder>(module, "StringIndex")
      .def(py::init<const py::array&, const py::array&, const std::optional<py::array>&,
                    std::int32_t, std::int32_t>(),
           py::arg("offsets"), py::arg("data"), py::arg("rows_of_values") = py::none(),
           py::arg("missing_row") = kMissingRow, py::arg("unseen_row") = kUnseenRow)
      .def("rows", &StringIndex::rows, py::arg("offsets"), py::arg("data"), py::arg("validity"),
           py::arg("out"));
  py::class_<Int64Index, ValueEncoder>(module, "Int64Index")
      .def(
          py::init<const py::array&, const std::optional<py::array>&, std::int32_t, std::int32_t>(),
          py::arg("values"), py::arg("rows_of_values") = py::none(),
          py::arg("missing_row") = kMissingRow, py::arg("unseen_row") = kUnseenRow)
      .def("rows", &Int64Index::rows, py::arg("values"), py::arg("validity"), py::arg("out"));
  module.def("hashed_string_rows", &hashed_strings_argument, py::arg("offsets"), py::arg("data"),
             py::arg("validity"), py::arg("seed"), py::arg("modulus"), py::arg("out"));
  module.def("hashed_int64_rows", &hashed_int64_argument, py::arg("values"), py::arg("validity"),
             py::arg("seed"), py::arg("modulus"), py::arg("out"));
  module.def("bucket_rows", &bucketed_argument, py::arg("values"), py::arg("validity"),
             py::arg("lowest"), py::arg("small"), py::arg("steps"), py::arg("out"));
  module.def("gather_codes", &gathered_argument, py::arg("codes"), py::arg("indices"),
             py::arg("validity"), py::arg("out"));
}

}  // namespace dpiframe
