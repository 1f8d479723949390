#include <cuda_runtime_api.h>

#include <vector>

#include "cuda/cuda_check.h"
#include "kernels/gemm/epilogue_params.h"
#include "kernels/gemm/sm90_linear.h"

namespace dpiframe {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// Asked of the runtime, so that nothing links the driver's library.
Encode find_encode() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  DPIF_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                   cudaEnableDefault, &found));
  if (found != cudaDriverEntryPointSuccess)
    throw std::runtime_error("the CUDA driver has no cuTensorMapEncodeTiled; it is too old");
  return reinterpret_cast<Encode>(function);
}

CUtensorMapDataType map_type(DataType type) {
  if (type == DataType::kHalf) return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  return type == DataType::kBfloat16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                     : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
}

int attribute(cudaDeviceAttr name) {
  int device = 0;
  int value = 0;
  DPIF_CUDA_CHECK(cudaGetDevice(&device));
  DPIF_CUDA_CHECK(cudaDeviceGetAttribute(&value, name, device));
  return value;
}

// Of a box 128 bytes wide. `strides`, in elements, and `box` are those behind the first dimension.
CUtensorMap encoded(DataType type, const void* data, const std::vector<std::int64_t>& sizes,
                    const std::vector<std::int64_t>& strides, const std::vector<int>& box) {
  static const Encode encode = find_encode();
  const auto element = static_cast<std::int64_t>(bytes_of(type));
  const std::vector<cuuint64_t> extents(sizes.begin(), sizes.end());
  std::vector<cuuint64_t> bytes;
  for (const std::int64_t stride : strides)
    bytes.push_back(static_cast<cuuint64_t>(stride * element));
  std::vector<cuuint32_t> boxes = {static_cast<cuuint32_t>(128 / element)};
  for (const int size : box) boxes.push_back(static_cast<cuuint32_t>(size));
  const std::vector<cuuint32_t> steps(sizes.size(), 1);
  CUtensorMap map;
  const CUresult result =
      encode(&map, map_type(type), static_cast<cuuint32_t>(sizes.size()), const_cast<void*>(data),
             extents.data(), bytes.data(), boxes.data(), steps.data(),
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    throw std::runtime_error(join_message("cuTensorMapEncodeTiled failed with ",
                                          static_cast<int>(result), " for [", sizes.back(), ", ",
                                          sizes.front(), "] of stride ", strides.back()));
  return map;
}

}  // namespace

CUtensorMap tensor_map(DataType type, const void* data, std::int64_t rows, std::int64_t columns,
                       std::int64_t stride, int box_rows) {
  return encoded(type, data, {columns, rows}, {stride}, {box_rows});
}

CUtensorMap tensor_map_of_places(DataType type, const void* data, std::int64_t rows,
                                 std::int64_t columns, std::int64_t stride, int box_rows,
                                 int places, std::int64_t step) {
  return encoded(type, data, {columns, places, rows}, {step, stride}, {1, box_rows});
}

EpilogueMaps epilogue_maps(DataType type, const EpilogueParams& e) {
  const LinearParams& p = e.linear;
  const std::int64_t width = p.cross_end - p.cross_begin;
  EpilogueMaps maps{};
  if (e.boxes_end == 0) return maps;
  if (p.out != nullptr) maps.out = tensor_map(type, p.out, p.rows, p.n, p.ldo, 16);
  if (width > 0) {
    maps.x0 = tensor_map(type, p.x0, p.rows, width, p.ldx0, 16);
    maps.xl = tensor_map(type, p.xl, p.rows, width, p.ldxl, 16);
  }
  return maps;
}

bool sm90_supports(Precision precision, const LinearParams& params) {
  const auto element = static_cast<std::int64_t>(bytes_of(activation_type(precision)));
  return attribute(cudaDevAttrComputeCapabilityMajor) == 9 && params.ldx * element % 16 == 0 &&
         reinterpret_cast<std::uintptr_t>(params.x) % 16 == 0 && params.rows < (1ll << 31) - 256;
}

int num_multiprocessors() {
  return attribute(cudaDevAttrMultiProcessorCount);
}

}  // namespace dpiframe
