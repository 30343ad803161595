// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace stateport {

/// Shape of one layer's state before it is split over tensor-parallel ranks (Mamba-2): the conv state has the channel
/// bands x [heads · head_dim], B and C [groups · state_dim] each; the recurrent state is [heads, head_dim, state_dim].
struct ReshardShape {
  std::int32_t heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t state_dim = 0;
  std::int32_t groups = 0;
  friend constexpr bool operator==(const ReshardShape&, const ReshardShape&) noexcept = default;
};

/// What one rank holds: shard `tp_rank` of `tp_size` of the layers [first_layer, first_layer + layers).
struct ReshardRank {
  std::int32_t global_rank = 0;
  std::int32_t tp_size = 1;
  std::int32_t tp_rank = 0;
  std::int32_t first_layer = 0;
  std::int32_t layers = 0;
  ReshardShape shape;
};

/// What a piece is part of: a channel band of the conv state, or the recurrent state.
enum class ReshardBand : std::uint8_t { x, b, c, recurrent };

/// One contiguous piece: channels of the conv state (x, b, c) or heads of the recurrent state, both ends local to
/// their rank and layer. Says nothing about element types: of a tensor in blocks, the values of heads and their scales
/// are two pieces of a slot (see BlockLayout), so that whoever moves bytes by it decodes such a state first.
struct ReshardSlice {
  std::int32_t src_rank = 0;
  std::int32_t dst_rank = 0;
  ReshardBand band = ReshardBand::x;
  std::int32_t layer = 0;  ///< of the model
  std::int32_t src_layer = 0;
  std::int32_t dst_layer = 0;
  std::int32_t src_begin = 0;
  std::int32_t src_end = 0;
  std::int32_t dst_begin = 0;
  std::int32_t dst_end = 0;
  friend constexpr bool operator==(const ReshardSlice&, const ReshardSlice&) noexcept = default;
};

/// Which pieces bring every destination rank its state, ordered by (source rank, destination rank, band, layer). What
/// several sources hold is read from the smallest rank. Throws InvalidArgument for heads or groups that a tp_size does
/// not divide, shapes that differ, a rank named twice on one side, and a piece that no source holds. A pure function.
[[nodiscard]] std::vector<ReshardSlice> plan_reshard(std::span<const ReshardRank> sources,
                                                     std::span<const ReshardRank> destinations);

}  // namespace stateport
