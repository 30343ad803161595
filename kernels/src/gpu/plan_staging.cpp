// SPDX-License-Identifier: Apache-2.0
#include "plan_staging.hpp"

#include <stateport/backends/transfer.hpp>

#include <algorithm>
#include <bit>
#include <cstring>

namespace stateport::kernels {

const SlotCopy* PlanStaging::stage(const Stream& stream, std::span<const SlotCopy> rows) {
  Entry& entry = ring_[next_];
  entry.in_use.synchronize();
  if (entry.pinned.size_bytes() < rows.size_bytes()) {
    const std::size_t bytes = std::bit_ceil(std::max(rows.size(), rows_min)) * sizeof(SlotCopy);
    entry.pinned = Buffer(pinned_, bytes);
    entry.device = Buffer(device_, bytes);
  }
  std::memcpy(entry.pinned.data(), rows.data(), rows.size_bytes());
  copy_bytes(stream, entry.device.data(), entry.pinned.data(), rows.size_bytes());
  return entry.device.as<SlotCopy>();
}

void PlanStaging::done(const Stream& stream) {
  ring_[next_].in_use.record(stream);
  next_ = (next_ + 1) % ring_size;
}

}  // namespace stateport::kernels
