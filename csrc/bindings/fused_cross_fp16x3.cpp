// The one-kernel forward pass of float32 models with cross layers: models that it takes, and how
// one is laid out.
#include "kernels/fused/cross_fp16x3/fused_cross_fp16x3.h"

#include <utility>

#include "bindings/fused.h"

namespace dpiframe {
namespace {

bool fits(std::vector<std::int64_t> dims, int num_cross, std::vector<int> columns,
          std::int64_t num_ids, std::int64_t most_rows) {
  return forward_split_form({std::move(dims), num_cross, std::move(columns), num_ids, most_rows})
             .num_cross > 0;
}

// Slot f's table lies at address (f + 1) 2^32: nobody reads there.
std::vector<DeviceLookupField> fields_anywhere(const std::vector<LookupSlot>& slots) {
  std::vector<DeviceLookupField> fields = fields_without_memory(slots);
  for (std::size_t f = 0; f < fields.size(); ++f)
    if (slots[f].table >= 0) fields[f].table = reinterpret_cast<const void*>((f + 1) << 32);
  return fields;
}

template <class Part>
py::tuple part_tuple(const Part& part) {
  return py::make_tuple(reinterpret_cast<std::uintptr_t>(part.table), part.rows, part.row_bytes,
                        part.oov_row, part.ids_row);
}

py::dict places(const ForwardSplitShared& s) {
  py::dict found;
  found["ring"] = s.ring;
  found["ring_bytes"] = s.ring_bytes;
  found["values"] = s.values;
  found["barriers"] = s.barriers;
  found["bytes"] = s.bytes;
  return found;
}

py::dict plan(ForwardCrossModel model, const std::vector<LookupSlot>& slots) {
  model.fields = fields_anywhere(slots);
  const ForwardSplitPlan plan = plan_forward_split(model);
  const ForwardSplitArguments& a = plan.arguments;
  py::list parts, fields, pieces;
  for (const ForwardSplitPart& part : plan.parts) parts.append(part_tuple(part));
  for (const ForwardSplitField& field : plan.fields) fields.append(part_tuple(field));
  for (const RingPiece& piece : plan.pieces)
    pieces.append(py::make_tuple(piece.source, piece.place, piece.bytes, piece.behind));
  py::dict found;
  found["weights"] = to_numpy(plan.weights);
  found["vectors"] = to_numpy(plan.vectors);
  found["parts"] = parts;
  found["fields"] = fields;
  found["pieces"] = pieces;
  found["x_strips"] = a.form.x_strips;
  found["h_strips"] = std::vector<int>(a.form.h_strips, a.form.h_strips + a.form.num_deep);
  found["cross_tile"] = a.form.cross_tile;
  found["deep_tile"] = a.form.deep_tile;
  found["places"] = places(a.shared);
  found["weight_bytes"] = a.weight_bytes;
  found["scratch_bytes"] = a.scratch_bytes;
  return found;
}

}  // namespace

void bind_forward_split(py::module_& module) {
  module.def("forward_split_fits", &fits, py::arg("dims"), py::arg("num_cross"), py::arg("columns"),
             py::arg("num_ids"), py::arg("most_rows"));
  module.def("forward_split_plan", &plan, py::arg("model"), py::arg("slots"));
}

}  // namespace dpiframe
