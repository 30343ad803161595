// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/error.hpp>
#include <stateport/core/tier/transfer_plan.hpp>

#include "containers/hash_index.hpp"
#include "tier/tier_nodes.hpp"
#include "tier/traffic_counts.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace stateport::detail {

/// The transfers of a cache: those that it decided since the plan was last taken, and those without an answer.
///
///     free ── name ──► named ── take_plan ──► under way ── erase ──► free
///
/// All calls but reserve() and take_plan() are O(1). Nothing allocates while there is room.
class TierTransfers {
 public:
  /// `unanswered`: at a time. `dropped`: in one plan.
  void reserve(std::size_t unanswered, std::size_t dropped) {
    places_.reserve(unanswered);
    free_.reserve(unanswered);
    index_.reserve(unanswered);
    for (std::vector<Transfer>* plan : {&plan_, &taken_}) plan->reserve(unanswered + dropped);
  }

  /// Adds a transfer to the plan and gives it a number, by which find() answers `under_way`.
  void name(Transfer transfer, const UnderWay& under_way) {
    auto at = static_cast<std::uint32_t>(places_.size());
    if (free_.empty()) {
      if (at == places_.capacity()) reserve(2 * std::size_t{at} + 1, 0);
      places_.emplace_back();
    } else {
      at = free_.back();
      free_.pop_back();
    }
    transfer.id = ++last_;
    places_[at] = {.transfer = under_way, .id = last_};
    index_.insert(mixed(last_), at);
    plan_.push_back(transfer);
  }
  /// Adds a drop, which is never answered. The remote tier is shared and gives up its contents itself: it gets none.
  void drop(Medium medium, const ImageKey& image) {
    if (medium == Medium::remote) return;
    plan_.push_back({.kind = Transfer::Kind::drop, .image = image, .from = medium, .to = medium});
  }

  [[nodiscard]] std::size_t plan_max() const noexcept { return plan_.capacity(); }
  /// The plan since the last call, whose transfers are under way from now on. Valid until the next call of anything.
  [[nodiscard]] TransferPlan take_plan() {
    for (const Transfer& transfer : plan_)
      if (transfer.kind != Transfer::Kind::drop) places_[find_place(transfer.id)].is_taken = true;
    std::swap(plan_, taken_);
    plan_.clear();
    return taken_;
  }

  /// Null if no transfer of this number is under way. Valid until the next name().
  [[nodiscard]] const UnderWay* find(TransferId id) const noexcept {
    const std::uint32_t at = find_place(id);
    return at != HashIndex::none && places_[at].is_taken ? &places_[at].transfer : nullptr;
  }
  /// The first result whose transfer is not under way, or which stands for the second time. Null: there is none.
  [[nodiscard]] const TransferResult* find_wrong(std::span<const TransferResult> results) noexcept {
    std::size_t right = 0;
    for (; right < results.size() && find(results[right].id) != nullptr; ++right)
      places_[find_place(results[right].id)].is_taken = false;
    for (const TransferResult& result : results.first(right)) places_[find_place(result.id)].is_taken = true;
    return right < results.size() ? &results[right] : nullptr;
  }
  /// Precondition: it is under way.
  void erase(TransferId id) noexcept {
    const std::uint32_t at = find_place(id);
    index_.erase(mixed(id), at);
    places_[at].id = 0;
    free_.push_back(at);
  }
  /// The number of transfers that are named or under way.
  [[nodiscard]] std::size_t size() const noexcept { return index_.count(); }
  /// Those, counted. O(the most that were named or under way together).
  [[nodiscard]] TrafficCounts under_way() const noexcept {
    TrafficCounts counted;
    for (const Place& place : places_)
      if (place.id != 0) counted.add(place.transfer);
    return counted;
  }
  /// Throws std::logic_error naming the first violation. O(all).
  void check_invariants() const {
    const auto used = std::ranges::count_if(places_, [](const Place& place) { return place.id != 0; });
    require_invariant(std::cmp_equal(used, size()), "TierTransfers", "a place without a transfer is in use");
    for (const Transfer& transfer : plan_) {
      if (transfer.kind == Transfer::Kind::drop) continue;
      const std::uint32_t at = find_place(transfer.id);
      require_invariant(at != HashIndex::none && !places_[at].is_taken, "TierTransfers", "a transfer has no part");
    }
  }

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

  std::vector<Transfer> plan_;
  std::vector<Transfer> taken_;
  std::vector<Place> places_;  ///< with id 0: free
  std::vector<std::uint32_t> free_;
  HashIndex index_{80};
  TransferId last_ = 0;
};

}  // namespace stateport::detail
