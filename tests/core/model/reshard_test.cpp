// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/reshard.hpp>

#include <stateport/core/model/error.hpp>

#include "random.hpp"

#include <doctest/doctest.h>

#include <map>
#include <utility>
#include <vector>

using namespace stateport;

namespace {

/// Elements of a rank's conv state (channel) and recurrent state (head) of one layer, each named by what it is in the
/// whole model.
struct LayerImage {
  std::vector<std::int64_t> channels;
  std::vector<std::int64_t> heads;
};
using Images = std::map<std::pair<std::int32_t, std::int32_t>, LayerImage>;  // (rank, local layer)

LayerImage image_of(const ReshardRank& rank, std::int32_t layer) {
  LayerImage image;
  const std::int64_t base = (layer + 1) * 1'000'000ll;
  const std::int64_t heads = rank.shape.heads / rank.tp_size;
  const std::int64_t x = heads * rank.shape.head_dim;
  const std::int64_t bc = std::int64_t{rank.shape.groups / rank.tp_size} * rank.shape.state_dim;
  for (std::int64_t i = 0; i < x; ++i) image.channels.push_back(base + rank.tp_rank * x + i);
  for (std::int64_t i = 0; i < bc; ++i) image.channels.push_back(base + 100'000 + rank.tp_rank * bc + i);
  for (std::int64_t i = 0; i < bc; ++i) image.channels.push_back(base + 200'000 + rank.tp_rank * bc + i);
  for (std::int64_t i = 0; i < heads; ++i) image.heads.push_back(base + 300'000 + rank.tp_rank * heads + i);
  return image;
}

std::vector<ReshardRank> grid(std::int32_t first_rank, std::int32_t tp, std::int32_t pp, std::int32_t layers,
                              const ReshardShape& shape) {
  std::vector<ReshardRank> ranks;
  for (std::int32_t stage = 0; stage < pp; ++stage)
    for (std::int32_t shard = 0; shard < tp; ++shard)
      ranks.push_back(
          {first_rank++, tp, shard, stage * layers / pp, (stage + 1) * layers / pp - stage * layers / pp, shape});
  return ranks;
}

constexpr ReshardShape small{.heads = 8, .head_dim = 4, .state_dim = 2, .groups = 2};

}  // namespace

TEST_CASE("random reshards move every element to its place exactly once") {
  test::for_each_seed(500, [](test::Random& random, std::uint64_t) {
    const std::int32_t sizes[] = {1, 2, 4};
    const ReshardShape shape{.heads = 4 * random.between32(1, 3),
                             .head_dim = random.between32(1, 3),
                             .state_dim = random.between32(1, 3),
                             .groups = 4 * random.between32(1, 2)};
    const std::int32_t layers = random.between32(1, 6);
    auto sources = grid(0, sizes[random.between(0, 2)], random.between32(1, layers), layers, shape);
    if (random.chance(40)) {
      const auto replicas = grid(50, sizes[random.between(0, 2)], random.between32(1, layers), layers, shape);
      sources.insert(sources.begin(), replicas.begin(), replicas.end());
    }
    const auto destinations = grid(100, sizes[random.between(0, 2)], random.between32(1, layers), layers, shape);
    Images held;
    for (const ReshardRank& rank : sources)
      for (std::int32_t i = 0; i < rank.layers; ++i) held[{rank.global_rank, i}] = image_of(rank, rank.first_layer + i);
    Images got;
    for (const ReshardRank& rank : destinations)
      for (std::int32_t i = 0; i < rank.layers; ++i) {
        LayerImage empty = image_of(rank, rank.first_layer + i);
        for (auto& element : empty.channels) element = -1;
        for (auto& element : empty.heads) element = -1;
        got[{rank.global_rank, i}] = empty;
      }
    for (const ReshardSlice& slice : plan_reshard(sources, destinations)) {
      REQUIRE(slice.src_rank < 50);  // replicas are read from the smallest rank
      REQUIRE(slice.src_end - slice.src_begin == slice.dst_end - slice.dst_begin);
      const bool recurrent = slice.band == ReshardBand::recurrent;
      const LayerImage& from = held.at({slice.src_rank, slice.src_layer});
      LayerImage& to = got.at({slice.dst_rank, slice.dst_layer});
      for (std::int32_t i = 0; i < slice.src_end - slice.src_begin; ++i) {
        const auto src = static_cast<std::size_t>(slice.src_begin + i);
        const auto dst = static_cast<std::size_t>(slice.dst_begin + i);
        std::int64_t& element = recurrent ? to.heads.at(dst) : to.channels.at(dst);
        REQUIRE(element == -1);
        element = recurrent ? from.heads.at(src) : from.channels.at(src);
      }
    }
    for (const ReshardRank& rank : destinations)
      for (std::int32_t i = 0; i < rank.layers; ++i) {
        const LayerImage expected = image_of(rank, rank.first_layer + i);
        REQUIRE(got[{rank.global_rank, i}].channels == expected.channels);
        REQUIRE(got[{rank.global_rank, i}].heads == expected.heads);
      }
  });
}

TEST_CASE("a reshard refuses bad ranks") {
  const auto good = grid(0, 1, 1, 4, small);
  const auto refused = [&](auto&& change) {
    auto ranks = grid(100, 2, 1, 4, small);
    change(ranks);
    CHECK_THROWS_AS(static_cast<void>(plan_reshard(good, ranks)), InvalidArgument);
  };
  refused([](auto& ranks) { ranks[1].tp_rank = 2; });
  refused([](auto& ranks) { ranks[1].tp_rank = -1; });
  refused([](auto& ranks) { ranks[0].tp_size = 0; });
  refused([](auto& ranks) { ranks[0].tp_size = 4; });  // two groups over four ranks
  refused([](auto& ranks) { ranks[0].tp_size = 3; });
  refused([](auto& ranks) { ranks[0].layers = 5; });  // nobody holds layer 4
  refused([](auto& ranks) { ranks[0].layers = -1; });
  refused([](auto& ranks) { ranks[0].first_layer = -1; });
  refused([](auto& ranks) { ranks[1].shape.head_dim = 5; });
  refused([](auto& ranks) { ranks[1].global_rank = ranks[0].global_rank; });
  refused([](auto& ranks) { ranks[0].shape.heads = 0; });
  CHECK_THROWS_AS(static_cast<void>(plan_reshard({}, good)), InvalidArgument);
  CHECK(plan_reshard(good, {}).empty());
}
