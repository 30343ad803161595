// SPDX-License-Identifier: Apache-2.0
#include <stateport/tiers/state_tiers.hpp>

#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/pinned_resource.hpp>
#include <stateport/core/model/error.hpp>

#include "heap_counter.hpp"
#include "slot_kernels.hpp"
#include "store_image.hpp"
#include "transfer_rig.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <vector>

using namespace stateport;
using test::kv_image;
using test::load_from;
using test::Random;
using test::state_image;
using test::store_to;
using test::StoreImage;

namespace {

constexpr std::size_t much = std::size_t{64} << 20;

/// Polls until nothing is under way.
std::vector<TransferResult> wait_for_all(StateTiers& tiers, const Stream& stream) {
  std::vector<TransferResult> all, some(3);
  while (tiers.in_flight() > 0) {
    stream.synchronize();
    const std::size_t count = tiers.poll(stream, some);
    all.insert(all.end(), some.begin(), some.begin() + static_cast<std::ptrdiff_t>(count));
  }
  return all;
}

bool all_done(const std::vector<TransferResult>& results, std::size_t count) {
  return results.size() == count && std::ranges::all_of(results, [](const TransferResult& result) {
           return result.status == TransferStatus::done;
         });
}

/// KV tensors of some layers: any shapes, as an engine's views of its blocks.
StateSpec random_kv(Random& random) {
  std::vector<StateTensorSpec> tensors;
  for (std::int32_t layer = 0; layer < random.between32(1, 3); ++layer)
    tensors.push_back({.layer = layer,
                       .type = random.chance(50) ? ElementType::bf16 : ElementType::fp8,
                       .shape = {random.between(1, 16), random.between(1, 4), random.between(1, 40)}});
  return StateSpec(std::move(tensors));
}

}  // namespace

TEST_CASE("states and KV come back bit for bit, whatever their spec and place, and nothing else is written") {
  test::for_each_seed(250, [](Random& random, std::uint64_t) {
    const Stream stream = Stream::default_stream();
    PinnedResource memory;
    // The last one is KV. What lies in the slots before anything is copied, once more.
    std::vector<StoreImage> images, before;
    for (std::int32_t i = random.between32(0, 2); i >= 0; --i) {
      const StateSpec spec = i == 0 ? random_kv(random) : test::random_spec(random);
      const test::ImageOptions layout{.slots = random.between32(2, 8)};
      Random twin = random;
      images.emplace_back(random, spec, layout);
      before.emplace_back(twin, spec, layout);
    }
    std::vector<StateStore> stores;
    for (StoreImage& image : images) stores.push_back(image.upload(stream));
    StateTiersOptions options{.kv = &stores.back(), .host_budget_bytes = much};
    for (std::size_t i = 0; i + 1 < stores.size(); ++i) options.states.push_back(&stores[i]);
    StateTiers tiers(memory, options);
    const auto key = [&](std::size_t i, std::int32_t slot) {
      const auto prefix = static_cast<std::uint64_t>(slot);
      return i + 1 == images.size() ? kv_image(prefix) : state_image(prefix, static_cast<std::int32_t>(i));
    };
    std::vector<Transfer> stored, loaded;
    for (std::size_t i = 0; i < images.size(); ++i) {
      std::vector<SlotCopy> plan;
      std::vector<std::int32_t> order(static_cast<std::size_t>(images[i].slots()));
      std::iota(order.begin(), order.end(), 0);
      for (std::size_t at = order.size(); at > 1; --at)
        std::swap(order[at - 1], order[static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(at) - 1))]);
      for (std::int32_t slot = 0; slot < images[i].slots(); ++slot) {
        const std::int32_t to = order[static_cast<std::size_t>(slot)];
        stored.push_back(store_to(Medium::host, stored.size() + 1, key(i, slot), slot));
        loaded.push_back(load_from(Medium::host, stored.size() + 100, key(i, slot), to));
        plan.push_back(SlotCopy::whole(slot, to));
      }
      test::reference::copy_slots(before[i], images[i], plan);
    }
    tiers.execute(stream, stored);
    if (random.chance(50)) REQUIRE(all_done(wait_for_all(tiers, stream), stored.size()));
    tiers.execute(stream, loaded);
    wait_for_all(tiers, stream);
    for (const StoreImage& image : images) REQUIRE(image.matches_device(stream));
    tiers.check_invariants();
  });
}

namespace {

/// One group of states, and KV.
struct TiersWorld {
  explicit TiersWorld(std::size_t budget_bytes = much)
      : tiers(
            memory,
            {.states = {&states.store()}, .kv = &kv.store(), .model = ModelId(1), .host_budget_bytes = budget_bytes}) {}

  PinnedResource memory;
  test::DeviceStates states{StateSpec::uniform(2, {.window = 3, .dim = 40}, {.shape = {2, 4, 8}}), 6};
  test::DeviceStates kv{StateSpec({{.shape = {16, 2, 8}}, {.shape = {16, 2, 8}}}), 300};
  StateTiers tiers;
};

}  // namespace

TEST_CASE("an image in host memory has the format of images") {
  TiersWorld world;
  const Stream stream = Stream::default_stream();
  world.states.fill(2, state_image(1));
  const TransferId put = world.tiers.put(stream, state_image(1), SlotId{2});
  CHECK(wait_for_all(world.tiers, stream) == std::vector<TransferResult>{{put, TransferStatus::done}});
  const HostTier& host = world.tiers.host();
  const std::span<const std::byte> image = host.bytes(host.find(state_image(1)));
  const ImageLayout& layout = world.tiers.layout(CacheContent::state);
  CHECK(layout.check_header(image, state_image(1)) == TransferStatus::done);
  for (std::size_t i = 0; i < 4; ++i) {
    const std::vector<std::byte> bytes = test::DeviceStates::content(state_image(1), i, layout.spec().tensors()[i]);
    CHECK(std::ranges::equal(image.subspan(layout.section_offset(i), bytes.size()), bytes));
  }
}

TEST_CASE("put and get number their transfers apart from those of a RequestCache, and drops are the caller's") {
  TiersWorld world;
  const Stream stream = Stream::default_stream();
  world.states.fill(0, state_image(1));
  const TransferId put = world.tiers.put(stream, state_image(1), SlotId{0});
  const TransferId got = world.tiers.get(stream, state_image(1), SlotId{5});
  const TransferId missed = world.tiers.get(stream, state_image(2), SlotId{4});
  CHECK(put == TransferId{1} << 63);
  CHECK(got == put + 1);
  const auto results = wait_for_all(world.tiers, stream);
  CHECK(std::ranges::count(results, TransferResult{put, TransferStatus::done}) == 1);
  CHECK(std::ranges::count(results, TransferResult{got, TransferStatus::done}) == 1);
  CHECK(std::ranges::count(results, TransferResult{missed, TransferStatus::gone}) == 1);
  CHECK(world.states.holds(5, state_image(1)));
  const Transfer drop = test::drop_from(Medium::host, state_image(1));
  world.tiers.execute(stream, {&drop, 1});
  CHECK(world.tiers.host().usage().images == 0);
  CHECK_THROWS_WITH_AS(world.tiers.put(stream, state_image(1), SlotId{6}), doctest::Contains("place = 6"),
                       InvalidArgument);
}

TEST_CASE("an image of KV that names a group is refused before anything begins") {
  TiersWorld world;
  const Stream stream = Stream::default_stream();
  ImageKey image = kv_image(1);
  image.group = 9;
  CHECK_THROWS_WITH_AS(world.tiers.put(stream, image, SlotId{0}), doctest::Contains("image.group = 9"),
                       InvalidArgument);
  CHECK(world.tiers.in_flight() == 0);
  CHECK(wait_for_all(world.tiers, stream).empty());
  world.tiers.check_invariants();
}

TEST_CASE("loads from elsewhere are left to the engine") {
  TiersWorld world;
  const Stream stream = Stream::default_stream();
  Transfer load = load_from(Medium::host, 7, kv_image(1), 2);
  load.from = Medium::elsewhere;
  world.tiers.execute(stream, {&load, 1});
  CHECK(world.tiers.in_flight() == 0);
  Transfer store = store_to(Medium::host, 8, state_image(1), 0);
  store.to = Medium::elsewhere;
  CHECK_THROWS_WITH_AS(world.tiers.execute(stream, {&store, 1}), doctest::Contains("to = 4"), InvalidArgument);
}

TEST_CASE("copies on different streams run one behind the other") {
  TiersWorld world;
  const Stream first = Stream::create(), second = Stream::create();
  for (std::uint64_t round = 1; round <= 20; ++round) {
    const auto slot = SlotId{static_cast<std::int32_t>(round % 3)};
    world.states.fill(slot.value(), state_image(round));
    static_cast<void>(world.tiers.put(first, state_image(round), slot));
    static_cast<void>(world.tiers.get(second, state_image(round), SlotId{3}));
    static_cast<void>(world.tiers.get(first, state_image(round), SlotId{4}));
    first.synchronize();
    CHECK(world.states.holds(3, state_image(round)));
    CHECK(world.states.holds(4, state_image(round)));
    wait_for_all(world.tiers, first);
  }
}

TEST_CASE("a plan longer than a launch takes as arguments stores and loads all of it") {
  TiersWorld world;
  const Stream stream = Stream::create();
  std::vector<Transfer> stores, loads;
  for (std::int32_t block = 0; block < 300; ++block) {
    const ImageKey key = kv_image(static_cast<std::uint64_t>(block));
    world.kv.fill(block, key);
    stores.push_back(store_to(Medium::host, stores.size() + 1, key, block));
    loads.push_back(load_from(Medium::host, loads.size() + 1, key, 299 - block));
  }
  world.tiers.execute(stream, stores);
  CHECK(all_done(wait_for_all(world.tiers, stream), 300));
  world.tiers.execute(stream, loads);
  CHECK(all_done(wait_for_all(world.tiers, stream), 300));
  for (std::int32_t block = 0; block < 300; ++block)
    CHECK(world.kv.holds(299 - block, kv_image(static_cast<std::uint64_t>(block))));
}

TEST_CASE("nothing is allocated once as much was under way before") {
  TiersWorld world;
  const Stream stream = Stream::create();
  std::vector<Transfer> plan;
  for (std::int32_t block = 0; block < 100; ++block)
    plan.push_back(store_to(Medium::host, 1, kv_image(static_cast<std::uint64_t>(block)), block));
  for (std::int32_t block = 0; block < 100; ++block)
    plan.push_back(load_from(Medium::host, 1, kv_image(static_cast<std::uint64_t>(block)), block));
  for (std::int32_t block = 0; block < 100; ++block)
    plan.push_back(test::drop_from(Medium::host, kv_image(static_cast<std::uint64_t>(block))));
  std::vector<TransferResult> results(1000);
  const auto run = [&] {
    world.tiers.execute(stream, plan);
    while (world.tiers.in_flight() > 0) static_cast<void>(world.tiers.poll(stream, results));
  };
  for (int warm = 0; warm < 3; ++warm) run();
  const std::uint64_t before = test::heap_allocations();
  for (int round = 0; round < 5; ++round) run();
  CHECK(test::heap_allocations() - before <= 10);  // Kokkos makes a string of each launch's label
}

TEST_CASE("tiers of nothing, of no memory, or for a graph are refused by name") {
  PinnedResource memory;
  TiersWorld world;
  CHECK_THROWS_WITH_AS(StateTiers(memory, {.host_budget_bytes = much}), doctest::Contains("states = empty"),
                       InvalidArgument);
  CHECK_THROWS_WITH_AS(StateTiers(memory, {.states = {nullptr}, .host_budget_bytes = much}),
                       doctest::Contains("states = nullptr"), InvalidArgument);
  CHECK_THROWS_WITH_AS(TiersWorld(4096), doctest::Contains("budget_bytes = 4096"), InvalidArgument);
  CHECK_THROWS_WITH_AS(static_cast<void>(world.tiers.layout(CacheContent::state, 1)), doctest::Contains("group = 1"),
                       InvalidArgument);
  CHECK(world.tiers.layout(CacheContent::kv_block).options().model == ModelId(1));
}
