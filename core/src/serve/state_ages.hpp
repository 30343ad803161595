// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/ids.hpp>
#include <stateport/core/stats/cache_stats.hpp>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stateport::detail {

/// How long checkpoints went unused, for the ages of CacheStats. Index hash in columns has none.
class StateAges {
 public:
  StateAges(std::size_t slots, CacheStats& stats) : stats_(stats), used_s_(slots, 0) {}

  void made(SlotId slot, double now_s) noexcept { used_s_[slot.index()] = now_s; }
  /// A request continues from the state.
  void reused(SlotId slot, double now_s) noexcept {
    stats_.reuse_ages.add(now_s - used_s_[slot.index()]);
    made(slot, now_s);
  }
  void lost(SlotId slot, double now_s) noexcept { stats_.eviction_ages.add(now_s - used_s_[slot.index()]); }

 private:
  CacheStats& stats_;
  std::vector<double> used_s_;  ///< by slot: when its state was made or used
};

}  // namespace stateport::detail
