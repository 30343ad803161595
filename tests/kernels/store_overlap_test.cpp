// SPDX-License-Identifier: Apache-2.0
#include "store_overlap.hpp"

#include <stateport/core/model/error.hpp>
#include <stateport/kernels/slot_copier.hpp>

#include "random.hpp"
#include "slot_kernels.hpp"
#include "store_image.hpp"

#include <doctest/doctest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <vector>

using namespace stateport;
using kernels::shared_slots;
using test::Random;

namespace {

constexpr std::int64_t tensor_bytes = 16;

/// Tensors of 16 bytes at these places of a memory that is never touched.
StateStore store_at(std::vector<std::int64_t> places, std::int64_t stride, std::int32_t slots) {
  const std::uintptr_t memory = std::uintptr_t{1} << 20;
  std::vector<StateTensorView> tensors;
  for (const std::int64_t place : places)
    tensors.push_back({.spec = {.layer = static_cast<std::int32_t>(tensors.size()), .shape = {4, 1, 1}},
                       .base = reinterpret_cast<std::byte*>(memory + static_cast<std::uintptr_t>(place)),
                       .slot_stride_bytes = stride});
  return StateStore::view(tensors, slots);
}

/// The bytes of all slots.
std::set<std::uintptr_t> bytes_of(const StateStore& store) {
  std::set<std::uintptr_t> bytes;
  for (const StateTensorView& tensor : store.tensors())
    for (std::int32_t slot = 0; slot < store.slots(); ++slot)
      for (std::int64_t i = 0; i < tensor_bytes; ++i)
        bytes.insert(reinterpret_cast<std::uintptr_t>(tensor.slot_data(SlotId{slot}) + i));
  return bytes;
}

}  // namespace

TEST_CASE("stores share slots when all their tensors do, and are apart when no bytes meet") {
  const StateStore pool = store_at({0, 1000}, 20, 10);
  CHECK(shared_slots(pool, store_at({0, 1000}, 20, 10)) == 0);
  CHECK(shared_slots(store_at({60, 1060}, 20, 4), pool) == 3);
  CHECK(shared_slots(pool, store_at({60, 1060}, 20, 4)) == -3);
  // Behind the last slot, and another pool.
  CHECK(shared_slots(store_at({200, 1200}, 20, 4), pool) == std::nullopt);
  CHECK(shared_slots(store_at({5000, 6000}, 20, 4), pool) == std::nullopt);
  // The first tensor starts where the other one's does, and ends before the second: the old check took it for the same.
  CHECK_THROWS_AS(shared_slots(store_at({0, 5000}, 20, 10), pool), InvalidArgument);
  // The first tensors lie apart, the second ones do not.
  CHECK_THROWS_AS(shared_slots(store_at({5000, 1000}, 20, 10), pool), InvalidArgument);
  CHECK_THROWS_AS(shared_slots(store_at({5000, 8}, 20, 10), pool), InvalidArgument);
  // Slots of one pool, numbered from different ones on by each tensor.
  CHECK_THROWS_AS(shared_slots(store_at({20, 1040}, 20, 4), pool), InvalidArgument);
}

TEST_CASE("one slot-major pool holds stores that lie in each other's padding") {
  const StateStore live = store_at({0, 16}, 64, 8);
  CHECK(shared_slots(live, store_at({32, 48}, 64, 8)) == std::nullopt);
  CHECK_THROWS_AS(shared_slots(live, store_at({32, 24}, 64, 8)), InvalidArgument);
  CHECK(shared_slots(store_at({128, 144}, 64, 6), live) == 2);
}

TEST_CASE("stores that share no byte are apart, those that share one are not: against sets of bytes") {
  std::int64_t apart = 0;
  test::for_each_seed(3000, [&](Random& random, std::uint64_t) {
    const std::int64_t stride = random.between(16, 40);
    const auto draw = [&](std::int64_t with_stride) {
      std::vector<std::int64_t> places = {random.between(0, 200), random.between(0, 200)};
      return store_at(places, with_stride, random.between32(1, 4));
    };
    const StateStore a = draw(stride);
    const StateStore b = draw(stride);
    const std::set<std::uintptr_t> in_a = bytes_of(a);
    const bool meet = std::ranges::any_of(bytes_of(b), [&](std::uintptr_t byte) { return in_a.contains(byte); });
    apart += !meet;
    std::optional<std::int64_t> offset;
    bool refused = false;
    try {
      offset = shared_slots(a, b);
    } catch (const InvalidArgument&) {
      refused = true;
    }
    REQUIRE(meet == (refused || offset.has_value()));
    // Other strides: never said to be apart when they are not.
    const StateStore c = draw(stride + random.between(1, 9));
    const bool meets_c = std::ranges::any_of(bytes_of(c), [&](std::uintptr_t byte) { return in_a.contains(byte); });
    if (meets_c) REQUIRE_THROWS_AS(shared_slots(a, c), InvalidArgument);
  });
  CHECK(apart > 0);
}

TEST_CASE("copies between two views of one pool know which of their slots are the same") {
  test::for_each_seed(300, [](Random& random, std::uint64_t) {
    const Stream stream = Stream::default_stream();
    const std::int32_t slots = random.between32(4, 12);
    test::StoreImage image(random, test::random_spec(random), {.slots = slots});
    const StateStore pool = image.upload(stream);
    const std::int32_t first = random.between32(1, slots - 1);
    std::vector<StateTensorView> tail(pool.tensors().begin(), pool.tensors().end());
    for (StateTensorView& tensor : tail) tensor.base = tensor.slot_data(SlotId{first});
    const StateStore view = StateStore::view(tail, slots - first);
    const auto plan = test::random_plan(random, slots, slots, random.between32(0, 12), true);
    std::vector<SlotCopy> from_view;
    std::vector<SlotCopy> in_pool;
    for (SlotCopy copy : plan) {
      if (copy.src_slot < first || copy.recurrent_src_slot != copy.src_slot) continue;
      in_pool.push_back(copy);
      copy.src_slot -= first;
      copy.recurrent_src_slot -= first;
      from_view.push_back(copy);
    }
    SlotCopier copier(view, pool);
    copier.copy_slots(stream, from_view);
    test::reference::copy_slots(image, image, in_pool);
    REQUIRE(image.matches_device(stream));
  });
}

TEST_CASE("a chain over the numbers of two views of one pool is refused") {
  const Stream stream = Stream::default_stream();
  DeviceResource resource;
  const StateSpec spec = StateSpec::uniform(1, {.window = 3, .dim = 8}, {.shape = {4, 2, 2}});
  const StateStore pool(resource, spec, {.slots = 8});
  std::vector<StateTensorView> tail(pool.tensors().begin(), pool.tensors().end());
  for (StateTensorView& tensor : tail) tensor.base = tensor.slot_data(SlotId{2});
  const StateStore view = StateStore::view(tail, 6);
  SlotCopier copier(view, pool);
  // Slot 1 of the view is slot 3 of the pool.
  CHECK_THROWS_AS(copier.copy_slots(stream, std::vector{SlotCopy::whole(1, 4), SlotCopy::whole(0, 3)}),
                  InvalidArgument);
  CHECK_NOTHROW(copier.copy_slots(stream, std::vector{SlotCopy::whole(3, 4), SlotCopy::whole(0, 3)}));
  CHECK_NOTHROW(copier.copy_slots(stream, std::vector{SlotCopy::whole(1, 3), SlotCopy::whole(0, 4)}));
  // Live states and checkpoints in one pool: an end must not read a slot that scratch writes.
  const StateStore scratch(resource, spec, {.slots = 2});
  SlotCopier committer(scratch, pool, pool);
  const SlotCopy from_scratch = SlotCopy::whole(0, 5);
  const SlotCopy end = SlotCopy::whole(5, 6);
  CHECK_THROWS_AS(committer.commit_scratch(stream, {&from_scratch, 1}, {&end, 1}), InvalidArgument);
}

TEST_CASE("a copier refuses stores that share memory but not slots") {
  DeviceResource resource;
  const StateSpec spec = StateSpec::uniform(2, {}, {.shape = {4, 2, 2}});
  const StateStore pool(resource, spec, {.slots = 8});
  std::vector<StateTensorView> swapped(pool.tensors().begin(), pool.tensors().end());
  std::swap(swapped[0].base, swapped[1].base);
  const StateStore view = StateStore::view(swapped, 8);
  CHECK_THROWS_AS(SlotCopier(view, pool), InvalidArgument);
}
