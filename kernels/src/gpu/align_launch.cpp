// SPDX-License-Identifier: Apache-2.0
// GPU launch of a step: every team decides all rows for itself (a few bytes each), lists those with work and takes its
// share of their tiles. The team that finishes last remembers the decisions: by then every team has read its rows, so
// that deciding values are never overwritten under a reader, in one launch and without a grid-wide wait.
#include "../align_launch.hpp"

#include "copy_tile.hpp"
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

  /// This team's share of the copies of a group.
  KOKKOS_FUNCTION void copy_group(const Team& team, const AlignGroupView& group, WorkList<SlotCopy>& list) const {
    const auto rows = static_cast<std::uint32_t>(batch.rows);
    for (std::uint32_t begin = 0; begin < rows; begin += listed_rows_max) {
      const std::uint32_t count = rows - begin < listed_rows_max ? rows - begin : listed_rows_max;
      const std::uint32_t listed = list_work(team, count, list, [&](std::uint32_t i, SlotCopy& copy) {
        const AlignRow row = decide_align_row(group, batch, static_cast<std::int32_t>(begin + i));
        copy = row.copy;
        return row.moves();
      });
      if (listed == 0) continue;
      for_each_tile(team, group.table, listed, [&](std::uint32_t i, const Tile& tile) {
        copy_tile<code>(team, group.table, 0, list.work[i], tile);
      });
      team.team_barrier();
    }
  }

  /// True for the lanes of the team that finishes last. One lane fences for its team: the work of the others lies
  /// before the barrier, and their next work behind the hand-over of `finished`.
  KOKKOS_FUNCTION bool finishes_last(const Team& team) const {
    team.team_barrier();
    bool last = false;
    if (team.team_rank() == 0) {
      Kokkos::memory_fence();
      last =
          Kokkos::atomic_fetch_add(&counters->finished_teams, 1u) + 1 == static_cast<std::uint32_t>(team.league_size());
      Kokkos::memory_fence();
    }
    return any_lane(team, last);
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
    Kokkos::single(Kokkos::PerTeam(team), [&] { counters->finished_teams = 0; });
  }

  KOKKOS_FORCEINLINE_FUNCTION void operator()(const Team& team) const {
    WorkList<SlotCopy>& list = work_list<SlotCopy>(team);
    for (const AlignGroupView* group = groups; group < groups + group_count; ++group) copy_group(team, *group, list);
    if (finishes_last(team)) remember(team);
  }
};

}  // namespace

void AlignLauncher::step(const char* label, const Stream& stream, std::span<const AlignGroupView> groups,
                         const AlignGroupView* device_groups, const AlignBatchView& batch, AlignCounters* counters) {
  const ExecutionSpace& space = execution_space(stream);
  std::uint64_t items = 0;
  bool bytes = true;
  for (const AlignGroupView& group : groups) {
    items += static_cast<std::uint64_t>(batch.rows) * group.table.tile_count;
    bytes = bytes && group.table.code == CopyCode::bytes;
  }
  auto policy = policy_for<deciding_launch_bound_min>(space, items);
  add_work_list<SlotCopy>(policy);
  const auto count = static_cast<std::int32_t>(groups.size());
  if (bytes)
    enqueue(label, policy, AlignStepKernel<CopyCode::bytes>{device_groups, count, batch, counters});
  else
    enqueue(label, policy, AlignStepKernel<CopyCode::elements>{device_groups, count, batch, counters});
}

}  // namespace stateport::kernels
