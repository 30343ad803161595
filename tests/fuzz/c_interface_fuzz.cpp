// SPDX-License-Identifier: Apache-2.0
// The C interface of core: bytes are read as calls, with handles that live, were destroyed, are of another kind or made
// up, and with any number. No call may answer STATEPORT_INTERNAL_ERROR, write an output when it refuses, or leave an
// object that does not pass its own check.
#include "c_world.hpp"
#include "fuzz_memory.hpp"

#include <span>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace stateport::fuzz;
  constexpr int calls_max = 400;
  limit_allocations(std::size_t{1} << 20);
  {
    World world(ByteSource(data, size));
    const std::span<const Call> families[] = {spec_calls(), allocator_calls(), tree_calls(), align_calls(),
                                              cache_calls()};
    // An input stays with one or two families: they share nothing but handles of a wrong kind.
    const std::uint32_t home = world.input.below(5);
    for (int i = 0; i < calls_max && !world.input.empty(); ++i) {
      const auto family = families[world.input.chance(250) ? home : world.input.below(5)];
      family[world.input.below(static_cast<std::uint32_t>(family.size()))](world);
    }
  }
  limit_allocations(0);
  return 0;
}
