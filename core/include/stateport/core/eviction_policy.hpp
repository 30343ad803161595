// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstdint>
#include <memory>
#include <string_view>

namespace stateport {

/// What a policy may look at to rank a candidate. Ticks are values of one logical clock.
struct VictimFacts {
  std::uint32_t index = 0;         ///< of the node; a policy may keep data of its own by it
  std::uint64_t used_tick = 0;     ///< last use
  std::uint64_t created_tick = 0;  ///< a part that was split off keeps the time of the whole
  std::uint32_t hits = 0;          ///< inserts that passed through or ended here
  std::int32_t priority = 0;
  std::int64_t tokens = 0;  ///< KV that an eviction would free
  bool has_state = false;
};

/// The rank of a candidate: the smallest goes first; equal keys are ordered by node index, so the order is total.
/// 12 bytes, so that a heap entry has 16.
class VictimKey {
 public:
  constexpr VictimKey() noexcept = default;
  constexpr VictimKey(std::int32_t rank, std::uint64_t order) noexcept
      : rank_(rank),
        order_high_(static_cast<std::uint32_t>(order >> 32)),
        order_low_(static_cast<std::uint32_t>(order)) {}

  [[nodiscard]] constexpr std::int32_t rank() const noexcept { return rank_; }
  [[nodiscard]] constexpr std::uint64_t order() const noexcept { return std::uint64_t{order_high_} << 32 | order_low_; }
  friend constexpr bool operator==(const VictimKey&, const VictimKey&) noexcept = default;
  friend constexpr bool operator<(const VictimKey& a, const VictimKey& b) noexcept {
    return a.rank_ != b.rank_ ? a.rank_ < b.rank_ : a.order() < b.order();
  }

 private:
  std::int32_t rank_ = 0;
  std::uint32_t order_high_ = 0;
  std::uint32_t order_low_ = 0;
};

/// Decides which leaf of a PrefixTree is evicted first when KV is needed. (When only states are needed the least
/// recently used goes.) A key may depend on the facts alone; the tree asks for it when a node becomes a candidate and
/// again before it is evicted. Called under the tree's lock discipline: not concurrently.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  [[nodiscard]] virtual VictimKey key(const VictimFacts& facts) const noexcept = 0;
  /// True if a use, a state that comes or goes, or a split may make a key smaller: the tree then re-ranks a candidate
  /// whenever that happens, O(log n), instead of when it comes up.
  [[nodiscard]] virtual bool key_may_shrink() const noexcept { return false; }
};

/// The policies that need no memory of their own. Keys, smallest first:
///     lru      last use                     mru      last use, largest first
///     fifo     creation                     filo     creation, largest first
///     lfu      (hits, last use)             priority (priority, last use)
///     slru     (hits >= 2, last use): nodes used once go before nodes used again
enum class EvictionOrder : std::uint8_t { lru, lfu, fifo, slru, priority, mru, filo };

[[nodiscard]] std::string_view name(EvictionOrder order) noexcept;

/// Throws InvalidArgument for a value that is not an enumerator.
[[nodiscard]] std::shared_ptr<const EvictionPolicy> make_eviction_policy(EvictionOrder order);

}  // namespace stateport
