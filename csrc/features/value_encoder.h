// What a feature makes of the values of a raw column, one code for each: an id, or the bits of a
// dense feature's float. dpiframe_core/features/schema.py has the formulas.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "features/encode_rows.h"

namespace dpiframe {

using Code = std::int32_t;

class ValueEncoder {
 public:
  explicit ValueEncoder(Code missing) : missing_(missing) {}
  virtual ~ValueEncoder() = default;

  // That of a null.
  Code missing() const { return missing_; }
  // Each writes as many codes as there are values. std::invalid_argument for values that the
  // feature has no code for.
  virtual void strings(std::span<const std::string_view> values, Code* out) const;
  // Strings of eight bytes, little-endian: the most common ones, as `strings` does.
  virtual void words(std::span<const std::uint64_t> values, Code* out) const;
  virtual void integers(std::span<const std::int64_t> values, Code* out) const;
  virtual void reals(std::span<const double> values, Code* out) const;
  // How texts are hashed, where that is their code; an empty one then is missing.
  virtual const HashParams* text_hash() const { return nullptr; }

 private:
  Code missing_;
};

// Strings, or integers by their 8 bytes.
class HashEncoder : public ValueEncoder {
 public:
  explicit HashEncoder(HashParams params) : ValueEncoder(kMissingRow), params_(params) {}
  void strings(std::span<const std::string_view> values, Code* out) const override;
  void words(std::span<const std::uint64_t> values, Code* out) const override;
  void integers(std::span<const std::int64_t> values, Code* out) const override;
  const HashParams* text_hash() const override { return &params_; }

 private:
  HashParams params_;
};

// kFirstValueRow + x mod modulus, never negative.
class ModuloEncoder : public ValueEncoder {
 public:
  explicit ModuloEncoder(std::uint64_t modulus) : ValueEncoder(kMissingRow), modulus_(modulus) {}
  void integers(std::span<const std::int64_t> values, Code* out) const override;

 private:
  std::uint64_t modulus_;
};

// Integers, and reals as the next integer below; NaN is missing.
class BucketEncoder : public ValueEncoder {
 public:
  BucketEncoder(std::int64_t lowest, std::vector<std::int32_t> small,
                std::vector<std::int64_t> steps);
  void integers(std::span<const std::int64_t> values, Code* out) const override;
  void reals(std::span<const double> values, Code* out) const override;

 private:
  std::int64_t lowest_;
  std::vector<std::int32_t> small_;
  std::vector<std::int64_t> steps_;
};

// (t(x) - mean) / std as float, with t(x) = x or sign(x) ln(1 + |x|), in double; NaN is missing.
class DenseEncoder : public ValueEncoder {
 public:
  struct Params {
    bool log1p;
    double mean;
    double std;
    double fill;  // of a missing value
  };
  explicit DenseEncoder(const Params& params);
  void integers(std::span<const std::int64_t> values, Code* out) const override;
  void reals(std::span<const double> values, Code* out) const override;

 private:
  Code code_of(double value) const;

  Params params_;
};

}  // namespace dpiframe
