#include "runtime/page_scorer.h"

#include "bindings/batch_ring.h"
#include "bindings/families.h"
#include "bindings/numpy_args.h"

namespace dpiframe {
namespace {

using parquet::StoredColumns;

// Dense features [N, B], whose rows may lie apart.
void take_dense(const py::array& dense, StoredUnit& unit) {
  if (dense.size() == 0) return;
  DPIF_CHECK(py::isinstance<Array<float>>(dense) && dense.ndim() == 2 &&
                 dense.shape(1) == unit.ids.rows && dense.strides(1) == sizeof(float) &&
                 dense.strides(0) > 0 && dense.strides(0) % sizeof(float) == 0,
             "dense must be float32 [N, ", unit.ids.rows, "] with whole rows, got ",
             describe(dense));
  unit.dense = static_cast<const float*>(dense.data());
  unit.num_dense = dense.shape(0);
  unit.dense_stride = dense.strides(0) / static_cast<std::int64_t>(sizeof(float));
}

// None where a page is corrupt; else the counters (None: no bad ids), seconds of each batch,
// seconds of copying in, unpacking, computing, copying out.
py::object score(PageScorer& scorer, const StoredColumns& ids, const py::array& memory,
                 const py::array& dense, const py::array& out, bool use_oov) {
  const auto bytes = contiguous_argument<std::uint8_t>(memory, "memory", 1);
  StoredUnit unit{ids,    {bytes.data(), static_cast<std::size_t>(bytes.size())}, nullptr, 0, 0,
                  use_oov};
  take_dense(dense, unit);
  float* scores = writable_argument<float>(out, "out", ids.rows);
  ScoredUnit scored;
  {
    const py::gil_scoped_release release;
    scored = scorer.score(unit, {scores, static_cast<std::size_t>(ids.rows)});
  }
  if (!scored.readable) return py::none();
  const UnitSeconds& seconds = scored.seconds;
  const py::object report =
      scored.report.empty() ? py::none() : py::object(to_numpy(scored.report));
  return py::make_tuple(
      report, scored.batch_seconds,
      py::make_tuple(seconds.copy_in, seconds.unpack, seconds.compute, seconds.copy_out));
}

std::unique_ptr<PageScorer> make(CudaProgram& program, const py::object& ring, int num_fields,
                                 int num_dense, int num_slots) {
  return std::make_unique<PageScorer>(program, ring_of(ring), num_fields, num_dense, num_slots);
}

}  // namespace

void bind_page_scorer(py::module_& module) {
  py::class_<PageScorer>(module, "PageScorer")
      .def(py::init(&make), py::arg("program"), py::arg("ring"), py::arg("num_fields"),
           py::arg("num_dense"), py::arg("num_slots"), py::keep_alive<1, 2>(),
           py::keep_alive<1, 3>())
      .def("score", &score, py::arg("ids"), py::arg("memory"), py::arg("dense"), py::arg("out"),
           py::arg("use_oov"))
      .def_property_readonly("device_bytes", &PageScorer::device_bytes);
}

}  // namespace dpiframe
