// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/eviction_policy.hpp>

#include "evict/tenant_orders.hpp"
#include "evict/victim_draw.hpp"
#include "evict/victim_heap.hpp"
#include "evict/victim_recency.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace stateport {

/// How the smallest key among the candidates is found.
enum class VictimStrategy : std::uint8_t {
  list,  ///< by last use: a list that is in order already
  heap,  ///< by keys that only change when the candidate changes
  draw,  ///< by keys that change with time: some candidates, drawn at random, are compared
  of_tenants  ///< where tenants have shares: one of these for each (TenantOrders)
};

/// The one place where the strategy is chosen.
[[nodiscard]] constexpr VictimStrategy strategy_of(const VictimTraits& traits) noexcept {
  if (traits.draws > 0) return VictimStrategy::draw;
  return traits.by_last_use ? VictimStrategy::list : VictimStrategy::heap;
}

/// The eviction candidates of a cache, in the order of a policy: smallest (key, index) first. Candidates are indices of
/// whatever the cache evicts: nodes, blocks, slots. Facts about a candidate are asked of `source`, which the cache
/// passes to every call:
///
///     bool eligible(std::uint32_t index) const;       // may it be evicted now?
///     VictimKey key(std::uint32_t index) const;       // strategies heap and draw: EvictionPolicy::key() of its facts
///     std::uint64_t tick(std::uint32_t index) const;  // strategy list, with LazyRecency: last use
///     Node& node(std::uint32_t index) const;          // strategy list, with LinkedRecency: see there
///     void fetch(std::uint32_t index, VictimFetch what) const;  // optional: VictimDraw prefetches by it
///     tenant(index), bytes(index)                     // where tenants have shares: see detail::TenantOrders
///
/// Rules for the cache:
/// * offer() when an index becomes eligible, and when its key may have become smaller. Twice is harmless.
/// * used() after a use has raised its tick, if the recency is linked or keys may shrink. Others notice it themselves.
/// * A candidate that is locked needs no call: it is dropped when it comes up, and must be offered when it is unlocked.
/// * erase() when it is gone; next() names the victim and leaves it a candidate.
///
/// offer, used, erase: O(1) for a list or a draw, O(log n) for a heap. next: O(1), O(log n) or O(draws), amortised over
/// uses and locks. No allocation for indices below the reserved capacity. Not thread-safe.
///
/// `Recency` is LazyRecency or LinkedRecency. Example, for blocks with a policy and without one:
///
///     VictimOrder<> victims(policy ? policy->traits() : VictimTraits{.by_last_use = true});
///     victims.reserve(blocks);
///     victims.offer(source, block);                             // its reference count fell to 0
///     while (missing-- > 0 && (victim = victims.next(source)))  // each is ranked after those before it are gone
///       take(*victim), victims.erase(source, *victim);
template <class Recency = LazyRecency>
class VictimOrder {
 public:
  /// `ledger`: tenants have shares. It must outlive this object.
  explicit VictimOrder(const VictimTraits& traits = {.by_last_use = true},
                       const detail::TenantLedger* ledger = nullptr)
      : strategy_(strategy_of(traits)), keys_may_shrink_(traits.key_may_shrink && strategy_ == VictimStrategy::heap) {
    if (ledger != nullptr) {
      strategy_ = VictimStrategy::of_tenants;
      tenants_ = std::make_unique<Tenants>(*ledger, traits);
    }
    if (strategy_ == VictimStrategy::draw) draw_.emplace(traits.draws);
  }

  /// Of each tenant's candidates, where tenants have shares.
  [[nodiscard]] VictimStrategy strategy() const noexcept { return tenants_ ? tenants_->any().strategy() : strategy_; }
  /// Room for indices 0 … capacity - 1.
  void reserve(std::size_t capacity) {
    if (tenants_)
      tenants_->reserve(capacity);
    else if (draw_)
      draw_->reserve(capacity);
    else if (strategy_ == VictimStrategy::list)
      recency_.reserve(capacity);
    else
      heap_.reserve(capacity);
  }
  [[nodiscard]] std::size_t bytes() const noexcept {
    if (tenants_) return tenants_->bytes();
    return draw_ ? draw_->bytes() : recency_.bytes() + heap_.bytes();
  }

  template <class Source>
  [[nodiscard]] bool contains(const Source& source, std::uint32_t index) const noexcept {
    if (strategy_ == VictimStrategy::list) return recency_.contains(source, index);
    if constexpr (has_tenants<Source>)
      if (tenants_) return tenants_->contains(source, index);
    return draw_ ? draw_->contains(index) : heap_.contains(index);
  }

  template <class Source>
  void offer(const Source& source, std::uint32_t index) {
    if (strategy_ == VictimStrategy::list) [[likely]]
      return recency_.offer(source, index);
    offer_ranked(source, index);
  }

  /// offer() of an index that was offered before and whose key has not become smaller since: O(1) while it is there.
  template <class Source>
  void offer_again(const Source& source, std::uint32_t index) {
    if (!contains(source, index)) offer(source, index);
  }
  /// offer() of an index that is no candidate and was used after all that are.
  template <class Source>
  void offer_newest(const Source& source, std::uint32_t index) {
    if (strategy_ == VictimStrategy::list) return recency_.offer_newest(source, index);
    offer(source, index);
  }

  template <class Source>
  void used(const Source& source, std::uint32_t index) noexcept {
    if (!Recency::used(source, index)) rank_again(source, index);
  }
  /// The key of a candidate may have become smaller, for a reason that is no use. Without effect if it is none.
  template <class Source>
  void rank_again(const Source& source, std::uint32_t index) noexcept {
    if (!keys_may_shrink_) return;
    if constexpr (has_tenants<Source>)
      if (tenants_) return tenants_->rank_again(source, index);
    if (heap_.contains(index)) heap_.update(index, source.key(index));
  }
  [[nodiscard]] bool keys_may_shrink() const noexcept { return keys_may_shrink_; }

  /// Without effect if absent.
  template <class Source>
  void erase(const Source& source, std::uint32_t index) noexcept {
    if (strategy_ == VictimStrategy::list) [[likely]]
      return recency_.erase(source, index);
    erase_ranked(source, index);
  }

  /// The next victim, which stays a candidate; none if no candidate is eligible.
  template <class Source>
  [[nodiscard, gnu::always_inline]] std::optional<std::uint32_t> next(const Source& source) {
    if (strategy_ == VictimStrategy::list) [[likely]]
      return recency_.next(source);
    return next_ranked(source);
  }

  /// Whether `index` is evicted before `other`, of which either need not be a candidate.
  template <class Source>
  [[nodiscard]] bool precedes(const Source& source, std::uint32_t index, std::uint32_t other) const noexcept {
    if (strategy_ == VictimStrategy::list) return source.tick(index) < source.tick(other);
    return source.key(index) < source.key(other);
  }

  /// The rank of a candidate, smallest first. Strategy list: of a source with ticks.
  template <class Source>
  [[nodiscard]] VictimKey rank(const Source& source, std::uint32_t index) const noexcept {
    return strategy_ == VictimStrategy::list ? VictimKey(0, source.tick(index)) : source.key(index);
  }

  /// Writes the victims that would be next, one after the other, if nothing happened in between and no eviction made
  /// another candidate eligible or changed a key. Answers how many there are, at most out.size(). No later answer
  /// changes. O(out.size()) times the cost of next(); a list with links is walked, past locked candidates. Not where
  /// tenants have shares.
  template <class Source>
  [[nodiscard]] std::size_t peek(const Source& source, std::span<std::uint32_t> out) {
    STATEPORT_ASSERT(!tenants_);
    if (draw_)
      return draw_->peek(
          out, [&](std::uint32_t index) { return source.eligible(index); },
          [&](std::uint32_t index) { return source.key(index); });
    std::size_t found = 0;
    for (; found < out.size(); ++found) {
      const auto victim = next(source);
      if (!victim) break;
      out[found] = *victim;
      erase(source, *victim);
    }
    // Youngest first: each is then older than all that is listed.
    for (std::size_t at = found; at-- > 0;) offer(source, out[at]);
    return found;
  }

  /// A candidate that is likely to be next after `ahead` others, for prefetching. Of a list that is linked: the next
  /// one of its heap.
  [[nodiscard]] std::optional<std::uint32_t> upcoming(std::size_t ahead = 0) const noexcept {
    if (strategy_ == VictimStrategy::list) return recency_.upcoming(ahead);
    return ahead == 0 && !draw_ ? heap_.upcoming() : std::nullopt;
  }
  /// A hint that the index will soon be offered or erased.
  void prefetch(std::uint32_t index) const noexcept {
    if constexpr (requires { recency_.prefetch(index); })
      if (strategy_ == VictimStrategy::list) return recency_.prefetch(index);
    if (draw_) draw_->prefetch(index);
  }

  void clear() noexcept {
    recency_.clear();
    heap_.clear();
    if (draw_) draw_->clear();
    if (tenants_) tenants_->clear();
  }

  /// Throws std::logic_error naming the first violation. O(n).
  template <class Source>
  void check_invariants(const Source& source) const {
    heap_.check_invariants();
    if (draw_) draw_->check_invariants();
    if constexpr (has_tenants<Source>)
      if (tenants_) tenants_->check_invariants(source);
    if (strategy_ == VictimStrategy::list) recency_.check_invariants(source);
  }

 private:
  using Tenants = detail::TenantOrders<VictimOrder<LazyRecency>>;
  template <class Source>
  static constexpr bool has_tenants = requires(const Source& source) { source.tenant(0U); };

  // All but the list. Not inlined, so that a list, which needs few instructions, is.
  template <class Source>
  [[gnu::noinline]] void offer_ranked(const Source& source, std::uint32_t index) {
    if constexpr (has_tenants<Source>)
      if (tenants_) return tenants_->offer(source, index);
    if (draw_) return draw_->push(index);
    heap_.update(index, source.key(index));
  }
  template <class Source>
  [[gnu::noinline]] void erase_ranked(const Source& source, std::uint32_t index) noexcept {
    if constexpr (has_tenants<Source>)
      if (tenants_) return tenants_->erase(source, index);
    if (draw_) return draw_->erase(index);
    heap_.erase(index);
  }
  template <class Source>
  [[nodiscard, gnu::noinline]] std::optional<std::uint32_t> next_ranked(const Source& source) {
    if constexpr (has_tenants<Source>)
      if (tenants_) return tenants_->next(source);
    const auto eligible = [&](std::uint32_t index) { return source.eligible(index); };
    const auto key = [&](std::uint32_t index) { return source.key(index); };
    if (strategy_ == VictimStrategy::heap) return heap_.top(eligible, key);
    if constexpr (requires { source.fetch(0U, VictimFetch::key); })
      return draw_->draw(eligible, key, [&](std::uint32_t index, VictimFetch what) { source.fetch(index, what); });
    else
      return draw_->draw(eligible, key);
  }

  VictimStrategy strategy_;
  bool keys_may_shrink_;
  Recency recency_;
  VictimHeap<VictimKey> heap_;
  std::optional<VictimDraw<VictimKey>> draw_;
  std::unique_ptr<Tenants> tenants_;
};

}  // namespace stateport
