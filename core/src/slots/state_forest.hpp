// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/eviction_policy.hpp>
#include <stateport/core/pool/block_directory.hpp>

#include "containers/table.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace stateport {

/// Facts by which an EvictionPolicy ranks the states of a SlotAllocator, by block; and reports to a LearningPolicy
/// about them.
///
/// States form a forest. The parent of a state is the longest shorter prefix that had a state when a request reported
/// both. The place of an evicted state stays in the forest as long as it has children, so that these find the next
/// state above it.
class StateForest {
 public:
  static constexpr std::uint32_t none = UINT32_MAX;

  /// `kv_follows`: see SlotAllocatorOptions. `tenants` of the blocks; null: they have no shares. Throws InvalidState
  /// for a policy that another cache has claimed, InvalidArgument for one whose keys shrink with each use.
  StateForest(std::shared_ptr<EvictionPolicy> policy, const BlockDirectory& blocks, std::size_t slots, bool kv_follows,
              const CandidateTenants* tenants = nullptr);

  [[nodiscard]] VictimFacts facts(std::uint32_t index) const noexcept;
  [[nodiscard]] VictimKey key(std::uint32_t index) const noexcept { return policy_->key(facts(index)); }

  /// The block got a slot.
  void store(BlockId block) noexcept;
  /// The state is evicted, because the policy chose it. Returns as lose().
  std::uint32_t evict(BlockId block) noexcept;
  /// The block has no state any more. Returns the block whose key that may have made smaller, or `none`.
  std::uint32_t lose(BlockId block) noexcept;
  /// It has no content any more, either. Precondition: no state.
  void forget(BlockId block) noexcept;

  /// A state that a hash finds.
  struct Found {
    BlockId block;
    std::int64_t end_tokens = 0;
  };
  /// See SlotAllocator::note_served. `find(hash)` answers the state, if there is one.
  template <class Find>
  PromptPast serve(std::span<const BlockHash> hashes, const PromptFacts& prompt, double now_s, Find&& find) {
    path_.clear();
    forks_.clear();
    std::size_t blocks = 0;
    for (; blocks < hashes.size() && hashes[blocks] > 0; ++blocks)
      if (const auto found = find(hashes[blocks])) follow(*found, static_cast<std::int32_t>(blocks) + 1);
    note_fork();
    return report(hashes.first(blocks), prompt, now_s);
  }
  /// The states of the last prompt, whose keys may have become smaller. Valid until the next one.
  [[nodiscard]] std::span<const std::uint32_t> served() const noexcept { return path_; }
  void clear() noexcept;

  [[nodiscard]] bool has_state(std::uint32_t index) const noexcept { return nodes_[index].has_state; }
  /// Throws std::logic_error naming the first violation. Blocks from `blocks` on have never had content. O(blocks).
  void check_invariants(std::size_t blocks) const;

 private:
  struct Node {
    std::uint64_t created = 0;
    std::int64_t end_tokens = 0;
    std::int32_t depth_blocks = 0;  ///< 0: no request has reported it
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
  /// The part of a leaf's prefix that other states need, too. To the next state above, or the next fork where one was.
  [[nodiscard]] std::int64_t needed_tokens(const Node& leaf) const noexcept;
  void follow(const Found& state, std::int32_t depth_blocks);
  void note_fork();
  PromptPast report(std::span<const BlockHash> hashes, const PromptFacts& prompt, double now_s) noexcept;
  void attach(std::uint32_t index, std::uint32_t parent) noexcept;
  /// Removes the places above that have no children left; returns the next one that stays.
  std::uint32_t detach(std::uint32_t index) noexcept;

  std::shared_ptr<EvictionPolicy> policy_;
  LearningPolicy* learning_;  ///< the policy, if it observes the cache
  const BlockDirectory& blocks_;
  bool kv_follows_;
  Table<Node> nodes_;  ///< by block
  std::uint64_t created_ = 0;
  std::vector<std::uint32_t> path_;  ///< states of the prompt that was served
  std::vector<std::int32_t> forks_;  ///< depths of those that had several continuations before
};

}  // namespace stateport
