// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "copy_tile.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>

/// How the teams of a launch find their work: which rows have any, and which tiles of them are a team's.
namespace stateport::kernels {

/// Rows that one pass of a launch that decides on the device looks at: this many a lane, read at once.
inline constexpr std::uint32_t rows_per_lane = 1;
inline constexpr std::uint32_t listed_rows_max = rows_per_lane * team_lanes;

/// Whether `condition` holds for any lane of the team. A barrier.
KOKKOS_INLINE_FUNCTION bool any_lane(const Team& team, bool condition) {
#if defined(__CUDA_ARCH__) || defined(__HIP_DEVICE_COMPILE__)
  static_cast<void>(team);
  return __syncthreads_or(condition ? 1 : 0) != 0;
#else
  std::int32_t any = condition ? 1 : 0;
  team.team_reduce(Kokkos::Max<std::int32_t>(any));
  return any != 0;
#endif
}

/// Work of up to `capacity` rows, in a team's shared memory.
template <class Work, std::uint32_t capacity = listed_rows_max>
struct WorkList {
  static constexpr std::uint32_t word_bits = 32;

  Work work[capacity];  ///< in the order of rows
  static constexpr std::uint32_t words = (capacity + word_bits - 1) / word_bits;
  std::uint32_t has_work[words];

  /// Rows below `row` that have work.
  [[nodiscard]] KOKKOS_FUNCTION std::uint32_t before(std::uint32_t row) const {
    std::uint32_t rows = 0;
    for (std::uint32_t word = 0; word < row / word_bits; ++word) rows += ones(has_work[word]);
    return row % word_bits == 0 ? rows : rows + ones(has_work[row / word_bits] << (word_bits - row % word_bits));
  }
  [[nodiscard]] KOKKOS_FUNCTION static std::uint32_t ones(std::uint32_t word) {
    return static_cast<std::uint32_t>(Kokkos::popcount(word));
  }
};

/// The list of a team, in the shared memory that list_bytes asks for.
template <class Work>
KOKKOS_INLINE_FUNCTION WorkList<Work>& work_list(const Team& team) {
  return *static_cast<WorkList<Work>*>(team.team_shmem().get_shmem_aligned(sizeof(WorkList<Work>), alignof(Work)));
}
/// Asks for the shared memory of a list.
template <class Work, class Policy>
void add_work_list(Policy& policy) {
  policy.set_scratch_size(0, Kokkos::PerTeam(sizeof(WorkList<Work>) + alignof(Work)));
}

/// Lists the work of rows [0, count), count <= listed_rows_max, in row order: decide(row, work) says whether a row has
/// any, and is called once for each. Returns how many are listed. A team without work passes one barrier alone; with
/// some, it must pass another before it makes its next list.
template <class Work, class Decide>
KOKKOS_INLINE_FUNCTION std::uint32_t list_work(const Team& team, std::uint32_t count, WorkList<Work>& list,
                                               const Decide& decide) {
  const auto lane = static_cast<std::uint32_t>(team.team_rank());
  static_assert(WorkList<Work>::words <= team_lanes);
  if (lane < list.words) list.has_work[lane] = 0;
  Work work[rows_per_lane];
  bool works[rows_per_lane];
  bool any = false;
  STATEPORT_UNROLL
  for (std::uint32_t k = 0; k < rows_per_lane; ++k) {
    const std::uint32_t row = k * team_lanes + lane;
    works[k] = row < count && decide(row, work[k]);
    any = any || works[k];
  }
  if (!any_lane(team, any)) return 0;
  STATEPORT_UNROLL
  for (std::uint32_t k = 0; k < rows_per_lane; ++k) {
    const std::uint32_t row = k * team_lanes + lane;
    if (works[k]) Kokkos::atomic_or(&list.has_work[row / list.word_bits], 1u << row % list.word_bits);
  }
  team.team_barrier();
  STATEPORT_UNROLL
  for (std::uint32_t k = 0; k < rows_per_lane; ++k)
    if (works[k]) list.work[list.before(k * team_lanes + lane)] = work[k];
  team.team_barrier();
  return list.before(listed_rows_max);
}

/// Calls body(item, first, end) for the share of team `rank` of `teams` in items [0, items): parts [first, end) of an
/// item. Teams take whole items by turns; those of the last round, which are fewer than the teams, all teams share in
/// equal numbers of parts, so that none waits for another longer than a part takes.
template <class Body>
KOKKOS_INLINE_FUNCTION void for_each_share(std::uint32_t rank, std::uint32_t teams, std::uint32_t items,
                                           const Body& body) {
  const std::uint32_t whole = items - items % teams;
  std::uint32_t next = rank;  // an item; in the last round, `whole` and the parts of it that lie before
  for (bool in_last_round = false;;) {
    std::uint32_t item = next;
    std::uint32_t first = 0;
    std::uint32_t end = tile_parts;
    if (item < whole) {
      next += teams;
    } else {
      const std::uint32_t parts = (items - whole) * tile_parts;
      const std::uint32_t part = in_last_round ? next - whole : parts * rank / teams;
      const std::uint32_t part_end = parts * (rank + 1) / teams;
      if (part == part_end) return;
      in_last_round = true;
      item = whole + part / tile_parts;
      first = part % tile_parts;
      if (end - first > part_end - part) end = first + part_end - part;
      next = whole + part + end - first;
    }
    body(item, first, end);
  }
}

/// Rows whose (row, tile) pairs 32 bits count, whatever the table; see CopyTable.
inline constexpr std::uint32_t rows_counted_max = 1024;
static_assert(listed_rows_max <= rows_counted_max);

/// Calls body(row, tile) for a team's share of rows [0, rows) × tiles, rows <= rows_counted_max.
template <class Body>
KOKKOS_INLINE_FUNCTION void for_each_tile(const Team& team, const CopyTableView& table, std::uint32_t rows,
                                          const Body& body) {
  for_each_share(static_cast<std::uint32_t>(team.league_rank()), static_cast<std::uint32_t>(team.league_size()),
                 rows * table.tile_count, [&](std::uint32_t item, std::uint32_t first, std::uint32_t end) {
                   const std::uint32_t row = item / table.tile_count;
                   body(row, parts_of(table.tiles[item - row * table.tile_count], first, end));
                 });
}

}  // namespace stateport::kernels
