// SPDX-License-Identifier: Apache-2.0
#include "serve/request_record.hpp"

#include <stateport/core/evict/eviction_policy.hpp>
#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <cmath>

namespace stateport::detail {

void check_prompt(const Prompt& prompt, std::int64_t tokens_max, double last_now_s) {
  const auto length = std::ssize(prompt.tokens);
  require(length >= 1, "prompt", length, "must have at least one token");
  require(length <= tokens_max, "prompt", length, "is longer than max_request_tokens");
  std::int64_t last = 0;
  for (const MediaKey& media : prompt.media) {
    require(media.first_token >= last && media.first_token < length, "media", media.first_token,
            "must be ascending positions of the prompt");
    last = media.first_token;
  }
  check_hint(prompt.hint);
  require(std::isfinite(prompt.now_s) && prompt.now_s >= last_now_s, "now_s", prompt.now_s,
          "must be finite and not before the last one");
  require(prompt.breakpoints.size() <= breakpoints_max, "breakpoints", prompt.breakpoints.size(),
          "positions are more than a prompt can name");
  std::int64_t named = 0;
  for (const std::int64_t at : prompt.breakpoints) {
    require(at > named && at <= length, "breakpoints", at, "must be ascending positions from 1 to the prompt's length");
    named = at;
  }
  require(prompt.search <= PromptSearch::device, "search", static_cast<int>(prompt.search), "is no PromptSearch");
}

RequestRecord::RequestRecord(const RequestCacheOptions& options)
    : tokens(static_cast<std::size_t>(options.max_request_tokens) + 1) {  // one that no pass has run
  media.reserve(static_cast<std::size_t>(options.block_size_tokens));
}

void RequestRecord::fill(const Prompt& prompt, const Namespace& epoch_name, std::int64_t block_size_tokens) {
  tokens.assign(prompt.tokens);
  prompt_tokens = std::ssize(prompt.tokens);
  computed = 0;
  begun = false;
  quiet_until = 0;
  ending = false;
  stale = false;
  is_fork = false;
  tag = NamespaceTag::of(prompt.name_space);
  name_space = epoch_name;
  const std::int64_t full_tokens = prompt_tokens / block_size_tokens * block_size_tokens;
  const auto tail = std::ranges::lower_bound(prompt.media, full_tokens, {}, &MediaKey::first_token);
  media.clear();
  for (auto key = tail; key != prompt.media.end(); ++key)
    if (media.empty() || media.back().first_token != key->first_token)
      media.push_back(*key);
    else
      media.back().id = NameKey::both(media.back().id, key->id);
  hint = prompt.hint;
}

}  // namespace stateport::detail
