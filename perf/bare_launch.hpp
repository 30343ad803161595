// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/stream.hpp>
#include <stateport/core/pool/copy_plan.hpp>

#include <cstddef>

namespace stateport::perf {

/// As large as the functor of a copy of up to 16 rows: its rows, a table and two numbers.
struct BareArguments {
  std::byte bytes[16 * sizeof(SlotCopy) + 48];
};

/// Launches a kernel without work that takes BareArguments by value: in a CUDA or HIP build by the vendor's own launch,
/// in an OpenMP build by a Kokkos launch like the one that
/// it is compared with. One source for each.
void launch_bare(const Stream& stream, const BareArguments& arguments);

}  // namespace stateport::perf
