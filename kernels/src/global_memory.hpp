// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Kokkos_Core.hpp>

#include <cstdint>

namespace stateport::kernels {

/// `address`, known to lie in memory that all teams see: neither in a team's shared memory nor on a thread's stack.
/// Reads and writes there need no look at which of them it is. Elsewhere it has no effect.
template <class T>
KOKKOS_INLINE_FUNCTION T* in_global_memory(T* address) {
#if defined(__CUDA_ARCH__)
  __builtin_assume(__isGlobal(address) != 0);
#elif defined(__HIP_DEVICE_COMPILE__)
  // By way of a number: two casts of pointers would be taken for none.
  using Global = __attribute__((address_space(1))) T;
  return (T*)(Global*)reinterpret_cast<std::uintptr_t>(address);
#endif
  return address;
}

/// The same for memory that the threads of one team share.
template <class T>
KOKKOS_INLINE_FUNCTION T* in_team_memory(T* address) {
#if defined(__CUDA_ARCH__)
  __builtin_assume(__isShared(address) != 0);
#elif defined(__HIP_DEVICE_COMPILE__)
  using Shared = __attribute__((address_space(3))) T;
  return (T*)(Shared*)(address);
#endif
  return address;
}

}  // namespace stateport::kernels
