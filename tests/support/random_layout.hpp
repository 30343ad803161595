// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/parts/reshard.hpp>

#include "random.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

/// Random models, and groups of ranks that share them.
namespace stateport::test {

/// Layers of one kind, with bands of heads (24 of them, so that 1, 2, 3, 4, 6, 8 and 12 ranks can share them) and of
/// fewer groups, which neighbouring ranks then have in common.
inline ModelLayout random_layout(Random& random, ElementType recurrent_type = ElementType::fp32) {
  constexpr std::int32_t heads = 24;
  constexpr std::int32_t group_counts[] = {1, 2, 4, 12, 24};
  const auto groups = group_counts[random.between(0, 4)];
  const std::int64_t head_dim = random.between(1, 3);
  const std::int64_t state_dim = random.between(1, 5);
  const SplitBand per_head{.extent = heads * head_dim, .parts = heads};
  const SplitBand per_group{.extent = groups * state_dim, .parts = groups};
  const std::vector<std::vector<SplitBand>> kinds = {
      {per_head, per_group, per_group}, {per_group, per_group, per_head}, {per_head, per_head, per_head}, {per_head}};
  const auto& bands = kinds[static_cast<std::size_t>(random.between(0, 3))];
  ConvShape conv{.window = random.between(1, 4), .layout = random.chance(50) ? ConvLayout::sd : ConvLayout::ds};
  for (const SplitBand& band : bands) conv.dim += band.extent;
  if (random.chance(10)) conv.window = 0;
  RecurrentShape recurrent{.shape = {heads, head_dim, state_dim}, .type = recurrent_type};
  std::int32_t axis = 0;
  if (random.chance(20)) {  // as KV, whose heads are not the first extent
    recurrent.shape = {random.between(1, 9), heads, head_dim};
    axis = 1;
  }
  if (conv.window > 0 && random.chance(15)) recurrent.shape = {0, 0, 0};
  return ModelLayout(StateSpec::uniform(random.between32(1, 5), conv, recurrent), {.axis = 1, .bands = bands},
                     {.axis = axis, .bands = {{.extent = heads, .parts = heads}}});
}

/// The elements of one tensor of a shard along the extent that is split, each named by its number in the whole model.
/// By the definition: each rank takes its run of parts of every band.
inline std::vector<std::int64_t> elements_of(const ModelLayout& layout, const ModelShard& shard, std::size_t tensor) {
  std::vector<std::int64_t> elements;
  std::int64_t base = static_cast<std::int64_t>(tensor + 1) * 1'000'000;
  for (const SplitBand& band : layout.splits()[tensor].bands) {
    for (std::int32_t part = 0; part < band.parts; ++part) {
      const bool mine = band.parts >= shard.head_groups ? part / (band.parts / shard.head_groups) == shard.head_group
                                                        : shard.head_group / (shard.head_groups / band.parts) == part;
      for (std::int64_t i = 0; mine && i < band.extent / band.parts; ++i)
        elements.push_back(base + part * (band.extent / band.parts) + i);
    }
    base += 100'000;
  }
  return elements;
}

/// All ranks of a random number of pipeline stages and of head groups, numbered from `first` on.
inline std::vector<ReshardRank> random_ranks(Random& random, const ModelLayout& layout, std::int32_t first) {
  constexpr std::int32_t sizes[] = {1, 2, 3, 4, 6, 12, 24};
  const auto groups = sizes[random.between(0, 6)];
  // More ranks than parts of a band, none dividing the other, cannot share it.
  for (const TensorSplit& split : layout.splits())
    for (const SplitBand& band : split.bands)
      if (band.parts % groups != 0 && groups % band.parts != 0) return {{first, {0, layout.layers(), 0, 1}}};
  const std::int32_t stages = random.between32(1, layout.layers());
  std::vector<ReshardRank> ranks;
  for (std::int32_t stage = 0; stage < stages; ++stage)
    for (std::int32_t group = 0; group < groups; ++group)
      ranks.push_back(
          {first++, {stage * layout.layers() / stages, (stage + 1) * layout.layers() / stages, group, groups}});
  return ranks;
}

}  // namespace stateport::test
