// SPDX-License-Identifier: Apache-2.0
#include <stateport/tiers/object_set.hpp>

#include <stateport/core/model/error.hpp>

#include "random_layout.hpp"

#include <doctest/doctest.h>

#include <map>
#include <set>
#include <string>
#include <vector>

using namespace stateport;
using test::Random;

namespace {

const StateSpec whole = StateSpec::uniform(4, {.window = 3, .dim = 48}, {.shape = {24, 2, 32}});
const ModelLayout layout(whole, {.axis = 1, .bands = {{.extent = 48, .parts = 24}}},
                         {.axis = 0, .bands = {{.extent = 24, .parts = 24}}});
const ImageKey object_key{.prefix = {{7, 8}}, .tokens = 96};

std::string refused(const ModelShard& rank, const ObjectSetOptions& options) {
  try {
    ObjectSet(layout, rank, options);
  } catch (const InvalidArgument& error) {
    return error.argument();
  }
  return {};
}

std::string first_name(const ModelLayout& model, const ObjectSetOptions& options, const ImageKey& of = object_key) {
  return ObjectSet(model, {}, options).name(0, of);
}

}  // namespace

TEST_CASE("ranks of every number have the same objects between them, each once") {
  test::for_each_seed(500, [](Random& random, std::uint64_t) {
    const ModelLayout model = test::random_layout(random);
    const auto bytes_by_name = [&](const std::vector<ReshardRank>& ranks, const ObjectGrid& grid) {
      std::map<std::string, std::size_t> objects;
      for (const ReshardRank& rank : ranks) {
        const ObjectSet set(model, rank.shard, {.model = ModelId(1), .grid = grid});
        std::size_t end = 0;
        for (std::size_t i = 0; i < set.size(); ++i) {
          REQUIRE(set.offset(i) == end);
          end += set.layout(i).image_bytes();
          REQUIRE(objects.emplace(set.name(i, object_key), set.layout(i).image_bytes()).second);
        }
        REQUIRE(set.bytes() == end);
      }
      return objects;
    };
    // Whatever the stages and ranks, a grid of single layers and of as many head groups as heads fits them.
    const auto some = test::random_ranks(random, model, 0);
    const auto others = test::random_ranks(random, model, 0);
    std::int32_t groups = some[0].shard.head_groups * others[0].shard.head_groups;
    for (const std::int32_t fewer : {1, 2, 3, 4, 6, 8, 12})
      if (fewer % some[0].shard.head_groups == 0 && fewer % others[0].shard.head_groups == 0)
        groups = std::min(groups, fewer);
    bool can_be_shared = 24 % groups == 0;
    for (const TensorSplit& split : model.splits())
      for (const SplitBand& band : split.bands) can_be_shared &= band.parts % groups == 0 || groups % band.parts == 0;
    if (!can_be_shared) return;
    const ObjectGrid grid{.head_groups = groups, .layers_per_object = 1};
    const auto objects = bytes_by_name(some, grid);
    REQUIRE(objects == bytes_by_name(others, grid));
    REQUIRE(objects.size() == static_cast<std::size_t>(groups * model.layers()));
  });
}

TEST_CASE("a name tells apart all that makes an object another one, and nothing else") {
  const ObjectSetOptions options{.model = ModelId(1), .grid = {.head_groups = 2}};
  std::set<std::string> names = {first_name(layout, options)};
  const auto is_new = [&](const std::string& name) {
    REQUIRE(name.size() <= 200);
    for (const char letter : name) REQUIRE((letter > ' ' && letter <= '~'));
    return names.insert(name).second;
  };
  auto changed = options;
  changed.model = ModelId(2);
  CHECK(is_new(first_name(layout, changed)));
  changed = options;
  changed.group = 1;
  CHECK(is_new(first_name(layout, changed)));
  changed = options;
  changed.content = CacheContent::kv_block;
  CHECK(is_new(first_name(layout, changed)));
  changed = options;
  changed.grid.head_groups = 4;
  CHECK(is_new(first_name(layout, changed)));
  changed = options;
  changed.grid.layers_per_object = 2;
  CHECK(is_new(first_name(layout, changed)));
  changed = options;
  changed.encoding.recurrent = ElementType::int8_block32;
  CHECK(is_new(first_name(layout, changed)));
  changed = options;
  changed.encoding.conv = ElementType::fp16;
  CHECK(is_new(first_name(layout, changed)));
  CHECK(is_new(first_name(layout, options, {.prefix = {{7, 8}}, .tokens = 97})));
  CHECK(is_new(first_name(layout, options, {.prefix = {{7, 9}}, .tokens = 96})));
  CHECK(is_new(first_name(layout, options, {.prefix = {{6, 8}}, .tokens = 96})));
  CHECK(is_new(ObjectSet(layout, {}, options).name(1, object_key)));
  // Machines of two versions of the format do not remove each other's objects.
  CHECK(first_name(layout, options).starts_with("v" + std::to_string(ImageLayout::version) + "/"));
  CHECK(is_new(first_name(ModelLayout(whole, {.axis = 1, .bands = {{.extent = 48, .parts = 48}}},
                                      {.axis = 0, .bands = {{.extent = 24, .parts = 24}}}),
                          options)));
  const StateSpec ds =
      StateSpec::uniform(4, {.window = 3, .dim = 48, .layout = ConvLayout::ds}, {.shape = {24, 2, 32}});
  CHECK_FALSE(is_new(first_name(ModelLayout(ds, layout.splits()[0], layout.splits()[1]), options)));
}

TEST_CASE("a sealed set is checked object by object") {
  const ObjectSet set(layout, {}, {.model = ModelId(1), .grid = {.head_groups = 2, .layers_per_object = 2}});
  REQUIRE(set.size() == 4);
  std::vector<std::byte> bytes(set.bytes(), std::byte{5});
  CHECK(set.check(bytes, object_key) == TransferStatus::damaged);
  set.seal(bytes, object_key);
  CHECK(set.check(bytes, object_key) == TransferStatus::done);
  CHECK(set.check(bytes, {.prefix = {{7, 8}}, .tokens = 97}) == TransferStatus::wrong_position);
  const ObjectSet foreign(layout, {}, {.model = ModelId(2), .grid = {.head_groups = 2, .layers_per_object = 2}});
  CHECK(foreign.check(bytes, object_key) == TransferStatus::foreign_layout);
  for (std::size_t i = 0; i < set.size(); ++i) {
    std::byte& byte = bytes[set.offset(i) + set.layout(i).section_offset(1)];
    byte ^= std::byte{1};
    CHECK(set.check(bytes, object_key) == TransferStatus::damaged);
    byte ^= std::byte{1};
  }
  CHECK(set.check(std::span(bytes).first(bytes.size() - 1), object_key) == TransferStatus::damaged);
}

TEST_CASE("objects refuse grids that do not fit the rank, and types that do not fit the model") {
  CHECK(refused({}, {}).empty());
  CHECK(refused({0, 4, 1, 2}, {.grid = {.head_groups = 4}}).empty());
  CHECK(refused({0, 4, 1, 2}, {.grid = {.head_groups = 3}}) == "grid.head_groups");
  CHECK(refused({0, 4, 1, 2}, {.grid = {.head_groups = 0}}) == "grid.head_groups");
  CHECK(refused({}, {.grid = {.head_groups = 5}}) == "shard.head_groups");
  CHECK(refused({}, {.grid = {.layers_per_object = -1}}) == "grid.layers_per_object");
  CHECK(refused({1, 4, 0, 1}, {.grid = {.layers_per_object = 2}}) == "grid.layers_per_object");
  CHECK(refused({0, 2, 0, 1}, {}) == "grid.layers_per_object");
  CHECK(refused({2, 4, 0, 1}, {.grid = {.layers_per_object = 2}}).empty());
  CHECK(refused({0, 3, 0, 1}, {.grid = {.layers_per_object = 3}}).empty());
  CHECK(refused({}, {.grid = {.layers_per_object = INT32_MAX}}).empty());
  CHECK(refused({}, {.encoding = {.recurrent = ElementType::fp64}}) == "encoding.recurrent");
  CHECK(refused({}, {.encoding = {.conv = ElementType::fp8}}) == "encoding.conv");
  CHECK(refused({}, {.encoding = {.conv = ElementType::int8_block32}}) == "type");
}
