// SPDX-License-Identifier: Apache-2.0
#include "serve/tail_use.hpp"

#include <stateport/core/align/align_rules.hpp>

#include "serve/request_options.hpp"

#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <span>

namespace stateport::detail {
namespace {

std::int64_t asked_tail(const RequestCacheOptions& options) {
  return in_columns(options) ? column_layout(options).tail_tokens : slot_layout(options).tail_tokens;
}

/// Options under which a tail moves states.
bool has_tails(const RequestCacheOptions& options) {
  return in_columns(options) ? column_layout(options).mode == AlignMode::align
                             : slot_layout(options).placement != CheckpointPlacement::every;
}

std::uint64_t hash_of(std::span<const Token> tokens, std::uint64_t seed = 0) noexcept {
  return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), seed);
}

/// Equal parts have equal hashes. Two others have equal ones with a chance of 1 in 2^32: then a sum is a little wrong.
std::uint32_t short_hash_of(std::span<const Token> tokens) noexcept {
  return static_cast<std::uint32_t>(hash_of(tokens));
}

std::span<const Token> part_of(const RequestRecord& prompt, std::int64_t first, std::int64_t end) {
  return prompt.tokens.first(end).subspan(static_cast<std::size_t>(first));
}

}  // namespace

TailUse::TailUse(const RequestCacheOptions& options)
    : fixed_(std::max<std::int64_t>(asked_tail(options), 0)),
      grid_(ceil_div(default_tokens, std::int64_t{options.block_size_tokens}) * options.block_size_tokens) {
  if (asked_tail(options) != 0 || !has_tails(options)) return;
  sets_.resize(std::min(std::bit_ceil(static_cast<std::size_t>(kv_blocks(options))), sets_max));
  reach_ = default_tokens + state_grid_tokens(options) + grid_;
}

/// Of the tokens before this position, and of the position and the namespace.
std::uint64_t TailUse::key_of(const RequestRecord& prompt, std::int64_t tokens) const noexcept {
  const std::uint64_t place = (std::uint64_t{prompt.tag.extra_key} << 32 | prompt.tag.salt) * 31;
  const std::uint64_t key =
      hash_of(part_of(prompt, tokens - key_tokens, tokens), place + static_cast<std::uint64_t>(tokens));
  return key | 1;
}

void TailUse::note_computed(const RequestRecord& prompt, const Places& places) noexcept {
  const std::int64_t at = floor_to(places.before_tail, grid_);
  if (at == 0 || places.before_tail >= places.usable) return;
  const std::uint64_t key = key_of(prompt, at);
  Set& set = sets_[(key >> 32) & (sets_.size() - 1)];
  const auto same = std::ranges::find(set, key, &Seen::key);
  const auto last = same == set.end() ? set.end() - 1 : same;
  std::move_backward(set.begin(), last, last + 1);
  set[0] = {.key = key,
            .between = short_hash_of(part_of(prompt, places.before_tail, places.usable)),
            .before_tail = static_cast<std::int32_t>(places.before_tail),
            .usable = places.leaves_end ? static_cast<std::int32_t>(places.usable) : INT32_MAX,
            .other = static_cast<std::int32_t>(places.other)};
}

/// The earlier prompt into whose tail these tokens of the prompt reach, or a little beyond.
const TailUse::Seen* TailUse::find(const RequestRecord& prompt, std::int64_t tokens) const noexcept {
  const std::int64_t least = std::max<std::int64_t>(tokens - reach_, 1);
  for (std::int64_t at = floor_to(tokens, grid_); at >= least; at -= grid_) {
    const std::uint64_t key = key_of(prompt, at);
    const Set& set = sets_[(key >> 32) & (sets_.size() - 1)];
    const auto seen = std::ranges::find(set, key, &Seen::key);
    if (seen != set.end() && tokens >= seen->before_tail) return &*seen;
  }
  return nullptr;
}

/// The tokens of the prompt tell whether it goes on behind the end of the earlier one. What is cached does not: the KV
/// behind the last state may be gone.
TailLesson TailUse::lesson_of(const RequestRecord& prompt, const OpenedPrompt& opened) const noexcept {
  TailLesson lesson;
  if (opened.cached_tokens == 0) return lesson;
  const Seen* seen = find(prompt, opened.cached_tokens);
  if (seen == nullptr && opened.reused_tokens > 0 && opened.reused_tokens < opened.cached_tokens)
    seen = find(prompt, opened.reused_tokens);
  if (seen == nullptr) return lesson;
  lesson.is_one = true;
  const bool goes_on = prompt.prompt_tokens > seen->usable &&
                       short_hash_of(part_of(prompt, seen->before_tail, seen->usable)) == seen->between;
  if (goes_on)
    lesson.lost_with = seen->usable - seen->before_tail;
  else
    lesson.lost_without = seen->before_tail - seen->other;
  return lesson;
}

void TailUse::look_at(RequestRecord& prompt, const OpenedPrompt& opened) const noexcept {
  prompt.tail_lesson = {};
  prompt.tail_tokens = fixed_;
  if (sets_.empty()) return;
  prompt.tail_lesson = lesson_of(prompt, opened);
  Sums sums = sums_[prompt.tag.bucket(sums_.size())];
  sums.add(prompt.tail_lesson);
  if (sums.lost_without > sums.lost_with) prompt.tail_tokens = default_tokens;
}

void TailUse::learn(const RequestRecord& prompt) noexcept {
  if (!prompt.tail_lesson.is_one || prompt.stale) return;
  Sums& sums = sums_[prompt.tag.bucket(sums_.size())];
  sums.add(prompt.tail_lesson);
  if (sums.prompts == remembered)
    sums = {.lost_without = sums.lost_without / 2, .lost_with = sums.lost_with / 2, .prompts = remembered / 2};
}

}  // namespace stateport::detail
