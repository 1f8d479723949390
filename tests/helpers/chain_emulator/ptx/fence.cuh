// The host's memory has one proxy.
#pragma once

namespace dpiframe {
inline void fence_proxy_async_shared() {}
inline void fence_mbarrier_init() {}
}  // namespace dpiframe
