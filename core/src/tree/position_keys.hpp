// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/prompt_facts.hpp>
#include <stateport/core/tree/prefix_types.hpp>

#include "containers/table.hpp"

#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::detail {

/// Names the positions of prompts that a policy keeps the history of: a chained hash every so many pages. Those of
/// pages in the arena are kept, so that what the tree holds of a prompt is not hashed again. Splitting a segment moves
/// no page, so it changes no key.
class PositionKeys {
 public:
  PositionKeys(std::int32_t page_size_tokens, std::uint32_t step_pages)
      : page_size_tokens_(page_size_tokens), step_pages_(step_pages) {}

  /// Positions within so many pages, or tokens.
  [[nodiscard]] std::uint32_t count(std::uint32_t pages) const noexcept { return pages / step_pages_; }
  [[nodiscard]] std::int32_t count_of_tokens(std::int64_t tokens) const noexcept {
    return static_cast<std::int32_t>(tokens / (std::int64_t{page_size_tokens_} * step_pages_));
  }
  /// Pages up to the end of a position. Positions are counted from 1 on.
  [[nodiscard]] std::uint32_t end_page(std::uint32_t position) const noexcept { return position * step_pages_; }

  /// Makes room for an arena of so many pages and for the keys of prompts of so many. Positions that were never kept
  /// cannot be known: of longer prompts open() leaves them out.
  void reserve(std::uint32_t arena_pages, std::uint32_t prompt_pages) {
    if (keys_.size() < arena_pages) keys_.resize(arena_pages);
    if (const std::size_t positions = count(prompt_pages); positions > prompt_.capacity())
      prompt_.reserve(std::max(positions, 2 * prompt_.capacity()));
  }
  /// Of the position that ends with a page of the arena.
  [[nodiscard]] PositionKey& key(std::uint32_t arena_page) noexcept { return keys_[arena_page]; }
  [[nodiscard]] PositionKey key(std::uint32_t arena_page) const noexcept { return keys_[arena_page]; }
  /// Of a position of a prompt, after the one with the key `before`; the first comes after the seed of its namespace.
  [[nodiscard]] PositionKey next(std::span<const Token> prompt, std::uint32_t position,
                                 PositionKey before) const noexcept {
    const std::size_t step = std::size_t{step_pages_} * static_cast<std::size_t>(page_size_tokens_);
    return XXH3_64bits_withSeed(prompt.data() + (position - 1) * step, step * sizeof(Token), before);
  }
  /// Room for the keys of a prompt, as far as there is: valid until the next call.
  [[nodiscard]] std::span<PositionKey> open(std::int64_t tokens) noexcept {
    prompt_.resize(std::min(static_cast<std::size_t>(count_of_tokens(tokens)), prompt_.capacity()));
    return prompt_;
  }
  [[nodiscard]] std::size_t bytes() const noexcept {
    return (keys_.capacity() + prompt_.capacity()) * sizeof(PositionKey);
  }

 private:
  std::int32_t page_size_tokens_;
  std::uint32_t step_pages_;
  Table<PositionKey> keys_;          ///< by page of the arena
  std::vector<PositionKey> prompt_;  ///< scratch
};

}  // namespace stateport::detail
