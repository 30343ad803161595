// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/ids.hpp>

#include "workload/content.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace stateport::replay {

/// A checkpoint that the forward makes on its way.
struct PlacedState {
  Content content = empty_content;
  SlotId slot;
};

struct MoverCounts {
  std::int64_t restores = 0;    ///< states copied to a live slot
  std::int64_t verified = 0;    ///< restored states compared word by word with what they should be
  std::int64_t mismatches = 0;  ///< of these, the ones with a wrong word
  std::int64_t commits = 0;     ///< states copied to the pool
  double copy_seconds = 0;      ///< time of the copies that restored and committed
  double forward_seconds = 0;   ///< time of the stand-in for the model
  double verify_seconds = 0;
  double copy_share_of_memcpy = 0;  ///< median of (time of memcpy) / (time of our copy), same sizes; 0: not measured
  std::size_t state_bytes = 0;      ///< of a state as it is in memory
};

/// Makes and moves the states that the cache decides about.
class StateMover {
 public:
  virtual ~StateMover() = default;

  /// The live slot of the next request takes the state of prefix `at`: restored from `slot` and verified, or zero for
  /// the empty prefix. Returns the number of words that are not what they should be.
  [[nodiscard]] virtual std::uint64_t start(SlotId slot, Content at) = 0;
  /// The forward from prefix `from`, where start() left the live slot, to prefix `to`; commits the states of
  /// `checkpoints` (ascending) into their slots.
  virtual void advance(Content from, Content to, std::span<const PlacedState> checkpoints) = 0;

  [[nodiscard]] virtual MoverCounts counts() const = 0;
};

/// Moves nothing: for questions about hit rates alone.
class NoStates final : public StateMover {
 public:
  std::uint64_t start(SlotId slot, Content) override {
    counts_.restores += slot.valid();
    return 0;
  }
  void advance(Content, Content, std::span<const PlacedState> checkpoints) override {
    counts_.commits += static_cast<std::int64_t>(checkpoints.size());
  }
  [[nodiscard]] MoverCounts counts() const override { return counts_; }

 private:
  MoverCounts counts_;
};

}  // namespace stateport::replay
