// SPDX-License-Identifier: Apache-2.0
#include <stateport/kernels/resharder.hpp>

#include <stateport/core/model/error.hpp>

#include "heap_counter.hpp"
#include "launch_recorder.hpp"
#include "random_layout.hpp"
#include "slot_kernels.hpp"
#include "store_image.hpp"

#include <doctest/doctest.h>

#include <map>
#include <memory>
#include <optional>
#include <vector>

using namespace stateport;
using test::Random;
using test::StoreImage;
namespace reference = test::reference;

namespace {

/// The stores of a group of ranks.
struct RankStores {
  std::vector<ModelShard> shards;
  std::vector<std::unique_ptr<StoreImage>> images;
  std::vector<StateStore> stores;

  RankStores(Random& random, const std::vector<ReshardRank>& ranks, std::int32_t slots, auto&& spec_of) {
    for (const ReshardRank& rank : ranks) {
      shards.push_back(rank.shard);
      images.push_back(std::make_unique<StoreImage>(random, spec_of(rank.shard), test::ImageOptions{.slots = slots}));
    }
  }
  std::vector<ShardStore> upload(const Stream& stream) {
    std::vector<ShardStore> uploaded;
    for (const auto& image : images) stores.push_back(image->upload(stream));
    for (std::size_t i = 0; i < stores.size(); ++i) uploaded.push_back({&stores[i], shards[i]});
    return uploaded;
  }
};

/// Where element (row, k of the extent that is split, inner) of a tensor lies, past the start of its slot. By the
/// definition of shapes and strides.
std::int64_t place_of(const StateTensorSpec& tensor, std::int32_t axis, std::int64_t row, std::int64_t k,
                      std::int64_t inner) {
  const auto bytes = static_cast<std::int64_t>(element_bytes(tensor.type));
  if (tensor.kind == StateKind::conv)
    return bytes * (row * tensor.conv_strides().token + k * tensor.conv_strides().channel);
  std::int64_t inner_extent = 1;
  for (std::size_t i = static_cast<std::size_t>(axis) + 1; i < 3; ++i) inner_extent *= tensor.shape[i];
  return bytes * ((row * tensor.shape[static_cast<std::size_t>(axis)] + k) * inner_extent + inner);
}

/// The slow reshard: element by element, each from the first source that has it.
void move_all(const ModelLayout& layout, RankStores& sources, std::int32_t src_slot, RankStores& destinations,
              std::int32_t dst_slot) {
  for (std::size_t d = 0; d < destinations.images.size(); ++d) {
    const auto [first, end] = layout.tensors_of(destinations.shards[d]);
    for (std::size_t i = first; i < end; ++i) {
      std::map<std::int64_t, std::pair<std::size_t, std::int64_t>> holders;  // element -> (source, its place there)
      for (std::size_t s = sources.images.size(); s-- > 0;) {
        const auto [src_first, src_end] = layout.tensors_of(sources.shards[s]);
        if (i < src_first || i >= src_end) continue;
        const auto elements = test::elements_of(layout, layout.resolve(sources.shards[s]), i);
        for (std::size_t k = 0; k < elements.size(); ++k) holders[elements[k]] = {s, static_cast<std::int64_t>(k)};
      }
      const std::int32_t axis = layout.splits()[i].axis;
      const auto elements = test::elements_of(layout, layout.resolve(destinations.shards[d]), i);
      const StateTensorSpec& to = destinations.images[d]->tensor(i - first);
      const std::int64_t rows = axis == 0 ? 1 : to.shape[0];
      const std::int64_t inner = to.element_count() / rows / std::ssize(elements);
      for (std::size_t k = 0; k < elements.size(); ++k) {
        const auto [s, at] = holders.at(elements[k]);
        const std::size_t number = i - layout.tensors_of(sources.shards[s]).first;
        const StateTensorSpec& from = sources.images[s]->tensor(number);
        for (std::int64_t row = 0; row < rows; ++row)
          for (std::int64_t j = 0; j < inner; ++j)
            reference::move_element(
                destinations.images[d]->slot(i - first, dst_slot) +
                    place_of(to, axis, row, static_cast<std::int64_t>(k), j),
                to.type, sources.images[s]->slot(number, src_slot) + place_of(from, axis, row, at, j), from.type);
      }
    }
  }
}

void require_equal(const RankStores& stores, const Stream& stream) {
  for (const auto& image : stores.images) REQUIRE(image->matches_device(stream));
}

/// Every rank of a group of `groups`.
std::vector<ReshardRank> ranks_of(const ModelLayout& layout, std::int32_t groups) {
  std::vector<ReshardRank> ranks;
  for (std::int32_t group = 0; group < groups; ++group) ranks.push_back({group, {0, layout.layers(), group, groups}});
  return ranks;
}

const TensorSplit heads_first{.axis = 0, .bands = {{.extent = 24, .parts = 24}}};

}  // namespace

TEST_CASE("states move between ranks of any number, with any types and memory orders, guard bands included") {
  test::for_each_seed(1500, [](Random& random, std::uint64_t) {
    const Stream stream = Stream::default_stream();
    const ModelLayout layout = test::random_layout(random);
    const bool converts = random.chance(60);
    const auto spec_of = [&](const ModelShard& shard) {
      const StateSpec spec = layout.spec_of(shard);
      return converts ? test::converted_spec(random, spec, test::SpecUse::live) : spec;
    };
    RankStores sources(random, test::random_ranks(random, layout, 0), random.between32(1, 4), spec_of);
    RankStores destinations(random, test::random_ranks(random, layout, 0), random.between32(1, 4), spec_of);
    const auto from = sources.upload(stream);
    const auto to = destinations.upload(stream);
    Resharder resharder(layout, from, to);
    const std::int32_t src_slot = random.between32(0, sources.images[0]->slots() - 1);
    const std::int32_t dst_slot = random.between32(0, destinations.images[0]->slots() - 1);
    const SlotCopy plan[] = {SlotCopy::whole(src_slot, dst_slot), SlotCopy::whole(-1, -1)};
    resharder.copy_slots(stream, plan);
    move_all(layout, sources, src_slot, destinations, dst_slot);
    require_equal(destinations, stream);
    require_equal(sources, stream);
  });
}

TEST_CASE("a resharder that has no memory is not made, and a copy that has none moves nothing") {
  Random random(1);
  const Stream stream = Stream::default_stream();
  const ModelLayout layout = test::random_layout(random);
  const auto spec_of = [&](const ModelShard& shard) { return layout.spec_of(shard); };
  RankStores sources(random, test::random_ranks(random, layout, 0), 2, spec_of);
  RankStores destinations(random, test::random_ranks(random, layout, 0), 2, spec_of);
  const auto from = sources.upload(stream);
  const auto to = destinations.upload(stream);
  std::optional<Resharder> resharder;
  CHECK(test::fail_each_allocation([&](std::uint64_t) { resharder.emplace(layout, from, to); },
                                   [&](std::uint64_t) { require_equal(destinations, stream); }) > 10);
  const SlotCopy plan[] = {SlotCopy::whole(0, 1)};
  bool moved = false;
  test::fail_each_allocation(
      [&](std::uint64_t) {
        resharder->copy_slots(stream, plan);
        moved = true;
      },
      [&](std::uint64_t) {
        if (!moved) require_equal(destinations, stream);
      });
  move_all(layout, sources, 0, destinations, 1);
  require_equal(destinations, stream);
  require_equal(sources, stream);
}

TEST_CASE("a state is quantised alike in one piece and in the pieces of any ranks") {
  test::for_each_seed(400, [](Random& random, std::uint64_t) {
    const Stream stream = Stream::default_stream();
    constexpr std::int64_t rows[] = {1, 31, 32, 40, 64};  // 1: those of head_dim elements
    const std::int64_t head_dim = random.between(2, 3);
    const StateSpec live = StateSpec::uniform(random.between32(1, 3), {.window = 3, .dim = 24 * head_dim},
                                              {.shape = {24, head_dim, rows[random.between(0, 4)]},
                                               .type = random.chance(50) ? ElementType::fp32 : ElementType::bf16});
    const ModelLayout layout(live, {.axis = 1, .bands = {{.extent = 24 * head_dim, .parts = 24}}}, heads_first);
    // Live ranks, their finer objects, then ranks that read the objects, quantised or live.
    constexpr std::int32_t sizes[] = {1, 2, 3, 4, 6};
    const std::int32_t objects = 12;
    const auto live_spec = [&](const ModelShard& shard) { return layout.spec_of(shard); };
    const auto quantised_spec = [&](const ModelShard& shard) {
      return quantised(layout.spec_of(shard), ElementType::int8_block32);
    };
    RankStores writers(random, ranks_of(layout, sizes[random.between(0, 4)]), 1, live_spec);
    RankStores stored(random, ranks_of(layout, objects), 1, quantised_spec);
    RankStores keepers(random, ranks_of(layout, sizes[random.between(0, 4)]), 1, quantised_spec);
    RankStores readers(random, ranks_of(layout, sizes[random.between(0, 4)]), 1, live_spec);
    const auto from = writers.upload(stream);
    const auto through = stored.upload(stream);
    const auto kept = keepers.upload(stream);
    const auto to = readers.upload(stream);
    const SlotCopy plan[] = {SlotCopy::whole(0, 0)};
    Resharder(layout, from, through).copy_slots(stream, plan);
    Resharder(layout, through, kept).copy_slots(stream, plan);
    Resharder(layout, through, to).copy_slots(stream, plan);
    stream.synchronize();

    // The oracle quantises each shard after the slow reshard: a block never reaches into the next row.
    const auto expect_quantised = [&](RankStores& shards) {
      for (std::size_t i = 0; i < shards.images.size(); ++i) {
        RankStores slice(random, {{0, shards.shards[i]}}, 1, live_spec);
        move_all(layout, writers, 0, slice, 0);
        reference::copy_slots(*slice.images[0], *shards.images[i], plan);
      }
      require_equal(shards, stream);
    };
    expect_quantised(stored);
    expect_quantised(keepers);
    for (std::size_t i = 0; i < readers.images.size(); ++i) {
      RankStores slice(random, {{0, readers.shards[i]}}, 1, live_spec);
      RankStores quantised_slice(random, {{0, readers.shards[i]}}, 1, quantised_spec);
      move_all(layout, writers, 0, slice, 0);
      reference::copy_slots(*slice.images[0], *quantised_slice.images[0], plan);
      reference::copy_slots(*quantised_slice.images[0], *readers.images[i], plan);
    }
    require_equal(readers, stream);
  });
}

TEST_CASE("a reshard is one launch") {
  Random random(1);
  const Stream stream = Stream::default_stream();
  const ModelLayout layout = test::random_layout(random);
  const auto spec_of = [&](const ModelShard& shard) { return layout.spec_of(shard); };
  RankStores sources(random, ranks_of(layout, 4), 2, spec_of);
  RankStores destinations(random, ranks_of(layout, 3), 2, spec_of);
  const auto from = sources.upload(stream);
  const auto to = destinations.upload(stream);
  Resharder resharder(layout, from, to);
  const SlotCopy plan[] = {SlotCopy::whole(0, 1), SlotCopy::whole(1, 0)};
  const test::LaunchRecorder recorder;
  resharder.copy_slots(stream, plan);
  CHECK(recorder.record().launches.size() == 1);
}

TEST_CASE("a resharder has the slots that all ranks of a side have") {
  Random random(1);
  const Stream stream = Stream::default_stream();
  const StateSpec live = StateSpec::uniform(2, {.window = 3, .dim = 48}, {.shape = {24, 2, 32}});
  const ModelLayout layout(live, {.axis = 1, .bands = {{.extent = 48, .parts = 24}}}, heads_first);
  StoreImage one_image(random, layout.spec_of({0, 2, 0, 2}), {.slots = 1});
  StoreImage three_image(random, layout.spec_of({0, 2, 1, 2}), {.slots = 3});
  StoreImage whole_image(random, live, {.slots = 3});
  const StateStore one = one_image.upload(stream);
  const StateStore three = three_image.upload(stream);
  const StateStore whole = whole_image.upload(stream);
  const std::vector<ShardStore> halves = {{&one, {0, 2, 0, 2}}, {&three, {0, 2, 1, 2}}};
  const std::vector<ShardStore> wholes = {{&whole, {}}};
  Resharder to_whole(layout, halves, wholes);
  Resharder to_halves(layout, wholes, halves);
  const auto copy = [&](Resharder& resharder, const SlotCopy& plan) { resharder.copy_slots(stream, {&plan, 1}); };
  copy(to_whole, SlotCopy::whole(0, 2));
  copy(to_halves, SlotCopy::whole(2, 0));
  CHECK_THROWS_AS(copy(to_whole, SlotCopy::whole(1, 0)), InvalidArgument);
  CHECK_THROWS_AS(copy(to_halves, SlotCopy::whole(0, 1)), InvalidArgument);
}

TEST_CASE("a resharder refuses moves that it cannot do, and names them") {
  Random random(1);
  const Stream stream = Stream::default_stream();
  const StateSpec live = StateSpec::uniform(2, {.window = 3, .dim = 48}, {.shape = {24, 2, 32}});
  const ModelLayout layout(live, {.axis = 1, .bands = {{.extent = 48, .parts = 24}}}, heads_first);
  StoreImage whole_image(random, live, {.slots = 1});
  StoreImage half_image(random, layout.spec_of({0, 2, 0, 2}), {.slots = 1});
  const StateStore whole = whole_image.upload(stream);
  const StateStore half = half_image.upload(stream);
  const auto refused = [&](const ShardStore& source, const ShardStore& destination) {
    try {
      Resharder(layout, source, destination);
    } catch (const InvalidArgument& error) {
      return error.argument();
    }
    return std::string();
  };
  CHECK(refused({&whole, {}}, {&half, {0, 2, 0, 2}}).empty());
  CHECK(refused({nullptr, {}}, {&half, {0, 2, 0, 2}}) == "sources");
  CHECK(refused({&whole, {}}, {nullptr, {0, 2, 0, 2}}) == "destinations");
  CHECK(refused({&whole, {0, 2, 0, 2}}, {&half, {0, 2, 0, 2}}) == "sources");  // another shape
  CHECK(refused({&whole, {0, 1, 0, 1}}, {&half, {0, 2, 0, 2}}) == "sources");  // fewer tensors
  CHECK(refused({&half, {0, 2, 0, 2}}, {&whole, {}}) == "layer");              // half of it is nowhere
  CHECK(refused({&whole, {0, 2, 0, 5}}, {&half, {0, 2, 0, 2}}) == "shard.head_groups");
  CHECK_THROWS_AS(Resharder(layout, std::span<const ShardStore>{}, std::span<const ShardStore>{}), InvalidArgument);

  // Blocks of a quarter of the heads that come from half of them cannot be decoded where they lie.
  StoreImage int8_image(random, quantised(layout.spec_of({0, 2, 0, 2}), ElementType::int8_block32), {.slots = 1});
  StoreImage quarter_image(random, layout.spec_of({0, 2, 0, 4}), {.slots = 1});
  const StateStore int8 = int8_image.upload(stream);
  const StateStore quarter = quarter_image.upload(stream);
  CHECK(refused({&int8, {0, 2, 0, 2}}, {&quarter, {0, 2, 0, 4}}) == "type");

  // A layer that another store calls by another number.
  std::vector<StateTensorSpec> renumbered(live.tensors().begin(), live.tensors().end());
  renumbered[2].layer = renumbered[3].layer = 2;
  StoreImage gap_image(random, StateSpec(renumbered), {.slots = 1});
  const StateStore gap = gap_image.upload(stream);
  CHECK(refused({&gap, {}}, {&half, {0, 2, 0, 2}}) == "sources");
}
