// The fused forward kernels: which models they take, and how one is laid out, for tests.
#include <string>
#include <utility>
#include <vector>

#include "bindings/families.h"
#include "bindings/numpy_args.h"
#include "cuda/racecheck.h"
#include "kernels/fused/cross/fused_cross.h"
#include "kernels/fused/cross_fp16x3/fused_cross_fp16x3.h"
#include "kernels/fused/cross_persistent/fused_cross_persistent.h"
#include "kernels/fused/mlp/fused_mlp.h"
#include "runtime/cuda_program.h"

namespace dpiframe {
namespace {

using LayerArgument = std::pair<py::array, py::object>;  // w [n, k], bias [n] or None

std::vector<float> float_values(const py::array& values, const std::string& name, int num_dims,
                                py::ssize_t length = -1) {
  const auto array = contiguous_argument<float>(values, name, num_dims, length);
  return {array.data(), array.data() + array.size()};
}

std::vector<LinearLayer> linear_layers(const std::vector<LayerArgument>& arguments) {
  std::vector<LinearLayer> layers;
  for (const auto& [w, bias] : arguments) {
    LinearLayer layer{0, 0, float_values(w, "w", 2), {}};
    layer.n = static_cast<int>(w.shape(0));
    layer.k = static_cast<int>(w.shape(1));
    if (!bias.is_none()) layer.bias = float_values(py::cast<py::array>(bias), "bias", 1, layer.n);
    layers.push_back(std::move(layer));
  }
  return layers;
}

FusedMlpModel mlp_model(const std::vector<LayerArgument>& layers, std::vector<float> shifts,
                        bool has_cross, const py::array& head, float bias, std::int64_t num_ids) {
  FusedMlpModel model{};
  model.layers = linear_layers(layers);
  model.shifts = std::move(shifts);
  model.has_cross = has_cross;
  model.head = float_values(head, "head", 1);
  model.bias = bias;
  model.num_ids = num_ids;
  return model;
}

FusedCrossModel cross_model(const std::vector<LayerArgument>& cross, const py::array& cross_head,
                            const std::vector<LayerArgument>& deep, const py::array& deep_head,
                            float bias, std::int64_t num_ids) {
  FusedCrossModel model{};
  model.cross = linear_layers(cross);
  model.cross_head = float_values(cross_head, "cross_head", 1);
  model.deep = linear_layers(deep);
  model.deep_head = float_values(deep_head, "deep_head", 1);
  model.bias = bias;
  model.num_ids = num_ids;
  return model;
}

bool mlp_fits(std::vector<std::int64_t> dims, std::vector<int> columns, int num_shifts,
              bool has_cross, int num_fm, std::int64_t num_ids, std::int64_t max_rows) {
  return fused_mlp_fits(
      {std::move(dims), std::move(columns), num_shifts, has_cross, num_fm, num_ids, max_rows});
}
double mlp_microseconds(std::vector<std::int64_t> dims, std::vector<int> columns, int num_shifts,
                        bool has_cross, int num_fm, std::int64_t num_ids, std::int64_t max_rows,
                        std::int64_t samples) {
  const FusedMlpShape shape{
      std::move(dims), std::move(columns), num_shifts, has_cross, num_fm, num_ids, max_rows};
  DPIF_CHECK(fused_mlp_fits(shape), "the model does not fit one kernel");
  return fused_mlp_microseconds(shape, samples);
}
bool cross_fits(std::vector<std::int64_t> dims, int num_cross, std::vector<int> columns,
                std::int64_t num_ids, std::int64_t max_rows) {
  return fused_cross_fits({std::move(dims), num_cross, std::move(columns), num_ids, max_rows});
}
bool cross_fp16x3_fits(std::vector<std::int64_t> dims, int num_cross, std::vector<int> columns,
                       std::int64_t num_ids, std::int64_t max_rows) {
  return fused_cross_fp16x3_tiling(
             {std::move(dims), num_cross, std::move(columns), num_ids, max_rows})
             .num_cross > 0;
}

// Plans, for tests. Slot f's table is at address (f + 1) 2^32, where nobody reads.
std::vector<DeviceLookupField> fields_without_memory(const std::vector<LookupSlot>& slots) {
  std::vector<DeviceLookupField> fields;
  for (const LookupSlot& slot : slots) {
    const auto* table =
        slot.table < 0 ? nullptr : reinterpret_cast<const void*>((fields.size() + 1) << 32);
    fields.push_back(
        {table, nullptr, slot.rows, slot.dim, slot.column, slot.oov_row, slot.field, slot.in_fm});
  }
  return fields;
}

py::list stage_list(const std::vector<WeightStage>& stages) {
  py::list found;
  for (const WeightStage& s : stages)
    found.append(py::make_tuple(s.source, s.offset, s.bytes, s.distance));
  return found;
}

py::dict mlp_plan(FusedMlpModel model, const std::vector<LookupSlot>& slots,
                  const std::string& precision) {
  model.fields = fields_without_memory(slots);
  const FusedMlpPlan plan = plan_fused_mlp(model, activation_type(parse_precision(precision)));
  const FusedMlpParams& a = plan.params;
  py::dict found;
  found["weights"] = to_numpy(plan.weights);
  found["vectors"] = to_numpy(plan.vectors);
  found["x_columns"] = plan.gather.x_columns;
  found["x_chunks"] = std::vector<int>(a.x_chunks, a.x_chunks + 2);
  found["first_extra"] = std::vector<int>(a.first_extra, a.first_extra + 5);
  found["tile"] = a.tile;
  return found;
}

py::dict cross_plan(FusedCrossModel model, const std::vector<LookupSlot>& slots,
                    const std::string& precision) {
  model.fields = fields_without_memory(slots);
  const FusedCrossPlan plan = plan_fused_cross(model, activation_type(parse_precision(precision)));
  const FusedCrossParams& a = plan.params;
  const FusedCrossSmemLayout& s = a.smem;
  py::list stages;
  for (const CrossWeightStage& stage : plan.stages)
    stages.append(py::make_tuple(stage.source, stage.offset, stage.bytes, stage.wait));
  py::dict smem;
  smem["weights"] = s.weights;
  smem["x"] = s.x;
  smem["h"] = s.h;
  smem["slices"] = s.slices;
  smem["vectors"] = s.vectors;
  smem["bytes"] = s.bytes;
  py::dict found;
  found["weights"] = to_numpy(plan.weights);
  found["vectors"] = to_numpy(plan.vectors);
  found["x_columns"] = plan.gather.x_columns;
  found["x_chunks"] = std::vector<int>(a.mlp.x_chunks, a.mlp.x_chunks + 2);
  found["zero_chunks"] = std::vector<int>(a.mlp.zero_chunk, a.mlp.zero_chunk + 2);
  found["cross_tile"] = a.tiling.cross_tile;
  found["deep_tile"] = a.tiling.deep_tile;
  found["stages"] = stages;
  found["smem"] = smem;
  return found;
}

// None where the model does not take the persistent kernel.
py::object cross_persistent_plan(std::vector<std::int64_t> dims, int num_cross,
                                 std::vector<int> columns, std::int64_t num_ids,
                                 std::int64_t max_rows) {
  const FusedCrossShape shape{std::move(dims), num_cross, std::move(columns), num_ids, max_rows};
  const FusedCrossTiling tiling = fused_cross_tiling(shape);
  const int slices = slices_of_cta(shape);
  if (!fused_cross_fits(shape) || !fused_cross_persistent_fits(tiling, slices)) return py::none();
  const FusedCrossPersistentSmemLayout smem = fused_cross_persistent_smem(tiling, slices);
  py::dict found;
  found["stages"] = stage_list(fused_cross_persistent_stages(tiling, smem.ring_bytes));
  found["ring_bytes"] = smem.ring_bytes;
  found["bytes"] = smem.bytes;
  found["scratch_bytes"] = fused_cross_persistent_scratch_bytes(tiling);
  return found;
}

py::dict cross_fp16x3_plan(FusedCrossModel model, const std::vector<LookupSlot>& slots) {
  model.fields = fields_without_memory(slots);
  const FusedCrossFp16x3Plan plan = plan_fused_cross_fp16x3(model);
  const FusedCrossFp16x3Params& a = plan.params;
  const auto append = [](py::list& list, const auto& part) {
    list.append(py::make_tuple(reinterpret_cast<std::uintptr_t>(part.table), part.rows,
                               part.row_bytes, part.oov_row, part.ids_row));
  };
  py::list groups, fields;
  for (const Fp16x3ColumnGroup& group : plan.groups) append(groups, group);
  for (const Fp16x3Field& field : plan.fields) append(fields, field);
  py::dict smem;
  smem["ring"] = a.smem.ring;
  smem["ring_bytes"] = a.smem.ring_bytes;
  smem["values"] = a.smem.values;
  smem["barriers"] = a.smem.barriers;
  smem["bytes"] = a.smem.bytes;
  py::dict found;
  found["weights"] = to_numpy(plan.weights);
  found["vectors"] = to_numpy(plan.vectors);
  found["groups"] = groups;
  found["fields"] = fields;
  found["stages"] = stage_list(plan.stages);
  found["x_strips"] = a.tiling.x_strips;
  found["h_strips"] = std::vector<int>(a.tiling.h_strips, a.tiling.h_strips + a.tiling.num_deep);
  found["cross_tile"] = a.tiling.cross_tile;
  found["deep_tile"] = a.tiling.deep_tile;
  found["smem"] = smem;
  found["weight_bytes"] = a.weight_bytes;
  found["scratch_bytes"] = a.scratch_bytes;
  return found;
}

}  // namespace

void bind_fused(py::module_& module) {
  module.attr("FUSED_RACECHECK") = kRacecheck;
  module.def("fused_wave_samples", &fused_wave_samples, py::arg("compute_capability_major"),
             py::arg("multiprocessors"));
  module.def("fused_mlp_fits", &mlp_fits, py::arg("dims"), py::arg("columns"),
             py::arg("num_shifts"), py::arg("has_cross"), py::arg("num_fm"), py::arg("num_ids"),
             py::arg("max_rows"));
  module.def("fused_mlp_microseconds", &mlp_microseconds, py::arg("dims"), py::arg("columns"),
             py::arg("num_shifts"), py::arg("has_cross"), py::arg("num_fm"), py::arg("num_ids"),
             py::arg("max_rows"), py::arg("samples"));
  module.def("fused_cross_fits", &cross_fits, py::arg("dims"), py::arg("num_cross"),
             py::arg("columns"), py::arg("num_ids"), py::arg("max_rows"));
  module.def("fused_cross_fp16x3_fits", &cross_fp16x3_fits, py::arg("dims"), py::arg("num_cross"),
             py::arg("columns"), py::arg("num_ids"), py::arg("max_rows"));
  py::class_<FusedMlpModel>(module, "FusedMlpModel")
      .def(py::init(&mlp_model), py::arg("layers"), py::arg("shifts"), py::arg("has_cross"),
           py::arg("head"), py::arg("bias"), py::arg("num_ids"))
      .def("plan", &mlp_plan, py::arg("slots"), py::arg("precision"));
  py::class_<FusedCrossModel>(module, "FusedCrossModel")
      .def(py::init(&cross_model), py::arg("cross"), py::arg("cross_head"), py::arg("deep"),
           py::arg("deep_head"), py::arg("bias"), py::arg("num_ids"))
      .def("plan", &cross_plan, py::arg("slots"), py::arg("precision"));
  module.def("fused_cross_persistent_plan", &cross_persistent_plan, py::arg("dims"),
             py::arg("num_cross"), py::arg("columns"), py::arg("num_ids"), py::arg("max_rows"));
  module.def("fused_cross_fp16x3_plan", &cross_fp16x3_plan, py::arg("model"), py::arg("slots"));
}

}  // namespace dpiframe
