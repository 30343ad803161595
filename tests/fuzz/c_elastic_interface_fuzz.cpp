// SPDX-License-Identifier: Apache-2.0
// The calls of the C interface for elastic memory, on the host: as c_device_interface. Nothing copies from or to a slot
// without memory: calls that copy slots are not among these, but for those that a mover makes.
#include "c_device_world.hpp"
#include "fuzz_memory.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stateport::fuzz;
  constexpr int calls_max = 200;
  constexpr int with_core = 48;  ///< of 256 calls: one of request caches
  start_device();
  limit_allocations(std::size_t{4} << 20);
  {
    DeviceWorld world(ByteSource(data, size));
    const Family family = elastic_family();
    if (!world.input.chance(16))
      for (const DeviceCall call : family.begin) call(world);
    for (int i = 0; i < calls_max && !world.input.empty(); ++i) {
      if (world.input.chance(with_core)) {
        const auto core = cache_calls();
        core[world.input.below(static_cast<std::uint32_t>(core.size()))](world);
      } else {
        family.calls[world.input.below(static_cast<std::uint32_t>(family.calls.size()))](world);
      }
    }
  }
  limit_allocations(0);
  return 0;
}
