// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/device_resource.hpp>
#include <stateport/backends/event.hpp>
#include <stateport/backends/pinned_resource.hpp>
#include <stateport/backends/stream.hpp>
#include <stateport/core/pool/copy_plan.hpp>

#include <array>
#include <cstdint>
#include <memory>
#include <span>

namespace stateport::kernels {

/// Carries plans that do not fit a kernel's arguments: pinned memory → device memory, in stream order. A ring, so that
/// a plan in flight is never overwritten; the host waits only when `ring_size` plans are still in flight.
class PlanStaging {
 public:
  /// Returns the plan's device copy, valid for work enqueued on `stream` until done(). Allocates when the plan is
  /// longer than all before it.
  [[nodiscard]] const SlotCopy* stage(const Stream& stream, std::span<const SlotCopy> rows);
  /// Called after the kernel that reads the staged plan was enqueued.
  void done(const Stream& stream);

 private:
  static constexpr std::size_t ring_size = 8;
  static constexpr std::size_t rows_min = 512;

  struct Entry {
    Buffer pinned;
    Buffer device;
    Event in_use;
  };

  PinnedResource pinned_;
  DeviceResource device_;
  std::array<Entry, ring_size> ring_;
  std::size_t next_ = 0;
};

}  // namespace stateport::kernels
