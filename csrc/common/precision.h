// What a model is computed in: the type of activations and weights, and how products are made.
// Sums, scalars a row and scores are float32 in each.
#pragma once

#include <cstddef>

#ifndef __CUDACC_RTC__
#include <string>

#include "common/check.h"
#endif

namespace dpiframe {

// fp32 and tf32 store float32; tf32 rounds the operands of products to 10 bits of mantissa.
enum class Precision { kFp32, kTf32, kFp16, kBf16 };

enum class DataType { kFloat, kHalf, kBfloat16 };

#ifndef __CUDACC_RTC__

inline Precision parse_precision(const std::string& name) {
  if (name == "fp32") return Precision::kFp32;
  if (name == "tf32") return Precision::kTf32;
  if (name == "fp16") return Precision::kFp16;
  DPIF_CHECK(name == "bf16", "precision must be fp32, tf32, fp16 or bf16, got ", name);
  return Precision::kBf16;
}

inline DataType activation_type(Precision precision) {
  if (precision == Precision::kFp16) return DataType::kHalf;
  return precision == Precision::kBf16 ? DataType::kBfloat16 : DataType::kFloat;
}

inline std::size_t bytes_of(DataType type) {
  return type == DataType::kFloat ? 4 : 2;
}

#endif

}  // namespace dpiframe
