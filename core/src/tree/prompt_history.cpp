// SPDX-License-Identifier: Apache-2.0
#include "tree/prompt_history.hpp"

#include <stateport/core/model/error.hpp>

#include <algorithm>

namespace stateport::detail {

PromptHistory::PromptHistory(const RadixNodes& nodes, LearningPolicy& policy, const PrefixTreeOptions& options)
    : nodes_(nodes), policy_(policy), hash_seed_(options.hash_seed) {
  if (!policy.observes_prompts()) return;
  const std::int64_t step_tokens = std::int64_t{options.position_tokens} + options.page_size - 1;
  positions_.emplace(options.page_size, static_cast<std::uint32_t>(step_tokens / options.page_size));
}

void PromptHistory::set_time(double now_s) noexcept {
  now_s_ = now_s;
  time_is_set_ = true;
  policy_.set_time(now_s);
}

PromptPast PromptHistory::looked_up(std::span<const Token> tokens, std::int64_t request_tokens,
                                    const Namespace& name_space, const RadixWalk& found) noexcept {
  if (!time_is_set_) policy_.set_time(++now_s_);
  PromptPast past;
  if (positions_) past = past_of(tokens, request_tokens, name_space, found);
  if (found.answer != RadixNodes::root) policy_.used(found.answer);
  return past;
}

void PromptHistory::added(std::uint32_t leaf, const PrefixInsert& prefix) noexcept {
  if (!positions_) return;
  std::uint32_t above = nodes_[leaf].parent;
  std::uint32_t position = positions_->count(nodes_.end_page(above));
  PositionKey key =
      position == 0 ? namespace_seed(prefix.name_space, hash_seed_) : positions_->key(position_page(above, position));
  for (const std::uint32_t last = positions_->count(nodes_.end_page(leaf)); position < last;) {
    key = positions_->next(prefix.tokens, ++position, key);
    positions_->set_key(position_page(leaf, position), key);
  }
}

PromptPast PromptHistory::past_of(std::span<const Token> tokens, std::int64_t request_tokens,
                                  const Namespace& name_space, const RadixWalk& found) noexcept {
  const std::span<PositionKey> keys = positions_->open(static_cast<std::int64_t>(tokens.size()));
  const auto held = std::min(positions_->count(found.pages), static_cast<std::uint32_t>(keys.size()));
  std::uint32_t node = found.cut_node != RadixNodes::none ? found.cut_node : found.node;
  forks_.clear();
  for (std::uint32_t position = held; position > 0; --position) {
    keys[position - 1] = positions_->key(position_page(node, position));
    if (nodes_[node].children >= 2 && nodes_.end_page(node) == positions_->end_page(position))
      forks_.push_back(static_cast<std::int32_t>(position));
  }
  std::ranges::reverse(forks_);
  PositionKey key = held == 0 ? namespace_seed(name_space, hash_seed_) : keys[held - 1];
  for (std::uint32_t position = held; position < keys.size();) {
    key = positions_->next(tokens, position + 1, key);
    keys[position++] = key;
  }
  const std::int32_t blocks = positions_->count_of_tokens(std::max(request_tokens, std::ssize(tokens)));
  return policy_.looked_up(
      {.keys = keys, .blocks = blocks, .matched_blocks = static_cast<std::int32_t>(held), .forks = forks_});
}

void PromptHistory::kept(std::uint32_t node, const PrefixInsert& prefix, bool known) noexcept {
  const auto tokens = static_cast<std::int64_t>(prefix.tokens.size());
  const bool at_end = !prefix.chunked && prefix.prompt.tokens <= tokens;
  const bool has_state = nodes_[node].slot >= 0;
  if (!at_end && !has_state) return;
  KeptFacts facts{.index = node,
                  .has_state = has_state,
                  .at = at_end  ? KeptAt::end
                        : known ? KeptAt::branch
                                : KeptAt::rung,
                  .prompt = prefix.prompt};
  if (positions_) {
    const std::uint32_t position = positions_->count(nodes_.end_page(node));
    if (position > 0) facts.key = positions_->key(position_page(node, position));
    facts.depth_blocks = static_cast<std::int32_t>(position);
    facts.prompt.blocks = positions_->count_of_tokens(std::max(prefix.prompt.tokens, tokens));
  }
  policy_.kept(facts);
}

void PromptHistory::check_positions(std::uint32_t node, std::vector<Token>& scratch) const {
  const std::int64_t page_tokens = nodes_.tokens_of(1);
  const std::uint32_t begin_page = nodes_.end_page(nodes_[node].parent);
  for (std::uint32_t position = positions_->count(nodes_.end_page(node)); positions_->end_page(position) > begin_page;
       --position) {
    // The tokens of a position may lie in several nodes, last page first.
    scratch.clear();
    std::uint32_t at = node;
    for (std::uint32_t page = positions_->end_page(position); page-- > positions_->end_page(position - 1);) {
      while (nodes_.end_page(nodes_[at].parent) > page) at = nodes_[at].parent;
      const Token* tokens = nodes_.arena().tokens(nodes_[at].first_page + page - nodes_.end_page(nodes_[at].parent));
      scratch.insert(scratch.begin(), tokens, tokens + page_tokens);
    }
    const PositionKey before = position == 1 ? namespace_seed(nodes_.names().name(nodes_[node].name_space), hash_seed_)
                                             : positions_->key(position_page(at = node, position - 1));
    require_invariant(positions_->key(position_page(at = node, position)) == positions_->next(scratch, 1, before),
                      "PrefixTree", "a position has the key of other tokens");
  }
}

void PromptHistory::check_invariants() const {
  std::vector<Token> scratch;
  for (std::uint32_t index = 1; positions_ && index < nodes_.size(); ++index)
    if (nodes_[index].pages > 0) check_positions(index, scratch);
  policy_.check_invariants();
}

}  // namespace stateport::detail
