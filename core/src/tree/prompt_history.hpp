// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/eviction_policy.hpp>
#include <stateport/core/tree/prefix_types.hpp>

#include "containers/reserve_amortised.hpp"
#include "tree/position_keys.hpp"
#include "tree/radix_nodes.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace stateport::detail {

/// Observations of a LearningPolicy about the requests of one prefix tree: time, prompts that are looked up, prefixes
/// that are kept. Names the positions of prompts, if the policy observes prompts. Requires nodes that keep their ends.
class PromptHistory {
 public:
  /// `nodes` and `policy` must outlive this.
  PromptHistory(const RadixNodes& nodes, LearningPolicy& policy, const PrefixTreeOptions& options);

  /// Makes room for the keys of a prompt of `prompt_pages` and of an arena of `arena_pages`.
  void reserve(std::uint32_t prompt_pages, std::size_t arena_pages) {
    if (!positions_) return;
    positions_->reserve(prompt_pages, arena_pages);
    reserve_amortised(forks_, positions_->count(prompt_pages));
  }
  void set_time(double now_s) noexcept;
  [[nodiscard]] double now_s() const noexcept { return now_s_; }
  /// A request with a prompt of `request_tokens` (0: of tokens.size()) looked up `tokens`. `found` is how far they are
  /// in the tree; the request continues from its answer.
  [[nodiscard]] PromptPast looked_up(std::span<const Token> tokens, std::int64_t request_tokens,
                                     const Namespace& name_space, const RadixWalk& found) noexcept;
  /// Names the positions of a new leaf.
  void added(std::uint32_t leaf, const PrefixInsert& prefix) noexcept;
  /// A prefix was kept that ends at `node`; `known`: all of it was in the tree before.
  void kept(std::uint32_t node, const PrefixInsert& prefix, bool known) noexcept;

  [[nodiscard]] std::size_t bytes() const noexcept { return policy_.bytes() + (positions_ ? positions_->bytes() : 0); }
  /// Throws std::logic_error naming the first violation. O(tokens of the tree).
  void check_invariants() const;

 private:
  /// The page of the arena that ends a position on the path to `node`, which moves up to the node that has the page.
  [[nodiscard]] std::uint32_t position_page(std::uint32_t& node, std::uint32_t position) const noexcept {
    return nodes_.page_on_path(node, positions_->end_page(position));
  }
  [[nodiscard]] PromptPast past_of(std::span<const Token> tokens, std::int64_t request_tokens,
                                   const Namespace& name_space, const RadixWalk& found) noexcept;
  void check_positions(std::uint32_t node, std::vector<Token>& scratch) const;

  const RadixNodes& nodes_;
  LearningPolicy& policy_;
  std::uint64_t hash_seed_;
  std::optional<PositionKeys> positions_;
  std::vector<std::int32_t> forks_;  ///< of the prompt that is looked up
  double now_s_ = 0;
  bool time_is_set_ = false;
};

}  // namespace stateport::detail
