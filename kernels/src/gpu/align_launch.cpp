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

struct AlignStepKernel {
  const AlignGroupView* groups;
  std::int32_t group_count;
  AlignBatchView batch;
  AlignCounters* counters;

  KOKKOS_FUNCTION std::uint32_t list_rows(const Team& team, const AlignGroupView& group, std::int32_t begin,
                                          std::uint16_t* list) const {
    constexpr auto count_max = static_cast<std::int32_t>(rows_per_pass);
    const std::int32_t count = batch.rows - begin < count_max ? batch.rows - begin : count_max;
    std::uint32_t listed = 0;
    Kokkos::parallel_scan(
        Kokkos::TeamThreadRange(team, count),
        [&](std::int32_t i, std::uint32_t& position, bool final) {
          if (!decide_align_row(group, batch, begin + i).moves()) return;
          if (final) list[position] = static_cast<std::uint16_t>(i);
          ++position;
        },
        listed);
    team.team_barrier();
    return listed;
  }

  /// `first`: the tile that the league's first team takes; moves on, so that groups share the league evenly.
  KOKKOS_FUNCTION void copy_group(const Team& team, const AlignGroupView& group, std::uint16_t* list,
                                  std::uint64_t& first) const {
    const auto league = static_cast<std::uint64_t>(team.league_size());
    const auto rank = static_cast<std::uint64_t>(team.league_rank());
    for (std::int32_t begin = 0; begin < batch.rows; begin += static_cast<std::int32_t>(rows_per_pass)) {
      const std::uint64_t items = std::uint64_t{list_rows(team, group, begin, list)} * group.table.tile_count;
      for (std::uint64_t item = (rank + league - first % league) % league; item < items; item += league) {
        const auto position = static_cast<std::uint32_t>(item / group.table.tile_count);
        const auto tile = static_cast<std::uint32_t>(item - std::uint64_t{position} * group.table.tile_count);
        const SlotCopy copy = decide_align_row(group, batch, begin + list[position]).copy;
        copy_tile(team, group.table, 0, copy, tile);
      }
      first += items;
      team.team_barrier();  // the list is rewritten in the next pass
    }
  }

  /// True for the lanes of the team that finishes last.
  KOKKOS_FUNCTION bool finishes_last(const Team& team) const {
    Kokkos::memory_fence();
    team.team_barrier();
    std::uint32_t finished = 0;
    Kokkos::single(
        Kokkos::PerTeam(team),
        [&](std::uint32_t& value) { value = Kokkos::atomic_fetch_add(&counters->finished_teams, 1u); }, finished);
    Kokkos::memory_fence();
    return finished + 1 == static_cast<std::uint32_t>(team.league_size());
  }

  KOKKOS_FUNCTION void remember(const Team& team) const {
    for (std::int32_t g = 0; g < group_count; ++g)
      Kokkos::parallel_for(Kokkos::TeamThreadRange(team, batch.rows), [&](std::int32_t row) {
        const AlignRow decided = decide_align_row(groups[g], batch, row);
        remember_align_row(groups[g], batch, decided);
        if (decided.skipped_parts > 0)
          Kokkos::atomic_add(&counters->skipped_parts, std::int64_t{decided.skipped_parts});
      });
    Kokkos::single(Kokkos::PerTeam(team), [&] { counters->finished_teams = 0; });
  }

  KOKKOS_FUNCTION void operator()(const Team& team) const {
    auto* const list = static_cast<std::uint16_t*>(team.team_shmem().get_shmem(rows_per_pass * sizeof(std::uint16_t)));
    std::uint64_t first = 0;
    for (std::int32_t g = 0; g < group_count; ++g) copy_group(team, groups[g], list, first);
    if (finishes_last(team)) remember(team);
  }
};
static_assert(sizeof(AlignStepKernel) <= 512);

}  // namespace

void AlignLauncher::step(const char* label, const Stream& stream, std::span<const AlignGroupView> groups,
                         const AlignGroupView* device_groups, const AlignBatchView& batch, AlignCounters* counters) {
  const ExecutionSpace& space = execution_space(stream);
  std::uint64_t items = 0;
  for (const AlignGroupView& group : groups) items += static_cast<std::uint64_t>(batch.rows) * group.table.tile_count;
  Policy policy = policy_for(space, items);
  policy.set_scratch_size(0, Kokkos::PerTeam(rows_per_pass * sizeof(std::uint16_t)));
  Kokkos::parallel_for(label, policy,
                       AlignStepKernel{device_groups, static_cast<std::int32_t>(groups.size()), batch, counters});
}

}  // namespace stateport::kernels
