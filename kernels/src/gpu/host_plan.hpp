// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/internal/execution_space.hpp>
#include <stateport/backends/stream.hpp>
#include <stateport/core/pool/copy_plan.hpp>
#include <stateport/kernels/slot_copier.hpp>

#include "../copy_table.hpp"
#include "../enqueue.hpp"
#include "../global_memory.hpp"
#include "copy_tile.hpp"
#include "launch_shape.hpp"
#include "plan_staging.hpp"

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

/// Launches of plans from the host, whose teams find their row and their tile by arithmetic.
namespace stateport::kernels {

/// Host plans of up to this many rows travel in the smaller of two kernels by value, whose arguments are few.
inline constexpr std::uint32_t few_rows = 16;
inline constexpr auto many_rows = static_cast<std::uint32_t>(SlotCopier::inline_copies_max);

/// The rows of a plan, as a kernel's argument.
template <std::uint32_t capacity>
struct RowsByValue {
  SlotCopy rows[capacity];
  KOKKOS_FUNCTION SlotCopy operator[](std::uint32_t row) const { return rows[row]; }
};
/// The rows of a plan that was staged, in device memory.
struct StagedRows {
  const SlotCopy* rows;
  KOKKOS_FUNCTION SlotCopy operator[](std::uint32_t row) const { return in_global_memory(rows)[row]; }
};

/// A plan from the host, and the tiles of its rows: one team for each part of each tile of each row.
template <class Rows>
struct HostPlan {
  CopyTableView table;
  std::uint32_t first_row;  ///< of those that a launch copies
  std::uint32_t first_source_rows;
  Rows rows;

  /// Calls body(row, tile, route, part) for the team's part of a tile, of which each tile has `parts`.
  template <std::uint32_t parts, class Body>
  KOKKOS_INLINE_FUNCTION void with_tile_of(const Team& team, const Body& body) const {
    const auto part = static_cast<std::uint32_t>(team.league_rank());
    const std::uint32_t item = part / parts;
    const std::uint32_t row = item / table.tile_count;
    const std::uint32_t source = first_row + row < first_source_rows ? 0 : 1;
    const Tile& tile = table.tile_of(source, item - row * table.tile_count);
    body(rows[first_row + row], tile, table.routes[source * table.tensor_count + tile.tensor], part % parts);
  }
};

template <std::uint32_t capacity>
RowsByValue<capacity> by_value(std::span<const SlotCopy> rows) {
  RowsByValue<capacity> copy{};
  std::ranges::copy(rows, copy.rows);
  return copy;
}

/// Launches with one team for each of `parts` parts of each tile of each row: one launch, unless they are more than it
/// can have. `kernel_of(plan)` makes the functor of a HostPlan. `stages`: whether there may be more than many_rows;
/// `staging` is used for those alone.
template <LaunchShape shape, std::uint32_t parts, bool stages = true, class KernelOf>
void launch_plan(const char* label, const Stream& stream, PlanStaging* staging, const CopyTableView& table,
                 std::span<const SlotCopy> rows, std::uint32_t first_source_rows, const KernelOf& kernel_of) {
  const std::size_t rows_max = launch_items_max / (table.tile_count * parts);
  const auto launch = [&]<class Rows>(const Rows& carried) {
    for (std::size_t first = 0; first < rows.size(); first += rows_max) {
      const std::size_t count = std::min(rows.size() - first, rows_max);
      auto policy = team_each<shape>(execution_space(stream), count * table.tile_count * parts);
      add_team_memory(policy, table.has_ds);
      enqueue(label, policy,
              kernel_of(HostPlan<Rows>{table, static_cast<std::uint32_t>(first), first_source_rows, carried}));
    }
  };
  if (rows.size() <= few_rows) return launch(by_value<few_rows>(rows));
  if (rows.size() <= many_rows) return launch(by_value<many_rows>(rows));
  if constexpr (stages) {
    launch(StagedRows{staging->stage(stream, rows)});
    staging->done(stream);
  }
}

/// The table for launches that shift nothing: their teams need no memory.
inline CopyTableView without_shifts(CopyTableView table) {
  table.has_ds = false;
  return table;
}

}  // namespace stateport::kernels
