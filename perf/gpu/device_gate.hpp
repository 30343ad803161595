// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "vendor_calls.hpp"

/// A gate that holds a stream back until the host has enqueued everything; for CUDA and HIP.
namespace stateport::perf {

enum Gate : int { closed, open, forced };

/// Waits while *gate is closed, but not for ever: where the host waits for the stream, `ticks_max` of the device's
/// clock let it go on, and the gate says so. `gate` lies in pinned memory.
__global__ void wait_at_gate(volatile int* gate, long long ticks_max) {
  const long long begin = clock64();
  while (*gate == closed)
    if (clock64() - begin > ticks_max) *gate = forced;
}

constexpr long long gate_ticks_max = 200'000'000;  // a tenth of a second at 2 GHz

__global__ void empty_kernel() {}

}  // namespace stateport::perf
