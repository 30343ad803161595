// SPDX-License-Identifier: Apache-2.0
// The part of the C interface that needs Kokkos, on the host: as c_interface, and over a few small objects. No call may
// read or write beyond its arguments, answer STATEPORT_INTERNAL_ERROR, write an output or a store when it refuses, or
// leave an object that does not pass its own check.
#include "c_device_world.hpp"
#include "fuzz_memory.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stateport::fuzz;
  constexpr int calls_max = 200;
  constexpr int with_core = 24;  ///< of 256 calls: one of specs and layouts, or of a request cache
  start_device();
  limit_allocations(std::size_t{4} << 20);
  {
    DeviceWorld world(ByteSource(data, size));
    const Family families[] = {store_family(), step_family(),   rank_family(),
                               file_family(),  remote_family(), tiers_family()};
    constexpr std::uint32_t family_count = std::size(families);
    // An input stays with one family, and makes the objects of other families that it needs.
    const std::uint32_t home = world.input.below(family_count);
    if (!world.input.chance(16))
      for (const DeviceCall call : families[home].begin) call(world);
    for (int i = 0; i < calls_max && !world.input.empty(); ++i) {
      if (world.input.chance(with_core)) {
        const auto family = world.input.chance(160) ? spec_calls() : cache_calls();
        family[world.input.below(static_cast<std::uint32_t>(family.size()))](world);
        continue;
      }
      const auto calls = families[world.input.chance(240) ? home : world.input.below(family_count)].calls;
      calls[world.input.below(static_cast<std::uint32_t>(calls.size()))](world);
    }
  }
  limit_allocations(0);
  return 0;
}
