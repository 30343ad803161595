// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/stream.hpp>
#include <stateport/parts/speculative_rules.hpp>

#include "copy_table.hpp"
#include "labels.hpp"

#include <Kokkos_Core.hpp>

#include <cstdint>
#include <memory>

/// The launch of StepCommitter, implemented once for GPUs (gpu/) and once for CPUs (openmp/).
namespace stateport::kernels {

/// One state that a commit moves: of a request after a step → a slot.
struct StepCopy {
  std::int32_t request = 0;
  std::int32_t step = 0;
  std::int32_t slot = 0;
};

/// Which steps a commit takes: StepTargets as the kernels see it.
struct StepEntries {
  const std::int32_t* last_step = nullptr;
  const std::int32_t* live_slot = nullptr;
  const std::int32_t* track_step = nullptr;  ///< nullptr: nothing is tracked
  const std::int32_t* track_slot = nullptr;
  std::uint32_t rows = 0;

  /// The live slots of all rows come first, then their checkpoints.
  [[nodiscard]] KOKKOS_FUNCTION std::uint32_t count() const { return track_step != nullptr ? 2 * rows : rows; }
};

/// The scratch and the store of a committer as a kernel sees them. The slots of the table's only source are requests,
/// at their first step.
struct StepTable {
  CopyTableView table;
  const std::int64_t* step_stride_bytes = nullptr;  ///< [tensors]
  std::int32_t slots = 0;
  std::int32_t steps = 0;

  [[nodiscard]] KOKKOS_FUNCTION const std::byte* src_of(std::uint32_t tensor, const StepCopy& copy) const {
    return table.routes[tensor].src_of(copy.request) + copy.step * step_stride_bytes[tensor];
  }

  /// The copy that an entry commits. False if it commits nothing.
  [[nodiscard]] KOKKOS_FUNCTION bool commits_at(const StepEntries& entries, std::uint32_t entry, StepCopy& copy) const {
    const bool live = entry < entries.rows;
    const std::uint32_t row = live ? entry : entry - entries.rows;
    copy.request = static_cast<std::int32_t>(row);
    copy.step = live ? entries.last_step[row] : entries.track_step[row];
    copy.slot = live ? entries.live_slot[row] : entries.track_slot[row];
    return commits(copy.step, copy.slot, slots) && copy.step < steps;
  }
};

class StepLauncher {
 public:
  /// Room for the entries of this many requests, so that no commit allocates.
  explicit StepLauncher(std::int32_t requests);
  StepLauncher(StepLauncher&&) noexcept;
  StepLauncher& operator=(StepLauncher&&) noexcept;
  ~StepLauncher();

  /// One launch named `label`, whatever the entries say.
  void commit(const char* label, const Stream& stream, const StepTable& table, const StepEntries& entries);

 private:
  class Scratch;
  std::unique_ptr<Scratch> scratch_;
};

}  // namespace stateport::kernels
