// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/stats/histogram.hpp>
#include <stateport/core/tier/transfer_plan.hpp>

#include <array>
#include <cstddef>
#include <cstdint>

namespace stateport {

/// How long transfers of StateTiers took that are done, in seconds of a steady clock: from the call that began a
/// transfer to the call of poll() that found its end. A load ends when its copy to the device is enqueued. Loads from
/// host memory are not counted: the call that begins one enqueues it. Nothing reads these times to decide anything.
/// Plain data; nothing allocates.
struct TransferTimes {
  /// `load`: to the device. `store`: into the tier, from the device or from a faster tier. `find`: a question.
  enum class Direction : std::uint8_t { load, store, find };
  static constexpr std::size_t direction_count = 3;

  [[nodiscard]] const DurationHistogram& of(Medium tier, Direction direction) const noexcept {
    return seconds[static_cast<std::size_t>(tier)][static_cast<std::size_t>(direction)];
  }
  /// A load or a find counts for the tier that it is from, the others for the tier that they are to.
  void add(const Transfer& transfer, double duration_s) noexcept {
    const bool is_load = transfer.kind == Transfer::Kind::load;
    const bool is_find = transfer.kind == Transfer::Kind::find;
    const Medium tier = is_load || is_find ? transfer.from : transfer.to;
    const Direction direction = is_load ? Direction::load : is_find ? Direction::find : Direction::store;
    seconds[static_cast<std::size_t>(tier)][static_cast<std::size_t>(direction)].add(duration_s);
  }

  /// [Medium, Direction]; those of the device are empty.
  std::array<std::array<DurationHistogram, direction_count>, medium_count> seconds = {};
};

}  // namespace stateport
