// SPDX-License-Identifier: Apache-2.0
// GPU launches of copies. A team of a host plan finds its row and its tile by arithmetic.
#include "../launch.hpp"

#include <stateport/backends/internal/execution_space.hpp>
#include <stateport/kernels/slot_copier.hpp>

#include "aligned_copy.hpp"
#include "copy_tile.hpp"
#include "host_plan.hpp"
#include "plan_staging.hpp"
#include "team_sums.hpp"
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

/// The same of copies that are summed.
template <class Rows>
struct SumAligned {
  HostPlan<Rows> plan;
  CheckSums sums;

  KOKKOS_FUNCTION void operator()(const Team& team) const {
    plan.template with_tile_of<1>(team, [&](const SlotCopy& row, const Tile& tile, const TensorRoute&, std::uint32_t) {
      copy_and_sum_aligned_tile(team, tile, row, sums);
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

template <bool converts>
void launch_aligned(const char* label, const Stream& stream, PlanStaging& staging, const CopyTableView& table,
                    std::span<const SlotCopy> rows, std::uint32_t first_source_rows) {
  constexpr LaunchShape shape = converts ? converting_shape : aligned_shape;
  launch_plan<shape, aligned_parts<converts>, !converts>(
      label, stream, &staging, without_shifts(table), rows, first_source_rows,
      []<class Rows>(const HostPlan<Rows>& plan) { return CopyAligned<converts, Rows>{plan}; });
}

void launch_with_sums(const char* label, const Stream& stream, PlanStaging& staging, const CopyTableView& table,
                      std::span<const SlotCopy> rows, const CheckSums& sums) {
  launch_plan<aligned_shape, 1>(label, stream, &staging, without_shifts(table), rows,
                                static_cast<std::uint32_t>(rows.size()), [&]<class Rows>(const HostPlan<Rows>& plan) {
                                  return SumAligned<Rows>{plan, sums};
                                });
}

template <CopyCode code>
void launch_copy(const char* label, const Stream& stream, PlanStaging& staging, const CopyTableView& table,
                 std::span<const SlotCopy> rows, std::uint32_t first_source_rows) {
  constexpr LaunchShape shape = plan_shape<code>;
  launch_plan<shape, plan_parts<code>>(
      label, stream, &staging, table, rows, first_source_rows,
      []<class Rows>(const HostPlan<Rows>& plan) { return CopyRows<code, Rows>{plan}; });
}

void launch_clear(const char* label, const Stream& stream, PlanStaging& staging, const CopyTableView& table,
                  std::span<const SlotCopy> rows) {
  launch_plan<general_shape, 1>(label, stream, &staging, without_shifts(table), rows,
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

void Launcher::copy_rows_with_sums(const Stream& stream, const CopyTableView& table, std::span<const SlotCopy> rows,
                                   const CheckSums& sums) {
  launch_with_sums(labels::copy_slots_with_sums, stream, staging_->plans, table, rows, sums);
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
    if (table.aligned && table.code == CopyCode::words)
      launch_with_sums(labels::prepare, stream, staging_->plans, one_tile, some, {});
    copy_with(table.code)(labels::prepare, stream, staging_->plans, one_tile, some, count);
    launch_clear(labels::prepare, stream, staging_->plans, one_tile, some);
  }
  copy_on_device_with(table.code)(labels::prepare, stream, one_tile, nullptr, 0, {}, nullptr);
}

}  // namespace stateport::kernels
