#include "kernels/head/score_statistics.h"

#include <algorithm>

#include "bindings/families.h"
#include "bindings/numpy_args.h"

namespace dpiframe {
namespace {

py::tuple score_statistics_argument(const py::array& scores) {
  const auto checked = contiguous_argument<float>(scores, "scores", 1);
  py::array_t<std::int64_t> histogram(kScoreBins);
  std::int64_t* bins = histogram.mutable_data();
  ScoreStatistics found;
  {
    const py::gil_scoped_release release;
    found = score_statistics(checked.data(), checked.size());
    std::copy(found.histogram.begin(), found.histogram.end(), bins);
  }
  return py::make_tuple(found.min, found.max, found.sum, histogram);
}

}  // namespace

void bind_score_statistics(py::module_& module) {
  module.def("score_statistics", &score_statistics_argument, py::arg("scores"));
}

}  // namespace dpiframe
