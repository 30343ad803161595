// SPDX-License-Identifier: Apache-2.0
// A rank reads objects that come from other machines: any model, rank and grid, and sealed objects that are edited; and
// plans of hand-overs between any ranks. A refused call must throw InvalidArgument.
#include <stateport/core/model/error.hpp>
#include <stateport/tiers/handover.hpp>
#include <stateport/tiers/object_set.hpp>

#include "byte_source.hpp"

#include <algorithm>
#include <string>
#include <vector>

using namespace stateport;

namespace {

constexpr std::size_t set_bytes_max = std::size_t{1} << 20;

std::int32_t number(fuzz::ByteSource& source) {
  return source.chance(16) ? source.take<std::int32_t>() : static_cast<std::int32_t>(source.below(9));
}

TensorSplit split(fuzz::ByteSource& source) {
  TensorSplit result{.axis = number(source), .bands = {}};
  for (std::uint32_t bands = source.below(4); bands > 0; --bands)
    result.bands.push_back({.extent = number(source), .parts = number(source), .replicable = source.chance(128)});
  return result;
}

ModelLayout model(fuzz::ByteSource& source) {
  if (source.chance(128)) {
    constexpr std::int32_t heads = 8;
    const SplitBand band{.extent = heads, .parts = heads};
    return {StateSpec::uniform(4, {.window = 3, .dim = heads}, {.shape = {heads, 2, 4}, .type = ElementType::fp32}),
            {.axis = 1, .bands = {band}},
            {.axis = 0, .bands = {band}}};
  }
  std::vector<StateTensorSpec> tensors;
  std::vector<TensorSplit> splits;
  for (std::uint32_t count = source.below(6); count > 0; --count) {
    StateTensorSpec tensor;
    tensor.layer = number(source);
    tensor.group = number(source);
    tensor.kind = source.chance(128) ? StateKind::conv : StateKind::recurrent;
    tensor.type = static_cast<ElementType>(source.below(9));
    for (auto& extent : tensor.shape) extent = number(source);
    tensor.strides = {.token = number(source), .channel = number(source)};
    tensors.push_back(tensor);
    splits.push_back(split(source));
  }
  return {StateSpec(std::move(tensors)), std::move(splits)};
}

void check_set(fuzz::ByteSource& source, const ObjectSet& set) {
  if (set.bytes() > set_bytes_max) return;
  const ImageKey key{.prefix = {{source.take(), source.take()}},
                     .tokens = source.chance(16) ? source.take<std::int64_t>() : source.take(),
                     .content = set.options().content,
                     .group = set.options().group};
  std::vector<std::byte> bytes(set.bytes(), std::byte{3});
  for (std::size_t i = 0; i < set.size(); ++i)
    fuzz::expect(set.part(bytes, i).size() == set.layout(i).image_bytes() && set.name(i, key).size() <= 200, "objects");
  set.seal(bytes, key);
  fuzz::expect(set.check(bytes, key) == TransferStatus::done, "a sealed set is whole");
  const bool cut = source.chance(64) && !bytes.empty();
  bool edited = false;
  while (!source.empty() && !bytes.empty()) {
    const std::size_t at = source.take<std::uint32_t>() % bytes.size();
    const auto byte = static_cast<std::byte>(source.take());
    edited = edited || bytes[at] != byte;
    bytes[at] = byte;
  }
  // A copy, so that a sanitizer sees each byte read too far.
  const std::vector<std::byte> came(bytes.begin(), cut ? bytes.begin() + std::ssize(bytes) / 2 : bytes.end());
  const TransferStatus status = set.check(came, key);
  fuzz::expect(status != TransferStatus::done || !cut, "half a set is not whole");
  fuzz::expect(status == TransferStatus::done || edited || cut, "an unchanged object is whole");
}

/// Ranks that mostly are some of a group.
std::vector<ReshardRank> ranks(fuzz::ByteSource& source, std::int32_t layers) {
  std::vector<ReshardRank> result(source.below(5));
  const auto below = [&](std::int32_t end) {
    return static_cast<std::int32_t>(source.below(static_cast<std::uint32_t>(end)));
  };
  for (ReshardRank& rank : result) {
    const std::int32_t groups = 1 << below(3);
    rank = {number(source), {0, layers, below(groups), groups}};
    if (source.chance(64)) rank.shard.layer_begin = number(source);
    if (source.chance(32)) rank.shard.layer_end = number(source);
    if (source.chance(16)) rank.shard.head_group = number(source);
    if (source.chance(16)) rank.shard.head_groups = number(source);
  }
  return result;
}

/// Which object of a rank begins at `offset`; empty: none.
std::string object_at(const ObjectSet& set, std::uint64_t offset) {
  for (std::size_t i = 0; i < set.size(); ++i)
    if (set.offset(i) == offset) return set.name(i, {});
  return {};
}

bool has_object(const ObjectSet& set, const std::string& name) {
  for (std::size_t i = 0; i < set.size(); ++i)
    if (set.name(i, {}) == name) return true;
  return false;
}

/// Each object of each destination comes once, from the smallest rank that has it.
void check_handover(fuzz::ByteSource& source, const ModelLayout& layout, ObjectSetOptions options) {
  constexpr std::size_t objects_max = 64;  // more take long
  const std::vector<ReshardRank> from = ranks(source, layout.layers());
  const std::vector<ReshardRank> to = ranks(source, layout.layers());
  const HandoverPlan plan = plan_handover(layout, from, to, options);
  options.grid = plan.grid;
  std::vector<ObjectSet> held;
  for (const ReshardRank& rank : from) held.emplace_back(layout, rank.shard, options);
  const bool is_large = std::ranges::any_of(held, [](const ObjectSet& set) { return set.size() > objects_max; });
  if (is_large || plan.ranges.size() > objects_max) return;
  auto range = plan.ranges.begin();
  for (const ReshardRank& rank : to) {
    const ObjectSet set(layout, rank.shard, options);
    for (std::size_t i = 0; i < set.size(); ++i, ++range) {
      fuzz::expect(range != plan.ranges.end() && range->dst_rank == rank.global_rank &&
                       range->dst_offset == set.offset(i) && range->bytes == set.layout(i).image_bytes(),
                   "a range for each object");
      const std::string name = set.name(i, {});
      for (std::size_t other = 0; other < from.size(); ++other) {
        if (from[other].global_rank > range->src_rank) continue;
        const bool is_source = from[other].global_rank == range->src_rank;
        fuzz::expect(has_object(held[other], name) == is_source, "from the smallest rank that has it");
        fuzz::expect(!is_source || object_at(held[other], range->src_offset) == name, "from where it lies");
      }
    }
  }
  fuzz::expect(range == plan.ranges.end(), "no range is left");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::ByteSource source(data, size);
  try {
    const ModelLayout layout = model(source);
    const ModelShard rank{number(source), number(source), number(source), number(source)};
    ObjectSetOptions options{.model = ModelId(source.take()),
                             .content = source.chance(128) ? CacheContent::kv_block : CacheContent::state,
                             .group = number(source) % 2,
                             .grid = {number(source), number(source)},
                             .encoding = {}};
    if (source.chance(64)) options.encoding.recurrent = static_cast<ElementType>(source.below(9));
    if (source.chance(64)) options.encoding.conv = static_cast<ElementType>(source.below(9));
    if (source.chance(64)) {
      check_handover(source, layout, options);
    } else {
      check_set(source, ObjectSet(layout, rank, options));
    }
  } catch (const InvalidArgument&) {
    // Refused with a text.
  }
  return 0;
}
