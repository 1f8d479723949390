#include "features/value_encoder.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "common/check.h"
#include "common/fast_modulo.h"

namespace dpiframe {
namespace {

constexpr std::int64_t kRun = 256;  // values converted at one time, in a cache

void refuse(std::string_view what) {
  DPIF_CHECK(false, "the feature takes no ", what);
}

}  // namespace

void ValueEncoder::strings(std::span<const std::string_view>, Code*) const {
  refuse("strings");
}
void ValueEncoder::words(std::span<const std::uint64_t> values, Code* out) const {
  std::string_view texts[kRun];
  while (!values.empty()) {
    const auto run = values.first(std::min<std::size_t>(kRun, values.size()));
    for (std::size_t i = 0; i < run.size(); ++i)
      texts[i] = {reinterpret_cast<const char*>(&run[i]), sizeof(run[i])};
    strings({texts, run.size()}, out);
    values = values.subspan(run.size()), out += run.size();
  }
}
void ValueEncoder::integers(std::span<const std::int64_t>, Code*) const {
  refuse("integers");
}
void ValueEncoder::reals(std::span<const double>, Code*) const {
  refuse("real numbers");
}

void HashEncoder::strings(std::span<const std::string_view> values, Code* out) const {
  hashed_string_rows(StringViews{values}, {}, params_, out);
}

void HashEncoder::words(std::span<const std::uint64_t> values, Code* out) const {
  hashed_int64_rows(reinterpret_cast<const std::int64_t*>(values.data()), std::ssize(values), {},
                    params_, out);
}

void HashEncoder::integers(std::span<const std::int64_t> values, Code* out) const {
  hashed_int64_rows(values.data(), std::ssize(values), {}, params_, out);
}

void ModuloEncoder::integers(std::span<const std::int64_t> values, Code* out) const {
  const FastModulo modulo(modulus_);
  std::ranges::transform(values, out, [&](std::int64_t value) {
    const std::uint64_t rest = value >= 0
                                   ? modulo(static_cast<std::uint64_t>(value))
                                   : modulus_ - 1 - modulo(~static_cast<std::uint64_t>(value));
    return static_cast<Code>(rest) + kFirstValueRow;
  });
}

BucketEncoder::BucketEncoder(std::int64_t lowest, std::vector<std::int32_t> small,
                             std::vector<std::int64_t> steps)
    : ValueEncoder(kMissingRow),
      lowest_(lowest),
      small_(std::move(small)),
      steps_(std::move(steps)) {}

void BucketEncoder::integers(std::span<const std::int64_t> values, Code* out) const {
  bucket_rows(values.data(), std::ssize(values), {}, Buckets{lowest_, small_, steps_}, out);
}

void BucketEncoder::reals(std::span<const double> values, Code* out) const {
  constexpr double kLast = 0x1p62;  // all beyond are in one bucket
  std::int64_t below[kRun];
  while (!values.empty()) {
    const auto run = values.first(std::min<std::size_t>(kRun, values.size()));
    for (std::size_t i = 0; i < run.size(); ++i)
      below[i] = std::isnan(run[i])
                     ? 0
                     : static_cast<std::int64_t>(std::floor(std::clamp(run[i], -kLast, kLast)));
    integers({below, run.size()}, out);
    for (std::size_t i = 0; i < run.size(); ++i)
      if (std::isnan(run[i])) out[i] = missing();
    values = values.subspan(run.size()), out += run.size();
  }
}

DenseEncoder::DenseEncoder(const Params& params)
    : ValueEncoder(std::bit_cast<Code>(static_cast<float>(params.fill))), params_(params) {}

Code DenseEncoder::code_of(double value) const {
  const double wide = params_.log1p ? std::copysign(std::log1p(std::abs(value)), value) : value;
  return std::bit_cast<Code>(static_cast<float>((wide - params_.mean) / params_.std));
}

void DenseEncoder::integers(std::span<const std::int64_t> values, Code* out) const {
  std::ranges::transform(values, out,
                         [&](std::int64_t x) { return code_of(static_cast<double>(x)); });
}

void DenseEncoder::reals(std::span<const double> values, Code* out) const {
  std::ranges::transform(values, out,
                         [&](double x) { return std::isnan(x) ? missing() : code_of(x); });
}

}  // namespace dpiframe
