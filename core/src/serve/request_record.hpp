// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_types.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace stateport::detail {

/// What names a prompt beside its tokens.
struct PromptNames {
  Namespace name_space;
  std::span<const MediaKey> media;
};

/// What is known of a request whatever the index. What every step of a batch reads comes first, in one cache line.
struct alignas(64) RequestRecord {
  struct Media {
    std::string id;
    std::int64_t first_token = 0;
  };
  std::int64_t prompt_tokens = 0;
  std::int64_t computed = 0;
  std::int64_t quiet_until = 0;  ///< a row that ends before it is quiet: its pass changes counts and tokens alone
  std::vector<Token> tokens;
  std::uint64_t named = 0;  ///< the last batch that named the request
  bool running = false;

  KvRow kv;
  std::optional<std::string> extra_key;
  std::optional<std::string> salt;
  std::vector<Media> media;
  ReuseHint hint;

  void fill(const Prompt& prompt);
  [[nodiscard]] Namespace name_space() const noexcept { return {extra_key, salt}; }
  /// `scratch` keeps the media; the names are valid as long as it and the record stay.
  [[nodiscard]] PromptNames names(std::vector<MediaKey>& scratch) const;
};

/// Throws InvalidArgument: see RequestCache::start.
void check_prompt(const Prompt& prompt, std::int64_t tokens_max, double last_now_s);

}  // namespace stateport::detail
