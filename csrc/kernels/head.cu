// Logits and scores; head.h has the formulas.
//
// Two mappings: with dots, a warp owns a row and its lanes share each dot; with narrow terms alone
// (what is left where the products' epilogues made the dots) a thread owns a row and neighbouring
// threads read neighbouring rows. Either way the order of the sums is fixed.
// The first block also copies the lookups' counters to the caller, so that no copy of its own is
// needed for them; every lookup comes before the head by the plan.
#include <algorithm>

#include "common/early_launch.cuh"
#include "kernels/head.h"
#include "kernels/matrix.cuh"

namespace dpiframe {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxTerms = 16;

struct HeadParams {
  HeadTerm terms[kMaxTerms];
  std::int64_t rows;
  float* out;
  float bias;
  int num_terms;
  int num_report;
  bool first;  // starts from the bias, not from what an earlier launch left in out
  bool last;   // writes the scores
};

__device__ float sum_of_term(const HeadTerm& term, std::int64_t row, int lane, int lanes) {
  float sum = 0.0f;
  for (int c = lane; c < term.a.width; c += lanes) {
    float value = load(term.a, row, c);
    if (term.b.data != nullptr) value *= load(term.b, row, c);
    sum = term.w == nullptr ? sum + value : fmaf(value, term.w[c], sum);
  }
  return sum;
}

template <int kLanes>
__global__ void __launch_bounds__(kThreads)
    head_kernel(const __grid_constant__ RunInputs inputs, const __grid_constant__ HeadParams p) {
  await_predecessor();
  if (p.last && blockIdx.x == 0 && inputs.report_copy != nullptr)
    for (int i = threadIdx.x; i < p.num_report; i += kThreads)
      inputs.report_copy[i] = inputs.report[i];
  const std::int64_t thread = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const std::int64_t row = thread / kLanes;
  const int lane = static_cast<int>(thread % kLanes);
  if (row >= p.rows) return;
  float sum = 0.0f;
  for (int i = 0; i < p.num_terms; ++i) sum += sum_of_term(p.terms[i], row, lane, kLanes);
  for (int width = kLanes / 2; width > 0; width /= 2)
    sum += __shfl_xor_sync(0xffffffffu, sum, width);
  if (lane != 0) return;
  sum += p.first ? p.bias : p.out[row];
  p.out[row] = sum;
  if (!p.last || row >= inputs.batch) return;
  if (inputs.logits != nullptr) inputs.logits[row] = sum;
  if (inputs.scores != nullptr) inputs.scores[row] = 1.0f / (1.0f + expf(-sum));
}

void launch(const HeadParams& params, const RunInputs& inputs, bool wide, cudaStream_t stream) {
  const std::int64_t num_threads = params.rows * (wide ? 32 : 1);
  const auto num_blocks = static_cast<unsigned>((num_threads + kThreads - 1) / kThreads);
  if (wide)
    launch_early(head_kernel<32>, num_blocks, kThreads, 0, stream, inputs, params);
  else
    launch_early(head_kernel<1>, num_blocks, kThreads, 0, stream, inputs, params);
}

}  // namespace

void head(std::int64_t rows, const HeadStep& step, const RunInputs& inputs, cudaStream_t stream) {
  if (rows == 0) return;
  const int num_terms = static_cast<int>(step.terms.size());
  const bool wide = std::any_of(step.terms.begin(), step.terms.end(), [](const HeadTerm& term) {
    return term.a.column_stride == 1 && term.a.width > 8;
  });
  for (int begin = 0; begin == 0 || begin < num_terms; begin += kMaxTerms) {
    HeadParams params{};
    params.num_terms = std::min(kMaxTerms, num_terms - begin);
    std::copy_n(step.terms.begin() + begin, params.num_terms, params.terms);
    params.rows = rows;
    params.out = step.out;
    params.bias = step.bias;
    params.num_report = step.num_report;
    params.first = begin == 0;
    params.last = begin + kMaxTerms >= num_terms;
    launch(params, inputs, wide, stream);
  }
}

}  // namespace dpiframe
