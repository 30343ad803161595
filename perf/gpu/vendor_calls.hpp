// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/stream.hpp>

#ifdef __HIP__
#include <hip/hip_runtime.h>
#define STATEPORT_VENDOR(name) hip##name
#else
#include <cuda_runtime.h>
#define STATEPORT_VENDOR(name) cuda##name
#endif

#include <stdexcept>

/// The vendor's runtime, whose calls are named alike: STATEPORT_VENDOR(EventCreate) is cudaEventCreate or
/// hipEventCreate.
namespace stateport::perf {

/// Throws std::runtime_error with the vendor's text.
inline void check(STATEPORT_VENDOR(Error_t) error) {
  if (error != STATEPORT_VENDOR(Success)) throw std::runtime_error(STATEPORT_VENDOR(GetErrorString)(error));
}
/// The same for the launch just made.
inline void check_launch() {
  check(STATEPORT_VENDOR(GetLastError)());
}

inline STATEPORT_VENDOR(Stream_t) native(const Stream& stream) {
  return static_cast<STATEPORT_VENDOR(Stream_t)>(stream.native());
}

}  // namespace stateport::perf
