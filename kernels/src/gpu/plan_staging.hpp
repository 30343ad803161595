// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/event.hpp>
#include <stateport/backends/pinned_resource.hpp>
#include <stateport/backends/stream.hpp>
#include <stateport/core/pool/copy_plan.hpp>

#include <array>
#include <cstddef>
#include <span>

namespace stateport::kernels {

/// Carries plans that do not fit a kernel's arguments: pinned memory → device memory, in stream order. A ring, so that
/// a plan in flight is never overwritten; the host waits only when `ring_size` plans are still in flight.
class PlanStaging {
 public:
  /// Has room for plans of prepared_rows.
  PlanStaging();

  /// Returns the plan's device copy, valid for work enqueued on `stream` until done(). When the plan is longer than all
  /// before it, waits for those and allocates. Throws InvalidArgument when the stream captures a graph, because a
  /// replay would read the ring as it is by then.
  [[nodiscard]] const SlotCopy* stage(const Stream& stream, std::span<const SlotCopy> rows);
  /// Called after the kernel that reads the staged plan was enqueued.
  void done(const Stream& stream);

 private:
  static constexpr std::size_t ring_size = 8;

  /// Room for `rows` in each entry of the ring.
  void make_room(std::size_t rows);

  PinnedResource pinned_resource_;
  DeviceResource device_resource_;
  std::size_t rows_max_ = 0;  ///< of an entry
  Buffer pinned_;             ///< [ring_size, rows_max_]
  Buffer device_;             ///< the same
  std::array<Event, ring_size> in_use_;
  std::size_t next_ = 0;
};

}  // namespace stateport::kernels
