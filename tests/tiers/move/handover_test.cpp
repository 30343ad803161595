// SPDX-License-Identifier: Apache-2.0
#include <stateport/tiers/handover.hpp>

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/pinned_resource.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/kernels/resharder.hpp>
#include <stateport/kernels/slot_copier.hpp>

#include "random_layout.hpp"
#include "store_image.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

using namespace stateport;
using test::Random;
using test::StoreImage;
using enum TransferStatus;

namespace {

const ImageKey key{.prefix = {{3, 4}}, .tokens = 128};

/// The ranks of a group, each with its store and its end.
struct Group {
  std::vector<ReshardRank> ranks;
  std::vector<std::unique_ptr<StoreImage>> images;
  std::vector<StateStore> stores;
  std::map<std::int32_t, HandoverEnd> ends;

  Group(Random& random, const ModelLayout& layout, std::vector<ReshardRank> of, MemoryResource& memory,
        const ObjectSetOptions& options)
      : ranks(std::move(of)) {
    const Stream stream = Stream::default_stream();
    // Element types and conv layouts of its own, the same on all ranks.
    const ModelLayout own(test::converted_spec(random, layout.whole(), test::SpecUse::live),
                          {layout.splits().begin(), layout.splits().end()});
    for (const ReshardRank& rank : ranks) {
      const StateSpec spec = own.spec_of(rank.shard);
      images.push_back(std::make_unique<StoreImage>(random, spec, test::ImageOptions{.slots = 3}));
      stores.push_back(images.back()->upload(stream));
    }
    for (std::size_t i = 0; i < ranks.size(); ++i)
      ends.try_emplace(ranks[i].global_rank, memory, SharedLayout{layout, ranks[i].shard}, stores[i], options, 2);
  }
  [[nodiscard]] std::vector<ShardStore> shards() const {
    std::vector<ShardStore> result;
    for (std::size_t i = 0; i < ranks.size(); ++i) result.push_back({&stores[i], ranks[i].shard});
    return result;
  }
};

/// What a transport does.
void move_ranges(const HandoverPlan& plan, Group& from, std::int32_t src_place, Group& to, std::int32_t dst_place) {
  for (const HandoverRange& range : plan.ranges) {
    const auto source = from.ends.at(range.src_rank).place(src_place).subspan(range.src_offset, range.bytes);
    const auto destination = to.ends.at(range.dst_rank).place(dst_place).subspan(range.dst_offset, range.bytes);
    std::ranges::copy(source, destination.begin());
  }
}

/// The elements of slot `slot` of a store, without gaps, tensor by tensor.
std::vector<std::byte> contents(const StateStore& store, std::int32_t slot) {
  const Stream stream = Stream::default_stream();
  std::vector<StateTensorSpec> tensors(store.spec().tensors().begin(), store.spec().tensors().end());
  for (StateTensorSpec& tensor : tensors) tensor.strides = {};
  DeviceResource memory;
  const StateStore dense(memory, StateSpec(std::move(tensors)), {.slots = 1});
  const SlotCopy copy[] = {SlotCopy::whole(slot, 0)};
  SlotCopier(store, dense).copy_slots(stream, copy);
  std::vector<std::byte> all;
  for (const StateTensorView& tensor : dense.tensors()) {
    std::vector<std::byte> bytes(tensor.spec.natural_bytes());
    copy_bytes(stream, bytes.data(), tensor.base, bytes.size());
    stream.synchronize();
    all.insert(all.end(), bytes.begin(), bytes.end());
  }
  return all;
}

StateSpec in_fp32(const StateSpec& spec) {
  std::vector<StateTensorSpec> tensors(spec.tensors().begin(), spec.tensors().end());
  for (StateTensorSpec& tensor : tensors) tensor.type = ElementType::fp32;
  return StateSpec(std::move(tensors));
}

/// Whether the grid of so many head groups can cut every band.
bool can_be_cut(const ModelLayout& layout, std::int64_t groups) {
  return std::ranges::all_of(layout.splits(), [&](const TensorSplit& split) {
    return std::ranges::all_of(
        split.bands, [&](const SplitBand& band) { return band.parts % groups == 0 || groups % band.parts == 0; });
  });
}

}  // namespace

TEST_CASE("a state that is handed over is the one that a reshard brings, whatever the ranks") {
  test::for_each_seed(300, [](Random& random, std::uint64_t) {
    const Stream stream = Stream::default_stream();
    PinnedResource memory;
    const ModelLayout layout = test::random_layout(random);
    const auto some = test::random_ranks(random, layout, 0);
    const auto others = test::random_ranks(random, layout, 1000);
    const std::int32_t groups = std::lcm(some[0].shard.head_groups, others[0].shard.head_groups);
    if (!can_be_cut(layout, groups)) return;
    ObjectSetOptions options{.model = ModelId(1),
                             .encoding = {.conv = ElementType::fp32, .recurrent = ElementType::fp32}};
    const HandoverPlan plan = plan_handover(layout, some, others, options);
    REQUIRE(plan.grid.head_groups == groups);
    options.grid = plan.grid;
    Group from(random, layout, some, memory, options), to(random, layout, others, memory, options);

    // What neighbouring ranks have in common is the same on all of them.
    StoreImage whole(random, in_fp32(layout.whole()), {.slots = 2});
    const StateStore whole_store = whole.upload(stream);
    const ShardStore between{&whole_store, {}};
    const SlotCopy from_whole[] = {SlotCopy::whole(1, 2)};
    Resharder(layout, {&between, 1}, from.shards()).copy_slots(stream, from_whole);

    const SlotCopy into_place[] = {SlotCopy::whole(2, 1)}, into_slot[] = {SlotCopy::whole(0, 1)};
    for (auto& [rank, end] : from.ends) end.pack(stream, into_place);
    stream.synchronize();
    for (auto& [rank, end] : from.ends) end.seal(1, key);
    for (auto& [rank, end] : to.ends) REQUIRE(end.check(0, key) == damaged);
    move_ranges(plan, from, 1, to, 0);
    for (auto& [rank, end] : to.ends) {
      REQUIRE(end.check(0, key) == done);
      REQUIRE(end.check(0, {.prefix = {{3, 4}}, .tokens = 129}) == wrong_position);
      end.unpack(stream, into_slot);
    }
    stream.synchronize();
    // By way of the element types of the objects, too: a NaN is another one after it.
    const SlotCopy to_whole[] = {SlotCopy::whole(2, 0)}, back[] = {SlotCopy::whole(0, 2)};
    Resharder(layout, from.shards(), {&between, 1}).copy_slots(stream, to_whole);
    Resharder(layout, {&between, 1}, to.shards()).copy_slots(stream, back);
    stream.synchronize();
    for (const StateStore& store : to.stores) REQUIRE(contents(store, 1) == contents(store, 2));
  });
}

TEST_CASE("every byte of a destination comes once, and what was lost or damaged on the way is refused") {
  Random random(5);
  const Stream stream = Stream::default_stream();
  PinnedResource memory;
  const ModelLayout layout(StateSpec::uniform(4, {.window = 3, .dim = 24}, {.shape = {12, 2, 8}}),
                           {.axis = 1, .bands = {{.extent = 24, .parts = 12}}},
                           {.axis = 0, .bands = {{.extent = 12, .parts = 12}}});
  const std::vector<ReshardRank> two = {{0, {0, 4, 0, 2}}, {1, {0, 4, 1, 2}}};
  const std::vector<ReshardRank> stages = {{7, {0, 1, 0, 1}}, {8, {1, 4, 0, 1}}};
  ObjectSetOptions options{.model = ModelId(1)};
  const HandoverPlan plan = plan_handover(layout, two, stages, options);
  CHECK(plan.grid == ObjectGrid{.head_groups = 2, .layers_per_object = 1});
  CHECK(plan.ranges.size() == 8);
  options.grid = plan.grid;
  Group from(random, layout, two, memory, options), to(random, layout, stages, memory, options);
  std::map<std::int32_t, std::uint64_t> ends;
  for (const HandoverRange& range : plan.ranges) {
    CHECK(range.dst_offset == ends[range.dst_rank]);
    ends[range.dst_rank] += range.bytes;
  }
  for (const auto& [rank, bytes] : ends) CHECK(bytes == to.ends.at(rank).set().bytes());

  const SlotCopy one[] = {SlotCopy::whole(0, 0)};
  for (auto& [rank, end] : from.ends) end.pack(stream, one);
  stream.synchronize();
  for (auto& [rank, end] : from.ends) end.seal(0, key);
  HandoverPlan without_one = plan;
  without_one.ranges.pop_back();
  std::ranges::fill(to.ends.at(8).place(0), std::byte{0});
  move_ranges(without_one, from, 0, to, 0);
  CHECK(to.ends.at(7).check(0, key) == done);
  CHECK(to.ends.at(8).check(0, key) == damaged);
  move_ranges(plan, from, 0, to, 0);
  CHECK(to.ends.at(8).check(0, key) == done);
  to.ends.at(8).place(0)[to.ends.at(8).set().layout(0).section_offset(0)] ^= std::byte{1};
  CHECK(to.ends.at(8).check(0, key) == damaged);
}

TEST_CASE(
    "of ranks that hold the same, the one with the lowest number hands it over, in whatever order they are named") {
  const ModelLayout layout(StateSpec::uniform(2, {}, {.shape = {12, 2, 8}}), {.axis = 1},
                           {.axis = 0, .bands = {{.extent = 12, .parts = 12}}});
  const std::vector<ReshardRank> to = {{9, {0, 2, 0, 2}}, {8, {0, 2, 1, 2}}};
  for (const std::vector<ReshardRank>& from :
       {std::vector<ReshardRank>{{4, {}}, {5, {}}}, std::vector<ReshardRank>{{5, {}}, {4, {}}}}) {
    const HandoverPlan plan = plan_handover(layout, from, to, {});
    CHECK(plan.ranges.size() == 2);
    for (const HandoverRange& range : plan.ranges) CHECK(range.src_rank == 4);
  }
}

TEST_CASE("the end of the model cuts no object of a hand-over") {
  const ModelLayout layout(StateSpec::uniform(3, {}, {.shape = {12, 2, 8}}), {.axis = 1},
                           {.axis = 0, .bands = {{.extent = 12, .parts = 12}}});
  const std::vector<ReshardRank> from = {{0, {0, 2, 0, 1}}, {1, {2, 3, 0, 1}}};
  const std::vector<ReshardRank> to = {{2, {}}};
  const HandoverPlan plan = plan_handover(layout, from, to, {});
  CHECK(plan.grid.layers_per_object == 2);
  CHECK(plan.ranges.size() == 2);
}

TEST_CASE("a new end holds nothing, also in memory of an end that held something") {
  /// Gives the same memory each time.
  class SameMemory final : public MemoryResource {
   public:
    explicit SameMemory(std::size_t bytes) : buffer_(pinned_, bytes, max_alignment) {}

   private:
    void* do_allocate(std::size_t, std::size_t, const Stream&) override { return buffer_.as<std::byte>(); }
    void do_deallocate(void*, std::size_t, std::size_t, const Stream&) noexcept override {}
    [[nodiscard]] MemoryKind do_kind() const noexcept override { return pinned_.kind(); }
    PinnedResource pinned_;
    Buffer buffer_;
  };
  Random random(3);
  SameMemory memory(std::size_t{1} << 20);
  const Stream stream = Stream::default_stream();
  const SharedLayout shared{ModelLayout(StateSpec::uniform(4, {}, {.shape = {12, 2, 8}}), {.axis = 1},
                                        {.axis = 0, .bands = {{.extent = 12, .parts = 12}}})};
  const ObjectSetOptions options{.model = ModelId(1), .grid = {.head_groups = 2, .layers_per_object = 2}};
  StoreImage image(random, shared.layout.whole(), {.slots = 1});
  const StateStore store = image.upload(stream);
  const SlotCopy both[] = {SlotCopy::whole(0, 0), SlotCopy::whole(0, 1)};
  for (int time = 0; time < 2; ++time) {
    HandoverEnd end(memory, shared, store, options, 2);
    REQUIRE(end.set().size() == 4);
    for (const std::int32_t place : {0, 1}) CHECK(end.check(place, key) == damaged);
    end.pack(stream, both);
    stream.synchronize();
    for (const std::int32_t place : {0, 1}) {
      end.seal(place, key);
      CHECK(end.check(place, key) == done);
    }
  }
}

TEST_CASE("a hand-over refuses what cannot be, and names it") {
  const ModelLayout layout(StateSpec::uniform(2, {}, {.shape = {12, 2, 8}}), {.axis = 1},
                           {.axis = 0, .bands = {{.extent = 12, .parts = 12}}});
  const auto refused = [&](const std::vector<ReshardRank>& from, const std::vector<ReshardRank>& to) -> std::string {
    try {
      static_cast<void>(plan_handover(layout, from, to, {}));
    } catch (const InvalidArgument& error) {
      return error.argument();
    }
    return {};
  };
  const std::vector<ReshardRank> whole = {{0, {}}};
  CHECK(refused(whole, {{1, {0, 2, 0, 3}}}).empty());
  CHECK(refused({{0, {0, 2, 0, 2}}}, whole) == "sources");
  CHECK(refused({{0, {0, 1, 0, 1}}}, whole) == "sources");
  CHECK(refused({}, whole) == "sources");
  CHECK(refused({{0, {}}, {0, {}}}, whole) == "global_rank");
  CHECK(refused(whole, {{1, {}}, {1, {}}}) == "global_rank");
  CHECK(refused(whole, {{1, {0, 2, 0, 5}}}) == "shard.head_groups");

  Random random(1);
  PinnedResource memory;
  StoreImage image(random, layout.whole(), {.slots = 1});
  const StateStore store = image.upload(Stream::default_stream());
  CHECK_THROWS_WITH_AS(HandoverEnd(memory, {layout}, store, {}, 0), doctest::Contains("places = 0"), InvalidArgument);
  // 16 GiB in each of 2^31 - 1 places: 2^65 bytes, less some.
  const ModelLayout large(StateSpec::uniform(1, {}, {.shape = {1 << 20, 64, 64}}), {.axis = 1},
                          {.axis = 0, .bands = {{.extent = 1 << 20, .parts = 1 << 20}}});
  CHECK_THROWS_WITH_AS(HandoverEnd(memory, {large}, store, {}, INT32_MAX), doctest::Contains("places = 2147483647"),
                       InvalidArgument);
  HandoverEnd end(memory, {layout}, store, {}, 1);
  CHECK_THROWS_WITH_AS(end.seal(1, key), doctest::Contains("place = 1"), InvalidArgument);
  CHECK_THROWS_WITH_AS(static_cast<void>(end.check(-1, key)), doctest::Contains("place = -1"), InvalidArgument);
}
