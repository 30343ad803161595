// SPDX-License-Identifier: Apache-2.0
// As the launches of GPUs on host threads: 16 teams, as a plan of as many tiles has.
#include <stateport/backends/internal/execution_space.hpp>

#include "bare_launch.hpp"
#include "gpu/launch_shape.hpp"

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
  constexpr std::uint64_t teams = 16;
  Kokkos::parallel_for("stateport::bare_launch",
                       kernels::team_each<kernels::general_shape>(execution_space(stream), teams),
                       BareKernel{arguments});
}

}  // namespace stateport::perf
