#include "cuda/cuda_check.h"
#include "kernels/embedding/rows_of_ids_cuda.h"

namespace dpiframe {
namespace {

constexpr std::int64_t kEndOfInt32 = std::int64_t{1} << 31;
constexpr unsigned kThreads = 256;
constexpr int kInFlight = 4;  // ids of a thread
constexpr std::int64_t kBlock = std::int64_t{kThreads} * kInFlight;

struct Rows {
  const RowOfId* fields;  // [F]
  void* rows;             // [F, max_rows] int32 or int64
  std::int64_t stride;
  bool are_int64;
};

template <class Id>
__device__ void read_ids(const BatchMemory& inputs, std::int64_t b0, int f, std::int64_t* ids) {
  const Id* given = static_cast<const Id*>(inputs.given_ids) + f * inputs.given_stride;
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) {
    const std::int64_t b = b0 + i * kThreads;
    ids[i] = b < inputs.batch ? given[b] : 0;
  }
}

// A block has kBlock samples of one field.
__global__ void __launch_bounds__(kThreads)
    rows_of_ids_kernel(const __grid_constant__ BatchMemory inputs,
                       const __grid_constant__ Rows out) {
  const auto f = static_cast<int>(blockIdx.y);
  const std::int64_t b0 = blockIdx.x * kBlock + threadIdx.x;
  std::int64_t ids[kInFlight];
  if (inputs.given_are_int64 != 0)
    read_ids<std::int64_t>(inputs, b0, f, ids);
  else
    read_ids<std::int32_t>(inputs, b0, f, ids);
  const RowOfId row_of = out.fields[f];
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) {
    const std::int64_t b = b0 + i * kThreads;
    if (b >= inputs.batch) continue;
    const std::int64_t row = row_of(ids[i]);
    if (out.are_int64)
      static_cast<std::int64_t*>(out.rows)[f * out.stride + b] = row;
    else
      static_cast<std::int32_t*>(out.rows)[f * out.stride + b] = static_cast<std::int32_t>(row);
  }
}

}  // namespace

DeviceRowsOfIds::DeviceRowsOfIds(const std::vector<FieldIds>& fields, std::int64_t max_rows)
    : num_fields_(static_cast<int>(fields.size())), max_rows_(max_rows), are_int64_(false) {
  DPIF_CHECK(!fields.empty() && fields.size() <= UINT16_MAX, "ids of 1 to ", UINT16_MAX,
             " fields have rows, got ", fields.size());
  const std::vector<RowOfId> records(fields.begin(), fields.end());
  for (const FieldIds& field : fields) are_int64_ |= field.rows > kEndOfInt32;
  const std::size_t bytes = sizeof(RowOfId) * records.size();
  fields_ = DeviceBuffer(bytes);
  DPIF_CUDA_CHECK(cudaMemcpy(fields_.get(), records.data(), bytes, cudaMemcpyHostToDevice));
  const std::size_t each = are_int64_ ? sizeof(std::int64_t) : sizeof(std::int32_t);
  rows_ = DeviceBuffer::zeros(each * max_rows * fields.size());
}

BatchMemory DeviceRowsOfIds::in_rows(BatchMemory memory) const {
  memory.given_ids = memory.ids;
  memory.given_stride = memory.ids_stride;
  memory.given_are_int64 = memory.ids_are_int64;
  memory.ids = rows_.get();
  memory.ids_stride = max_rows_;
  memory.ids_are_int64 = are_int64_;
  return memory;
}

void DeviceRowsOfIds::run(std::int64_t rows, const BatchMemory& memory, cudaStream_t stream) const {
  if (rows == 0) return;
  const Rows out{static_cast<const RowOfId*>(fields_.get()), rows_.get(), max_rows_, are_int64_};
  const dim3 grid(static_cast<unsigned>((rows + kBlock - 1) / kBlock),
                  static_cast<unsigned>(num_fields_));
  rows_of_ids_kernel<<<grid, kThreads, 0, stream>>>(memory, out);
  DPIF_CUDA_CHECK(cudaGetLastError());
}

}  // namespace dpiframe
