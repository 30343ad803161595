// SPDX-License-Identifier: Apache-2.0
#include "launch_recorder.hpp"

#include <Kokkos_Core.hpp>

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
void on_allocation(Kokkos::Tools::SpaceHandle, const char*, const void*, std::uint64_t) {
  ++current.allocations;
}
void on_deep_copy(Kokkos::Tools::SpaceHandle, const char*, const void*, Kokkos::Tools::SpaceHandle, const char*,
                  const void*, std::uint64_t) {
  ++current.allocations;
}

}  // namespace

LaunchRecorder::LaunchRecorder() {
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
