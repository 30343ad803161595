// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/model_layout.hpp>

#include <stateport/core/model/error.hpp>
#include <stateport/core/model/models.hpp>

#include "heap_counter.hpp"

#include <doctest/doctest.h>

#include <optional>
#include <string>

using namespace stateport;

namespace {

const StateSpec whole = StateSpec::uniform(3, {.window = 3, .dim = 40}, {.shape = {8, 4, 2}});
const SplitBand x{.extent = 32, .parts = 8};
const SplitBand group{.extent = 4, .parts = 2};
const TensorSplit conv{.axis = 1, .bands = {x, group, group}};
const TensorSplit recurrent{.axis = 0, .bands = {{.extent = 8, .parts = 8}}};
const ModelLayout layout(whole, conv, recurrent);

/// The argument that a constructor refuses.
template <class Make>
std::optional<std::string> refused(Make&& make) {
  try {
    static_cast<void>(make());
  } catch (const InvalidArgument& error) {
    return error.argument();
  }
  return {};
}

std::optional<std::string> refused_shard(const ModelShard& shard) {
  return refused([&] { return layout.resolve(shard); });
}

}  // namespace

TEST_CASE("a rank's tensors have its share of every band") {
  const StateSpec rank = layout.spec_of({1, 3, 1, 4});
  REQUIRE(rank.tensors().size() == 4);
  CHECK(rank.tensors()[0].layer == 1);
  CHECK(rank.tensors()[0].shape == std::array<std::int64_t, 3>{3, 8 + 2 + 2, 1});
  CHECK(rank.tensors()[1].shape == std::array<std::int64_t, 3>{2, 4, 2});
  CHECK(layout.share({0, 3, 1, 4}, 0, 0) == BandShare{8, 16, 0});
  CHECK(layout.share({0, 3, 1, 4}, 0, 1) == BandShare{0, 2, 8});  // ranks 0 and 1 share the first group
  CHECK(layout.share({0, 3, 2, 4}, 0, 2) == BandShare{2, 4, 10});
  CHECK(layout.spec_of({}) == whole);
}

TEST_CASE("the fingerprint of a model is that of its shapes and splits") {
  const auto fingerprint = [](const StateSpec& spec) { return ModelLayout(spec, conv, recurrent).fingerprint(); };
  const RecurrentShape heads{.shape = {8, 4, 2}};
  CHECK(fingerprint(StateSpec::uniform(3, {.window = 3, .dim = 40, .layout = ConvLayout::ds}, heads)) ==
        layout.fingerprint());
  CHECK(fingerprint(quantised(whole, ElementType::int8_block32)) == layout.fingerprint());
  CHECK(fingerprint(StateSpec::uniform(4, {.window = 3, .dim = 40}, heads)) != layout.fingerprint());
  CHECK(fingerprint(StateSpec::uniform(3, {.window = 4, .dim = 40}, heads)) != layout.fingerprint());
  CHECK(ModelLayout(whole, {.axis = 1, .bands = {x, {.extent = 8, .parts = 2}}}, recurrent).fingerprint() !=
        layout.fingerprint());
  CHECK(ModelLayout(whole, conv, {.axis = 0, .bands = {{.extent = 8, .parts = 4}}}).fingerprint() !=
        layout.fingerprint());
}

TEST_CASE("every model of the catalogue can be shared by two ranks") {
  for (const models::ModelInfo& model : models::all()) {
    CAPTURE(model.name);
    const ModelLayout whole_model = models::layout(model.name);
    CHECK(whole_model.whole() == models::find(model.name));
    std::size_t bytes = 0;
    for (std::int32_t rank = 0; rank < 2; ++rank)
      bytes += whole_model.spec_of({0, whole_model.layers(), rank, 2}).slot_bytes();
    CHECK(bytes >= whole_model.whole().slot_bytes());
    if (model.kind == "cca")
      CHECK(bytes == 2 * whole_model.whole().slot_bytes());
    else
      CHECK(bytes <= whole_model.whole().slot_bytes() * 11 / 10);  // groups, and states, that both have
  }
  const ModelLayout qwen = models::layout("qwen3-next-80b-a3b");
  CHECK(qwen.splits()[0].bands == std::vector<SplitBand>{{2048, 16}, {2048, 16}, {4096, 32}});
  CHECK(models::layout("nemotron-h-8b-base").splits()[0].bands ==
        std::vector<SplitBand>{{8192, 128}, {1024, 8}, {1024, 8}});
  const ModelLayout inkling = models::layout("inkling");  // the convolutions of a layer, then its windows
  std::vector<std::vector<SplitBand>> first;
  for (std::size_t i = 0; i < 6; ++i) first.push_back(inkling.splits()[i].bands);
  const std::vector<SplitBand> whole_channels = {{6144, 1}}, channels = {{2048, 16}}, heads = {{16, 16}};
  CHECK(first == std::vector{whole_channels, whole_channels, channels, channels, heads, heads});
}

TEST_CASE("a layout refuses splits that are not those of its tensors") {
  const auto with = [](TensorSplit conv_split, TensorSplit recurrent_split = recurrent) {
    return refused([&] { return ModelLayout(whole, conv_split, recurrent_split); });
  };
  CHECK(with(conv) == std::nullopt);
  CHECK(with({.axis = 0, .bands = {{.extent = 3}}}) == "axis");
  CHECK(with({.axis = 1, .bands = {}}) == "bands");
  CHECK(with({.axis = 1, .bands = {x}}) == "bands");
  CHECK(with({.axis = 1, .bands = {x, {.extent = 0}, {.extent = 8}}}) == "extent");
  CHECK(with({.axis = 1, .bands = {{.extent = INT64_MAX}, {.extent = 8}}}) == "extent");
  CHECK(with({.axis = 1, .bands = {{.extent = 40, .parts = 0}}}) == "parts");
  CHECK(with({.axis = 1, .bands = {{.extent = 40, .parts = 3}}}) == "parts");
  CHECK(with(conv, {.axis = 3, .bands = {{.extent = 1}}}) == "axis");
  CHECK(with(conv, {.axis = -1, .bands = {{.extent = 1}}}) == "axis");
  CHECK(refused([] { return ModelLayout(whole, {conv}); }) == "splits");
  std::vector<StateTensorSpec> backwards(whole.tensors().rbegin(), whole.tensors().rend());
  CHECK(refused([&] { return ModelLayout(StateSpec(backwards), conv, recurrent); }) == "layer");
}

TEST_CASE("a layout refuses shards that it cannot have") {
  CHECK(refused_shard({0, 3, 0, 2}) == std::nullopt);
  CHECK(refused_shard({-1, 3, 0, 2}) == "shard.layer_begin");
  CHECK(refused_shard({2, 2, 0, 2}) == "shard.layer_end");
  CHECK(refused_shard({0, 4, 0, 2}) == "shard.layer_end");
  CHECK(refused_shard({0, 3, 0, 0}) == "shard.head_groups");
  CHECK(refused_shard({0, 3, 2, 2}) == "shard.head_group");
  CHECK(refused_shard({0, 3, -1, 2}) == "shard.head_group");
  CHECK(refused_shard({0, 3, 0, 3}) == "shard.head_groups");  // 8 heads
  const SplitBand alone{.extent = 4, .parts = 2, .replicable = false};
  const ModelLayout strict(whole, {.axis = 1, .bands = {x, alone, alone}}, recurrent);
  CHECK(refused([&] { return strict.resolve({0, 3, 0, 4}); }) == "shard.head_groups");
  CHECK(strict.resolve({0, 3, 0, 2}) == ModelShard{0, 3, 0, 2});
}

TEST_CASE("a layout that has no memory is not made, and one that is made stays as it is") {
  std::optional<ModelLayout> made;
  CHECK(test::fail_each_allocation([&](std::uint64_t) { made.emplace(whole, conv, recurrent); },
                                   [&](std::uint64_t) { CHECK((!made || made->whole() == whole)); }) > 0);
  CHECK(made->fingerprint() == layout.fingerprint());
  std::optional<StateSpec> rank;
  CHECK(test::fail_each_allocation(
            [&](std::uint64_t) {
              rank = made->spec_of({1, 3, 1, 4});
            },
            [&](std::uint64_t) {
              CHECK((!rank || *rank == layout.spec_of({1, 3, 1, 4})));
            }) > 0);
  CHECK(rank == layout.spec_of({1, 3, 1, 4}));
  std::optional<ModelLayout> known;
  CHECK(test::fail_each_allocation([&](std::uint64_t) { known = models::layout("qwen3-next-80b-a3b"); },
                                   [&](std::uint64_t) {}) > 0);
  CHECK(known->fingerprint() == models::layout("qwen3-next-80b-a3b").fingerprint());
  CHECK(made->whole() == whole);
}
