// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/error.hpp>
#include <stateport/kernels/slot_copier.hpp>

#include "slot_kernels.hpp"
#include "store_image.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace stateport;
using test::Random;
using test::StoreImage;

TEST_CASE("a commit copies scratch rows and live states into their slots in one launch") {
  test::for_each_seed(1000, [](Random& random, std::uint64_t) {
    const Stream stream = Stream::default_stream();
    const StateSpec spec = test::random_spec(random);
    StoreImage scratch(random, test::converted_spec(random, spec), {.slots = random.between32(1, 12)});
    StoreImage live(random, spec, {.slots = random.between32(1, 6)});
    StoreImage slots(random, random.chance(50) ? spec : test::converted_spec(random, spec), {.slots = 32});
    const StateStore scratch_store = scratch.upload(stream);
    const StateStore live_store = live.upload(stream);
    const StateStore slot_store = slots.upload(stream);
    // Destinations of the two parts must differ: the first takes the lower half of the slots.
    const auto intermediates = test::random_plan(random, scratch.slots(), 16, random.between32(0, 20), false);
    auto ends = test::random_plan(random, live.slots(), 16, random.between32(0, 8), false);
    for (SlotCopy& copy : ends)
      if (copy.dst_slot >= 0) copy.dst_slot += 16;
    SlotCopier committer(scratch_store, live_store, slot_store);
    committer.commit_scratch(stream, intermediates, ends);
    test::reference::copy_slots(scratch, slots, intermediates);
    test::reference::copy_slots(live, slots, ends);
    REQUIRE(slots.matches_device(stream));
    REQUIRE(live.matches_device(stream));
    REQUIRE(scratch.matches_device(stream));
  });
}

TEST_CASE("a commit refuses two states for one slot") {
  const Stream stream = Stream::default_stream();
  DeviceResource resource;
  const StateSpec spec = StateSpec::uniform(1, {.window = 3, .dim = 8}, {.shape = {4, 2, 2}});
  const StateStore scratch(resource, spec, {.slots = 2});
  const StateStore live(resource, spec, {.slots = 2});
  const StateStore slots(resource, spec, {.slots = 2});
  SlotCopier committer(scratch, live, slots);
  const SlotCopy to_one = SlotCopy::whole(0, 1);
  CHECK_THROWS_AS(committer.commit_scratch(stream, {&to_one, 1}, {&to_one, 1}), InvalidArgument);
  const SlotCopy out_of_range = SlotCopy::whole(2, 1);
  CHECK_THROWS_AS(committer.commit_scratch(stream, {&out_of_range, 1}, {}), InvalidArgument);
  CHECK_THROWS_AS(committer.commit_scratch(stream, {}, {&out_of_range, 1}), InvalidArgument);
}
