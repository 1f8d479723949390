// Product with its epilogue: the one matrix product of every model.
//
//   acc  = x w^T + bias                                  x [rows, k], w [n, k], bias [n]
//   out  = acc, with max(., 0) on columns [relu_begin, relu_end)
//   out  = x0 * acc + xl on columns [cross_begin, cross_end)            (DCNv2's cross layer)
//   head_partial summed over its parts = sum_c out[., c] * head[c - head_begin]
//
// Activations and weights are stored in the type of the precision, sums are float32. The head's
// parts are sums over ranges of columns in a fixed order: the same bits every time.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "common/precision.h"

namespace dpiframe {

// All pointers are device memory. x, x0, xl and out hold the precision's activation type. What w
// holds beside the weight, bias and head may be read before the kernels ahead on the stream have
// ended; who made them there waits for that.
struct LinearParams {
  std::int64_t rows;
  int n;
  int k;
  const void* x;
  std::int64_t ldx;   // elements from one row to the next
  const void* w;      // made by prepare_linear_weight
  const float* bias;  // [n] or null
  void* out;          // [rows, n]; null where only the head is wanted
  std::int64_t ldo;
  int relu_begin;  // empty ranges: begin == end
  int relu_end;
  int cross_begin;
  int cross_end;
  const void* x0;  // [rows, cross_end - cross_begin]
  std::int64_t ldx0;
  const void* xl;
  std::int64_t ldxl;
  int head_begin;
  int head_end;
  const float* head;        // [head_end - head_begin]
  float* head_partial;      // [head_partials, rows]: part p of row r is [p * ld_partial + r]
  std::int64_t ld_partial;  // >= rows
  // The kernel ahead is no product: its CTAs end at different times, and where two of short tiles
  // would follow one of these, others would find none.
  bool behind_other;
};

// Bytes of a prepared weight, padding and the fp16x3 parts included.
std::size_t prepared_weight_bytes(Precision precision, int n, int k);

// Enqueues the conversion of w [n, k] float32, row-major, device memory, into `prepared`.
void prepare_linear_weight(Precision precision, const float* w, int n, int k, void* prepared,
                           cudaStream_t stream);

// Partial sums a row of the head's dot; all of them are written.
int head_partials(Precision precision, std::int64_t rows, int n, int k);

// Enqueues the product; never synchronises, never allocates; may be captured in a graph.
void linear(Precision precision, const LinearParams& params, cudaStream_t stream);

struct LinearConfig;
// The same in tiles that are given, to compare them: one of all_linear_configs, on a GPU that has
// them.
void linear(Precision precision, const LinearParams& params, const LinearConfig& config,
            cudaStream_t stream);

}  // namespace dpiframe
