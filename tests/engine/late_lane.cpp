// SPDX-License-Identifier: Apache-2.0
#include "late_lane.hpp"

#include <vector>

namespace stateport::engine {

LateLane::Kind::Kind(const StateStore& device, const StateStore& host)
    : read(memory, host.spec(), {.slots = host.slots()}), copier(device, read) {}

LateLane::LateLane(tiers::LaneParts parts) : routes_(parts.routes) {
  for (std::size_t kind = 0; kind < parts.host.size(); ++kind) {
    const StateStore& read = kinds_.emplace_back(*parts.device[kind], parts.host[kind]).read;
    parts.copiers[routes_.to_host(kind)] = tiers::route_of(SlotCopier(read, parts.host[kind]));
  }
  late_ = std::make_unique<tiers::DeviceLane>(std::move(parts.copiers));
}

void LateLane::copy(const Stream& stream, std::size_t route, CopyPlan plan) {
  if (route != routes_.to_host(routes_.kind(route))) {
    advance();
    return late_->copy(stream, route, plan);
  }
  kinds_[routes_.kind(route)].copier.copy_slots(stream, plan);
  std::vector<SlotCopy> arrivals;
  for (const SlotCopy& copy : plan) arrivals.push_back(SlotCopy::whole(copy.dst_slot, copy.dst_slot));
  work_.push_back([this, stream, route, arrivals] { late_->copy(stream, route, arrivals); });
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
