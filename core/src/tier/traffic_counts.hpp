// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/ids.hpp>
#include <stateport/core/tier/transfer_plan.hpp>

#include "tier/tier_nodes.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace stateport::detail {

/// The purpose of an unanswered transfer.
struct UnderWay {
  Transfer::Kind kind = Transfer::Kind::store;
  Medium from = Medium::device;
  Medium to = Medium::host;
  CacheContent content = CacheContent::state;
  std::uint32_t node = TierNode::none;  ///< find: the number of the image among those that the request asks for
  RequestId request;
  bool stays = false;  ///< copy: the faster tier keeps it
};

/// Images of transfers, by tier, direction and content. A copy is read from one tier and written to another.
class TrafficCounts {
 public:
  enum Direction : std::uint8_t { read, write, find };

  void add(const UnderWay& transfer) noexcept {
    if (transfer.kind == Transfer::Kind::find) {
      ++of(transfer.from, find, transfer.content);
      return;
    }
    if (transfer.from != Medium::device) ++of(transfer.from, read, transfer.content);
    if (transfer.to != Medium::device) ++of(transfer.to, write, transfer.content);
  }
  [[nodiscard]] std::int32_t images(Medium medium, Direction direction, CacheContent content) const noexcept {
    return counts_[place(medium, direction, content)];
  }

 private:
  [[nodiscard]] static constexpr std::size_t place(Medium medium, Direction direction, CacheContent content) noexcept {
    return 2 * (3 * index_of(medium) + direction) + static_cast<std::size_t>(content);
  }
  [[nodiscard]] std::int32_t& of(Medium medium, Direction direction, CacheContent content) noexcept {
    return counts_[place(medium, direction, content)];
  }

  std::array<std::int32_t, 6 * (medium_count + 1)> counts_{};
};

}  // namespace stateport::detail
