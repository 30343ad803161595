// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../lane_sums.hpp"
#include "../state_sums.hpp"
#include "aligned_copy.hpp"
#include "launch_shape.hpp"
#include "tile_copy.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>

/// Sums of the tiles that teams copy or read.
namespace stateport::kernels {

/// Adds the sums of a team's lanes to that of a tensor, to which other teams add as well. All lanes call it.
KOKKOS_INLINE_FUNCTION void add_team_sum(const Team& team, TensorSum& tensor, const PartSum& part) {
  std::uint64_t sum = part.sum;
  team.team_reduce(Kokkos::Sum<std::uint64_t>(sum));
  if (team.team_rank() == 0) Kokkos::atomic_add(&tensor.sum, sum);
  if (part.not_finite()) Kokkos::atomic_store(&tensor.not_finite, 1u);
}

/// Copies and sums the part of a whole copy that an aligned tile in mode bytes holds.
KOKKOS_INLINE_FUNCTION void copy_and_sum_aligned_tile(const Team& team, const Tile& tile, const SlotCopy& row,
                                                      const CheckSums& sums) {
  constexpr auto word_bytes = static_cast<std::uint32_t>(sizeof(Word16));
  const TileCopy copy = copy_of(tile, row);
  const auto* const from = reinterpret_cast<const Word16*>(copy.src);
  auto* const to = reinterpret_cast<Word16*>(copy.dst);
  const auto first_word = static_cast<std::uint32_t>(tile.first_element * tile.element_bytes / 4);
  const ExponentMask mask = exponent_mask(tile.src_type);
  PartSum part;
  move_in_groups<aligned_in_flight<false, word_bytes>>(
      static_cast<std::uint32_t>(team.team_rank()), aligned_shape.lanes,
      copy.src_slot < 0 ? 0 : tile.bytes() / word_bytes, [&](std::uint64_t i) { return from[i]; },
      [&](std::uint64_t i, const Word16& quad) {
        to[i] = quad;
        add_quad(part, quad, first_word + 4 * static_cast<std::uint32_t>(i), mask);
      });
  if (copy.src_slot >= 0 && row.conv_shift >= 0) add_team_sum(team, sums.of(row.conv_shift)[tile.tensor], part);
}

}  // namespace stateport::kernels
