// Marks a function that host code and kernels share.
#pragma once

#ifdef __CUDACC__
#define DPIF_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define DPIF_HOST_DEVICE inline
#endif
