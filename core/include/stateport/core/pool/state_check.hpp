// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/ids.hpp>

#include <cstdint>
#include <span>

namespace stateport {

/// A state whose bytes an integrity check looks at: a checkpoint when it is published, and each time it is read.
struct StateCheck {
  enum class Kind : std::uint8_t {
    published,  ///< the state becomes a checkpoint: its sums are remembered
    read        ///< a pass or a transfer reads the checkpoint: its sums are compared with those that are remembered
  };
  Kind kind = Kind::read;
  std::int32_t group = 0;
  SlotId slot;  ///< in the store of the group: where the checkpoint lies
  /// Names the checkpoint: the number of its publication in this cache, from 1. A slot that is published again has
  /// another number.
  std::uint64_t content = 0;
  RequestId request;       ///< that made or reads the state; none: a transfer to a tier reads it
  std::uint64_t pass = 0;  ///< whose commit publishes the state, or which reads it; 0: no pass does

  friend constexpr bool operator==(const StateCheck&, const StateCheck&) noexcept = default;
};

/// Checks in the order in which the cache decided them. Does not own its memory.
using CheckPlan = std::span<const StateCheck>;

/// A check that failed.
struct StateFault {
  enum class Kind : std::uint8_t {
    changed,      ///< the bytes that were read are not those that were published
    other_state,  ///< the slot held another publication: an older one, whose successor was not copied, or a newer one
    not_finite    ///< the state was published with a NaN or an infinity
  };
  Kind kind = Kind::changed;
  std::int32_t tensor = -1;  ///< the first tensor of the store for which this holds; -1: the whole slot (other_state)
  StateCheck check;

  friend constexpr bool operator==(const StateFault&, const StateFault&) noexcept = default;
};

}  // namespace stateport
