// SPDX-License-Identifier: Apache-2.0
#include "late_lane.hpp"

#include <vector>

namespace stateport::engine {

LateLane::Kind::Kind(const StateStore& device, const StateStore& host)
    : read(memory, host.spec(), {.slots = host.slots()}), copier(device, read) {}

LateLane::LateLane(std::span<const StateStore* const> device, std::span<const StateStore> host) {
  std::vector<const StateStore*> read;
  for (std::size_t kind = 0; kind < device.size(); ++kind)
    read.push_back(&kinds_.emplace_back(*device[kind], host[kind]).read);
  late_ = std::make_unique<tiers::DeviceLane>(read, host);
  loads_ = std::make_unique<tiers::DeviceLane>(device, host);
}

void LateLane::to_host(const Stream& stream, std::size_t kind, CopyPlan plan) {
  kinds_[kind].copier.copy_slots(stream, plan);
  std::vector<SlotCopy> arrivals;
  for (const SlotCopy& copy : plan) arrivals.push_back(SlotCopy::whole(copy.dst_slot, copy.dst_slot));
  work_.push_back([this, stream, kind, arrivals] { late_->to_host(stream, kind, arrivals); });
}

void LateLane::to_device(const Stream& stream, std::size_t kind, CopyPlan plan) {
  advance();
  loads_->to_device(stream, kind, plan);
}

void LateLane::mark(const Stream& stream) {
  work_.push_back([this, stream] { late_->mark(stream); });
}

void LateLane::advance(std::size_t count) {
  for (; count > 0 && !work_.empty(); --count) {
    work_.front()();
    work_.pop_front();
  }
}

}  // namespace stateport::engine
