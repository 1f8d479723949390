// Inner loops of the generic operations on the CPU, one set for each instruction set.
//
// The same source (loops_body.h) is compiled for vectors of 4, 8 and 16 numbers; host_loops()
// chooses by the processor. A loop touches no element that it is not asked for, so that arrays need
// neither padding nor alignment, unless it says otherwise.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/tensor/functions.h"

namespace dpiframe {

// Numbers of a function's argument: one after another, or one for all.
struct HostArgument {
  const float* data;
  bool is_scalar;
};

enum class Reduction : std::int32_t { kSum, kProduct, kMax, kMin };

// out[r, 0..columns) = sum over k of a[r, k] b[k, 0..columns), added to what is there if
// `accumulate`. Row r of a begins at a + a_rows[r], its numbers lie a_step apart; row r of out
// begins at out + out_rows[r].
struct HostProduct {
  const float* a;
  const std::int64_t* a_rows;
  int rows;
  std::int64_t a_step;
  const float* b;  // readable for the columns rounded up to whole vectors
  std::int64_t b_step;
  int columns;  // at most panel()
  int inner;
  float* out;
  const std::int64_t* out_rows;
  bool accumulate;
};

// out[to + i] = x[from + i * stride], i < size.
struct HostRun {
  std::int64_t from;
  std::int64_t to;
  std::int64_t stride;
  int size;
};

struct HostLoops {
  const char* name;
  int lanes;

  // Columns of b that a product takes at once.
  int panel() const { return 2 * lanes; }

  // out[i] = function(arguments); out may be an argument. False: no loop for this function.
  bool (*apply)(Function function, const HostArgument* arguments, int size, float* out);
  // out[r * out_step + i] = x[r * x_step + i * stride], i < size.
  void (*copy_rows)(const float* x, std::int64_t x_step, std::int64_t stride, int rows, int size,
                    float* out, std::int64_t out_step);
  void (*copy_runs)(const HostRun* runs, int count, const float* x, float* out);
  // out[i * out_step + r] = x[r * x_step + i]: rows of x become columns.
  void (*transpose)(const float* x, std::int64_t x_step, int rows, int size, float* out,
                    std::int64_t out_step);
  // totals[i] = totals[i] (+, *, max, min) x[i]. Sums are double.
  void (*reduce_into)(Reduction reduction, const float* x, int size, double* totals);
  // total (+, *, max, min) all of x, which lie `stride` apart.
  double (*reduce_row)(Reduction reduction, const float* x, std::int64_t stride, int size,
                       double total);
  // sums[i] += x[i] and squares[i] += x[i]^2, i < size, of each of `rows` rows.
  void (*add_rows)(const float* x, std::int64_t x_step, int rows, int size, double* sums,
                   double* squares);
  // Softmax of each of `rows` rows of neighbours; x and out must not overlap.
  void (*softmax_rows)(const float* x, std::int64_t x_step, int rows, int size, float* out,
                       std::int64_t out_step);
  // Softmax of `lanes` rows side by side, in place: row r's numbers are x[i * lanes + r], i < size.
  // `guarded`: a row of -infinity alone becomes 0.
  void (*softmax_lanes)(float* x, int size, bool guarded);
  // (x - mean) / sqrt(variance + eps) * weight + bias of each row; weight and bias may be null.
  void (*normalize_rows)(const float* x, std::int64_t x_step, int rows, int size, double eps,
                         const float* weight, const float* bias, float* out, std::int64_t out_step);
  float (*dot)(const float* a, const float* b, int size);
  void (*multiply)(const HostProduct& product);
};

extern const HostLoops kBaselineLoops;
#ifdef __x86_64__
extern const HostLoops kAvx2Loops;
extern const HostLoops kAvx512Loops;
#endif

// Those that this processor runs, the best last.
std::vector<const HostLoops*> usable_host_loops();

// The best, or those of the name: "baseline", "avx2", "avx512". ValueError: none of the name here.
const HostLoops& host_loops(const std::string& name = "");

}  // namespace dpiframe
