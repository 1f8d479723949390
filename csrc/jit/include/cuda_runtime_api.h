// For kernels that are compiled at load: names in declarations that they share with the host.
#pragma once

using cudaStream_t = struct CUstream_st*;
