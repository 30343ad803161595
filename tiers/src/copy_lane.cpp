// SPDX-License-Identifier: Apache-2.0
#include "copy_lane.hpp"

#include <utility>

namespace stateport::tiers {
namespace {
constexpr std::size_t marks_at_first = 16;
}

DeviceLane::DeviceLane(std::span<const StateStore* const> device, std::span<const StateStore> host)
    : events_(marks_at_first) {
  for (std::size_t kind = 0; kind < device.size(); ++kind) {
    to_host_.emplace_back(*device[kind], host[kind]);
    to_device_.emplace_back(host[kind], *device[kind]);
  }
}

void DeviceLane::to_host(const Stream& stream, std::size_t kind, CopyPlan plan) {
  follow(stream);
  to_host_[kind].copy_slots(stream, plan);
}

void DeviceLane::to_device(const Stream& stream, std::size_t kind, CopyPlan plan) {
  follow(stream);
  to_device_[kind].copy_slots(stream, plan);
}

void DeviceLane::follow(const Stream& stream) {
  if (stream_ == stream) return;
  if (last_ > 0) event_of(last_).wait(stream);
  stream_ = stream;
}

void DeviceLane::mark(const Stream& stream) {
  follow(stream);
  if (last_ - reached_ == events_.size()) {
    std::vector<Event> more(2 * events_.size());
    for (std::uint64_t mark = reached_ + 1; mark <= last_; ++mark) more[mark % more.size()] = std::move(event_of(mark));
    events_ = std::move(more);
  }
  event_of(last_ + 1).record(stream);
  ++last_;
}

std::uint64_t DeviceLane::reached() {
  while (reached_ < last_ && event_of(reached_ + 1).query()) ++reached_;
  return reached_;
}

}  // namespace stateport::tiers
