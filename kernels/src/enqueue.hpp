// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/internal/device_calls.hpp>
#include <stateport/backends/internal/execution_space.hpp>

#include "labels.hpp"

#include <Kokkos_Core.hpp>

#include <cstddef>

namespace stateport::kernels {

/// Kokkos hands functors to the kernel as they are, up to this many bytes with its additions (its
/// `KernelArgumentLimit`). Larger ones would travel through memory that all streams share, and wait for each other.
inline constexpr std::size_t kernel_arguments_max_bytes = 4096;

/// A property of every policy of the library, so that functors of more than 512 bytes travel so, too.
using ArgumentsByValue = Kokkos::Experimental::WorkItemProperty::HintLightWeight_t;

/// Enqueues one launch named `label`. Throws BackendError when the vendor's runtime refuses it.
template <class Policy, class Functor>
void enqueue(const char* label, const Policy& policy, const Functor& functor) {
  static_assert(sizeof(Kokkos::Impl::ParallelFor<Functor, Policy>) < kernel_arguments_max_bytes);
  const detail::LaunchScope scope;
  Kokkos::parallel_for(label, policy, functor);
  scope.check(label);
}

}  // namespace stateport::kernels
