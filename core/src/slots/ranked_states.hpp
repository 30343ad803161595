// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/eviction_policy.hpp>
#include <stateport/core/pool/block_directory.hpp>

#include "containers/table.hpp"
#include "evict/victim_order.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace stateport {

/// The victims of a SlotAllocator that has an EvictionPolicy: the candidates, and what the policy may look at. Blocks
/// are candidates by index.
///
/// States form a forest: a state hangs on the longest shorter prefix that had one when a request told of both. What an
/// evicted state carried hangs on in its place, so that it is followed to the next one that is left.
class RankedStates {
 public:
  /// Throws InvalidState for a policy that another cache has claimed, InvalidArgument for one whose keys shrink with
  /// each use.
  RankedStates(std::shared_ptr<EvictionPolicy> policy, const BlockDirectory& blocks, std::size_t slots);

  /// The block may be evicted from now on, or has an older tick.
  void offer(BlockId block);
  void withdraw(BlockId block) noexcept;
  /// The block that goes next, which stays a candidate. `eligible(index)` tells which may go now.
  template <class Eligible>
  [[nodiscard]] std::optional<std::uint32_t> top(Eligible&& eligible) {
    return order_.next(Source<Eligible>{*this, eligible});
  }
  /// See VictimOrder::peek.
  template <class Eligible>
  [[nodiscard]] std::size_t peek(Eligible&& eligible, std::span<std::uint32_t> out) {
    return order_.peek(Source<Eligible>{*this, eligible}, out);
  }

  /// The block got a slot.
  void store(BlockId block) noexcept;
  /// It goes to another block.
  void evict(BlockId block) noexcept;
  /// The block has no state any more.
  void lose(BlockId block) noexcept;
  /// It has no content any more, either. Precondition: no state.
  void forget(BlockId block) noexcept;
  /// A state that a hash finds.
  struct Found {
    BlockId block;
    std::int64_t end_tokens = 0;
  };
  /// See SlotAllocator::note_served. `find(hash)` answers the state, if there is one.
  template <class Find>
  void serve(std::span<const BlockHash> hashes, const PromptFacts& prompt, double now_s, Find&& find) {
    path_.clear();
    std::size_t blocks = 0;
    for (; blocks < hashes.size() && hashes[blocks] > 0; ++blocks)
      if (const auto found = find(hashes[blocks])) follow(*found, static_cast<std::int32_t>(blocks) + 1);
    tell(hashes.first(blocks), prompt, now_s);
  }
  void clear() noexcept;

  [[nodiscard]] VictimFacts facts(std::uint32_t index) const noexcept;
  [[nodiscard]] bool contains(std::uint32_t index) const noexcept { return order_.contains(any(), index); }
  [[nodiscard]] double now_s() const noexcept { return now_s_; }
  /// Throws std::logic_error naming the first violation. O(blocks).
  void check_invariants() const;

 private:
  static constexpr std::uint32_t none = UINT32_MAX;

  /// What VictimOrder asks of a candidate.
  template <class Eligible>
  struct Source {
    const RankedStates& states;
    Eligible& is_eligible;
    [[nodiscard]] bool eligible(std::uint32_t index) const { return is_eligible(index); }
    [[nodiscard]] VictimKey key(std::uint32_t index) const { return states.policy_->key(states.facts(index)); }
    [[nodiscard]] std::uint64_t tick(std::uint32_t index) const {
      return static_cast<std::uint64_t>(states.blocks_.last_use_tick(BlockId{static_cast<std::int32_t>(index)}));
    }
  };
  /// Where nobody asks what is eligible.
  struct All {
    [[nodiscard]] bool operator()(std::uint32_t) const noexcept { return true; }
  };
  [[nodiscard]] Source<const All> any() const noexcept { return {*this, all}; }
  static constexpr All all{};

  struct Node {
    std::uint64_t created = 0;
    std::int64_t end_tokens = 0;
    std::int32_t depth_blocks = 0;  ///< 0: no request told of it
    std::uint32_t parent = none;
    std::uint32_t parent_life = 0;  ///< the parent is another one if it has another life now
    std::uint32_t life = 0;         ///< content or state that the block has had
    std::uint32_t children = 0;
    std::uint32_t hits = 0;
    bool has_state = false;
  };

  [[nodiscard]] std::uint32_t parent_of(const Node& node) const noexcept {
    return node.parent != none && nodes_[node.parent].life == node.parent_life ? node.parent : none;
  }
  void follow(const Found& state, std::int32_t depth_blocks);
  void tell(std::span<const BlockHash> hashes, const PromptFacts& prompt, double now_s) noexcept;
  void attach(std::uint32_t index, std::uint32_t parent) noexcept;
  /// Answers the next prefix that is left, after those that nothing hangs on any more.
  std::uint32_t detach(std::uint32_t index) noexcept;

  std::shared_ptr<EvictionPolicy> policy_;
  LearningPolicy* learning_;  ///< the policy, if it observes what happens
  const BlockDirectory& blocks_;
  Table<Node> nodes_;  ///< by block
  VictimOrder<> order_;
  std::uint64_t created_ = 0;
  double now_s_ = 0;
  std::vector<std::uint32_t> path_;  ///< states of the prompt that was served
};

}  // namespace stateport
