// SPDX-License-Identifier: Apache-2.0
#include "caches/prefix_history.hpp"

#include <algorithm>

namespace stateport::replay {

void PrefixHistory::count(std::span<const Content> prefixes, std::int64_t input_tokens, std::int64_t block_size_tokens,
                          const Hit& hit, double now_s, CacheStats& stats) {
  const auto find = [&](std::int32_t depth) { return seen_.find(prefixes[static_cast<std::size_t>(depth) - 1]); };
  const auto blocks = static_cast<std::int32_t>(prefixes.size());
  std::int32_t seen = hit.matched_blocks;
  while (seen < blocks && find(seen + 1) != seen_.end()) ++seen;
  const std::int32_t usable = std::min(seen, static_cast<std::int32_t>((input_tokens - 1) / block_size_tokens));
  const std::int32_t matched = std::min(hit.matched_blocks, usable);
  // The deepest state that was there once would have served.
  std::int32_t state = matched;
  while (state > hit.hit_blocks && !find(state)->second.had_state) --state;
  const bool index_knows = hit.lost == LostHit::off_grid || hit.lost == LostHit::locked_pool;
  if (index_knows) state = matched;

  const auto lose = [&](LostHit reason, std::int32_t from, std::int32_t to) {
    stats.count_loss(reason, from * block_size_tokens, to * block_size_tokens);
  };
  stats.count_request(input_tokens, hit.hit_blocks * block_size_tokens);
  lose(index_knows ? *hit.lost : LostHit::evicted, hit.hit_blocks, state);
  lose(LostHit::no_checkpoint, std::max(hit.hit_blocks, state), matched);
  lose(LostHit::evicted_kv, std::max(hit.hit_blocks, matched), usable);
  lose(LostHit::too_few_tokens, std::max(hit.hit_blocks, usable), seen);
  stats.count_loss(LostHit::never_stored, seen * block_size_tokens, input_tokens);
  if (hit.hit_blocks == 0) return;
  Seen& used = find(hit.hit_blocks).value();
  stats.reuse_ages.add(now_s - used.state_used_s);
  used.state_used_s = now_s;
}

void PrefixHistory::add(std::span<const Content> prefixes, std::span<const std::int32_t> depths, double now_s) {
  for (const Content prefix : prefixes) seen_.try_emplace(prefix);
  for (const std::int32_t depth : depths)
    seen_[prefixes[static_cast<std::size_t>(depth) - 1]] = {.state_used_s = now_s, .had_state = true};
}

}  // namespace stateport::replay
