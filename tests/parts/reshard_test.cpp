// SPDX-License-Identifier: Apache-2.0
#include <stateport/parts/reshard.hpp>

#include <stateport/core/model/error.hpp>

#include "heap_counter.hpp"
#include "random.hpp"
#include "random_layout.hpp"

#include <doctest/doctest.h>

#include <map>
#include <utility>
#include <vector>

using namespace stateport;

namespace {

using Ranks = std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::int64_t>>;  // (rank, tensor of the rank)

Ranks content_of(const ModelLayout& layout, const std::vector<ReshardRank>& ranks) {
  Ranks content;
  for (const ReshardRank& rank : ranks) {
    const auto [first, end] = layout.tensors_of(rank.shard);
    for (std::size_t i = first; i < end; ++i)
      content[{rank.global_rank, static_cast<std::int32_t>(i - first)}] = test::elements_of(layout, rank.shard, i);
  }
  return content;
}

/// Mamba-2 with 8 heads of 4 channels and 2 groups of 2.
ModelLayout small_layout(std::int32_t layers) {
  const SplitBand group{.extent = 4, .parts = 2};
  return ModelLayout(StateSpec::uniform(layers, {.window = 3, .dim = 40}, {.shape = {8, 4, 2}}),
                     {.axis = 1, .bands = {{.extent = 32, .parts = 8}, group, group}},
                     {.axis = 0, .bands = {{.extent = 8, .parts = 8}}});
}

}  // namespace

TEST_CASE("random reshards move every element to its place exactly once") {
  test::for_each_seed(2000, [](test::Random& random, std::uint64_t) {
    const ModelLayout layout = test::random_layout(random);
    const auto grid = [&](std::int32_t first) { return test::random_ranks(random, layout, first); };
    auto sources = grid(0);
    const auto own = sources.size();
    if (random.chance(40)) {
      const auto replicas = grid(1000);
      sources.insert(sources.begin(), replicas.begin(), replicas.end());
    }
    const auto destinations = grid(2000);
    const Ranks held = content_of(layout, sources);
    const Ranks wanted = content_of(layout, destinations);
    Ranks got = wanted;
    for (auto& [place, elements] : got) elements.assign(elements.size(), -1);
    for (const ReshardSlice& slice : plan_reshard(layout, sources, destinations)) {
      REQUIRE(slice.src_rank < static_cast<std::int32_t>(own));  // replicas are read from the smallest rank
      REQUIRE(slice.src_end - slice.src_begin == slice.dst_end - slice.dst_begin);
      const auto& from = held.at({slice.src_rank, slice.src_tensor});
      auto& to = got.at({slice.dst_rank, slice.dst_tensor});
      for (std::int64_t i = 0; i < slice.src_end - slice.src_begin; ++i) {
        std::int64_t& element = to.at(static_cast<std::size_t>(slice.dst_begin + i));
        REQUIRE(element == -1);
        element = from.at(static_cast<std::size_t>(slice.src_begin + i));
      }
    }
    REQUIRE(got == wanted);
  });
}

TEST_CASE("the share of a replicated group is read from the smallest of its ranks") {
  const ModelLayout layout = small_layout(1);
  std::vector<ReshardRank> four;
  for (std::int32_t rank = 0; rank < 4; ++rank) four.push_back({rank, {0, 1, rank, 4}});
  const auto slices = plan_reshard(layout, four, std::vector<ReshardRank>{{100, {0, 1, 0, 1}}});
  std::vector<std::int32_t> group_sources;
  for (const ReshardSlice& slice : slices)
    if (slice.tensor == 0 && slice.band == 1) group_sources.push_back(slice.src_rank);
  CHECK(group_sources == std::vector<std::int32_t>{0, 2});
}

TEST_CASE("a reshard refuses bad ranks") {
  const ModelLayout layout = small_layout(4);
  const std::vector<ReshardRank> good = {{0, {0, 4, 0, 1}}};
  const auto refused = [&](auto&& change) {
    std::vector<ReshardRank> ranks = {{100, {0, 4, 0, 2}}, {101, {0, 4, 1, 2}}};
    change(ranks);
    CHECK_THROWS_AS(static_cast<void>(plan_reshard(layout, good, ranks)), InvalidArgument);
  };
  refused([](auto& ranks) { ranks[1].shard.head_group = 2; });
  refused([](auto& ranks) { ranks[1].shard.head_group = -1; });
  refused([](auto& ranks) { ranks[0].shard.head_groups = 0; });
  refused([](auto& ranks) { ranks[0].shard.head_groups = 3; });
  refused([](auto& ranks) { ranks[0].shard.layer_end = 5; });
  refused([](auto& ranks) { ranks[0].shard.layer_end = 0; });
  refused([](auto& ranks) { ranks[0].shard.layer_begin = -1; });
  refused([](auto& ranks) { ranks[1].global_rank = ranks[0].global_rank; });
  CHECK_THROWS_AS(static_cast<void>(plan_reshard(layout, {}, good)), InvalidArgument);
  const std::vector<ReshardRank> first_layers = {{0, {0, 3, 0, 1}}};
  CHECK_THROWS_AS(static_cast<void>(plan_reshard(layout, first_layers, good)), InvalidArgument);
  CHECK(plan_reshard(layout, good, {}).empty());
}

TEST_CASE("a reshard whose plan has no memory is planned anew") {
  const ModelLayout layout = small_layout(3);
  std::vector<ReshardRank> four;
  for (std::int32_t rank = 0; rank < 4; ++rank) four.push_back({rank, {0, 3, rank, 4}});
  const std::vector<ReshardRank> two{{100, {0, 3, 0, 2}}, {101, {0, 3, 1, 2}}};
  const std::vector<ReshardSlice> wanted = plan_reshard(layout, four, two);
  std::vector<ReshardSlice> slices;
  CHECK(test::fail_each_allocation([&](std::uint64_t) { slices = plan_reshard(layout, four, two); },
                                   [&](std::uint64_t) { CHECK((slices.empty() || slices == wanted)); }) > 0);
  CHECK(slices == wanted);
}
