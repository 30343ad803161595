// SPDX-License-Identifier: Apache-2.0
// GPU launches of copies. A team of a host plan finds its row and its tile by arithmetic.
#include "../launch.hpp"

#include <stateport/backends/internal/execution_space.hpp>
#include <stateport/kernels/slot_copier.hpp>

#include "aligned_copy.hpp"
#include "copy_tile.hpp"
#include "plan_staging.hpp"
#include "tile_part.hpp"
#include "work_queues.hpp"
#include "work_share.hpp"

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <vector>

namespace stateport::kernels {

const std::size_t tile_bytes_max = tile_bytes;

class Launcher::Staging {
 public:
  PlanStaging plans;
  WorkQueues queues;
};

Launcher::Launcher() : staging_(std::make_unique<Staging>()) {}
Launcher::Launcher(Launcher&&) noexcept = default;
Launcher& Launcher::operator=(Launcher&&) noexcept = default;
Launcher::~Launcher() = default;

namespace {

/// Host plans of up to this many rows travel in the smaller of two kernels by value, whose arguments are few.
constexpr std::uint32_t few_rows = 16;
constexpr auto many_rows = static_cast<std::uint32_t>(SlotCopier::inline_copies_max);

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

/// Aligned tiles, whole windows.
template <bool converts, class Rows>
struct CopyAligned {
  HostPlan<Rows> plan;

  KOKKOS_FUNCTION void operator()(const Team& team) const {
    plan.template with_tile_of<aligned_parts<converts>>(
        team, [&](const SlotCopy& row, const Tile& tile, const TensorRoute&, std::uint32_t part) {
          copy_aligned_tile<converts>(team, tile, part, row);
        });
  }
};

/// Any tiles and shifts.
template <CopyCode code, class Rows>
struct CopyRows {
  HostPlan<Rows> plan;

  KOKKOS_FUNCTION void operator()(const Team& team) const {
    std::byte* const stage = stage_of(team, plan.table.has_ds);
    plan.template with_tile_of<plan_parts<code>>(team, [&](const SlotCopy& row, const Tile& tile,
                                                           const TensorRoute& route, std::uint32_t part) {
      constexpr std::uint32_t parts = plan_parts<code>;
      copy_tile<code, plan_shape<code>.lanes>(team, stage, route, parts > 1 ? part_of(tile, parts, part) : tile, row);
    });
  }
};

/// Rows in device memory: every team first lists those with work, so that a step without any costs one pass over the
/// rows. All teams make the same list, in row order.
template <CopyCode code>
struct CopyRowsOnDevice {
  CopyTableView table;
  const SlotCopy* rows;
  std::uint32_t row_count;
  SlotLimits limits;
  WorkQueue* queue;

  /// The row without the parts that must not be copied; whether any is left.
  KOKKOS_FUNCTION bool checked(SlotCopy& row) const {
    if (row.src_slot >= limits.src_slots || row.conv_shift < 0) row.src_slot = -1;
    if (row.recurrent_src_slot >= limits.src_slots) row.recurrent_src_slot = -1;
    return row.dst_slot >= 0 && row.dst_slot < limits.dst_slots && (row.src_slot >= 0 || row.recurrent_src_slot >= 0);
  }

  KOKKOS_FUNCTION void operator()(const Team& team) const {
    constexpr std::uint32_t lanes = deciding_shape<code>.lanes;
    WorkList<SlotCopy>& list = work_list<SlotCopy>(team);
    std::byte* const stage = stage_of(team, table.has_ds);
    TeamWork work(team, queue, list.claims);
    bool any = false;
    for (std::uint32_t begin = 0; begin < row_count; begin += listed_rows_max) {
      const std::uint32_t count = row_count - begin < listed_rows_max ? row_count - begin : listed_rows_max;
      const std::uint32_t listed = list_work<lanes>(team, count, list, [&](std::uint32_t i, SlotCopy& row) {
        row = rows[begin + i];
        return checked(row);
      });
      if (listed == 0) continue;
      any = true;
      take_tiles(work, table, listed, [&](std::uint32_t i, const Tile& tile) {
        copy_tile<code, lanes>(team, stage, table.routes[tile.tensor], tile, list[i]);
      });
    }
    if (any) work.end();
  }
};

template <class Rows>
struct ClearRows {
  HostPlan<Rows> plan;

  KOKKOS_FUNCTION void operator()(const Team& team) const {
    constexpr std::uint32_t lanes = general_shape.lanes;
    const auto lane = static_cast<std::uint32_t>(team.team_rank());
    plan.template with_tile_of<1>(
        team, [&](const SlotCopy& row, const Tile& tile, const TensorRoute& route, std::uint32_t) {
          if (row.dst_slot < 0) return;
          std::byte* const dst = in_global_memory(route.dst_of(row.dst_slot));
          const auto element = static_cast<std::uint64_t>(route.element_bytes);
          if (route.mode == TensorRoute::Mode::blocks)
            zero_blocks(lane, lanes, route, dst, static_cast<std::uint32_t>(tile.first_element), tile.elements);
          else if (route.dst_dense)
            zero_bytes_by_lanes(lane, lanes, dst + tile.first_element * element, tile.bytes());
          else
            zero_elements(lane, lanes, route, dst, tile.first_element, tile.elements);
        });
  }
};

template <std::uint32_t capacity>
RowsByValue<capacity> by_value(std::span<const SlotCopy> rows) {
  RowsByValue<capacity> copy{};
  std::ranges::copy(rows, copy.rows);
  return copy;
}

/// Launches with one team for each of `parts` parts of each tile of each row: one launch, unless they are more than it
/// can have. `kernel_of(plan)` makes the functor of a HostPlan. `stages`: whether there may be more than many_rows.
template <LaunchShape shape, std::uint32_t parts, bool stages = true, class KernelOf>
void launch_plan(const char* label, const Stream& stream, PlanStaging& staging, const CopyTableView& table,
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
    launch(StagedRows{staging.stage(stream, rows)});
    staging.done(stream);
  }
}

/// The table for launches that shift nothing: their teams need no memory.
CopyTableView without_shifts(CopyTableView table) {
  table.has_ds = false;
  return table;
}

template <bool converts>
void launch_aligned(const char* label, const Stream& stream, PlanStaging& staging, const CopyTableView& table,
                    std::span<const SlotCopy> rows, std::uint32_t first_source_rows) {
  constexpr LaunchShape shape = converts ? converting_shape : aligned_shape;
  launch_plan<shape, aligned_parts<converts>, !converts>(
      label, stream, staging, without_shifts(table), rows, first_source_rows,
      []<class Rows>(const HostPlan<Rows>& plan) { return CopyAligned<converts, Rows>{plan}; });
}

template <CopyCode code>
void launch_copy(const char* label, const Stream& stream, PlanStaging& staging, const CopyTableView& table,
                 std::span<const SlotCopy> rows, std::uint32_t first_source_rows) {
  constexpr LaunchShape shape = plan_shape<code>;
  launch_plan<shape, plan_parts<code>>(
      label, stream, staging, table, rows, first_source_rows,
      []<class Rows>(const HostPlan<Rows>& plan) { return CopyRows<code, Rows>{plan}; });
}

void launch_clear(const char* label, const Stream& stream, PlanStaging& staging, const CopyTableView& table,
                  std::span<const SlotCopy> rows) {
  launch_plan<general_shape, 1>(label, stream, staging, without_shifts(table), rows,
                                static_cast<std::uint32_t>(rows.size()),
                                []<class Rows>(const HostPlan<Rows>& plan) { return ClearRows<Rows>{plan}; });
}

template <CopyCode code>
void launch_on_device(const char* label, const Stream& stream, const CopyTableView& table, const SlotCopy* rows,
                      std::uint32_t count, const SlotLimits& limits, WorkQueue* queue) {
  constexpr LaunchShape shape = deciding_shape<code>;
  auto policy = resident_teams<shape>(execution_space(stream), std::uint64_t{count} * table.tile_count);
  add_team_memory(policy, table.has_ds, work_list_bytes<SlotCopy>);
  enqueue(label, policy, CopyRowsOnDevice<code>{table, rows, count, limits, queue});
}

auto copy_aligned_with(CopyCode code) {
  return code == CopyCode::words ? launch_aligned<false> : launch_aligned<true>;
}
auto copy_with(CopyCode code) {
  if (code == CopyCode::words) return launch_copy<CopyCode::words>;
  return code == CopyCode::elements ? launch_copy<CopyCode::elements> : launch_copy<CopyCode::blocks>;
}
auto copy_on_device_with(CopyCode code) {
  if (code == CopyCode::words) return launch_on_device<CopyCode::words>;
  return code == CopyCode::elements ? launch_on_device<CopyCode::elements> : launch_on_device<CopyCode::blocks>;
}

}  // namespace

void Launcher::copy_rows(const char* label, const Stream& stream, const CopyTableView& table,
                         std::span<const SlotCopy> rows, std::uint32_t first_source_rows) {
  if (rows.empty() || table.tile_count == 0) return;
  // A kernel that converts has no registers for the address of staged rows.
  const bool aligned = table.aligned && (table.code == CopyCode::words || rows.size() <= many_rows) &&
                       std::ranges::none_of(rows, [](const SlotCopy& row) { return row.conv_shift != 0; });
  const auto launch = aligned ? copy_aligned_with(table.code) : copy_with(table.code);
  launch(label, stream, staging_->plans, table, rows, first_source_rows);
}

void Launcher::copy_rows_on_device(const Stream& stream, const CopyTableView& table, const SlotCopy* rows,
                                   std::uint32_t count, const SlotLimits& limits) {
  if (table.tile_count == 0) return;
  const std::uint32_t rows_max = launch_items_max / table.tile_count;
  for (std::uint32_t first = 0; first < count; first += rows_max)
    copy_on_device_with(table.code)(labels::copy_slots_on_device, stream, table, rows + first,
                                    std::min(count - first, rows_max), limits, staging_->queues.next(stream));
}

void Launcher::clear_rows(const Stream& stream, const CopyTableView& table, std::span<const SlotCopy> rows) {
  if (rows.empty() || table.tile_count == 0) return;
  launch_clear(labels::clear_slots, stream, staging_->plans, table, rows);
}

void Launcher::prepare(const Stream& stream, const CopyTableView& table) {
  // One tile of rows without slots in each way that rows travel by value, and no rows on the device. No graph has
  // staged rows.
  CopyTableView one_tile = table;
  one_tile.tile_count = 1;
  const std::vector<SlotCopy> rows(many_rows);
  for (const std::uint32_t count : {few_rows, many_rows}) {
    const std::span<const SlotCopy> some = std::span(rows).first(count);
    if (table.aligned) copy_aligned_with(table.code)(labels::prepare, stream, staging_->plans, one_tile, some, count);
    copy_with(table.code)(labels::prepare, stream, staging_->plans, one_tile, some, count);
    launch_clear(labels::prepare, stream, staging_->plans, one_tile, some);
  }
  copy_on_device_with(table.code)(labels::prepare, stream, one_tile, nullptr, 0, {}, nullptr);
}

}  // namespace stateport::kernels
