// SPDX-License-Identifier: Apache-2.0
// Linked beside examples/hello-states/main.cpp, outside of the build tree, by a plain C++ compiler.
#if __has_include(<Kokkos_Core.hpp>)
#error "the headers of Kokkos must not be needed, nor be found by users of stateport"
#endif

#include <stateport/parts/checkpoint_budget.hpp>

#include <cstddef>
#include <cstdint>

/// Needs stateport::parts, which the example does not use.
std::int64_t states_of_a_gib(std::size_t slot_bytes) {
  return stateport::slots_for_budget(std::size_t{1} << 30, slot_bytes, 0);
}
