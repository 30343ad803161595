// SPDX-License-Identifier: Apache-2.0
// GPU launches. A persistent grid of teams strides over (row, tile) pairs; both are found by arithmetic, and every tile
// is the work of one team, so the launch is balanced to one tile whatever the mix of conv and recurrent tensors.
#include "../launch.hpp"

#include <stateport/backends/internal/execution_space.hpp>
#include <stateport/kernels/slot_copier.hpp>

#include "copy_tile.hpp"
#include "plan_staging.hpp"

#include <Kokkos_Core.hpp>

#include <algorithm>

namespace stateport::kernels {

const std::size_t tile_bytes_max = std::size_t{32} << 10;

class Launcher::Staging : public PlanStaging {};

Launcher::Launcher() : staging_(std::make_unique<Staging>()) {}
Launcher::Launcher(Launcher&&) noexcept = default;
Launcher& Launcher::operator=(Launcher&&) noexcept = default;
Launcher::~Launcher() = default;

namespace {

/// Rows from the host: all of them have work.
template <bool elementwise>
struct CopyRows {
  CopyTableView table;
  const SlotCopy* staged_rows;  ///< nullptr: the rows are in inline_rows
  std::uint32_t row_count;
  std::uint32_t first_source_rows;
  SlotCopy inline_rows[SlotCopier::inline_copies_max];

  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::uint64_t items = std::uint64_t{row_count} * table.tile_count;
    const auto step = static_cast<std::uint64_t>(team.league_size());
    for (auto item = static_cast<std::uint64_t>(team.league_rank()); item < items; item += step) {
      const auto row = static_cast<std::uint32_t>(item / table.tile_count);
      const auto tile = static_cast<std::uint32_t>(item - std::uint64_t{row} * table.tile_count);
      const SlotCopy copy = staged_rows != nullptr ? staged_rows[row] : inline_rows[row];
      copy_tile<elementwise>(team, table, row < first_source_rows ? 0 : 1, copy, tile);
    }
  }
};
static_assert(sizeof(CopyRows<true>) < 512, "larger functors travel through constant memory, which serialises streams");

/// Rows in device memory: every team first lists those with work, so that a step without any costs one pass over the
/// rows. All teams make the same list, in row order.
template <bool elementwise>
struct CopyRowsOnDevice {
  CopyTableView table;
  const SlotCopy* rows;
  std::uint32_t row_count;
  SlotLimits limits;

  KOKKOS_FUNCTION SlotCopy checked(SlotCopy row) const {
    if (row.dst_slot >= limits.dst_slots) row.dst_slot = -1;
    if (row.src_slot >= limits.src_slots || row.conv_shift < 0) row.src_slot = -1;
    if (row.recurrent_src_slot >= limits.src_slots) row.recurrent_src_slot = -1;
    return row;
  }

  KOKKOS_FUNCTION static bool has_work(const SlotCopy& row) {
    return row.dst_slot >= 0 && (row.src_slot >= 0 || row.recurrent_src_slot >= 0);
  }

  KOKKOS_FUNCTION std::uint32_t list_rows(const Team& team, std::uint32_t begin, std::uint16_t* list) const {
    const std::uint32_t count = row_count - begin < rows_per_pass ? row_count - begin : rows_per_pass;
    std::uint32_t listed = 0;
    Kokkos::parallel_scan(
        Kokkos::TeamThreadRange(team, count),
        [&](std::uint32_t i, std::uint32_t& position, bool final) {
          if (!has_work(checked(rows[begin + i]))) return;
          if (final) list[position] = static_cast<std::uint16_t>(i);
          ++position;
        },
        listed);
    team.team_barrier();
    return listed;
  }

  KOKKOS_FUNCTION void operator()(const Team& team) const {
    auto* const list = static_cast<std::uint16_t*>(team.team_shmem().get_shmem(rows_per_pass * sizeof(std::uint16_t)));
    const auto step = static_cast<std::uint32_t>(team.league_size());
    for (std::uint32_t begin = 0; begin < row_count; begin += rows_per_pass) {
      const std::uint32_t items = list_rows(team, begin, list) * table.tile_count;
      for (auto item = static_cast<std::uint32_t>(team.league_rank()); item < items; item += step) {
        const std::uint32_t position = item / table.tile_count;
        const std::uint32_t tile = item - position * table.tile_count;
        copy_tile<elementwise>(team, table, 0, checked(rows[begin + list[position]]), tile);
      }
      team.team_barrier();  // the list is rewritten in the next pass
    }
  }
};
static_assert(sizeof(CopyRowsOnDevice<true>) < 512);

struct ClearRows {
  CopyTableView table;
  const SlotCopy* staged_rows;
  std::uint32_t row_count;
  SlotCopy inline_rows[SlotCopier::inline_copies_max];

  KOKKOS_FUNCTION void operator()(const Team& team) const {
    const std::uint64_t items = std::uint64_t{row_count} * table.tile_count;
    const auto step = static_cast<std::uint64_t>(team.league_size());
    for (auto item = static_cast<std::uint64_t>(team.league_rank()); item < items; item += step) {
      const auto row = static_cast<std::uint32_t>(item / table.tile_count);
      const Tile tile = table.tiles[item - std::uint64_t{row} * table.tile_count];
      const TensorRoute& route = table.routes[tile.tensor];
      const std::int32_t slot = (staged_rows != nullptr ? staged_rows[row] : inline_rows[row]).dst_slot;
      const auto element = static_cast<std::uint64_t>(route.element_bytes);
      const auto lane = static_cast<std::uint32_t>(team.team_rank());
      if (route.dst_dense)
        zero_bytes_by_lanes(lane, team_lanes, route.dst_of(slot) + tile.first_element * element,
                            tile.elements * static_cast<std::uint32_t>(element));
      else
        zero_elements(lane, team_lanes, route, route.dst_of(slot), tile.first_element, tile.elements);
    }
  }
};
static_assert(sizeof(ClearRows) < 512);

template <class Functor>
void fill_rows(Functor& functor, std::span<const SlotCopy> rows) {
  std::copy(rows.begin(), rows.end(), functor.inline_rows);
}

bool fits_inline(std::span<const SlotCopy> rows) {
  return rows.size() <= static_cast<std::size_t>(SlotCopier::inline_copies_max);
}

/// Launches `functor` over rows × tiles, its rows inline or staged.
template <class Functor>
void launch(const char* label, const Stream& stream, PlanStaging& staging, Functor functor,
            std::span<const SlotCopy> rows) {
  const ExecutionSpace& space = execution_space(stream);
  const Policy policy = policy_for(space, rows.size() * functor.table.tile_count);
  if (fits_inline(rows)) {
    fill_rows(functor, rows);
    Kokkos::parallel_for(label, policy, functor);
    return;
  }
  functor.staged_rows = staging.stage(stream, rows);
  Kokkos::parallel_for(label, policy, functor);
  staging.done(stream);
}

template <bool elementwise>
void launch_copy(const char* label, const Stream& stream, PlanStaging& staging, const CopyTableView& table,
                 std::span<const SlotCopy> rows, std::uint32_t first_source_rows) {
  CopyRows<elementwise> functor{};
  functor.table = table;
  functor.row_count = static_cast<std::uint32_t>(rows.size());
  functor.first_source_rows = first_source_rows;
  launch(label, stream, staging, functor, rows);
}

}  // namespace

void Launcher::copy_rows(const char* label, const Stream& stream, const CopyTableView& table,
                         std::span<const SlotCopy> rows, std::uint32_t first_source_rows) {
  if (rows.empty() || table.tile_count == 0) return;
  const auto copy = table.elementwise ? launch_copy<true> : launch_copy<false>;
  copy(label, stream, *staging_, table, rows, first_source_rows);
}

void Launcher::copy_rows_on_device(const Stream& stream, const CopyTableView& table, const SlotCopy* rows,
                                   std::uint32_t count, const SlotLimits& limits) {
  if (count == 0 || table.tile_count == 0) return;
  const ExecutionSpace& space = execution_space(stream);
  Policy policy = policy_for(space, std::uint64_t{count} * table.tile_count);
  policy.set_scratch_size(0, Kokkos::PerTeam(rows_per_pass * sizeof(std::uint16_t)));
  const char* const label = "stateport::copy_slots_on_device";
  if (table.elementwise)
    Kokkos::parallel_for(label, policy, CopyRowsOnDevice<true>{table, rows, count, limits});
  else
    Kokkos::parallel_for(label, policy, CopyRowsOnDevice<false>{table, rows, count, limits});
}

void Launcher::clear_rows(const Stream& stream, const CopyTableView& table, std::span<const SlotCopy> rows) {
  if (rows.empty() || table.tile_count == 0) return;
  ClearRows functor{};
  functor.table = table;
  functor.row_count = static_cast<std::uint32_t>(rows.size());
  launch("stateport::clear_slots", stream, *staging_, functor, rows);
}

}  // namespace stateport::kernels
