// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/prompt_facts.hpp>
#include <stateport/core/model/cost.hpp>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

namespace stateport {

/// Facts by which a policy ranks a candidate. Ticks are values of one logical clock. The lengths of prefixes are filled
/// in for a LearningPolicy only; for other policies they are 0.
struct VictimFacts {
  std::uint32_t index = 0;         ///< of the node or block; a policy may keep its own data by it
  std::uint64_t used_tick = 0;     ///< last use
  std::uint64_t created_tick = 0;  ///< both parts of a split node keep the tick of the whole
  std::uint32_t hits = 0;          ///< inserts that passed through or ended here
  std::int32_t priority = 0;
  std::int64_t tokens = 0;  ///< KV that the eviction would free; 0: it frees the state alone
  bool has_state = false;
  std::uint32_t children = 0;        ///< branches: longer prefixes that continue from here
  std::int64_t segment_tokens = 0;   ///< KV from the next fork or state above to the end; 0: a block
  std::int64_t end_tokens = 0;       ///< length of the prefix that ends here
  std::int64_t fallback_tokens = 0;  ///< length of the longest shorter prefix that has a state
  /// Of a leaf, else 0. The KV from the next fork above to the end of the leaf: no other prefix needs it, so it follows
  /// the leaf out of the cache sooner or later. And the length of the longest prefix with a state that is left then.
  std::int64_t chain_tokens = 0;
  std::int64_t chain_fallback_tokens = 0;
};

/// The rank of a candidate: the smallest key is evicted first. Candidates with equal keys are ordered by index, so the
/// order is total. 12 bytes, so that a heap entry has 16.
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

class LearningPolicy;

/// The tenants of a cache's candidates, where tenants have shares (TenantQuota). Tenants are known by the number of
/// their account; all that have no quota have account 0.
class CandidateTenants {
 public:
  [[nodiscard]] virtual std::size_t accounts() const noexcept = 0;
  [[nodiscard]] virtual std::uint8_t account_of(std::uint32_t index) const noexcept = 0;
  /// The part of all memory that is the floor of this account, from 0 to 1.
  [[nodiscard]] virtual double floor_share(std::uint8_t account) const noexcept = 0;

 protected:
  ~CandidateTenants() = default;
};

/// How the keys of a policy behave. A cache chooses by it how it finds the smallest one (VictimStrategy).
struct VictimTraits {
  /// The key depends on the last use alone.
  bool by_last_use = false;
  /// A use, a split, or a state that is added or removed may make a key smaller. The cache then ranks the candidate
  /// again at once, O(log n). Otherwise it ranks a candidate again only before it would evict it.
  bool key_may_shrink = false;
  /// > 0: keys change with time, so the cache keeps no order. For each victim it draws this many candidates in turn,
  /// compares them with the best ones left over from earlier draws (VictimDraw), and evicts the smallest.
  std::int32_t draws = 0;
  /// The policy also ranks the states of inner nodes, which keep their KV. Otherwise it ranks leaves alone, and states
  /// are evicted by last use. Always so if keys are drawn.
  bool ranks_states = false;
};

/// Ranks eviction candidates: the smallest key is evicted first. key() is called when a candidate becomes evictable and
/// again just before its eviction, never concurrently. Equal facts have equal keys, so that many caches may share one
/// policy; one that also observes the cache is a LearningPolicy.
///
/// To write an order, define name() and key(), and traits() if its keys shrink.
class EvictionPolicy {
 public:
  EvictionPolicy() = default;
  EvictionPolicy(const EvictionPolicy&) = delete;
  EvictionPolicy& operator=(const EvictionPolicy&) = delete;
  virtual ~EvictionPolicy() = default;
  [[nodiscard]] virtual std::string_view name() const noexcept = 0;
  [[nodiscard]] virtual VictimKey key(const VictimFacts& facts) const noexcept = 0;
  /// Must not change.
  [[nodiscard]] virtual VictimTraits traits() const noexcept { return {}; }
  /// This policy as one that learns; nullptr if it does not.
  [[nodiscard]] virtual LearningPolicy* learning() noexcept { return nullptr; }
};

/// A policy that also observes one cache. Its keys depend on its observations: equal sequences of calls give equal
/// keys. After reserve() no observation allocates. Calls are never concurrent.
class LearningPolicy : public EvictionPolicy {
 public:
  static constexpr std::uint32_t no_heir = UINT32_MAX;

  [[nodiscard]] LearningPolicy* learning() noexcept final { return this; }
  /// True only if the candidate's key is VictimKey::from(0, used_tick), whatever its other facts are. The cache then
  /// need not collect these facts to know the key.
  [[nodiscard]] virtual bool has_no_expected_hits(std::uint32_t /*index*/) const noexcept { return false; }
  /// A hint that key() will soon be asked for this candidate, if it is still one.
  virtual void fetch(std::uint32_t /*index*/) const noexcept {}
  /// True for the first cache that calls it, false afterwards: a policy observes one cache only.
  [[nodiscard]] bool claim() noexcept { return !std::exchange(claimed_, true); }
  /// True if the policy observes time and prompts: set_time(), looked_up(), and kept() with keys.
  [[nodiscard]] virtual bool observes_prompts() const noexcept { return false; }

  /// Tenants have shares of the cache. Called before all that follows; `tenants` outlives the last call.
  virtual void set_tenants(const CandidateTenants& /*tenants*/) {}
  /// Makes room for candidates with indices below `indices`.
  virtual void reserve(std::size_t /*indices*/) {}
  /// Time in seconds; never goes back.
  virtual void set_time(double /*now_s*/) noexcept {}
  /// A request looks its prompt up. Only `keys`, `blocks`, `matched_blocks` and `forks` of the prompt are set.
  [[nodiscard]] virtual PromptPast looked_up(const PromptFacts& /*prompt*/) noexcept { return {}; }
  /// A request continues from the state of this candidate.
  virtual void used(std::uint32_t /*index*/) noexcept {}
  /// The current lengths of a candidate: its state was just used or kept, or it lost a continuation. Called by a
  /// PrefixTree, if the policy ranks states.
  virtual void measured(const VictimFacts& /*facts*/) noexcept {}
  /// The cache keeps a prefix. It has checked the hint already (check_hint).
  virtual void kept(const KeptFacts& /*prefix*/) noexcept {}
  /// This candidate lost its state and keeps its KV.
  virtual void lost_state(std::uint32_t /*index*/) noexcept {}
  /// This candidate left the cache, with its state. `heir` is the candidate at the end of its longest prefix that is
  /// left, if no other prefix continues from there: requests that would have hit this candidate now hit the heir.
  /// Otherwise no_heir.
  virtual void removed(std::uint32_t /*index*/, std::uint32_t /*heir*/) noexcept {}
  /// This candidate is the next victim. Not called if has_no_expected_hits(). States and leaves can also be removed
  /// without having been chosen.
  virtual void chosen(const VictimFacts& /*victim*/) noexcept {}
  /// The cache dropped everything that it held. The policy keeps its knowledge.
  virtual void cleared() noexcept {}
  [[nodiscard]] virtual std::size_t bytes() const noexcept { return 0; }
  /// Throws std::logic_error naming the first violation.
  virtual void check_invariants() const {}

 private:
  bool claimed_ = false;
};

/// Throws InvalidArgument for a hint whose factor is not positive, whose idle time is negative or whose probability is
/// not one.
void check_hint(const ReuseHint& hint);

/// The policies that exist. Orders, with their keys, smallest first:
///     lru      last use                     mru      last use, largest first
///     fifo     creation                     filo     creation, largest first
///     lfu      (hits, last use)             priority (priority, last use)
///     slru     (hits >= 2, last use): nodes used once go before nodes used again
/// Learning policies; a candidate without a state has rank 0 and goes first:
///     gdsf     greedy dual size frequency: clock + uses · (cost to compute) / (bytes); the clock is the key of the
///              last victim
///     hix      learned hazard index: (best hits per second) · (cost saved) / (bytes); see EvictionOptions
enum class EvictionOrder : std::uint8_t { hix, gdsf, lru, lfu, fifo, slru, priority, mru, filo };

[[nodiscard]] std::string_view name(EvictionOrder order) noexcept;

/// Options of gdsf and hix. The other policies need none.
struct EvictionOptions {
  ComputeCost benefit;  ///< the cost that a hit saves
  /// hix: positions whose history is remembered, cached or not. 64 bytes each, where tenants have shares 80. Of them
  /// a tenant keeps as large a part as its floor is of the memory.
  std::size_t positions = 16384;
  /// hix: candidates drawn in turn for a victim, beside the best left over from before; -1: all are compared.
  std::int32_t samples = 24;
};

/// A policy that weighs states and KV by `memory`, of which only the ratio counts. Throws InvalidArgument for a value
/// that is not an enumerator, for a benefit that check_compute_cost refuses and, for gdsf and hix, for a cost of memory
/// or positions < 1, and for samples that are neither -1 nor >= 1.
[[nodiscard]] std::shared_ptr<EvictionPolicy> make_eviction_policy(EvictionOrder order,
                                                                   const EvictionOptions& options = {},
                                                                   const MemoryCost& memory = {});

}  // namespace stateport
