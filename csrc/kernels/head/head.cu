// Logits and scores; head.h has the formulas.
//
// Two mappings: with dots, a warp owns kWarpRows samples and its lanes share each dot; with narrow
// terms alone (where the products' epilogues made the dots) kShares threads share the addends of a
// sample, neighbouring threads read neighbouring samples, and all loads of a thread are in flight
// at once, since nothing else hides their latency. Either way the order of the sums is fixed. By
// the plan all other steps come before the head. So a CTA of its own copies the lookups' counters
// to the caller if there were bad ids, which saves a copy of their own, and its last CTA to finish
// sets the batch's completion flag.
#include <algorithm>

#include "cuda/completion_flag.cuh"
#include "cuda/programmatic_launch.cuh"
#include "kernels/elementwise/matrix.cuh"
#include "kernels/head/head.h"
#include "ptx/global_memory.cuh"

namespace dpiframe {
namespace {

constexpr int kThreads = 256;
constexpr int kWarpRows = 4;  // their loads are in flight at once, and share the weights'
constexpr int kMaxTerms = 16;
constexpr int kMaxAddends = 32;
constexpr int kShares = 4;                        // threads that share a sample's addends
constexpr int kNarrowRows = kThreads / kShares;   // samples a CTA
constexpr int kInFlight = kMaxAddends / kShares;  // addends a thread

// What every launch has beside its terms. Many terms take several launches.
struct Ends {
  std::int64_t rows;
  float* out;
  float bias;
  int num_report;
  const BatchMemory* batch_memory;
  bool first;  // starts from the bias, not from what an earlier launch left in out
  bool last;   // writes the scores
};

struct WideParams {
  HeadTerm terms[kMaxTerms];
  int num_terms;
  Ends ends;
};

// a(r) * b(r) * w of one column each; b and w optional.
struct Addend {
  Matrix a;
  Matrix b;
  const float* w;
};
struct NarrowParams {
  Addend addends[kMaxAddends];
  int num_addends;
  Ends ends;
};

__device__ BatchMemory batch_memory_of(const BatchMemory& argument, const Ends& ends) {
  return ends.batch_memory == nullptr ? argument : *ends.batch_memory;
}

// The launch that writes the scores has a CTA more, for the report.
__device__ bool is_report_cta(const Ends& ends) {
  return ends.last && blockIdx.x == gridDim.x - 1;
}

// The host's copy says "no bad ids" unless it is overwritten, and writing to the host takes time.
__device__ void copy_report(const BatchMemory& inputs, const Ends& ends) {
  if (inputs.report_copy == nullptr) return;
  bool any = false;
  for (int i = threadIdx.x; i < ends.num_report; i += kThreads)
    any = any || inputs.report[i] != ~0ull;
  if (__syncthreads_or(any) == 0) return;
  for (int i = threadIdx.x; i < ends.num_report; i += kThreads)
    inputs.report_copy[i] = inputs.report[i];
}

__device__ void finish(const BatchMemory& inputs, const Ends& ends, std::int64_t row, float sum) {
  sum += ends.first ? ends.bias : ends.out[row];
  ends.out[row] = sum;
  if (!ends.last || row >= inputs.batch) return;
  if (inputs.logits != nullptr) inputs.logits[row] = sum;
  if (inputs.scores != nullptr) inputs.scores[row] = 1.0f / (1.0f + expf(-sum));
}

// Whether 16 bytes of a row may be read at once.
__device__ bool is_vectors(const Matrix& m) {
  return m.column_stride == 1 && reinterpret_cast<std::uintptr_t>(m.data) % 16 == 0 &&
         m.row_stride * (m.type == DataType::kFloat ? 4 : 2) % 16 == 0;
}

// 16 bytes of elements in float32.
template <class T>
struct Elements {
  static constexpr int kCount = 16 / sizeof(T);
  float of[kCount];

  __device__ Elements(const Matrix& m, std::int64_t row, int first) {
    const uint4 words =
        *reinterpret_cast<const uint4*>(static_cast<const T*>(m.data) + row * m.row_stride + first);
    const auto* values = reinterpret_cast<const T*>(&words);
#pragma unroll
    for (int i = 0; i < kCount; ++i) of[i] = to_float(values[i]);
  }
};

// Adds the columns of a term that are whole vectors to the sums of kWarpRows rows from `row` on
// (those beyond the last one are it); returns the first column behind them.
template <class T>
__device__ int add_vectors(const HeadTerm& term, std::int64_t row, std::int64_t last, int lane,
                           float (&sums)[kWarpRows]) {
  constexpr int kCount = Elements<T>::kCount;
  const int whole = term.a.width / kCount * kCount;
  const bool aligned = reinterpret_cast<std::uintptr_t>(term.w) % 16 == 0;
  for (int c = lane * kCount; c < whole; c += 32 * kCount) {
    float w[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) w[i] = 1.0f;
    if (term.w != nullptr && aligned) {
#pragma unroll
      for (int i = 0; i < kCount; i += 4)
        *reinterpret_cast<float4*>(w + i) = *reinterpret_cast<const float4*>(term.w + c + i);
    } else if (term.w != nullptr) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) w[i] = term.w[c + i];
    }
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      const std::int64_t own = min(row + r, last);
      Elements<T> values(term.a, own, c);
      if (term.b.data != nullptr) {
        const Elements<T> others(term.b, own, c);
#pragma unroll
        for (int i = 0; i < kCount; ++i) values.of[i] *= others.of[i];
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) sums[r] = fmaf(values.of[i], w[i], sums[r]);
    }
  }
  return whole;
}

__device__ void add_term(const HeadTerm& term, std::int64_t row, std::int64_t last, int lane,
                         float (&sums)[kWarpRows]) {
  int first = 0;
  if (is_vectors(term.a) &&
      (term.b.data == nullptr || (is_vectors(term.b) && term.b.type == term.a.type))) {
    if (term.a.type == DataType::kHalf) first = add_vectors<__half>(term, row, last, lane, sums);
    if (term.a.type == DataType::kBfloat16)
      first = add_vectors<__nv_bfloat16>(term, row, last, lane, sums);
    if (term.a.type == DataType::kFloat) first = add_vectors<float>(term, row, last, lane, sums);
  }
  for (int c = first + lane; c < term.a.width; c += 32) {
    const float w = term.w == nullptr ? 1.0f : term.w[c];
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      const std::int64_t own = min(row + r, last);
      float value = load(term.a, own, c);
      if (term.b.data != nullptr) value *= load(term.b, own, c);
      sums[r] = fmaf(value, w, sums[r]);
    }
  }
}

__device__ void wide_head(const BatchMemory& inputs, const WideParams& p) {
  const std::int64_t warp = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) / 32;
  const std::int64_t row = warp * kWarpRows;
  const int lane = threadIdx.x % 32;
  if (row >= p.ends.rows) return;
  float sums[kWarpRows] = {};
  for (int i = 0; i < p.num_terms; ++i) add_term(p.terms[i], row, p.ends.rows - 1, lane, sums);
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) {
    for (int width = 16; width > 0; width /= 2)
      sums[r] += __shfl_xor_sync(0xffffffffu, sums[r], width);
    if (lane == r && row + r < p.ends.rows) finish(inputs, p.ends, row + r, sums[r]);
  }
}

// One column of a Matrix. A load names its type by predicates and is consumed later.
struct Column {
  const char* data;          // null: 1
  std::int64_t byte_stride;  // from a row to the next
  DataType type;

  struct Loaded {
    std::uint32_t half;
    std::uint32_t word;
  };

  __device__ static Column of(const Matrix& matrix) {
    const int bytes = matrix.type == DataType::kFloat ? 4 : 2;
    return {static_cast<const char*>(matrix.data), matrix.row_stride * bytes, matrix.type};
  }
  __device__ Loaded load(std::int64_t row, bool is_read) const {
    const char* address = data + row * byte_stride;
    is_read = is_read && data != nullptr;
    const bool is_float = type == DataType::kFloat;
    return {ld_global_u16_if(address, is_read && !is_float),
            ld_global_u32_if(address, is_read && is_float)};
  }
  __device__ float value(const Loaded& loaded) const {
    if (data == nullptr) return 1.0f;
    const auto half = static_cast<unsigned short>(loaded.half);
    if (type == DataType::kHalf) return to_float(__ushort_as_half(half));
    if (type == DataType::kBfloat16) return to_float(__ushort_as_bfloat16(half));
    return __uint_as_float(loaded.word);
  }
};

struct NarrowShared {
  Column a[kMaxAddends];
  Column b[kMaxAddends];
  float w[kMaxAddends];
  float sums[kShares][kNarrowRows];
};

// What no kernel writes is read before the kernels ahead have ended.
__device__ void read_addends(const NarrowParams& p, NarrowShared& shared) {
  for (int i = threadIdx.x; i < p.num_addends; i += kThreads) {
    shared.a[i] = Column::of(p.addends[i].a);
    shared.b[i] = Column::of(p.addends[i].b);
    shared.w[i] = p.addends[i].w == nullptr ? 1.0f : *p.addends[i].w;
  }
  __syncthreads();
}

__device__ void narrow_head(const BatchMemory& inputs, const NarrowParams& p,
                            NarrowShared& shared) {
  const int share = static_cast<int>(threadIdx.x) / kNarrowRows;
  const int own = static_cast<int>(threadIdx.x) % kNarrowRows;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kNarrowRows + own;
  const bool is_row = row < p.ends.rows;
  Column::Loaded a[kInFlight];
  Column::Loaded b[kInFlight];
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) {
    const int addend = share + i * kShares;
    const bool is_read = is_row && addend < p.num_addends;
    a[i] = shared.a[addend].load(row, is_read);
    b[i] = shared.b[addend].load(row, is_read);
  }
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kInFlight; ++i) {
    const int addend = share + i * kShares;
    if (addend >= p.num_addends) break;
    sum += shared.a[addend].value(a[i]) * shared.b[addend].value(b[i]) * shared.w[addend];
  }
  shared.sums[share][own] = sum;
  __syncthreads();
  if (share != 0 || !is_row) return;
#pragma unroll
  for (int other = 1; other < kShares; ++other) sum += shared.sums[other][own];
  finish(inputs, p.ends, row, sum);
}

__global__ void __launch_bounds__(kThreads)
    wide_head_kernel(const __grid_constant__ BatchMemory argument,
                     const __grid_constant__ WideParams p) {
  await_predecessor();
  const BatchMemory inputs = batch_memory_of(argument, p.ends);
  if (is_report_cta(p.ends))
    copy_report(inputs, p.ends);
  else
    wide_head(inputs, p);
  if (p.ends.last && inputs.completion.flag != nullptr) signal_completion(inputs.completion);
}

__global__ void __launch_bounds__(kThreads)
    narrow_head_kernel(const __grid_constant__ BatchMemory argument,
                       const __grid_constant__ NarrowParams p) {
  __shared__ NarrowShared shared;
  read_addends(p, shared);
  await_predecessor();
  const BatchMemory inputs = batch_memory_of(argument, p.ends);
  if (is_report_cta(p.ends))
    copy_report(inputs, p.ends);
  else
    narrow_head(inputs, p, shared);
  if (p.ends.last && inputs.completion.flag != nullptr) signal_completion(inputs.completion);
}

unsigned ctas_for(std::int64_t rows, int rows_a_cta, const Ends& ends) {
  return static_cast<unsigned>((rows + rows_a_cta - 1) / rows_a_cta) + (ends.last ? 1 : 0);
}

// The columns of all terms as addends.
std::vector<Addend> addends_of(const std::vector<HeadTerm>& terms) {
  const auto column = [](Matrix matrix, std::int64_t c) {
    if (matrix.data == nullptr) return matrix;
    matrix.data =
        static_cast<char*>(matrix.data) + c * matrix.column_stride * bytes_of(matrix.type);
    return matrix;
  };
  std::vector<Addend> addends;
  for (const HeadTerm& term : terms)
    for (int c = 0; c < term.a.width; ++c)
      addends.push_back(
          {column(term.a, c), column(term.b, c), term.w == nullptr ? nullptr : term.w + c});
  return addends;
}

// Calls launch(begin, end, ends) for ranges of at most `most` of `count` terms.
template <class Launch>
void in_launches(int count, int most, Ends ends, const Launch& launch) {
  for (int begin = 0; begin == 0 || begin < count; begin += most) {
    const int end = std::min(begin + most, count);
    ends.first = begin == 0;
    ends.last = end == count;
    launch(begin, end, ends);
  }
}

}  // namespace

void head(std::int64_t rows, const HeadStep& step, const BatchMemory& inputs, cudaStream_t stream) {
  if (rows == 0) return;
  const Ends ends{rows, step.out, step.bias, step.num_report, step.batch_memory, true, true};
  const bool wide = std::any_of(step.terms.begin(), step.terms.end(), [](const HeadTerm& term) {
    return term.a.column_stride == 1 && term.a.width > 8;
  });
  if (wide) {
    in_launches(static_cast<int>(step.terms.size()), kMaxTerms, ends,
                [&](int begin, int end, const Ends& range) {
                  WideParams params{{}, end - begin, range};
                  std::copy(step.terms.begin() + begin, step.terms.begin() + end, params.terms);
                  launch_early(wide_head_kernel, ctas_for(rows, kThreads / 32 * kWarpRows, range),
                               kThreads, 0, stream, inputs, params);
                });
    return;
  }
  const std::vector<Addend> addends = addends_of(step.terms);
  in_launches(static_cast<int>(addends.size()), kMaxAddends, ends,
              [&](int begin, int end, const Ends& range) {
                NarrowParams params{{}, end - begin, range};
                std::copy(addends.begin() + begin, addends.begin() + end, params.addends);
                launch_early(narrow_head_kernel, ctas_for(rows, kNarrowRows, range), kThreads, 0,
                             stream, inputs, params);
              });
}

}  // namespace dpiframe
