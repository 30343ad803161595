// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace stateport::kernels {

/// Whether this machine runs code that was compiled for AVX2.
[[nodiscard]] inline bool has_avx2() noexcept {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") != 0;
#else
  return false;
#endif
}

}  // namespace stateport::kernels
