// SPDX-License-Identifier: Apache-2.0
// GPU launch of a step: every team decides all rows for itself (a few bytes each), lists those with work and takes its
// part of their tiles. One team remembers the decisions, when all teams have read the values that decide: these are
// never overwritten under a reader, in one launch and without a wait for the whole grid.
#include "../align_launch.hpp"

#include <stateport/core/model/error.hpp>

#include "copy_tile.hpp"
#include "team_work.hpp"
#include "work_share.hpp"

namespace stateport::kernels {

class AlignLauncher::Scratch {};

AlignLauncher::AlignLauncher(std::int32_t, std::int32_t) : scratch_(std::make_unique<Scratch>()) {}
AlignLauncher::AlignLauncher(AlignLauncher&&) noexcept = default;
AlignLauncher& AlignLauncher::operator=(AlignLauncher&&) noexcept = default;
AlignLauncher::~AlignLauncher() = default;

namespace {

/// `code`: of the tables of all groups. Live states are not in blocks.
template <CopyCode code>
struct AlignStepKernel {
  const AlignGroupView* groups;
  std::int32_t group_count;
  AlignBatchView batch;
  AlignCounters* counters;
  bool has_ds;  ///< in a group

  static constexpr std::uint32_t lanes = deciding_shape<code>.lanes;

  /// Lists the rows [begin, begin + count) of a group that copy. `changes`: whether any of them changes a value that
  /// decides.
  KOKKOS_FUNCTION std::uint32_t list_rows(const Team& team, const AlignGroupView& group, WorkList<SlotCopy>& list,
                                          std::uint32_t begin, std::uint32_t count, bool& changes) const {
    bool lane_changes = false;
    const std::uint32_t listed = list_work<lanes>(team, count, list, [&](std::uint32_t i, SlotCopy& copy) {
      const AlignRow row = decide_align_row(group, batch, static_cast<std::int32_t>(begin + i));
      lane_changes = lane_changes || row.changes;
      copy = row.copy;
      return row.moves();
    });
    changes = any_lane(team, lane_changes);
    return listed;
  }

  /// Says that this team has read everything that decides. True for the one lane that says so last.
  KOKKOS_FUNCTION bool arrives_last(const Team& team) const {
    if (team.team_rank() != 0) return false;
    Kokkos::memory_fence();  // the last barrier lies behind the reads of all lanes
    return Kokkos::atomic_fetch_add(&counters->queue.arrived, 1u) + 1 == static_cast<std::uint32_t>(team.league_size());
  }

  /// Counts of the states that the forward left in the windows of all rows. Rows may name one block, so that counts are
  /// first forgotten and then ordered.
  KOKKOS_FORCEINLINE_FUNCTION void record_forward(const Team& team, const AlignGroupView& group) const {
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, batch.rows), [&](std::int32_t row) {
      for_each_forward_state(group, batch, row, decide_align_row(group, batch, row),
                             [](HeldTokens& held, std::uint32_t, std::int64_t) { held = 0; });
    });
    team.team_barrier();
    Kokkos::parallel_for(Kokkos::TeamThreadRange(team, batch.rows), [&](std::int32_t row) {
      for_each_forward_state(group, batch, row, decide_align_row(group, batch, row),
                             [](HeldTokens& held, std::uint32_t order, std::int64_t tokens) {
                               Kokkos::atomic_max(&held, pack_held(order, tokens));
                             });
    });
    team.team_barrier();
  }

  KOKKOS_FORCEINLINE_FUNCTION void remember(const Team& team) const {
    for (const AlignGroupView* group = groups; group < groups + group_count; ++group) {
      if (batch.phase != AlignPhase::pre) record_forward(team, *group);
      Kokkos::parallel_for(Kokkos::TeamThreadRange(team, batch.rows), [&](std::int32_t row) {
        const AlignRow decided = decide_align_row(*group, batch, row);
        copy_held_tokens(*group, decided.copy);
        remember_align_row(*group, batch, decided);
        if (decided.skipped_parts > 0)
          Kokkos::atomic_add(&counters->skipped_parts, std::int64_t{decided.skipped_parts});
      });
    }
  }

  KOKKOS_FORCEINLINE_FUNCTION void operator()(const Team& team) const {
    WorkList<SlotCopy>& list = work_list<SlotCopy>(team);
    std::byte* const stage = stage_of(team, has_ds);
    TeamWork work(team, &counters->queue, list.claims);
    const auto rows = static_cast<std::uint32_t>(batch.rows);
    // All teams see the same rows copy, and the same change. Where nothing changes, what a team remembers is what
    // others read: it need not wait for them.
    bool copies = false;
    bool changes = false;
    bool last = false;
    for (const AlignGroupView* group = groups; group < groups + group_count; ++group)
      for (std::uint32_t begin = 0; begin < rows; begin += listed_rows_max) {
        const std::uint32_t count = rows - begin < listed_rows_max ? rows - begin : listed_rows_max;
        bool listed_change = false;
        const std::uint32_t listed = list_rows(team, *group, list, begin, count, listed_change);
        copies = copies || listed > 0;
        changes = changes || listed_change;
        const bool all_read = group + 1 == groups + group_count && begin + count == rows;
        if (all_read && (copies || changes)) last = arrives_last(team);
        if (listed == 0) continue;
        take_tiles(work, group->table, listed, [&](std::uint32_t i, const Tile& tile) {
          copy_tile<code, lanes>(team, stage, group->table.routes[tile.tensor], tile, list[i]);
        });
      }
    if (copies || changes) {
      work.end();
      if (!any_lane(team, last)) return;
      Kokkos::memory_fence();
    } else if (team.league_rank() != 0) {
      return;
    }
    remember(team);
  }
};

template <CopyCode code>
void launch_step(const char* label, const Stream& stream, const AlignStepKernel<code>& kernel, std::uint64_t items) {
  constexpr LaunchShape shape = deciding_shape<code>;
  auto policy = resident_teams<shape>(execution_space(stream), items);
  add_team_memory(policy, kernel.has_ds, work_list_bytes<SlotCopy>);
  enqueue(label, policy, kernel);
}

}  // namespace

void AlignLauncher::step(const char* label, const Stream& stream, std::span<const AlignGroupView> groups,
                         const AlignGroupView* device_groups, const AlignBatchView& batch, AlignCounters* counters) {
  std::uint64_t items = 0;
  bool words = true;
  bool has_ds = false;
  for (const AlignGroupView& group : groups) {
    items += static_cast<std::uint64_t>(batch.rows) * group.table.tile_count;
    words = words && group.table.code == CopyCode::words;
    has_ds = has_ds || group.table.has_ds;
  }
  require(items <= launch_items_max, "rows", batch.rows, "have more tiles than one launch counts");
  const auto count = static_cast<std::int32_t>(groups.size());
  if (words)
    launch_step(label, stream, AlignStepKernel<CopyCode::words>{device_groups, count, batch, counters, has_ds}, items);
  else
    launch_step(label, stream, AlignStepKernel<CopyCode::elements>{device_groups, count, batch, counters, has_ds},
                items);
}

}  // namespace stateport::kernels
