// SPDX-License-Identifier: Apache-2.0
// As the launches of an OpenMP build: a loop over the threads.
#include <stateport/backends/internal/execution_space.hpp>

#include "bare_launch.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>

namespace stateport::perf {
namespace {

struct BareKernel {
  BareArguments arguments;
  KOKKOS_FUNCTION void operator()(std::uint64_t) const {}
};

}  // namespace

void launch_bare(const Stream& stream, const BareArguments& arguments) {
  using Policy =
      Kokkos::RangePolicy<ExecutionSpace, Kokkos::Schedule<Kokkos::Static>, Kokkos::IndexType<std::uint64_t>>;
  const ExecutionSpace& space = execution_space(stream);
  const auto threads = static_cast<std::uint64_t>(space.concurrency());
  Kokkos::parallel_for("stateport::bare_launch", Policy(space, 0, threads).set_chunk_size(1), BareKernel{arguments});
}

}  // namespace stateport::perf
