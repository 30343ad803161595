// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include <stateport/core/evict/prompt_facts.hpp>
#include <stateport/core/model/compute_cost.hpp>

namespace stateport {

/// What a policy may look at to rank a candidate. Ticks are values of one logical clock. The lengths of prefixes are
/// for policies that ask for them by has_memory(); elsewhere they are 0.
struct VictimFacts {
  std::uint32_t index = 0;         ///< of the node or block; a policy may keep data of its own by it
  std::uint64_t used_tick = 0;     ///< last use
  std::uint64_t created_tick = 0;  ///< a part that was split off keeps the time of the whole
  std::uint32_t hits = 0;          ///< inserts that passed through or ended here
  std::int32_t priority = 0;
  std::int64_t tokens = 0;  ///< KV that an eviction would free; 0: the state alone goes
  bool has_state = false;
  std::int64_t segment_tokens = 0;   ///< KV of the node alone, which changes by a split; 0: a block
  std::int64_t end_tokens = 0;       ///< length of the prefix that ends here
  std::int64_t fallback_tokens = 0;  ///< length of the longest shorter prefix that has a state
  /// A leaf alone needs more KV than its own: what goes with it sooner or later, up to the next fork, and the longest
  /// prefix with a state that is left then.
  std::int64_t chain_tokens = 0;
  std::int64_t chain_fallback_tokens = 0;
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

  /// Smallest value first, then least recent use. Precondition: value >= 0.
  [[nodiscard]] static constexpr VictimKey from(double value, std::uint64_t used_tick) noexcept {
    constexpr std::uint64_t low = UINT32_MAX;  // doubles that are not negative are in the order of their bits
    const auto bits = std::bit_cast<std::uint64_t>(value);
    return {static_cast<std::int32_t>(bits >> 32), bits << 32 | (used_tick & low)};
  }

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

/// Decides what a cache evicts first: leaves of a PrefixTree when KV is needed, states where it says so. The cache asks
/// for the key of a candidate when it becomes one and again before it is evicted. Called under the cache's lock
/// discipline: not concurrently; the same calls give the same keys.
///
/// A policy has no memory, and then a key depends on the facts alone and many caches may share it; or it has, is told
/// what happens, and belongs to one cache. What it is told of allocates nothing once reserve() was called.
class EvictionPolicy {
 public:
  virtual ~EvictionPolicy() = default;
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  [[nodiscard]] virtual VictimKey key(const VictimFacts& facts) const noexcept = 0;
  /// True if a use, a state that comes or goes, or a split may make a key smaller: the cache then re-ranks a candidate
  /// whenever that happens, O(log n), instead of when it comes up.
  [[nodiscard]] virtual bool key_may_shrink() const noexcept { return false; }
  /// > 0: keys change with time, so that no order can be kept. The cache draws so many candidates at random, compares
  /// them with the best that lost the draws before (VictimDraw), and evicts the smallest.
  [[nodiscard]] virtual std::int32_t draws() const noexcept { return 0; }
  [[nodiscard]] virtual std::uint64_t draw_seed() const noexcept { return 1; }

  // What follows is for policies with memory; to others it is not told.

  [[nodiscard]] virtual bool has_memory() const noexcept { return false; }
  /// True if it wants to hear of time and prompts: set_time(), looked_up(), kept() with keys.
  [[nodiscard]] virtual bool learns() const noexcept { return false; }
  /// False if another cache has claimed a policy that has memory.
  [[nodiscard]] bool claim() noexcept { return !has_memory() || !std::exchange(claimed_, true); }
  /// Indices will be below this.
  virtual void reserve(std::size_t /*indices*/) {}
  /// Time in seconds; never goes back.
  virtual void set_time(double /*now_s*/) noexcept {}
  /// A request begins.
  [[nodiscard]] virtual PromptPast looked_up(const PromptFacts& /*prompt*/) noexcept { return {}; }
  /// A request continues from the state of this candidate.
  virtual void used(std::uint32_t /*index*/) noexcept {}
  /// Throws nothing: the cache has checked the hint (check_hint) before it changed anything.
  virtual void kept(const KeptFacts& /*prefix*/) noexcept {}
  /// The state of this candidate is gone, and nothing else.
  virtual void lost_state(std::uint32_t /*index*/) noexcept {}
  /// This candidate is gone, its state with it. `heir` ends the longest prefix of it that is left, if nothing else
  /// continues from there: who would have hit here will hit there. no_heir otherwise.
  virtual void removed(std::uint32_t /*index*/, std::uint32_t /*heir*/) noexcept {}
  /// This candidate is evicted next. (A state or leaf may also go for other reasons.)
  virtual void chosen(const VictimFacts& /*victim*/) noexcept {}
  /// The cache forgot all that it holds, but not what was learned.
  virtual void cleared() noexcept {}
  [[nodiscard]] virtual std::size_t bytes() const noexcept { return 0; }
  /// Throws std::logic_error naming the first violation.
  virtual void check_invariants() const {}

  static constexpr std::uint32_t no_heir = UINT32_MAX;

 private:
  bool claimed_ = false;
};

/// Throws InvalidArgument for a hint whose factor is not positive or whose idle time is negative.
void check_hint(const ReuseHint& hint);

/// The policies. Keys, smallest first, of those that need no memory of their own:
///     lru      last use                     mru      last use, largest first
///     fifo     creation                     filo     creation, largest first
///     lfu      (hits, last use)             priority (priority, last use)
///     slru     (hits >= 2, last use): nodes used once go before nodes used again
/// and of those that have one, where what has no state is worth nothing and goes first:
///     gdsf     greedy dual size frequency: clock + uses · (cost to compute) / (bytes); the clock is the last victim's
///     hix      learned hazard index: (best hits per second) · (cost saved) / (bytes); see EvictionOptions
enum class EvictionOrder : std::uint8_t { hix, gdsf, lru, lfu, fifo, slru, priority, mru, filo };

[[nodiscard]] std::string_view name(EvictionOrder order) noexcept;

/// What gdsf and hix go by; the others need nothing.
struct EvictionOptions {
  /// Memory of a state and of a token's KV, in bytes or any other unit: what counts is their ratio.
  std::int64_t state_bytes = 4096;
  std::int64_t kv_bytes_per_token = 1;
  ComputeCost benefit;  ///< what a hit saves
  /// hix: positions whose history is remembered, cached or not. 48 bytes each.
  std::size_t positions = 16384;
  /// hix: candidates drawn for a victim, beside the best left over from before; 0: all are compared.
  std::int32_t samples = 24;
  std::uint64_t seed = 1;  ///< hix: of the draws
};

/// Throws InvalidArgument for a value that is not an enumerator and, if the order needs them, for options out of range:
/// bytes or positions < 1, samples < 0, a benefit that is negative or not finite.
[[nodiscard]] std::shared_ptr<EvictionPolicy> make_eviction_policy(EvictionOrder order,
                                                                   const EvictionOptions& options = {});

}  // namespace stateport
