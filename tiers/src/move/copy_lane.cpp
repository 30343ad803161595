// SPDX-License-Identifier: Apache-2.0
#include "move/copy_lane.hpp"

#include <utility>

namespace stateport::tiers {
namespace {
constexpr std::size_t marks_at_first = 16;
}

DeviceLane::DeviceLane(std::vector<RouteCopier> copiers) : copiers_(std::move(copiers)), events_(marks_at_first) {}

void DeviceLane::copy(const Stream& stream, std::size_t route, CopyPlan plan) {
  follow(stream);
  copiers_[route](stream, plan);
}

void DeviceLane::follow(const Stream& stream) {
  if (stream_ == stream) return;
  if (last_ > 0) event_of(last_).wait(stream);
  stream_ = stream;
}

void DeviceLane::prepare_marks(std::size_t count) {
  if (last_ - reached_ + count <= events_.size() || last_ - reached() + count <= events_.size()) return;
  std::vector<Event> more(2 * events_.size());
  for (std::uint64_t mark = reached_ + 1; mark <= last_; ++mark) more[mark % more.size()] = std::move(event_of(mark));
  events_ = std::move(more);
}

void DeviceLane::mark(const Stream& stream) {
  prepare_marks(1);
  follow(stream);
  event_of(last_ + 1).record(stream);
  ++last_;
}

std::uint64_t DeviceLane::reached() {
  while (reached_ < last_ && event_of(reached_ + 1).query()) ++reached_;
  return reached_;
}

}  // namespace stateport::tiers
