// SPDX-License-Identifier: Apache-2.0
#include "launch_recorder.hpp"

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <string_view>

namespace stateport::test {
namespace {

LaunchRecord current;  // tool callbacks carry no context

void on_launch(const char* label, std::uint32_t, std::uint64_t*) {
  current.launches.emplace_back(label);
}
/// Kokkos itself fences around a tool's callbacks, under this name; without a tool those fences do not exist.
void on_fence(const char* label, std::uint32_t, std::uint64_t*) {
  if (std::string_view(label).find("Profile Tool Fence") == std::string_view::npos) ++current.fences;
}
/// Every launch of teams on a GPU asks for zero bytes of scratch memory, which takes none.
void on_allocation(Kokkos::Tools::SpaceHandle, const char*, const void*, std::uint64_t bytes) {
  current.allocations += bytes > 0 ? 1 : 0;
}
void on_deep_copy(Kokkos::Tools::SpaceHandle, const char*, const void*, Kokkos::Tools::SpaceHandle, const char*,
                  const void*, std::uint64_t) {
  ++current.allocations;
}

using Policy = Kokkos::TeamPolicy<>;

struct NoWork {
  KOKKOS_FUNCTION void operator()(const Policy::member_type&) const {}
};

/// On a host, Kokkos allocates the memory that a team shares when a launch asks for more than those before it. A device
/// has it in hardware.
void allocate_team_memory() {
  constexpr int bytes = 16 << 10;
  const int team_size = std::min(2, Kokkos::DefaultExecutionSpace().concurrency());
  Kokkos::parallel_for(Policy(1, team_size).set_scratch_size(0, Kokkos::PerTeam(bytes)), NoWork{});
  Kokkos::fence();
}

}  // namespace

LaunchRecorder::LaunchRecorder() {
  allocate_team_memory();
  current = {};
  namespace tools = Kokkos::Tools::Experimental;
  tools::set_begin_parallel_for_callback(&on_launch);
  tools::set_begin_fence_callback(&on_fence);
  tools::set_allocate_data_callback(&on_allocation);
  tools::set_begin_deep_copy_callback(&on_deep_copy);
}

LaunchRecorder::~LaunchRecorder() {
  namespace tools = Kokkos::Tools::Experimental;
  tools::set_begin_parallel_for_callback(nullptr);
  tools::set_begin_fence_callback(nullptr);
  tools::set_allocate_data_callback(nullptr);
  tools::set_begin_deep_copy_callback(nullptr);
}

const LaunchRecord& LaunchRecorder::record() const noexcept {
  return current;
}

}  // namespace stateport::test
