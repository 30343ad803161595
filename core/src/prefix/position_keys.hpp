// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <xxhash.h>

#include <stateport/core/prefix_types.hpp>
#include <stateport/core/prompt_facts.hpp>

namespace stateport::detail {

/// Names the positions of prompts that a policy keeps the history of: a chained hash every so many tokens.
class PositionKeys {
 public:
  explicit PositionKeys(std::int64_t step_tokens) : step_tokens_(step_tokens) {}

  [[nodiscard]] std::int32_t count(std::int64_t tokens) const noexcept {
    return static_cast<std::int32_t>(tokens / step_tokens_);
  }
  /// Makes room for the keys of so many tokens. Positions that were never kept cannot be known: of a longer prompt
  /// keys_of() leaves them out.
  void reserve(std::int64_t tokens) {
    if (const auto positions = static_cast<std::size_t>(count(tokens)); positions > keys_.capacity())
      keys_.reserve(std::max(positions, 2 * keys_.capacity()));
  }
  /// Valid until the next call.
  [[nodiscard]] std::span<const PositionKey> keys_of(std::span<const Token> tokens, std::uint64_t seed) noexcept {
    const std::size_t positions =
        std::min(static_cast<std::size_t>(count(static_cast<std::int64_t>(tokens.size()))), keys_.capacity());
    keys_.clear();
    for (std::size_t position = 0; position < positions; ++position)
      keys_.push_back(seed = next(tokens, position, seed));
    return keys_;
  }
  /// Of the last position, or `seed` if there is none.
  [[nodiscard]] PositionKey last_key(std::span<const Token> tokens, std::uint64_t seed) const noexcept {
    const auto positions = static_cast<std::size_t>(count(static_cast<std::int64_t>(tokens.size())));
    for (std::size_t position = 0; position < positions; ++position) seed = next(tokens, position, seed);
    return seed;
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return keys_.capacity() * sizeof(PositionKey); }

 private:
  [[nodiscard]] PositionKey next(std::span<const Token> tokens, std::size_t position,
                                 std::uint64_t seed) const noexcept {
    const auto step = static_cast<std::size_t>(step_tokens_);
    return XXH3_64bits_withSeed(tokens.data() + position * step, step * sizeof(Token), seed);
  }

  std::int64_t step_tokens_;
  std::vector<PositionKey> keys_;  ///< scratch
};

}  // namespace stateport::detail
