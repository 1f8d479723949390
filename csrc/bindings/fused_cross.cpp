// The one-kernel forward pass with cross layers: models that it takes, and how one is laid out.
#include "kernels/fused/cross/fused_cross.h"

#include <utility>

#include "bindings/fused.h"
#include "kernels/fused/cross_persistent/smem_layout.h"

namespace dpiframe {
namespace {

ForwardCrossModel model_of(const std::vector<LevelArgument>& cross, const py::array& cross_head,
                           const std::vector<LevelArgument>& deep, const py::array& deep_head,
                           float bias, std::int64_t num_ids) {
  ForwardCrossModel model{};
  model.cross = forward_levels(cross);
  model.cross_head = float_values(cross_head, "cross_head", 1);
  model.deep = forward_levels(deep);
  model.deep_head = float_values(deep_head, "deep_head", 1);
  model.bias = bias;
  model.num_ids = num_ids;
  return model;
}

py::list piece_list(const std::vector<ForwardCrossPiece>& pieces) {
  py::list found;
  for (const ForwardCrossPiece& piece : pieces)
    found.append(py::make_tuple(piece.source, piece.place, piece.bytes, piece.wait));
  return found;
}

py::dict places(const ForwardCrossShared& s) {
  py::dict found;
  found["weights"] = s.weights;
  found["cross"] = s.cross;
  found["deep"] = s.deep;
  found["fields"] = s.fields;
  found["vectors"] = s.vectors;
  found["pieces"] = s.pieces;
  found["sides"] = s.sides;
  found["bytes"] = s.bytes;
  return found;
}

// A plan of fields without memory: for tests.
py::dict plan(ForwardCrossModel model, const std::vector<LookupSlot>& slots,
              const std::string& precision) {
  model.fields = fields_without_memory(slots);
  const ForwardCrossPlan plan =
      plan_forward_cross(model, activation_type(parse_precision(precision)));
  const ForwardCrossArguments& a = plan.arguments;
  py::dict found;
  found["weights"] = to_numpy(plan.weights);
  found["vectors"] = to_numpy(plan.vectors);
  found["x_columns"] = plan.lookup.x_columns;
  found["chunks"] = std::vector<int>(a.common.chunks, a.common.chunks + 2);
  found["zero_chunks"] = std::vector<int>(a.common.zero_chunk, a.common.zero_chunk + 2);
  found["cross_tile"] = a.form.cross_tile;
  found["deep_tile"] = a.form.deep_tile;
  found["pieces"] = piece_list(plan.pieces);
  found["places"] = places(a.shared);
  return found;
}

bool fits(std::vector<std::int64_t> dims, int num_cross, std::vector<int> columns,
          std::int64_t num_ids, std::int64_t most_rows) {
  return forward_cross_fits({std::move(dims), num_cross, std::move(columns), num_ids, most_rows});
}

// None where the model does not take the kernel for large batches.
py::object tall_plan(std::vector<std::int64_t> dims, int num_cross, std::vector<int> columns,
                     std::int64_t num_ids, std::int64_t most_rows) {
  const ForwardCrossShape shape{std::move(dims), num_cross, std::move(columns), num_ids, most_rows};
  const ForwardCrossForm form = forward_cross_form(shape);
  const int parts = forward_tall_parts(shape);
  if (!forward_cross_fits(shape) || !forward_tall_fits(form, parts)) return py::none();
  const ForwardTallShared shared = forward_tall_shared(form, parts);
  py::list pieces;
  for (const RingPiece& piece : forward_tall_pieces(form, shared.ring_bytes))
    pieces.append(py::make_tuple(piece.source, piece.place, piece.bytes, piece.behind));
  py::dict found;
  found["pieces"] = pieces;
  found["ring_bytes"] = shared.ring_bytes;
  found["bytes"] = shared.bytes;
  found["scratch_bytes"] = forward_tall_scratch_bytes(form);
  return found;
}

}  // namespace

void bind_forward_cross(py::module_& module) {
  module.def("forward_cross_fits", &fits, py::arg("dims"), py::arg("num_cross"), py::arg("columns"),
             py::arg("num_ids"), py::arg("most_rows"));
  module.def("forward_tall_plan", &tall_plan, py::arg("dims"), py::arg("num_cross"),
             py::arg("columns"), py::arg("num_ids"), py::arg("most_rows"));
  py::class_<ForwardCrossModel>(module, "ForwardCrossModel")
      .def(py::init(&model_of), py::arg("cross"), py::arg("cross_head"), py::arg("deep"),
           py::arg("deep_head"), py::arg("bias"), py::arg("num_ids"))
      .def("plan", &plan, py::arg("slots"), py::arg("precision"));
}

}  // namespace dpiframe
