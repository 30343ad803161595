// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/internal/device_calls.hpp>
#include <stateport/backends/internal/execution_space.hpp>

#include "../copy_table.hpp"
#include "../enqueue.hpp"

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <cstdint>
#include <type_traits>

/// How many threads and registers the launches of a device have.
///
/// Launches of plans from the host have one team for each tile of each row. A team loads all of its tile before it
/// stores any of it, and ends: the device starts teams in order, so that reads and writes stay in a small moving window
/// of memory. On an H100 and an H200, teams of 1,024 threads that load two words of 16 bytes each came nearest to
/// memcpy. Launches that decide on the device find no work in most steps. They have as many teams as the device runs at
/// once, which claim tiles in order; see team_work.hpp.
namespace stateport::kernels {

/// Tests run these launches on a host, whose teams have as few threads as can hand work to each other.
inline constexpr bool on_host = std::is_same_v<ExecutionSpace, Kokkos::DefaultHostExecutionSpace>;

struct LaunchShape {
  std::uint32_t lanes;  ///< threads of a team
  /// Bounds the registers of a thread, so that loads of several teams are in flight. CUDA: teams that share the 65,536
  /// registers of a multiprocessor. HIP: waves that share the 512 registers of a SIMD.
  unsigned bound_min;
};

/// Bytes of a tile: what one team has in flight.
inline constexpr std::uint32_t tile_bytes = 32u << 10;

#if defined(KOKKOS_ENABLE_HIP)
inline constexpr LaunchShape aligned_shape{256, 5};
inline constexpr LaunchShape converting_shape{256, 5};
inline constexpr LaunchShape word_shape{256, 5};
inline constexpr LaunchShape general_shape{256, 4};
inline constexpr LaunchShape deciding_word_shape{256, 5};
inline constexpr LaunchShape deciding_element_shape{256, 3};
inline constexpr LaunchShape deciding_block_shape{256, 3};
inline constexpr std::uint32_t stage_bytes = 8u << 10;
#else
/// Plans of the host: whole windows in aligned tiles.
inline constexpr LaunchShape aligned_shape{on_host ? 2 : 1024, 2};
/// The same where elements are converted.
inline constexpr LaunchShape converting_shape{on_host ? 2 : 128, 12};
/// Plans of the host with shifts, CopyCode::words.
inline constexpr LaunchShape word_shape{on_host ? 2 : 128, 10};
/// Everything else.
inline constexpr LaunchShape general_shape{on_host ? 2 : 256, 3};
/// Launches that decide on the device, by the code of their table.
inline constexpr LaunchShape deciding_word_shape{on_host ? 2 : 512, 2};
inline constexpr LaunchShape deciding_element_shape = general_shape;
inline constexpr LaunchShape deciding_block_shape{general_shape.lanes, 2};
/// Shared memory in which a team shifts rows of a ds conv state.
inline constexpr std::uint32_t stage_bytes = 16u << 10;
#endif

/// Parts of a tile, a team each.
inline constexpr std::uint32_t converting_parts = 4;
inline constexpr std::uint32_t word_parts = 2;
template <CopyCode code>
inline constexpr std::uint32_t plan_parts = code == CopyCode::words ? word_parts : 1;

/// The shapes of launches by the code of their table.
template <CopyCode code>
inline constexpr LaunchShape plan_shape = code == CopyCode::words ? word_shape : general_shape;
template <CopyCode code>
inline constexpr LaunchShape deciding_shape = code == CopyCode::words      ? deciding_word_shape
                                              : code == CopyCode::elements ? deciding_element_shape
                                                                           : deciding_block_shape;

template <LaunchShape shape>
using PolicyOf =
    Kokkos::TeamPolicy<ExecutionSpace, Kokkos::LaunchBounds<shape.lanes, shape.bound_min>, ArgumentsByValue>;
using Team = PolicyOf<general_shape>::member_type;

/// Items that the teams of one launch count, the claims of teams that find none left included.
inline constexpr std::uint32_t launch_items_max = INT32_MAX;

/// One team for each item, at most launch_items_max.
template <LaunchShape shape>
PolicyOf<shape> team_each(const ExecutionSpace& space, std::uint64_t items) {
  return {space, static_cast<int>(items), static_cast<int>(shape.lanes)};
}

/// As many teams as the device runs at once, at least one, but not more than items.
template <LaunchShape shape>
PolicyOf<shape> resident_teams(const ExecutionSpace& space, std::uint64_t items) {
  // The launch bound is the number of teams that a unit of a GPU has registers for: those of a unit of CUDA share them,
  // and the four waves of a team of HIP lie one in each of a unit's four SIMDs.
  static const auto resident =
      static_cast<std::uint64_t>(on_host ? std::max(1, space.concurrency() / static_cast<int>(shape.lanes))
                                         : detail::compute_units() * static_cast<int>(shape.bound_min));
  return team_each<shape>(space, std::max<std::uint64_t>(std::min(resident, items), 1));
}

}  // namespace stateport::kernels
