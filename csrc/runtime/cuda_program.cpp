#include "runtime/cuda_program.h"

#include <algorithm>
#include <utility>

#include "cuda/cuda_check.h"
#include "cuda/stream.h"
#include "kernels/elementwise/convert.h"

namespace dpiframe {
namespace {

constexpr std::size_t kAlignment = 256;
constexpr std::size_t kStagingBytes = std::size_t{4} << 20;

std::size_t padded(std::size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

}  // namespace

CudaProgram::CudaProgram(int device, Precision precision, std::int64_t max_rows,
                         std::size_t weight_bytes, std::size_t arena_bytes)
    : device_(device), precision_(precision), max_rows_(max_rows) {
  const DeviceGuard guard(device);
  weights_ = DeviceBuffer::zeros(weight_bytes);
  arena_ = DeviceBuffer::zeros(arena_bytes);
}

CudaProgram::~CudaProgram() {
  // Kernels must not run while their memory is freed.
  if (executor_ != nullptr) drain(executor_->stream().get());
}

std::size_t CudaProgram::bytes_of_weight(Precision precision, WeightKind kind, std::int64_t rows,
                                         std::int64_t columns) {
  if (kind == WeightKind::kProduct)
    return padded(
        prepared_weight_bytes(precision, static_cast<int>(rows), static_cast<int>(columns)));
  if (kind == WeightKind::kRaw) return padded(static_cast<std::size_t>(rows) * columns);
  const DataType type = kind == WeightKind::kTable ? activation_type(precision) : DataType::kFloat;
  return padded(bytes_of(type) * static_cast<std::size_t>(rows) * columns);
}

int CudaProgram::add_weight(WeightKind kind, const void* values, std::int64_t rows,
                            std::int64_t columns) {
  const DeviceGuard guard(device_);
  const std::size_t bytes = bytes_of_weight(precision_, kind, rows, columns);
  DPIF_CHECK(used_ + bytes <= weights_.bytes(), "the weights need more than the ", weights_.bytes(),
             " bytes asked for");
  char* target = static_cast<char*>(weights_.get()) + used_;
  used_ += bytes;
  weight_addresses_.push_back(target);
  weight_sizes_.push_back(rows * columns);
  if (kind == WeightKind::kProduct) {
    const std::size_t source_bytes = sizeof(float) * rows * columns;
    const DeviceBuffer source(source_bytes);
    DPIF_CUDA_CHECK(cudaMemcpy(source.get(), values, source_bytes, cudaMemcpyHostToDevice));
    prepare_linear_weight(precision_, static_cast<const float*>(source.get()),
                          static_cast<int>(rows), static_cast<int>(columns), target, nullptr);
    DPIF_CUDA_CHECK(cudaStreamSynchronize(nullptr));
  } else if (kind == WeightKind::kRaw) {
    DPIF_CUDA_CHECK(cudaMemcpy(target, values, rows * columns, cudaMemcpyHostToDevice));
  } else {
    upload(kind == WeightKind::kTable ? activation_type(precision_) : DataType::kFloat,
           static_cast<const float*>(values), rows * columns, target);
  }
  return static_cast<int>(weight_addresses_.size()) - 1;
}

void CudaProgram::upload(DataType type, const float* values, std::int64_t size, char* target) {
  if (type == DataType::kFloat) {
    DPIF_CUDA_CHECK(cudaMemcpy(target, values, sizeof(float) * size, cudaMemcpyHostToDevice));
    return;
  }
  if (staging_.bytes() == 0) staging_ = DeviceBuffer(kStagingBytes);
  auto* staging = static_cast<float*>(staging_.get());
  const std::int64_t chunk = kStagingBytes / sizeof(float);
  for (std::int64_t begin = 0; begin < size; begin += chunk) {
    const std::int64_t length = std::min(chunk, size - begin);
    DPIF_CUDA_CHECK(
        cudaMemcpy(staging, values + begin, sizeof(float) * length, cudaMemcpyHostToDevice));
    convert(length, staging, target + begin * bytes_of(type), type, nullptr);
  }
  DPIF_CUDA_CHECK(cudaStreamSynchronize(nullptr));
}

void CudaProgram::build(const Plan& plan, const ExecutorOptions& options) {
  const DeviceGuard guard(device_);
  staging_ = DeviceBuffer();
  std::optional<LaunchStep> first;
  if (rows_of_ids_ != nullptr)
    first = LaunchStep{
        [rows_of = rows_of_ids_.get()](std::int64_t rows, const BatchMemory& memory,
                                       cudaStream_t stream) { rows_of->run(rows, memory, stream); },
        true};
  executor_ =
      std::make_unique<Executor>(plan, std::move(first), std::move(steps_),
                                 FusedForward{{fused_, true}, fused_above_, fused_up_to_}, options);
}

void CudaProgram::run(const BatchMemory& inputs, cudaStream_t stream) {
  const DeviceGuard guard(device_);
  DPIF_CHECK(executor_ != nullptr, "the program is not built");
  if (!failure_.empty()) {
    const std::string text = "the engine failed before and cannot be used any more: " + failure_;
    if (memory_was_short_) throw DeviceMemoryError(text);  // a smaller one may do
    if (device_was_lost_) throw DeviceLostError(text);
    throw std::runtime_error(text);
  }
  try {
    executor_->run(in_rows(inputs), stream);
  } catch (const std::runtime_error& error) {
    failure_ = error.what();
    memory_was_short_ = dynamic_cast<const DeviceMemoryError*>(&error) != nullptr;
    device_was_lost_ = dynamic_cast<const DeviceLostError*>(&error) != nullptr;
    throw;
  }
}

void CudaProgram::add_field_ids(const std::vector<FieldIds>& fields) {
  const DeviceGuard guard(device_);
  rows_of_ids_ = std::make_unique<DeviceRowsOfIds>(fields, max_rows_);
}

BatchMemory CudaProgram::in_rows(const BatchMemory& inputs) const {
  return rows_of_ids_ == nullptr ? inputs : rows_of_ids_->in_rows(inputs);
}

std::size_t CudaProgram::device_bytes() const {
  const std::size_t rows = rows_of_ids_ == nullptr ? 0 : rows_of_ids_->bytes();
  return weights_.bytes() + arena_.bytes() + fused_bytes_ + rows;
}

void CudaProgram::poison() {
  const DeviceGuard guard(device_);
  DPIF_CUDA_CHECK(cudaMemsetAsync(arena_.get(), 0xff, arena_.bytes(), stream().get()));
  stream().synchronize();  // the next batch may be on another stream
}

Matrix CudaProgram::matrix(const ArenaView& view) const {
  const DataType type = view.is_float ? DataType::kFloat : activation_type(precision_);
  const std::size_t last = view.offset + bytes_of(type) * ((max_rows_ - 1) * view.row_stride +
                                                           static_cast<std::size_t>(view.width));
  DPIF_CHECK(view.offset >= 0 && last <= arena_.bytes(), "a view ends at byte ", last,
             " of an arena of ", arena_.bytes());
  return {static_cast<char*>(arena_.get()) + view.offset, view.row_stride, 1, view.width, type};
}

const float* CudaProgram::numbers(int weight) const {
  return weight < 0 ? nullptr : reinterpret_cast<const float*>(weight_addresses_.at(weight));
}

float* CudaProgram::partial(std::optional<std::int64_t> offset) const {
  if (!offset.has_value()) return nullptr;
  return reinterpret_cast<float*>(static_cast<char*>(arena_.get()) + *offset);
}

void CudaProgram::add_step(
    std::function<void(std::int64_t, const BatchMemory&, cudaStream_t)> launch, bool takes_batch) {
  steps_.push_back({std::move(launch), takes_batch});
  behind_product_ = false;
}

}  // namespace dpiframe
