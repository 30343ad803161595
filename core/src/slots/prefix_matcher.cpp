// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/slots/prefix_matcher.hpp>

#include <stateport/core/model/error.hpp>

#include "containers/prefetch.hpp"

#include <algorithm>
#include <limits>

namespace stateport {
namespace {

constexpr std::int64_t blocks_of(std::int64_t value, std::int64_t by) noexcept {
  return value / by + (value % by != 0);
}

void check(const MatchQuery& query, std::span<const BlockId> matched, std::int32_t block_size) {
  require(query.finished_tokens >= 0, "finished_tokens", query.finished_tokens, "must not be negative");
  require(query.chunk_tokens >= 0, "chunk_tokens", query.chunk_tokens, "must not be negative");
  const std::int64_t room = std::int64_t{block_size} * std::numeric_limits<std::int32_t>::max();
  require(query.finished_tokens <= room && query.chunk_tokens <= room - query.finished_tokens, "chunk_tokens",
          query.chunk_tokens, "reaches past the last block that can be numbered");
  require(query.prefixes.size() == query.keys.size(), "prefixes", query.prefixes.size(), "must be as many as keys");
  require(matched.size() >= query.keys.size(), "matched", matched.size(), "must have room for all keys");
}

}  // namespace

PrefixMatcher::PrefixMatcher(const BlockDirectory& blocks, const SlotAllocator* states,
                             const PrefixMatcherOptions& options)
    : blocks_(blocks), states_(states), options_(options) {
  require(options.block_size_tokens >= 1, "block_size_tokens", options.block_size_tokens, "must be at least 1");
  require(options.min_remaining_tokens >= 1, "min_remaining_tokens", options.min_remaining_tokens,
          "must be at least 1: the forward needs a token");
}

BlockMatch PrefixMatcher::match(const MatchQuery& query, std::span<BlockId> matched) const {
  check(query, matched, options_.block_size_tokens);
  const std::int64_t block_size = options_.block_size_tokens;
  BlockMatch match;
  match.first_block = static_cast<std::int32_t>(blocks_of(query.finished_tokens, block_size));
  match.required_blocks = static_cast<std::int32_t>(blocks_of(query.finished_tokens + query.chunk_tokens, block_size));
  const auto first = std::min(query.keys.size(), static_cast<std::size_t>(match.first_block));
  const auto last = std::min(query.keys.size(), static_cast<std::size_t>(match.required_blocks));
  if (options_.hybrid && states_)  // while the blocks are looked up
    for (std::size_t i = first; i < std::min(last, first + detail::prefetch_distance); ++i)
      states_->prefetch(query.keys[i]);
  match.matched_blocks =
      static_cast<std::int32_t>(blocks_.find_prefix(query.keys.subspan(first, last - first), matched));
  if (!options_.hybrid)
    skip_attention_only(query, match);
  else if (query.finished_tokens == 0)
    skip_hybrid(query, matched, match);
  return match;
}

void PrefixMatcher::skip_attention_only(const MatchQuery& query, BlockMatch& match) const {
  if (match.matched_blocks == 0) return;
  const std::int64_t block_size = options_.block_size_tokens;
  const std::int64_t end = query.finished_tokens + query.chunk_tokens - options_.min_remaining_tokens;
  const std::int64_t matched_end = (match.first_block + std::int64_t{match.matched_blocks}) * block_size;
  const std::int64_t target = std::min(matched_end, std::max<std::int64_t>(end, 0) / block_size * block_size);
  match.skip_tokens = std::max<std::int64_t>(target - query.finished_tokens, 0);
  match.lost_tokens = matched_end - query.finished_tokens - match.skip_tokens;
  if (match.lost_tokens > 0) match.lost = LostHit::too_few_tokens;
}

void PrefixMatcher::skip_hybrid(const MatchQuery& query, std::span<const BlockId> matched, BlockMatch& match) const {
  const std::int64_t block_size = options_.block_size_tokens;
  const std::int64_t usable_end = query.chunk_tokens - options_.min_remaining_tokens;
  bool evicted = false;
  bool too_few = false;
  const auto prefetch = [&](std::int32_t blocks) {
    if (blocks > 0) states_->prefetch(query.keys[static_cast<std::size_t>(blocks - 1)]);
  };
  constexpr auto ahead = static_cast<std::int32_t>(detail::prefetch_distance);
  for (std::int32_t blocks = match.matched_blocks; states_ && blocks > match.matched_blocks - ahead; --blocks)
    prefetch(blocks);
  for (std::int32_t blocks = match.matched_blocks; states_ && blocks > 0; --blocks) {
    prefetch(blocks - ahead);
    StateTag wanted;
    const auto state = usable_state(query, blocks, wanted);
    if (!state) {
      evicted = evicted || states_->was_evicted(matched[static_cast<std::size_t>(blocks - 1)]);
      continue;
    }
    match.state_blocks = std::max(match.state_blocks, blocks);
    if (blocks * block_size > usable_end) {
      too_few = true;
      continue;
    }
    match.skip_tokens = blocks * block_size;
    match.state = state;
    match.wanted = wanted;
    break;
  }
  match.lost_tokens = match.matched_blocks * block_size - match.skip_tokens;
  if (match.lost_tokens == 0) return;
  // A state that was there and could not be used says more than one that has gone.
  match.lost = too_few ? LostHit::too_few_tokens : evicted ? LostHit::evicted : LostHit::no_checkpoint;
}

std::optional<FoundState> PrefixMatcher::usable_state(const MatchQuery& query, std::int32_t blocks,
                                                      StateTag& wanted) const {
  const auto index = static_cast<std::size_t>(blocks - 1);
  wanted = {.token_count = std::int64_t{blocks} * options_.block_size_tokens,
            .prefix = query.prefixes[index],
            .layout_fingerprint = options_.layout_fingerprint};
  auto state = states_->find_tagged(query.keys[index], wanted);
  if (state) state->index = index;
  return state;
}

}  // namespace stateport
