// Whether kernels are built in the form that compute-sanitizer's racecheck can follow, for tests
// alone. It follows barriers from thread to thread, and not over a warp to the lane that arrives
// for it: so each thread arrives that has read. And by its reports it takes shared memory of
// two launches of a kernel for the same where they overlap: so none is launched before the one
// ahead has ended.
#pragma once

namespace dpiframe {

#ifdef DPIFRAME_RACECHECK
constexpr bool kRacecheck = true;
#else
constexpr bool kRacecheck = false;
#endif

}  // namespace dpiframe
