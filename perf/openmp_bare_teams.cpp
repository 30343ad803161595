// SPDX-License-Identifier: Apache-2.0
// As the launches of GPUs on host threads: one team for each row that a host plan may have.
#include <stateport/backends/internal/execution_space.hpp>

#include "bare_launch.hpp"
#include "gpu/copy_tile.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>

namespace stateport::perf {
namespace {

struct BareKernel {
  BareArguments arguments;
  KOKKOS_FUNCTION void operator()(const kernels::Team&) const {}
};

}  // namespace

void launch_bare(const Stream& stream, const BareArguments& arguments) {
  constexpr std::uint64_t rows = 16;
  Kokkos::parallel_for("stateport::bare_launch", kernels::policy_for(execution_space(stream), rows),
                       BareKernel{arguments});
}

}  // namespace stateport::perf
