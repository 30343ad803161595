// SPDX-License-Identifier: Apache-2.0
// GPU launches of StateIntegrity.
#include "../sum_launch.hpp"

#include "../global_memory.hpp"
#include "../lane_sums.hpp"
#include "../settle_check.hpp"
#include "host_plan.hpp"
#include "team_sums.hpp"

#include <algorithm>

namespace stateport::kernels {
namespace {

/// One team for each tile of each row.
template <class Rows>
struct SumRows {
  HostPlan<Rows> plan;
  const SumRule* rules;
  CheckSums sums;

  KOKKOS_FUNCTION void operator()(const Team& team) const {
    constexpr std::uint32_t lanes = general_shape.lanes;
    const auto lane = static_cast<std::uint32_t>(team.team_rank());
    plan.template with_tile_of<1>(
        team, [&](const SlotCopy& row, const Tile& tile, const TensorRoute& route, std::uint32_t) {
          if (row.src_slot < 0) return;
          PartSum part;
          add_range(lane, lanes, part, route, rules[tile.tensor], in_global_memory(route.src_of(row.src_slot)),
                    tile.first_element, tile.elements);
          add_team_sum(team, sums.of(row.conv_shift)[tile.tensor], part);
        });
  }
};

/// One team for each entry.
struct SettleChecks {
  CheckRing ring;
  std::uint32_t first;
  std::uint32_t turn;

  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::uint32_t check = (first + static_cast<std::uint32_t>(team.league_rank())) % ring.checks_max;
    const CheckEntry entry = ring.entries[check];
    if (entry.turn != turn) return;
    const GroupSums group = ring.groups[entry.group];
    std::uint32_t fault = settle_tensors(static_cast<std::uint32_t>(team.team_rank()), word_shape.lanes, entry, group,
                                         ring.sums.of(static_cast<std::int32_t>(check)));
    team.team_reduce(Kokkos::Min<std::uint32_t>(fault));
    if (team.team_rank() == 0) settle_slot(entry, group, fault, &ring.entries[check].verdict);
  }
};

}  // namespace

bool can_sum_copies(const CopyTable& table) noexcept {
  return table.moves_bytes() && table.view().aligned && table.view().code == CopyCode::words;
}

void sum_rows(const char* label, const Stream& stream, const SumTableView& table, std::span<const SlotCopy> rows,
              const CheckSums& sums) {
  for (std::span<const SlotCopy> left = rows; !left.empty();) {
    const std::size_t count = std::min<std::size_t>(left.size(), many_rows);
    launch_plan<general_shape, 1, false>(label, stream, nullptr, without_shifts(table.tiles), left.first(count),
                                         static_cast<std::uint32_t>(count),
                                         [&]<class Rows>(const HostPlan<Rows>& plan) {
                                           return SumRows<Rows>{plan, table.rules, sums};
                                         });
    left = left.subspan(count);
  }
}

void settle_checks(const char* label, const Stream& stream, const CheckRing& ring, std::uint32_t first,
                   std::uint32_t count, std::uint32_t turn) {
  enqueue(label, team_each<word_shape>(execution_space(stream), count), SettleChecks{ring, first, turn});
}

}  // namespace stateport::kernels
