// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/eviction_policy.hpp>
#include <stateport/core/model/error.hpp>

#include "evict/tenant_ledger.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

namespace stateport::detail {

/// The candidates of a VictimOrder where tenants have shares: one order for each account of the ledger. The next victim
/// is the one with the smallest (turn, key, index) of the first victims of all accounts. The source also answers:
///
///     TenantId tenant(std::uint32_t index) const;     // of a candidate that is offered
///     std::int64_t bytes(std::uint32_t index) const;  // that its eviction frees at most
///
/// next: O(accounts) and the costs of their orders; O(capacity) after accounts have changed. Memory: an order of the
/// whole capacity for each account.
template <class Order>
class TenantOrders {
 public:
  TenantOrders(const TenantLedger& ledger, const VictimTraits& traits)
      : ledger_(ledger), is_drawn_(traits.draws > 0), drawn_(ledger.size()) {
    for (std::size_t i = 0; i < ledger.size(); ++i) orders_.emplace_back(traits);
  }

  void reserve(std::size_t capacity) {
    tenant_of_.resize(capacity, TenantLedger::others);
    for (Order& order : orders_) order.reserve(capacity);
  }
  [[nodiscard]] std::size_t bytes() const noexcept {
    std::size_t sum = tenant_of_.size();
    for (const Order& order : orders_) sum += order.bytes();
    return sum;
  }
  [[nodiscard]] const Order& any() const noexcept { return orders_.front(); }

  template <class Source>
  [[nodiscard]] bool contains(const Source& source, std::uint32_t index) const noexcept {
    return orders_[tenant_of_[index]].contains(source, index);
  }
  template <class Source>
  void offer(const Source& source, std::uint32_t index) {
    const TenantId tenant = source.tenant(index);
    if (tenant_of_[index] != tenant) erase(source, index);  // it was another tenant's, and has not come up since
    tenant_of_[index] = tenant;
    orders_[tenant].offer(source, index);
  }
  template <class Source>
  void erase(const Source& source, std::uint32_t index) noexcept {
    const TenantId tenant = tenant_of_[index];
    orders_[tenant].erase(source, index);
    if (drawn_[tenant] && drawn_[tenant]->index == index) drawn_[tenant].reset();
  }
  template <class Source>
  void rank_again(const Source& source, std::uint32_t index) noexcept {
    orders_[tenant_of_[index]].rank_again(source, index);
  }

  template <class Source>
  [[nodiscard]] std::optional<std::uint32_t> next(const Source& source) {
    using Ranked = std::tuple<TenantLedger::Turn, VictimKey, std::uint32_t>;
    if (changes_ != ledger_.changes()) order_again(source);
    std::optional<Ranked> best;
    for (std::size_t i = 0; i < orders_.size(); ++i) {
      const auto tenant = static_cast<TenantId>(i);
      if (ledger_.takeable_bytes(tenant) == 0) continue;
      const auto first = first_of(source, tenant);
      if (!first) continue;
      const Ranked ranked{ledger_.turn(tenant, source.bytes(*first)), orders_[i].rank(source, *first), *first};
      if (std::get<0>(ranked) != TenantLedger::Turn::never && (!best || ranked < *best)) best = ranked;
    }
    return best ? std::optional(std::get<2>(*best)) : std::nullopt;
  }

  void clear() noexcept {
    for (Order& order : orders_) order.clear();
    for (auto& drawn : drawn_) drawn.reset();
  }
  /// Throws std::logic_error naming the first violation. O(n).
  template <class Source>
  void check_invariants(const Source& source) const {
    for (const Order& order : orders_) order.check_invariants(source);
    for (std::uint32_t index = 0; index < tenant_of_.size(); ++index)
      require_invariant(changes_ != ledger_.changes() || !contains(source, index) || !source.eligible(index) ||
                            source.tenant(index) == tenant_of_[index],
                        "TenantOrders", "a candidate is in the order of another tenant");
  }

 private:
  struct Drawn {
    std::uint32_t index = 0;
    VictimKey key;  ///< when it was drawn
  };

  /// A draw gives a victim once. One that is not taken, because another tenant's goes before it, is kept for the next
  /// call, unless its key has grown since.
  template <class Source>
  [[nodiscard]] std::optional<std::uint32_t> first_of(const Source& source, TenantId tenant) {
    if (!is_drawn_) return orders_[tenant].next(source);
    std::optional<Drawn>& drawn = drawn_[tenant];
    const auto is_first = [&] {
      return orders_[tenant].contains(source, drawn->index) && source.eligible(drawn->index) &&
             !(drawn->key < source.key(drawn->index));
    };
    if (drawn && is_first()) return drawn->index;
    drawn.reset();
    const std::optional<std::uint32_t> next = orders_[tenant].next(source);
    if (next) drawn = {.index = *next, .key = source.key(*next)};
    return next;
  }

  /// Tenants have other accounts. O(capacity).
  template <class Source>
  void order_again(const Source& source) {
    changes_ = ledger_.changes();
    for (std::uint32_t index = 0; index < tenant_of_.size(); ++index) {
      if (!contains(source, index)) continue;
      if (source.eligible(index))
        offer(source, index);
      else
        erase(source, index);  // it is offered when it is eligible again
    }
  }

  const TenantLedger& ledger_;
  std::uint64_t changes_ = 0;  ///< of accounts that the orders follow
  bool is_drawn_;
  std::vector<Order> orders_;                ///< by account
  std::vector<std::optional<Drawn>> drawn_;  ///< by account
  std::vector<TenantId> tenant_of_;          ///< by index: in whose order a candidate is, if it is one
};

}  // namespace stateport::detail
