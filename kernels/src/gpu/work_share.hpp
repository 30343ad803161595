// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "../byte_copy.hpp"
#include "../copy_table.hpp"
#include "launch_shape.hpp"
#include "team_work.hpp"

#include <Kokkos_Core.hpp>

#include <cstddef>
#include <cstdint>

/// How the teams of a launch that decides on the device find their work: which rows have any, and which tiles of them a
/// team takes.
namespace stateport::kernels {

/// Rows that one pass looks at, several a lane, read at once.
inline constexpr std::uint32_t listed_rows_max = on_host ? 4 : 512;

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

/// The rows with work among up to `capacity` ones, in a team's shared memory.
template <class Work, std::uint32_t capacity = listed_rows_max>
struct WorkList {
  static constexpr std::uint32_t word_bits = 32;

  Work work[capacity];             ///< of each row that has any
  std::uint16_t listed[capacity];  ///< rows with work, ascending
  static constexpr std::uint32_t words = (capacity + word_bits - 1) / word_bits;
  std::uint32_t has_work[words];
  TeamWork::Shared claims;

  [[nodiscard]] KOKKOS_FUNCTION const Work& operator[](std::uint32_t i) const { return work[listed[i]]; }

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

/// Shared memory for a list.
template <class Work>
inline constexpr std::size_t work_list_bytes = sizeof(WorkList<Work>) + alignof(WorkList<Work>);

/// The list of a team, in shared memory that its policy has asked for.
template <class Work>
KOKKOS_INLINE_FUNCTION WorkList<Work>& work_list(const Team& team) {
  return *static_cast<WorkList<Work>*>(
      team.team_shmem().get_shmem_aligned(sizeof(WorkList<Work>), alignof(WorkList<Work>)));
}

/// Lists the work of rows [0, count), count <= listed_rows_max, in row order: decide(row, work) says whether a row has
/// any, sets it then, and is called once for each. Returns how many are listed. A team without work passes one barrier
/// alone; with some, it must pass another before it makes its next list.
template <std::uint32_t lanes, class Work, class Decide>
KOKKOS_INLINE_FUNCTION std::uint32_t list_work(const Team& team, std::uint32_t count, WorkList<Work>& list,
                                               const Decide& decide) {
  const auto lane = static_cast<std::uint32_t>(team.team_rank());
  constexpr std::uint32_t rows_per_lane = listed_rows_max / lanes;
  static_assert(rows_per_lane * lanes == listed_rows_max && WorkList<Work>::words <= lanes);
  if (lane < list.words) list.has_work[lane] = 0;
  bool works[rows_per_lane];
  bool any = false;
  STATEPORT_UNROLL
  for (std::uint32_t k = 0; k < rows_per_lane; ++k) {
    const std::uint32_t row = k * lanes + lane;
    works[k] = row < count && decide(row, list.work[row]);
    any = any || works[k];
  }
  if (!any_lane(team, any)) return 0;
  STATEPORT_UNROLL
  for (std::uint32_t k = 0; k < rows_per_lane; ++k) {
    const std::uint32_t row = k * lanes + lane;
    if (works[k]) Kokkos::atomic_or(&list.has_work[row / list.word_bits], 1u << row % list.word_bits);
  }
  team.team_barrier();
  STATEPORT_UNROLL
  for (std::uint32_t k = 0; k < rows_per_lane; ++k)
    if (works[k]) {
      const std::uint32_t row = k * lanes + lane;
      list.listed[list.before(row)] = static_cast<std::uint16_t>(row);
    }
  team.team_barrier();
  return list.before(listed_rows_max);
}

/// Calls body(row, tile) for the team's part of rows [0, rows) × tiles of the only source, rows <= listed_rows_max.
template <class Body>
KOKKOS_INLINE_FUNCTION void take_tiles(TeamWork& work, const CopyTableView& table, std::uint32_t rows,
                                       const Body& body) {
  work.take(rows * table.tile_count, [&](std::uint32_t item) {
    const std::uint32_t row = item / table.tile_count;
    const Tile tile = table.tiles[item - row * table.tile_count];
    body(row, tile);
  });
}

}  // namespace stateport::kernels
