// Generic tensor operations: as data, on the CPU; for tests, expressions and the merging of axes.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/families.h"
#include "bindings/numpy_args.h"
#include "kernels/tensor/axes.h"
#include "kernels/tensor/expression.h"
#include "kernels/tensor/host/tensor_group.h"

namespace dpiframe {
namespace {

py::tuple merge(const std::vector<int>& sizes, const std::vector<std::vector<int>>& strides) {
  const MergedAxes merged = merge_axes(sizes, strides);
  return py::make_tuple(merged.sizes, merged.strides);
}

// The columns of an operand's elements in row-major order, as a kernel finds them.
std::vector<int> columns_of(const std::vector<int>& sizes, const std::vector<int>& strides) {
  const SharedAxes shared = shared_axes(sizes, {strides});
  std::vector<int> columns;
  for (int place = 0; place < shared.axes.elements; ++place)
    columns.push_back(column_at(shared.axes, shared.strides[0], place));
  return columns;
}

py::tuple evaluate(const std::vector<ExpressionToken>& postfix, const py::array& xs) {
  const auto values = contiguous_argument<float>(xs, "xs", 2);
  std::vector<const float*> operands;
  for (py::ssize_t i = 0; i < values.shape(0); ++i) operands.push_back(values.data(i, 0));
  const MapCode code = compile_expression(postfix, static_cast<int>(operands.size()));
  return py::make_tuple(to_numpy(map_on_host(code, operands, values.shape(1))), code.num_slots);
}

struct BufferArgument {
  BufferArgument(int width, bool is_scratch, const std::optional<py::array>& constant) {
    if (constant.has_value()) owner = contiguous_argument<float>(*constant, "constant", 1, width);
    buffer = {width, owner.has_value() ? owner->data() : nullptr, is_scratch};
  }

  GroupBuffer buffer;
  std::optional<Array<float>> owner;
};

struct GroupArgument {
  GroupArgument(std::vector<BufferArgument> buffers, std::vector<HostStep> steps, int num_threads,
                const std::string& loops)
      : owners(std::move(buffers)), group(plain(owners), std::move(steps), num_threads, loops) {}

  static std::vector<GroupBuffer> plain(const std::vector<BufferArgument>& owners) {
    std::vector<GroupBuffer> buffers;
    for (const BufferArgument& owner : owners) buffers.push_back(owner.buffer);
    return buffers;
  }

  void run(const std::vector<std::optional<py::array>>& matrices, std::int64_t rows) {
    DPIF_CHECK(matrices.size() == owners.size(), "a group of ", owners.size(),
               " buffers was given ", matrices.size());
    std::vector<float*> data;
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      data.push_back(nullptr);
      if (!matrices[i].has_value()) continue;
      const auto matrix = contiguous_argument<float>(*matrices[i], "a buffer", 2, rows);
      DPIF_CHECK(matrix.shape(1) == owners[i].buffer.width && matrix.writeable(),
                 "a buffer must be writable and ", owners[i].buffer.width, " wide, got ",
                 describe(matrix));
      data.back() = const_cast<float*>(matrix.data());
    }
    const py::gil_scoped_release release;
    group.run(data, rows);
  }

  std::vector<BufferArgument> owners;
  TensorGroup group;
};

std::vector<std::string> loop_names() {
  std::vector<std::string> names;
  for (const HostLoops* loops : usable_host_loops()) names.push_back(loops->name);
  return names;
}

HostStep group_step(const TensorOp& op, const std::vector<int>& sources,
                    const std::vector<Operand>& operands, int out, int out_column) {
  DPIF_CHECK(sources.size() == operands.size(), "there are ", sources.size(), " buffers for ",
             operands.size(), " operands");
  HostStep step{op, {}, out, out_column};
  for (std::size_t i = 0; i < sources.size(); ++i) step.inputs.push_back({sources[i], operands[i]});
  return step;
}

}  // namespace

void bind_tensor(py::module_& module) {
  py::class_<Operand>(module, "TensorOperand")
      .def(py::init<std::vector<int>, std::vector<int>, int>(), py::arg("shape"),
           py::arg("strides"), py::arg("offset"));
  py::class_<MapOp>(module, "MapOp")
      .def(py::init<std::vector<ExpressionToken>>(), py::arg("postfix"));
  py::class_<ReduceOp>(module, "ReduceOp")
      .def(py::init<std::string, std::vector<int>>(), py::arg("function"), py::arg("axes"));
  py::class_<SoftmaxOp>(module, "SoftmaxOp")
      .def(py::init<std::vector<int>, bool>(), py::arg("axes"), py::arg("guarded"));
  py::class_<LayerNormOp>(module, "LayerNormOp")
      .def(py::init<int, double>(), py::arg("axes"), py::arg("eps"));
  py::class_<MatMulOp>(module, "MatMulOp")
      .def(py::init<int, int, int>(), py::arg("batch"), py::arg("rows"), py::arg("inner"));
  py::class_<JoinOp>(module, "JoinOp").def(py::init<int>(), py::arg("outer"));
  py::class_<TakeOp>(module, "TakeOp")
      .def(py::init<std::vector<int>, int>(), py::arg("index"), py::arg("behind"));
  py::class_<TopKOp>(module, "TopKOp")
      .def(py::init<int, bool, bool>(), py::arg("k"), py::arg("largest"), py::arg("places"));
  py::class_<TakeAlongOp>(module, "TakeAlongOp").def(py::init<bool>(), py::arg("places_first"));
  py::class_<FmOp>(module, "FmOp").def(py::init<int>(), py::arg("dim"));
  py::class_<BufferArgument>(module, "GroupBuffer")
      .def(py::init<int, bool, const std::optional<py::array>&>(), py::arg("width"),
           py::arg("is_scratch") = false, py::arg("constant") = py::none());
  py::class_<HostStep>(module, "GroupStep")
      .def(py::init(&group_step), py::arg("op"), py::arg("sources"), py::arg("operands"),
           py::arg("out"), py::arg("out_column") = 0);
  py::class_<GroupArgument>(module, "TensorGroup")
      .def(py::init<std::vector<BufferArgument>, std::vector<HostStep>, int, const std::string&>(),
           py::arg("buffers"), py::arg("steps"), py::arg("num_threads") = 0, py::arg("loops") = "")
      .def_property_readonly("tile_samples",
                             [](const GroupArgument& self) { return self.group.tile_samples(); })
      .def_property_readonly("scratch_floats",
                             [](const GroupArgument& self) { return self.group.scratch_floats(); })
      .def_property_readonly("num_fused",
                             [](const GroupArgument& self) { return self.group.num_fused(); })
      .def("run", &GroupArgument::run, py::arg("matrices"), py::arg("rows"));
  module.def("host_loops", &loop_names);
  module.def("merge_axes", &merge, py::arg("sizes"), py::arg("strides"));
  module.def("operand_columns", &columns_of, py::arg("sizes"), py::arg("strides"));
  module.def("evaluate_expression", &evaluate, py::arg("postfix"), py::arg("xs"));
}

}  // namespace dpiframe
