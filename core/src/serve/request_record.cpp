// SPDX-License-Identifier: Apache-2.0
#include "serve/request_record.hpp"

#include <stateport/core/evict/eviction_policy.hpp>
#include <stateport/core/model/error.hpp>

#include <cmath>
#include <string>

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
  require(prompt.search <= PromptSearch::device, "search", static_cast<int>(prompt.search), "is no PromptSearch");
}

void RequestRecord::fill(const Prompt& prompt) {
  tokens.assign(prompt.tokens);
  prompt_tokens = std::ssize(prompt.tokens);
  computed = 0;
  quiet_until = 0;
  extra_key.reset();
  salt.reset();
  if (prompt.name_space.extra_key) extra_key.emplace(*prompt.name_space.extra_key);
  if (prompt.name_space.salt) salt.emplace(*prompt.name_space.salt);
  media_ids.clear();
  media.assign(prompt.media.begin(), prompt.media.end());
  for (const MediaKey& key : media) media_ids.emplace_back(key.id);
  for (std::size_t i = 0; i < media.size(); ++i) media[i].id = media_ids[i];
  hint = prompt.hint;
}

}  // namespace stateport::detail
