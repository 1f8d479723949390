// How each step of a program is launched: views and weights become the kernels' parameters.
#include <algorithm>
#include <tuple>
#include <utility>

#include "common/check.h"
#include "cuda/loaded_kernel.h"
#include "cuda/stream.h"
#include "jit/compiled_params.h"
#include "kernels/elementwise/load_dense.h"
#include "kernels/elementwise/steps.h"
#include "kernels/fused/cross_fp16x3/fused_cross_fp16x3.h"
#include "kernels/fused/cross_persistent/fused_cross_persistent.h"
#include "runtime/cuda_program.h"

namespace dpiframe {

std::vector<DeviceLookupField> CudaProgram::fields(const std::vector<LookupSlot>& slots) const {
  std::vector<DeviceLookupField> fields;
  for (const LookupSlot& slot : slots) {
    const void* table = slot.table < 0 ? nullptr : weight_addresses_.at(slot.table);
    fields.push_back({table, numbers(slot.wide), slot.rows, slot.dim, slot.column, slot.oov_row,
                      slot.field, slot.in_fm});
  }
  return fields;
}

int CudaProgram::add_lookup(const std::vector<LookupSlot>& slots,
                            const std::vector<DenseSlotStep>& dense,
                            const std::optional<ArenaView>& out, const std::optional<ArenaView>& fm,
                            const std::optional<ArenaView>& wide) {
  const DeviceGuard guard(device_);
  lookups_.push_back(
      std::make_unique<DeviceLookupFields>(fields(slots), activation_type(precision_)));
  MultiTableLookupParams params{};
  params.fields = lookups_.back()->get();
  params.shape = lookups_.back()->shape();
  params.report = num_report_;
  if (out.has_value()) {
    DPIF_CHECK(!out->is_float || precision_ == Precision::kFp32 || precision_ == Precision::kTf32,
               "a lookup writes the activation type");
    params.out = matrix(*out).data;
    params.out_stride = out->row_stride;
  }
  if (fm.has_value()) params.fm = static_cast<float*>(matrix(*fm).data);
  if (wide.has_value()) params.wide = static_cast<float*>(matrix(*wide).data);
  for (const auto& scalar : {fm, wide})
    DPIF_CHECK(!scalar.has_value() || (scalar->is_float && scalar->row_stride == 1),
               "a lookup writes its sums as float32 [B]");
  for (const DenseSlotStep& step : dense) {
    DenseSlot slot{
        step.first,          step.count,         step.dim, step.column, numbers(step.weight),
        numbers(step.shift), numbers(step.wide), {},       step.in_fm};
    if (step.numbers.has_value()) slot.numbers = matrix(*step.numbers);
    add_dense_slot(params, slot);
  }
  num_report_ += static_cast<int>(slots.size()) + 1;
  if (batch_memory_.bytes() == 0) {
    batch_memory_ = DeviceBuffer::zeros(sizeof(BatchMemory));
    params.batch_memory = static_cast<BatchMemory*>(batch_memory_.get());
  }
  add_step([params](std::int64_t rows, const BatchMemory& inputs,
                    cudaStream_t stream) { multi_table_lookup(rows, params, inputs, stream); },
           true);
  return static_cast<int>(params.report);
}

void CudaProgram::add_load_dense(const ArenaView& out) {
  add_step([out = matrix(out)](std::int64_t rows, const BatchMemory& inputs,
                               cudaStream_t stream) { load_dense(rows, out, inputs, stream); },
           true);
}

void CudaProgram::add_elementwise(const std::string& name, const std::vector<ArenaView>& inputs,
                                  const std::vector<int>& weights, const std::vector<int>& sizes,
                                  const ArenaView& out) {
  ElementwiseOperands operands{{}, {}, sizes, matrix(out)};
  for (const ArenaView& view : inputs) operands.inputs.push_back(matrix(view));
  for (const int weight : weights) operands.weights.push_back(numbers(weight));
  add_step(
      [launch = elementwise_step(name, operands)](std::int64_t rows, const BatchMemory&,
                                                  cudaStream_t stream) { launch(rows, stream); });
}

void CudaProgram::add_tensor(const TensorOp& op, const std::vector<ArenaView>& inputs,
                             const std::vector<int>& weights, const std::vector<Operand>& operands,
                             const ArenaView& out) {
  const DeviceGuard guard(device_);
  DPIF_CHECK(operands.size() == inputs.size() + weights.size(), "a tensor step has ",
             operands.size(), " operands of ", inputs.size(), " views and ", weights.size(),
             " weights");
  TensorOperands read{{}, matrix(out)};
  for (std::size_t i = 0; i < inputs.size(); ++i)
    read.inputs.push_back({matrix(inputs[i]), operands[i]});
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const int weight = weights[i];
    auto* data = reinterpret_cast<float*>(weight_addresses_.at(weight));
    const Matrix constant{data, 0, 1, static_cast<int>(weight_sizes_.at(weight)), DataType::kFloat};
    read.inputs.push_back({constant, operands[inputs.size() + i]});
  }
  add_step([launch = tensor_op(op, read)](std::int64_t rows, const BatchMemory&,
                                          cudaStream_t stream) { launch(rows, stream); });
}

void CudaProgram::add_compiled(const CompiledStep& step) {
  const DeviceGuard guard(device_);
  const std::size_t num_views = step.reads.size() + step.writes.size();
  DPIF_CHECK(num_views <= kMaxCompiledViews && step.weights.size() <= kMaxCompiledWeights,
             "a compiled kernel takes up to ", kMaxCompiledViews, " views and ",
             kMaxCompiledWeights, " weights, got ", num_views, " and ", step.weights.size());
  DPIF_CHECK(step.threads >= 1 && step.shared_bytes >= 0 && step.samples_a_block >= 1,
             "a compiled kernel has ", step.threads, " threads, ", step.shared_bytes,
             " bytes of shared memory and ", step.samples_a_block, " samples a block");
  CompiledParams params{};
  CompiledView* view = params.views;
  for (const auto* views : {&step.reads, &step.writes})
    for (const ArenaView& each : *views) *view++ = {matrix(each).data, each.row_stride};
  for (std::size_t i = 0; i < step.weights.size(); ++i)
    params.weights[i] = weight_addresses_.at(step.weights[i]);
  const LoadedKernel kernel(step.cubin, step.kernel, static_cast<unsigned>(step.threads),
                            static_cast<std::size_t>(step.shared_bytes));
  add_step([kernel, params, samples = step.samples_a_block](std::int64_t rows, const BatchMemory&,
                                                            cudaStream_t stream) mutable {
    params.rows = rows;
    kernel.launch_early(static_cast<unsigned>((rows + samples - 1) / samples), 1, stream, params);
  });
}

void CudaProgram::add_chain(const ChainStep& chain, int steps) {
  const DeviceGuard guard(device_);
  DPIF_CHECK(steps >= 1 && steps <= static_cast<int>(steps_.size()), "a chain of ", steps,
             " of the ", steps_.size(), " steps");
  std::vector<ChainMatrix> inputs;
  for (const ArenaView& view : chain.inputs)
    inputs.push_back({matrix(view).data, view.row_stride, view.width});
  std::vector<ChainLayer> layers;
  for (const ChainProduct& product : chain.products) {
    ChainLayer layer{};
    layer.weight = weight_addresses_.at(product.weight);
    layer.n = product.n;
    layer.k = product.k;
    layer.vectors = numbers(product.vectors);
    if (product.out.has_value()) {
      layer.out = matrix(*product.out).data;
      layer.out_stride = product.out->row_stride;
    }
    layer.partial = partial(product.partial);
    layer.sums = partial(product.sums);
    layer.squares = partial(product.squares);
    layer.ld_partial = max_rows_;
    layers.push_back(layer);
  }
  const std::vector<LaunchStep> apart(steps_.end() - steps, steps_.end());
  steps_.resize(steps_.size() - steps);
  add_step([products = ProductChain(precision_, inputs, layers, chain.cubin, chain.shared_bytes,
                                    chain.ctas, chain.rows),
            apart](std::int64_t rows, const BatchMemory& memory, cudaStream_t stream) {
    if (products.takes(rows)) return products.run(rows, stream);
    for (const LaunchStep& step : apart) step.launch(rows, memory, stream);
  });
}

// All but what the epilogue reads.
LinearParams CudaProgram::product_params(const ProductStep& step) const {
  const int rows_a_sample = step.rows_a_sample;
  // From one row of a view to the next, and the view's columns in one row.
  const auto row_step = [rows_a_sample](const ArenaView& view) {
    DPIF_CHECK(rows_a_sample >= 1 && view.row_stride % rows_a_sample == 0, "a row of ",
               view.row_stride, " columns has no ", rows_a_sample, " equal parts");
    return view.row_stride / rows_a_sample;
  };
  const auto row_width = [&](const ArenaView& view) {
    return static_cast<int>(view.width - (rows_a_sample - 1) * row_step(view));
  };
  LinearParams params{};
  params.n = step.n;
  params.behind_other = !behind_product_;
  params.k = row_width(step.x);
  params.x = matrix(step.x).data;
  params.ldx = row_step(step.x);
  params.w = weight_addresses_.at(step.weight);
  params.bias = numbers(step.bias);
  if (step.out.has_value()) {
    params.out = matrix(*step.out).data;
    params.ldo = row_step(*step.out);
    DPIF_CHECK(rows_a_sample == 1 || row_width(*step.out) == step.n, "a product of ", step.n,
               " columns writes ", row_width(*step.out));
  }
  if (step.partial.has_value()) {
    params.head_begin = step.head_begin;
    params.head_end = step.head_begin + step.head_width;
    params.head = numbers(step.head);
    params.head_partial = partial(step.partial);
    params.ld_partial = max_rows_;
  }
  return params;
}

void CudaProgram::add_product(const ProductStep& step) {
  const int rows_a_sample = step.rows_a_sample;
  LinearParams params = product_params(step);
  DPIF_CHECK(rows_a_sample == 1 || (step.relu.empty() && !step.x0.has_value() &&
                                    !step.partial.has_value() && step.out.has_value()),
             "a product of ", rows_a_sample, " rows a sample has no epilogue but its bias");
  if (!step.relu.empty()) std::tie(params.relu_begin, params.relu_end) = step.relu.front();
  if (step.x0.has_value()) {
    params.cross_begin = step.cross_begin;
    params.cross_end = step.cross_begin + step.x0->width;
    params.x0 = matrix(*step.x0).data;
    params.ldx0 = step.x0->row_stride;
    params.xl = matrix(step.xl.value()).data;
    params.ldxl = step.xl->row_stride;
  }
  // The epilogue takes one range of columns for ReLU; further ones are applied where they lie.
  std::vector<ElementwiseLaunch> more;
  for (std::size_t i = 1; i < step.relu.size(); ++i) {
    ArenaView view = step.out.value();
    const DataType type = activation_type(precision_);
    view.offset += static_cast<std::int64_t>(bytes_of(type)) * step.relu[i].first;
    view.width = step.relu[i].second - step.relu[i].first;
    more.push_back(elementwise_step("relu", {{matrix(view)}, {}, {}, matrix(view)}));
  }
  add_step([params, more, rows_a_sample, precision = precision_](
               std::int64_t rows, const BatchMemory&, cudaStream_t stream) mutable {
    params.rows = rows * rows_a_sample;
    linear(precision, params, stream);
    for (const ElementwiseLaunch& relu : more) relu(rows, stream);
  });
  behind_product_ = more.empty();
}

void CudaProgram::add_mapped_product(
    const ProductStep& step, const std::vector<MapSource>& sources, const ProductRowsStep& rows,
    const std::vector<std::pair<LinearConfig, std::string>>& kernels) {
  const DeviceGuard guard(device_);
  DPIF_CHECK(step.relu.empty() && !step.x0.has_value() && step.rows_a_sample == 1,
             "a product with a compiled epilogue has no other one");
  DPIF_CHECK(step.out.has_value() || step.partial.has_value(), "a product writes nothing");
  const int columns = step.out.has_value() ? step.out->width : step.head_width;
  DPIF_CHECK(!step.partial.has_value() || step.head_width == columns, "a dot of ", step.head_width,
             " of ", columns, " columns");
  std::vector<MapOperand> operands;
  for (const MapSource& source : sources) {
    if (source.view.has_value())
      operands.push_back({matrix(*source.view).data, source.view->row_stride, source.place_step});
    else
      operands.push_back({numbers(source.weight), 0});
  }
  const ProductRows product_rows{
      {partial(rows.sums_out), partial(rows.squares_out)},
      {{partial(rows.sums), partial(rows.squares)}, 0, static_cast<float>(rows.width), rows.eps},
      rows.made_n,
      rows.made_k};
  LinearParams params = product_params(step);
  params.ld_partial = max_rows_;
  const Places places{step.places, step.place_step};
  add_step([product = MappedLinear(precision_, params, columns, operands, product_rows, kernels,
                                   places)](std::int64_t rows, const BatchMemory&,
                                            cudaStream_t stream) { product.run(rows, stream); });
  behind_product_ = true;
}

void CudaProgram::add_head(const std::vector<HeadPart>& parts, float bias, const ArenaView& out) {
  DPIF_CHECK(out.is_float && out.row_stride == 1, "the logits must be float32 [B]");
  HeadStep step{{},
                bias,
                static_cast<float*>(matrix(out).data),
                num_report_,
                static_cast<const BatchMemory*>(batch_memory_.get())};
  std::vector<std::pair<int, int>> partial;  // n and k
  for (const HeadPart& part : parts) {
    HeadTerm term{matrix(part.a), {}, numbers(part.weight)};
    if (part.b.has_value()) term.b = matrix(*part.b);
    if (part.partial_n > 0) term.a.column_stride = max_rows_;
    partial.emplace_back(part.partial_n, part.partial_k);
    step.terms.push_back(term);
  }
  add_step(
      [step, partial, precision = precision_](std::int64_t rows, const BatchMemory& inputs,
                                              cudaStream_t stream) mutable {
        for (std::size_t i = 0; i < partial.size(); ++i) {
          const auto [n, k] = partial[i];
          if (n > 0) step.terms[i].a.width = head_partials(precision, rows, n, k);
        }
        head(rows, step, inputs, stream);
      },
      step.batch_memory == nullptr);
}

// make(model, multiprocessors): sets fused_ and the batches that it is for, where the model runs
// so.
template <class Model, class Make>
void CudaProgram::add_fused(const std::vector<LookupSlot>& slots, Model model, std::int64_t above,
                            const Make& make) {
  const DeviceGuard guard(device_);
  fused_above_ = 0;  // a batch runs in a bucket: the largest of those that run in steps
  for (const std::int64_t samples : batch_buckets(max_rows_))
    if (samples <= above) fused_above_ = samples;
  if (fused_above_ >= max_rows_) return;
  int major = 0;
  int multiprocessors = 0;
  DPIF_CUDA_CHECK(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device_));
  DPIF_CUDA_CHECK(
      cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device_));
  const std::int64_t wave_samples = fused_wave_samples(major, multiprocessors);
  if (wave_samples == 0) return;
  model.fields = fields(slots);
  model.report = 0;
  model.num_report = num_report_;
  make(model, wave_samples, multiprocessors);
}

void CudaProgram::add_fused_mlp(const std::vector<LookupSlot>& slots, const FusedMlpModel& model,
                                std::int64_t above) {
  const auto make = [this](const FusedMlpModel& placed, std::int64_t wave_samples, int) {
    if (fused_above_ >= wave_samples) return;
    const auto mlp = make_fused_mlp(placed, activation_type(precision_));
    fused_up_to_ = wave_samples;
    fused_bytes_ = mlp->bytes();
    fused_ = [mlp](std::int64_t samples, const BatchMemory& inputs, cudaStream_t stream) {
      mlp->run(samples, inputs, stream);
    };
  };
  add_fused(slots, model, above, make);
}

void CudaProgram::add_fused_cross(const std::vector<LookupSlot>& slots,
                                  const FusedCrossModel& model, std::int64_t above) {
  if (precision_ == Precision::kFp32) {
    const auto make = [this](const FusedCrossModel& placed, std::int64_t, int processors) {
      const auto cross = make_fused_cross_fp16x3(placed, processors, arena());
      if (cross == nullptr) return;
      fused_up_to_ = max_rows_;
      fused_bytes_ = cross->bytes();
      fused_ = [cross](std::int64_t samples, const BatchMemory& inputs, cudaStream_t stream) {
        cross->run(samples, inputs, stream);
      };
    };
    return add_fused(slots, model, above, make);
  }
  add_fused(slots, model, above,
            [this](const FusedCrossModel& placed, std::int64_t wave_samples, int processors) {
              const DataType type = activation_type(precision_);
              const auto small = make_fused_cross(placed, type);
              const auto large =
                  make_fused_cross_persistent(placed, type, *small, processors, arena());
              fused_up_to_ = large == nullptr ? wave_samples : std::max(wave_samples, max_rows_);
              fused_bytes_ = small->bytes() + (large == nullptr ? 0 : large->bytes());
              fused_ = [small, large, wave_samples](std::int64_t samples, const BatchMemory& inputs,
                                                    cudaStream_t stream) {
                if (samples <= wave_samples)
                  small->run(samples, inputs, stream);
                else
                  large->run(samples, inputs, stream);
              };
            });
}

}  // namespace dpiframe
