// SPDX-License-Identifier: Apache-2.0
// GPU launch of a step: every team decides all rows for itself (a few bytes each), lists those with work and takes its
// share of their tiles. The team that finishes last remembers the decisions: by then every team has read its rows, so
// that deciding values are never overwritten under a reader, in one launch and without a grid-wide wait.
#include "../align_launch.hpp"

#include "copy_tile.hpp"

namespace stateport::kernels {

class AlignLauncher::Scratch {};

AlignLauncher::AlignLauncher(std::int32_t, std::int32_t) : scratch_(std::make_unique<Scratch>()) {}
AlignLauncher::AlignLauncher(AlignLauncher&&) noexcept = default;
AlignLauncher& AlignLauncher::operator=(AlignLauncher&&) noexcept = default;
AlignLauncher::~AlignLauncher() = default;

namespace {

/// One row a lane. The copies of a pass lie in shared memory, decided once instead of once a tile.
constexpr auto align_rows_per_pass = static_cast<std::int32_t>(team_lanes);

/// `elementwise`: as of copy_tile, for a table of any group.
template <bool elementwise>
struct AlignStepKernel {
  const AlignGroupView* groups;
  std::int32_t group_count;
  AlignBatchView batch;
  AlignCounters* counters;

  /// Lists the copies of rows [begin, begin + align_rows_per_pass), in row order; returns how many there are.
  KOKKOS_FUNCTION std::uint32_t list_copies(const Team& team, const AlignGroupView& group, std::int32_t begin,
                                            SlotCopy* list) const {
    const std::int32_t count = batch.rows - begin < align_rows_per_pass ? batch.rows - begin : align_rows_per_pass;
    std::uint32_t listed = 0;
    Kokkos::parallel_scan(
        Kokkos::TeamThreadRange(team, count),
        [&](std::int32_t i, std::uint32_t& position, bool final) {
          const AlignRow row = decide_align_row(group, batch, begin + i);
          if (!row.moves()) return;
          if (final) list[position] = row.copy;
          ++position;
        },
        listed);
    team.team_barrier();
    return listed;
  }

  /// `item`: this team's next (row, tile) pair, counted from the first of the group; afterwards from the end of it, so
  /// that groups share the league evenly.
  KOKKOS_FUNCTION void copy_group(const Team& team, const AlignGroupView& group, SlotCopy* list,
                                  std::uint32_t& item) const {
    for (std::int32_t begin = 0; begin < batch.rows; begin += align_rows_per_pass) {
      const std::uint32_t items = list_copies(team, group, begin, list) * group.table.tile_count;
      for (; item < items; item += static_cast<std::uint32_t>(team.league_size())) {
        const std::uint32_t position = item / group.table.tile_count;
        const std::uint32_t tile = item - position * group.table.tile_count;
        copy_tile<elementwise>(team, group.table, 0, list[position], tile);
      }
      item -= items;
      team.team_barrier();  // the list is rewritten in the next pass
    }
  }

  /// True for the lanes of the team that finishes last. One lane fences for its team: what the others did lies before
  /// the barrier, and what they do next behind the hand-over of `finished`.
  KOKKOS_FUNCTION bool finishes_last(const Team& team) const {
    team.team_barrier();
    std::uint32_t finished = 0;
    Kokkos::single(
        Kokkos::PerTeam(team),
        [&](std::uint32_t& value) {
          Kokkos::memory_fence();
          value = Kokkos::atomic_fetch_add(&counters->finished_teams, 1u);
          Kokkos::memory_fence();
        },
        finished);
    return finished + 1 == static_cast<std::uint32_t>(team.league_size());
  }

  /// What the forward left in the windows of all rows. Rows may name one block, so that counts are first forgotten and
  /// then ordered.
  KOKKOS_FUNCTION void record_forward(const Team& team, const AlignGroupView& group) const {
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

  KOKKOS_FUNCTION void remember(const Team& team) const {
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

  KOKKOS_FUNCTION void operator()(const Team& team) const {
    auto* const list = static_cast<SlotCopy*>(team.team_shmem().get_shmem(team_lanes * sizeof(SlotCopy)));
    auto item = static_cast<std::uint32_t>(team.league_rank());
    for (const AlignGroupView* group = groups; group < groups + group_count; ++group)
      copy_group(team, *group, list, item);
    if (finishes_last(team)) remember(team);
  }
};

}  // namespace

void AlignLauncher::step(const char* label, const Stream& stream, std::span<const AlignGroupView> groups,
                         const AlignGroupView* device_groups, const AlignBatchView& batch, AlignCounters* counters) {
  const ExecutionSpace& space = execution_space(stream);
  std::uint64_t items = 0;
  bool elementwise = false;
  for (const AlignGroupView& group : groups) {
    items += static_cast<std::uint64_t>(batch.rows) * group.table.tile_count;
    elementwise = elementwise || group.table.elementwise;
  }
  Policy policy = policy_for(space, items);
  policy.set_scratch_size(0, Kokkos::PerTeam(team_lanes * sizeof(SlotCopy)));
  const auto count = static_cast<std::int32_t>(groups.size());
  if (elementwise)
    enqueue(label, policy, AlignStepKernel<true>{device_groups, count, batch, counters});
  else
    enqueue(label, policy, AlignStepKernel<false>{device_groups, count, batch, counters});
}

}  // namespace stateport::kernels
