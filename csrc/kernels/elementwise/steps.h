// The small steps of a program, for what no pass fused away; program.py has the formulas.
//
// [rows, width] matrices of any type and stride; sums are float32. Weights are float32 device
// memory. Each function enqueues; none synchronises or allocates, so all may be captured.
#pragma once

#include <cuda_runtime_api.h>

#include <vector>

#include "kernels/elementwise/matrix.h"

namespace dpiframe {

// out = x.
void copy(std::int64_t rows, const Matrix& x, const Matrix& out, cudaStream_t stream);

// out = max(x, 0).
void relu(std::int64_t rows, const Matrix& x, const Matrix& out, cudaStream_t stream);

// out(:, n * dim + d) = x(:, n) * weight[n * dim + d].
void outer(std::int64_t rows, const Matrix& x, const float* weight, int dim, const Matrix& out,
           cudaStream_t stream);

// out = x * scale + shift, both [width].
void batch_norm(std::int64_t rows, const Matrix& x, const float* scale, const float* shift,
                const Matrix& out, cudaStream_t stream);

// out = x0 * wx + xl.
void cross_combine(std::int64_t rows, const Matrix& x0, const Matrix& wx, const Matrix& xl,
                   const Matrix& out, cudaStream_t stream);

// out = x0 * (xl . weight) + bias + xl.
void cross_v1(std::int64_t rows, const Matrix& x0, const Matrix& xl, const float* weight,
              const float* bias, const Matrix& out, cudaStream_t stream);

// out [rows, 1] = alpha_L: alpha_0 = 1, alpha_{l+1} = alpha_l (1 + dots_l) + shift[l].
void cross_scalar(std::int64_t rows, const Matrix& dots, const float* shift, const Matrix& out,
                  cudaStream_t stream);

// out = alpha * x + beta; alpha [rows, 1], beta [width].
void scale_shift(std::int64_t rows, const Matrix& x, const Matrix& alpha, const float* beta,
                 const Matrix& out, cudaStream_t stream);

// out = sum of xs + bias; bias [width] or null. Any number of xs.
void add(std::int64_t rows, const std::vector<Matrix>& xs, const float* bias, const Matrix& out,
         cudaStream_t stream);

// out [rows, 1] = 1/2 sum_d ((sum_f v)^2 - sum_f v^2) over all fields, `dim` wide, of xs.
void fm(std::int64_t rows, const std::vector<Matrix>& xs, int dim, const Matrix& out,
        cudaStream_t stream);

}  // namespace dpiframe
