// SPDX-License-Identifier: Apache-2.0
// GPU launches. A persistent grid of teams strides over (row, tile) pairs; both are found by arithmetic. The tiles of
// the last round are cut up, so the launch is balanced to a part of a tile whatever the mix of conv and recurrent
// tensors.
#include "../launch.hpp"

#include <stateport/backends/internal/execution_space.hpp>
#include <stateport/kernels/slot_copier.hpp>

#include "copy_tile.hpp"
#include "plan_staging.hpp"
#include "work_share.hpp"

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <vector>

namespace stateport::kernels {

const std::size_t tile_bytes_max = std::size_t{32} << 10;

class Launcher::Staging : public PlanStaging {};

Launcher::Launcher() : staging_(std::make_unique<Staging>()) {}
Launcher::Launcher(Launcher&&) noexcept = default;
Launcher& Launcher::operator=(Launcher&&) noexcept = default;
Launcher::~Launcher() = default;

namespace {

/// Host plans of up to this many rows travel in the smaller of two kernels by value, whose arguments are few.
constexpr std::uint32_t few_rows = 16;
constexpr auto many_rows = static_cast<std::uint32_t>(SlotCopier::inline_copies_max);

/// Rows that are left of row_count from `begin` on, but not more than for_each_tile counts.
KOKKOS_INLINE_FUNCTION std::uint32_t counted(std::uint32_t begin, std::uint32_t row_count) {
  return row_count - begin < rows_counted_max ? row_count - begin : rows_counted_max;
}

/// The rows of a plan, as a kernel's argument.
template <std::uint32_t capacity>
struct RowsByValue {
  SlotCopy rows[capacity];
  KOKKOS_FUNCTION SlotCopy operator[](std::uint32_t row) const { return rows[row]; }
};
/// The rows of a plan that was staged, in device memory.
struct StagedRows {
  const SlotCopy* rows;
  KOKKOS_FUNCTION SlotCopy operator[](std::uint32_t row) const { return rows[row]; }
};

/// Rows from the host: all of them have work.
template <CopyCode code, class Rows>
struct CopyRows {
  CopyTableView table;
  std::uint32_t row_count;
  std::uint32_t first_source_rows;
  Rows rows;

  KOKKOS_FUNCTION void operator()(const Team& team) const {
    for (std::uint32_t begin = 0; begin < row_count; begin += rows_counted_max)
      for_each_tile(team, table, counted(begin, row_count), [&](std::uint32_t i, const Tile& tile) {
        copy_tile<code>(team, table, begin + i < first_source_rows ? 0 : 1, rows[begin + i], tile);
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

  /// The row without the parts that must not be copied; whether any is left.
  KOKKOS_FUNCTION bool checked(SlotCopy& row) const {
    if (row.src_slot >= limits.src_slots || row.conv_shift < 0) row.src_slot = -1;
    if (row.recurrent_src_slot >= limits.src_slots) row.recurrent_src_slot = -1;
    return row.dst_slot >= 0 && row.dst_slot < limits.dst_slots && (row.src_slot >= 0 || row.recurrent_src_slot >= 0);
  }

  KOKKOS_FUNCTION void operator()(const Team& team) const {
    WorkList<SlotCopy>& list = work_list<SlotCopy>(team);
    for (std::uint32_t begin = 0; begin < row_count; begin += listed_rows_max) {
      const std::uint32_t count = row_count - begin < listed_rows_max ? row_count - begin : listed_rows_max;
      const std::uint32_t listed = list_work(team, count, list, [&](std::uint32_t i, SlotCopy& row) {
        row = rows[begin + i];
        return checked(row);
      });
      if (listed == 0) continue;
      for_each_tile(team, table, listed,
                    [&](std::uint32_t i, const Tile& tile) { copy_tile<code>(team, table, 0, list.work[i], tile); });
      team.team_barrier();
    }
  }
};

template <class Rows>
struct ClearRows {
  CopyTableView table;
  std::uint32_t row_count;
  Rows rows;

  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const auto lane = static_cast<std::uint32_t>(team.team_rank());
    for (std::uint32_t begin = 0; begin < row_count; begin += rows_counted_max)
      for_each_tile(team, table, counted(begin, row_count), [&](std::uint32_t i, const Tile& tile) {
        const TensorRoute& route = table.routes[tile.tensor];
        std::byte* const dst = in_global_memory(route.dst_of(rows[begin + i].dst_slot));
        const auto element = static_cast<std::uint64_t>(route.element_bytes);
        if (route.mode == TensorRoute::Mode::blocks)
          zero_blocks(lane, team_lanes, route, dst, static_cast<std::uint32_t>(tile.first_element), tile.elements);
        else if (route.dst_dense)
          zero_bytes_by_lanes(lane, team_lanes, dst + tile.first_element * element,
                              tile.elements * static_cast<std::uint32_t>(element));
        else
          zero_elements(lane, team_lanes, route, dst, tile.first_element, tile.elements);
      });
  }
};

template <std::uint32_t capacity>
RowsByValue<capacity> by_value(std::span<const SlotCopy> rows) {
  RowsByValue<capacity> copy{};
  std::ranges::copy(rows, copy.rows);
  return copy;
}

/// One launch over rows × tiles. `kernel_of(rows)` makes the functor for RowsByValue or StagedRows.
template <unsigned bound_min, class KernelOf>
void launch(const char* label, const Stream& stream, PlanStaging& staging, std::uint32_t tile_count,
            std::span<const SlotCopy> rows, KernelOf&& kernel_of) {
  const auto policy = policy_for<bound_min>(execution_space(stream), rows.size() * tile_count);
  if (rows.size() <= few_rows) return enqueue(label, policy, kernel_of(by_value<few_rows>(rows)));
  if (rows.size() <= many_rows) return enqueue(label, policy, kernel_of(by_value<many_rows>(rows)));
  const StagedRows staged{staging.stage(stream, rows)};
  enqueue(label, policy, kernel_of(staged));
  staging.done(stream);
}

template <CopyCode code>
void launch_copy(const char* label, const Stream& stream, PlanStaging& staging, const CopyTableView& table,
                 std::span<const SlotCopy> rows, std::uint32_t first_source_rows) {
  const auto count = static_cast<std::uint32_t>(rows.size());
  launch<copy_launch_bound_min<code>>(label, stream, staging, table.tile_count, rows,
                                      [&]<class Rows>(const Rows& from) {
                                        return CopyRows<code, Rows>{table, count, first_source_rows, from};
                                      });
}

void launch_clear(const char* label, const Stream& stream, PlanStaging& staging, const CopyTableView& table,
                  std::span<const SlotCopy> rows) {
  const auto count = static_cast<std::uint32_t>(rows.size());
  launch<launch_bound_min>(label, stream, staging, table.tile_count, rows, [&]<class Rows>(const Rows& from) {
    return ClearRows<Rows>{table, count, from};
  });
}

template <CopyCode code>
void launch_on_device(const char* label, const Stream& stream, const CopyTableView& table, const SlotCopy* rows,
                      std::uint32_t count, const SlotLimits& limits) {
  auto policy =
      policy_for<copy_launch_bound_min<code>>(execution_space(stream), std::uint64_t{count} * table.tile_count);
  add_work_list<SlotCopy>(policy);
  enqueue(label, policy, CopyRowsOnDevice<code>{table, rows, count, limits});
}

auto copy_with(CopyCode code) {
  if (code == CopyCode::bytes) return launch_copy<CopyCode::bytes>;
  return code == CopyCode::elements ? launch_copy<CopyCode::elements> : launch_copy<CopyCode::blocks>;
}
auto copy_on_device_with(CopyCode code) {
  if (code == CopyCode::bytes) return launch_on_device<CopyCode::bytes>;
  return code == CopyCode::elements ? launch_on_device<CopyCode::elements> : launch_on_device<CopyCode::blocks>;
}

}  // namespace

void Launcher::copy_rows(const char* label, const Stream& stream, const CopyTableView& table,
                         std::span<const SlotCopy> rows, std::uint32_t first_source_rows) {
  if (rows.empty() || table.tile_count == 0) return;
  copy_with(table.code)(label, stream, *staging_, table, rows, first_source_rows);
}

void Launcher::copy_rows_on_device(const Stream& stream, const CopyTableView& table, const SlotCopy* rows,
                                   std::uint32_t count, const SlotLimits& limits) {
  if (count == 0 || table.tile_count == 0) return;
  copy_on_device_with(table.code)(labels::copy_slots_on_device, stream, table, rows, count, limits);
}

void Launcher::clear_rows(const Stream& stream, const CopyTableView& table, std::span<const SlotCopy> rows) {
  if (rows.empty() || table.tile_count == 0) return;
  launch_clear(labels::clear_slots, stream, *staging_, table, rows);
}

void Launcher::prepare(const Stream& stream, CopyCode code) {
  // Rows of no tiles in each way that they travel by value, and no rows on the device. No graph has staged rows.
  const CopyTableView nothing{.code = code};
  const std::vector<SlotCopy> rows(many_rows);
  for (const std::uint32_t count : {few_rows, many_rows}) {
    copy_with(code)(labels::prepare, stream, *staging_, nothing, std::span(rows).first(count), 0);
    launch_clear(labels::prepare, stream, *staging_, nothing, std::span(rows).first(count));
  }
  copy_on_device_with(code)(labels::prepare, stream, nothing, nullptr, 0, {});
}

}  // namespace stateport::kernels
