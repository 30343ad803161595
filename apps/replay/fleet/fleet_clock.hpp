// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/tier/transfer_plan.hpp>

#include <cstdint>
#include <queue>
#include <vector>

namespace stateport::replay {

/// Something that happens at a node.
struct FleetEvent {
  enum class Kind : std::uint8_t { transfer_ended, pass_ended, node_fails, node_returns };
  double at_s = 0;
  std::uint64_t number = 0;  ///< in the order in which they were set
  Kind kind = Kind::node_fails;
  std::uint32_t node = 0;
  std::uint32_t life = 0;   ///< of the node: events that were set before it failed are void
  TransferId transfer = 0;  ///< that ended
};

/// Events to come: the earliest first; of equal times the one that was set first.
class FleetClock {
 public:
  void set(FleetEvent event) {
    event.number = ++last_;
    events_.push(event);
  }
  [[nodiscard]] bool empty() const { return events_.empty(); }
  /// Precondition: not empty.
  [[nodiscard]] double next_s() const { return events_.top().at_s; }
  FleetEvent pop() {
    const FleetEvent event = events_.top();
    events_.pop();
    return event;
  }

 private:
  struct Later {
    bool operator()(const FleetEvent& a, const FleetEvent& b) const {
      return a.at_s != b.at_s ? a.at_s > b.at_s : a.number > b.number;
    }
  };
  std::priority_queue<FleetEvent, std::vector<FleetEvent>, Later> events_;
  std::uint64_t last_ = 0;
};

}  // namespace stateport::replay
