// Nothing runs ahead on the host.
#pragma once

namespace dpiframe {
inline void launch_dependents() {}
inline void await_predecessor() {}
}  // namespace dpiframe
