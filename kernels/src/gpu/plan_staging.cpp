// SPDX-License-Identifier: Apache-2.0
#include "plan_staging.hpp"

#include <stateport/backends/internal/device_calls.hpp>
#include <stateport/backends/transfer.hpp>
#include <stateport/core/model/error.hpp>

#include "../launch.hpp"

#include <bit>
#include <cstring>

namespace stateport::kernels {

PlanStaging::PlanStaging() {
  make_room(prepared_rows);
}

void PlanStaging::make_room(std::size_t rows) {
  if (rows <= rows_max_) return;
  for (const Event& event : in_use_) event.synchronize();
  const std::size_t rows_max = std::bit_ceil(rows);
  Buffer pinned(pinned_resource_, ring_size * rows_max * sizeof(SlotCopy));
  device_ = Buffer(device_resource_, ring_size * rows_max * sizeof(SlotCopy));
  pinned_ = std::move(pinned);
  rows_max_ = rows_max;
}

const SlotCopy* PlanStaging::stage(const Stream& stream, std::span<const SlotCopy> rows) {
  require(!detail::is_capturing(stream), "plan", rows.size(),
          "has too many copies for a graph: they would be read from the host at replay; use copy_slots_on_device");
  make_room(rows.size());
  in_use_[next_].synchronize();
  SlotCopy* const pinned = pinned_.as<SlotCopy>() + next_ * rows_max_;
  SlotCopy* const device = device_.as<SlotCopy>() + next_ * rows_max_;
  std::memcpy(pinned, rows.data(), rows.size_bytes());
  copy_bytes(stream, device, pinned, rows.size_bytes());
  return device;
}

void PlanStaging::done(const Stream& stream) {
  in_use_[next_].record(stream);
  next_ = (next_ + 1) % ring_size;
}

}  // namespace stateport::kernels
