// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/tier/transfer_plan.hpp>

#include "containers/hash_index.hpp"
#include "tier/tier_nodes.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace stateport::detail {

/// What an unanswered transfer is for.
struct UnderWay {
  Transfer::Kind kind = Transfer::Kind::store;
  Medium from = Medium::device;
  Medium to = Medium::host;
  CacheContent content = CacheContent::state;
  std::uint32_t node = TierNode::none;  ///< find: the image that is asked for, of those of the request
  RequestId request;
  bool stays = false;  ///< copy: the faster tier keeps it
};

/// The transfers that were named and are not answered yet, by number.
///
///     free ── name ──► named ── take ──► under way ── erase ──► free
///
/// All calls but reserve() are O(1). Nothing allocates while there is room.
class TransfersUnderWay {
 public:
  void reserve(std::size_t transfers) {
    places_.reserve(transfers);
    free_.reserve(transfers);
    index_.reserve(transfers);
  }
  [[nodiscard]] TransferId name(const UnderWay& transfer) {
    auto at = static_cast<std::uint32_t>(places_.size());
    if (free_.empty()) {
      if (at == places_.capacity()) reserve(2 * std::size_t{at} + 1);
      places_.emplace_back();
    } else {
      at = free_.back();
      free_.pop_back();
    }
    places_[at] = {.transfer = transfer, .id = ++last_};
    index_.insert(mixed(last_), at);
    return last_;
  }
  /// The caller has the plan that names it. Precondition: it is named.
  void take(TransferId id) noexcept { places_[find_place(id)].is_taken = true; }
  /// Null if no transfer of this number is under way. Valid until the next name().
  [[nodiscard]] const UnderWay* find(TransferId id) const noexcept {
    const std::uint32_t at = find_place(id);
    return at != HashIndex::none && places_[at].is_taken ? &places_[at].transfer : nullptr;
  }
  [[nodiscard]] bool is_named(TransferId id) const noexcept {
    const std::uint32_t at = find_place(id);
    return at != HashIndex::none && !places_[at].is_taken;
  }
  /// Precondition: it is under way.
  void erase(TransferId id) noexcept {
    const std::uint32_t at = find_place(id);
    index_.erase(mixed(id), at);
    free_.push_back(at);
  }
  /// How many are named or under way.
  [[nodiscard]] std::size_t size() const noexcept { return index_.count(); }

 private:
  struct Place {
    UnderWay transfer;
    TransferId id = 0;
    bool is_taken = false;
  };

  /// Numbers follow each other: the high half of the product spreads them (Knuth, 6.4).
  [[nodiscard]] static std::uint32_t mixed(TransferId id) noexcept {
    return static_cast<std::uint32_t>((id * 0x9e3779b97f4a7c15u) >> 32);
  }
  [[nodiscard]] std::uint32_t find_place(TransferId id) const noexcept {
    return index_.find(mixed(id), [&](std::uint32_t at) { return places_[at].id == id; });
  }

  std::vector<Place> places_;
  std::vector<std::uint32_t> free_;
  HashIndex index_{80};
  TransferId last_ = 0;
};

}  // namespace stateport::detail
