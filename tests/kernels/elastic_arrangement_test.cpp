// SPDX-License-Identifier: Apache-2.0
#include "elastic_arrangement.hpp"

#include <stateport/core/model/error.hpp>
#include <stateport/core/model/models.hpp>

#include "elastic_fixtures.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

using namespace stateport;
using kernels::arrange_elastic;
using kernels::elastic_stride;
using kernels::ElasticArrangement;
using test::elastic_kv;

namespace {

constexpr std::size_t kib = 1024;
constexpr std::size_t mib = 1024 * kib;

/// Places of all bytes that an arrangement uses, ascending.
std::vector<std::pair<std::size_t, std::size_t>> places(const ElasticArrangement& arrangement, std::int32_t slots) {
  std::vector<std::pair<std::size_t, std::size_t>> all;
  for (std::size_t i = 0; i < arrangement.tensors.size(); ++i) {
    const StateTensorView& tensor = arrangement.tensors[i];
    for (std::int32_t slot = 0; slot < slots; ++slot) {
      const std::size_t begin =
          arrangement.offsets[i] + static_cast<std::size_t>(slot) * static_cast<std::size_t>(tensor.slot_stride_bytes);
      all.emplace_back(begin, begin + tensor.spec.extent_bytes());
    }
  }
  std::ranges::sort(all);
  return all;
}

void check_arrangement(const StateSpec& spec, const StoreOptions& options, std::size_t granularity) {
  const ElasticArrangement arrangement = arrange_elastic(spec, options, granularity);
  const auto all = places(arrangement, options.slots);
  for (std::size_t i = 1; i < all.size(); ++i) REQUIRE(all[i - 1].second <= all[i].first);
  REQUIRE(all.back().second <= arrangement.bytes);
  REQUIRE(arrangement.extents * arrangement.extent_slots >= options.slots);
  REQUIRE((arrangement.extents - 1) * arrangement.extent_slots < options.slots);
  REQUIRE(arrangement.fixed_offset % granularity == 0);
  REQUIRE(arrangement.fixed_bytes % granularity == 0);
  for (const auto& [offset, bytes] : arrangement.moving) {
    REQUIRE(offset % granularity == 0);
    REQUIRE(bytes % granularity == 0);
  }
  for (const StateTensorView& tensor : arrangement.tensors) REQUIRE(tensor.slot_stride_bytes % 16 == 0);
  // Every byte of a slot lies in its extent, or stays.
  for (std::size_t i = 0; i < arrangement.tensors.size(); ++i) {
    if (arrangement.fixed_bytes > 0 && arrangement.offsets[i] >= arrangement.fixed_offset) continue;
    const auto stride = static_cast<std::size_t>(arrangement.tensors[i].slot_stride_bytes);
    const auto owner = std::ranges::find_if(arrangement.moving, [&](const ElasticArrangement::Moving& moving) {
      return arrangement.offsets[i] >= moving.offset &&
             arrangement.offsets[i] + arrangement.tensors[i].spec.extent_bytes() <= moving.offset + stride;
    });
    REQUIRE(owner != arrangement.moving.end());
    REQUIRE(owner->bytes == static_cast<std::size_t>(arrangement.extent_slots) * stride);
  }
}

}  // namespace

TEST_CASE("a stride is padded to the largest power of two that wastes less than a sixteenth") {
  CHECK(elastic_stride(2 * mib, 2 * mib) == 2 * mib);
  CHECK(elastic_stride(2 * mib - 16, 2 * mib) == 2 * mib);
  CHECK(elastic_stride(31 * mib, 2 * mib) == 32 * mib);
  CHECK(elastic_stride(16 * mib - mib, 2 * mib) == 15 * mib);  // 1/15 is too much
  CHECK(elastic_stride(17 * mib, 2 * mib) == 18 * mib);
  CHECK(elastic_stride(3 * mib / 2, 2 * mib) == 3 * mib / 2);
  CHECK(elastic_stride(31 * kib, 2 * mib) == 32 * kib);
  CHECK(elastic_stride(36 * kib, 2 * mib) == 36 * kib);
  CHECK(elastic_stride(1, 2 * mib) == 16);
  CHECK(elastic_stride(30, 4096) == 32);
}

TEST_CASE("a slot of 2 MiB a layer is an extent, and its conv states stay") {
  const StateSpec spec = models::find("qwen3-next-80b-a3b", {.recurrent_type = ElementType::fp32});
  const ElasticArrangement arrangement = arrange_elastic(spec, {.slots = 10}, 2 * mib);
  CHECK(arrangement.extent_slots == 1);
  CHECK(arrangement.extents == 10);
  CHECK(arrangement.moving.size() == 36);
  for (const auto& [offset, bytes] : arrangement.moving) CHECK(bytes == 2 * mib);
  CHECK(arrangement.fixed_bytes == 18 * mib);  // 36 layers of 10 slots of 48 KiB, whole granules together
  CHECK(arrangement.fixed_offset == 10 * 36 * 2 * mib);
}

TEST_CASE("slots in one piece are padded to whole granules") {
  const StateSpec spec = models::find("qwen3-next-80b-a3b", {.recurrent_type = ElementType::fp32});
  const StoreOptions options{.slots = 10, .layout = StoreLayout::slot_major};
  const ElasticArrangement arrangement = arrange_elastic(spec, options, 2 * mib);
  CHECK(arrangement.extent_slots == 1);
  CHECK(arrangement.moving.size() == 1);
  CHECK(arrangement.moving[0].bytes == 74 * mib);  // 72 MiB, and 36 times 48 KiB
  CHECK(arrangement.fixed_bytes == 0);
}

TEST_CASE("blocks of KV share granules, and an extent is as many as fill one") {
  std::vector<StateTensorSpec> tensors;  // 12 layers of 16 tokens of 2 heads of 256, bf16
  for (std::int32_t layer = 0; layer < 12; ++layer)
    for (int kv = 0; kv < 2; ++kv)
      tensors.push_back({.layer = layer, .type = ElementType::bf16, .shape = {16, 2, 256}});
  const ElasticArrangement arrangement = arrange_elastic(StateSpec(std::move(tensors)), {.slots = 1000}, 2 * mib);
  CHECK(arrangement.extent_slots == 128);
  CHECK(arrangement.extents == 8);
  CHECK(arrangement.moving.size() == 24);
  CHECK(arrangement.moving[23].bytes == 2 * mib);
  CHECK(arrangement.fixed_bytes == 0);
}

TEST_CASE("conv states that are many beside their recurrent states move as well") {
  const auto spec = [](std::int64_t dim) {
    return StateSpec::uniform(2, {.window = 2, .dim = dim}, {.shape = {1, 1, 16 * 1024}});  // 64 KiB
  };
  CHECK(arrange_elastic(spec(1000), {.slots = 5}, 4096).moving.size() == 2);
  CHECK(arrange_elastic(spec(1024), {.slots = 5}, 4096).moving.size() == 4);  // 1/16
  // Many that are small alone, and not together.
  std::vector<StateTensorSpec> tensors = {{.shape = {1, 1, 16 * 1024}}};
  for (std::int32_t layer = 1; layer < 4; ++layer) tensors.push_back({.layer = layer, .shape = {1, 1, 512}});
  CHECK(arrange_elastic(StateSpec(tensors), {.slots = 5}, 4096).moving.size() == 4);
  tensors.pop_back();
  tensors.pop_back();
  CHECK(arrange_elastic(StateSpec(tensors), {.slots = 5}, 4096).moving.size() == 1);
}

TEST_CASE("slots of every model lie in whole granules of their extent, and apart") {
  for (const char* name : {"qwen3-next-80b-a3b", "nemotron-h-8b-base", "nemotron-nano-9b-v2", "lfm2-1.2b"})
    for (const StoreLayout layout : {StoreLayout::layer_major, StoreLayout::slot_major})
      for (const std::int32_t slots : {1, 3, 64, 100})
        for (const std::size_t granularity : {4 * kib, 64 * kib, 2 * mib}) {
          CAPTURE(name);
          CAPTURE(slots);
          CAPTURE(granularity);
          check_arrangement(models::find(name), {.slots = slots, .layout = layout}, granularity);
        }
  CHECK_THROWS_AS(static_cast<void>(arrange_elastic(elastic_kv(4096), {.slots = 0}, 4096)), InvalidArgument);
  const StateSpec large = StateSpec::opaque(std::int64_t{1} << 39);
  for (const StoreLayout layout : {StoreLayout::layer_major, StoreLayout::slot_major})
    CHECK_THROWS_AS(static_cast<void>(arrange_elastic(large, {.slots = INT32_MAX, .layout = layout}, 4096)),
                    InvalidArgument);
}
