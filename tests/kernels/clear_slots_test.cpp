// SPDX-License-Identifier: Apache-2.0
#include <stateport/kernels/slot_copier.hpp>

#include "slot_kernels.hpp"
#include "store_image.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace stateport;

TEST_CASE("clearing zeroes the named slots and nothing else") {
  test::for_each_seed(500, [](test::Random& random, std::uint64_t) {
    const Stream stream = Stream::default_stream();
    test::StoreImage image(random, test::random_spec(random), {.slots = random.between32(1, 30)});
    const StateStore store = image.upload(stream);
    std::vector<SlotId> slots;
    for (std::int32_t i = random.between32(0, 30); i > 0; --i)
      slots.emplace_back(random.between32(-1, image.slots() - 1));
    SlotCopier(store).clear_slots(stream, slots);
    test::reference::clear_slots(image, slots);
    REQUIRE(image.matches_device(stream));
  });
}
