// Building blocks of kernels that run a group of steps over a tile of samples, compiled at load.
//
// A generated kernel (dpiframe_core/engine/cuda/tile) is a list of stages, each one call of what is
// here; between stages all threads of the CTA meet. What stages hand to one another lies in shared
// memory. Sizes are compile-time constants, and every element access is a function that the
// generator wrote. Self-contained: no header of a toolkit is needed. Compiled for the host
// (DPIF_TILE_HOST), one thread runs the same stages with plain loops; with the instructions of
// tests/helpers/tile_emulator in the place of a GPU's, all threads run as they would there.
#pragma once

#include "kernels/tile/rows.cuh"
#ifdef DPIF_TILE_HOST
#include "kernels/tile/host_products.h"
#else
#include "kernels/tile/matrices.cuh"
#endif
