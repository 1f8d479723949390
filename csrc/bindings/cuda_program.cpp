#include "runtime/cuda_program.h"

#include <algorithm>
#include <memory>
#include <tuple>
#include <utility>

#include "bindings/families.h"
#include "bindings/numpy_args.h"

namespace dpiframe {
namespace {

using OptionalView = std::optional<ArenaView>;

WeightKind parse_kind(const std::string& name) {
  if (name == "numbers") return WeightKind::kNumbers;
  if (name == "table") return WeightKind::kTable;
  if (name == "raw") return WeightKind::kRaw;
  DPIF_CHECK(name == "product", "a weight is numbers, table, product or raw, got ", name);
  return WeightKind::kProduct;
}

std::int64_t weight_bytes(const std::string& precision, const std::string& kind, std::int64_t rows,
                          std::int64_t columns) {
  return static_cast<std::int64_t>(
      CudaProgram::bytes_of_weight(parse_precision(precision), parse_kind(kind), rows, columns));
}

// The most parts that the head of a product k -> n is summed in, over all batch sizes.
int max_head_partials(const std::string& precision, std::int64_t max_rows, int n, int k) {
  int most = 0;
  for (const std::int64_t rows : batch_buckets(max_rows))
    most = std::max(most, head_partials(parse_precision(precision), rows, n, k));
  return most;
}

// One configuration of each kernel that products k -> n, or so many of them that are one, take over
// all batch sizes.
std::vector<LinearConfig> linear_configs(const std::string& precision, std::int64_t max_rows, int n,
                                         int k, int places) {
  std::vector<LinearConfig> found;
  for (const std::int64_t rows : batch_buckets(max_rows)) {
    const LinearConfig config = linear_config(parse_precision(precision), rows, n, k, places);
    const auto is_kernel = [&](const LinearConfig& each) { return each.is_kernel_of(config); };
    if (std::none_of(found.begin(), found.end(), is_kernel)) found.push_back(config);
  }
  return found;
}

int add_weight(CudaProgram& program, const std::string& kind, const py::array& values) {
  py::array array;
  if (kind == "raw")
    array = contiguous_argument<std::uint8_t>(values, "values", 2);
  else
    array = contiguous_argument<float>(values, "values", 2);
  const void* data = array.data();
  const std::int64_t rows = array.shape(0);
  const std::int64_t columns = array.shape(1);
  const py::gil_scoped_release release;
  return program.add_weight(parse_kind(kind), data, rows, columns);
}

void add_compiled(CudaProgram& program, const py::bytes& cubin, const std::string& kernel,
                  int threads, int shared_bytes, int samples_a_block,
                  const std::vector<ArenaView>& reads, const std::vector<ArenaView>& writes,
                  const std::vector<int>& weights) {
  program.add_compiled(
      {cubin, kernel, threads, shared_bytes, samples_a_block, reads, writes, weights});
}

void add_field_ids(CudaProgram& program, const std::vector<FieldIdsTuple>& fields) {
  program.add_field_ids(field_ids(fields));
}

using TileCubin = std::tuple<LinearConfig, py::bytes>;

void add_mapped_product(CudaProgram& program, const ProductStep& step,
                        const std::vector<MapSource>& sources, const ProductRowsStep& rows,
                        const std::vector<TileCubin>& kernels) {
  std::vector<std::pair<LinearConfig, std::string>> copied;
  for (const auto& [config, cubin] : kernels) copied.emplace_back(config, cubin);
  program.add_mapped_product(step, sources, rows, copied);
}

void add_chain(CudaProgram& program, const std::vector<ArenaView>& inputs,
               const std::vector<ChainProduct>& products, const py::bytes& cubin, int shared_bytes,
               int ctas, const std::vector<std::int64_t>& rows, int steps) {
  program.add_chain({inputs, products, cubin, shared_bytes, ctas, rows}, steps);
}

void bind_views(py::module_& module) {
  py::class_<ArenaView>(module, "ArenaView")
      .def(py::init<std::int64_t, std::int64_t, int, bool>(), py::arg("offset"),
           py::arg("row_stride"), py::arg("width"), py::arg("is_float"));
  py::class_<LookupSlot>(module, "CudaSlot")
      .def(py::init<int, int, int, std::int64_t, std::int64_t, std::int64_t, std::int64_t, bool>(),
           py::arg("field"), py::arg("table"), py::arg("wide"), py::arg("rows"), py::arg("dim"),
           py::arg("column"), py::arg("oov_row"), py::arg("in_fm"));
  py::class_<DenseSlotStep>(module, "CudaDenseSlot")
      .def(py::init<int, int, int, int, int, int, int, OptionalView, bool>(), py::arg("first"),
           py::arg("count"), py::arg("dim"), py::arg("column"), py::arg("weight"), py::arg("shift"),
           py::arg("wide"), py::arg("numbers"), py::arg("in_fm"));
  py::class_<HeadPart>(module, "HeadPart")
      .def(py::init<ArenaView, OptionalView, int, int, int>(), py::arg("a"),
           py::arg("b") = py::none(), py::arg("weight") = -1, py::arg("partial_n") = 0,
           py::arg("partial_k") = 0);
  py::class_<MapSource>(module, "MapSource")
      .def(py::init<OptionalView, int, int>(), py::arg("view"), py::arg("weight") = -1,
           py::arg("place_step") = 0);
  using Offset = std::optional<std::int64_t>;
  py::class_<ProductRowsStep>(module, "ProductRows")
      .def(py::init<Offset, Offset, Offset, Offset, int, int, int, float>(), py::arg("sums_out"),
           py::arg("squares_out"), py::arg("sums"), py::arg("squares"), py::arg("made_n"),
           py::arg("made_k"), py::arg("width"), py::arg("eps"));
  py::class_<ChainProduct>(module, "ChainProduct")
      .def(py::init<int, int, int, int, OptionalView, Offset, Offset, Offset>(), py::arg("weight"),
           py::arg("n"), py::arg("k"), py::arg("vectors"), py::arg("out"), py::arg("partial"),
           py::arg("sums"), py::arg("squares"));
  py::class_<ProductStep>(module, "ProductStep")
      .def(py::init<ArenaView, int, int, int, OptionalView, std::vector<std::pair<int, int>>, int,
                    OptionalView, OptionalView, int, int, int, Offset, int, int, int>(),
           py::arg("x"), py::arg("n"), py::arg("weight"), py::arg("bias"), py::arg("out"),
           py::arg("relu"), py::arg("cross_begin"), py::arg("x0"), py::arg("xl"),
           py::arg("head_begin"), py::arg("head_width"), py::arg("head"), py::arg("partial"),
           py::arg("rows_a_sample") = 1, py::arg("places") = 1, py::arg("place_step") = 0);
}

Branches branches_by_name(const std::string& name) {
  if (name == "measured") return Branches::kMeasured;
  if (name == "side_by_side") return Branches::kSideBySide;
  DPIF_CHECK(name == "in_turn", "branches are measured, side_by_side or in_turn, got ", name);
  return Branches::kInTurn;
}

void build(CudaProgram& program, const Plan& plan, bool graphs, unsigned delay_seed,
           int refused_step, const std::string& branches) {
  const Branches how = branches_by_name(branches);
  const py::gil_scoped_release release;
  program.build(plan, {program.max_rows(), graphs, delay_seed, refused_step, how});
}

}  // namespace

void bind_cuda_program(py::module_& module) {
  bind_views(module);
  module.def("weight_bytes", &weight_bytes, py::arg("precision"), py::arg("kind"), py::arg("rows"),
             py::arg("columns"));
  module.def("max_head_partials", &max_head_partials, py::arg("precision"), py::arg("max_rows"),
             py::arg("n"), py::arg("k"));
  module.def("linear_configs", &linear_configs, py::arg("precision"), py::arg("max_rows"),
             py::arg("n"), py::arg("k"), py::arg("places") = 1);
  module.def("batch_buckets", &batch_buckets, py::arg("max_rows"));
  py::class_<CudaProgram>(module, "CudaProgram")
      .def(py::init([](int device, const std::string& precision, std::int64_t max_rows,
                       std::int64_t weights, std::int64_t arena) {
             return std::make_unique<CudaProgram>(device, parse_precision(precision), max_rows,
                                                  weights, arena);
           }),
           py::arg("device"), py::arg("precision"), py::arg("max_rows"), py::arg("weight_bytes"),
           py::arg("arena_bytes"))
      .def("add_weight", &add_weight, py::arg("kind"), py::arg("values"))
      .def("add_field_ids", &add_field_ids, py::arg("fields"))
      .def("add_lookup", &CudaProgram::add_lookup, py::arg("slots"), py::arg("dense"),
           py::arg("out"), py::arg("fm"), py::arg("wide"))
      .def("add_load_dense", &CudaProgram::add_load_dense, py::arg("out"))
      .def("add_elementwise", &CudaProgram::add_elementwise, py::arg("name"), py::arg("inputs"),
           py::arg("weights"), py::arg("sizes"), py::arg("out"))
      .def("add_product", &CudaProgram::add_product, py::arg("step"))
      .def("add_mapped_product", &add_mapped_product, py::arg("step"), py::arg("sources"),
           py::arg("rows"), py::arg("kernels"))
      .def("add_chain", &add_chain, py::arg("inputs"), py::arg("products"), py::arg("cubin"),
           py::arg("shared_bytes"), py::arg("ctas"), py::arg("rows"), py::arg("steps"))
      .def("add_tensor", &CudaProgram::add_tensor, py::arg("op"), py::arg("inputs"),
           py::arg("weights"), py::arg("operands"), py::arg("out"))
      .def("add_compiled", &add_compiled, py::arg("cubin"), py::arg("kernel"), py::arg("threads"),
           py::arg("shared_bytes"), py::arg("samples_a_block"), py::arg("reads"), py::arg("writes"),
           py::arg("weights"))
      .def("add_head", &CudaProgram::add_head, py::arg("parts"), py::arg("bias"), py::arg("out"))
      .def("add_fused_mlp", &CudaProgram::add_fused_mlp, py::arg("slots"), py::arg("model"),
           py::arg("above") = 0)
      .def("add_fused_cross", &CudaProgram::add_fused_cross, py::arg("slots"), py::arg("model"),
           py::arg("above") = 0)
      .def("build", &build, py::arg("plan"), py::arg("graphs") = true, py::arg("delay_seed") = 0,
           py::arg("refused_step") = -1, py::arg("branches") = "measured")
      .def("poison", &CudaProgram::poison)
      .def_property_readonly("fused_above", &CudaProgram::fused_above)
      .def_property_readonly("fused_up_to", &CudaProgram::fused_up_to)
      .def_property_readonly("buckets_in_turn", &CudaProgram::buckets_in_turn)
      .def_property_readonly("device_bytes", &CudaProgram::device_bytes);
}

}  // namespace dpiframe
