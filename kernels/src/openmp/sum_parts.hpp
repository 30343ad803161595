// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../state_sums.hpp"

#include <Kokkos_Core.hpp>

namespace stateport::kernels {

/// Adds the sum of one thread to that of a tensor, to which other threads add as well.
inline void add_to(TensorSum& tensor, const PartSum& part) {
  Kokkos::atomic_add(&tensor.sum, part.sum);
  if (part.not_finite()) Kokkos::atomic_store(&tensor.not_finite, 1u);
}

}  // namespace stateport::kernels
