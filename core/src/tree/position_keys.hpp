// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/prompt_facts.hpp>
#include <stateport/core/tree/prefix_types.hpp>

#include "containers/reserve_amortised.hpp"
#include "containers/table.hpp"

#include <xxhash.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::detail {

/// Computes the keys of the positions whose history a policy keeps: every step_pages pages of a prompt, a hash of all
/// tokens up to there, chained from position to position. The keys of pages in the token arena are stored, so that the
/// part of a prompt that the tree holds is not hashed again. Splitting a segment moves no page and changes no key.
class PositionKeys {
 public:
  PositionKeys(std::int32_t page_size_tokens, std::uint32_t step_pages)
      : page_size_tokens_(page_size_tokens), step_pages_(step_pages) {}

  /// Number of positions in a prompt of this many pages, or tokens.
  [[nodiscard]] std::uint32_t count(std::uint32_t pages) const noexcept { return pages / step_pages_; }
  [[nodiscard]] std::int32_t count_of_tokens(std::int64_t tokens) const noexcept {
    return static_cast<std::int32_t>(tokens / (std::int64_t{page_size_tokens_} * step_pages_));
  }
  /// Number of pages up to the end of a position. Positions are counted from 1.
  [[nodiscard]] std::uint32_t end_page(std::uint32_t position) const noexcept { return position * step_pages_; }

  /// Makes room for the keys of one prompt of `prompt_pages` and of an arena of `arena_pages`. open() leaves the later
  /// positions of longer prompts out: the tree has never held a prompt of that length, so no policy knows them.
  void reserve(std::uint32_t prompt_pages, std::size_t arena_pages) {
    reserve_amortised(prompt_, count(prompt_pages));
    reserve_amortised(keys_, arena_pages);
  }
  /// The key of the position that ends with this page of the arena. Precondition: reserve().
  void set_key(std::uint32_t arena_page, PositionKey key) noexcept {
    if (keys_.size() <= arena_page) keys_.resize(std::size_t{arena_page} + 1);
    keys_[arena_page] = key;
  }
  [[nodiscard]] PositionKey key(std::uint32_t arena_page) const noexcept { return keys_[arena_page]; }
  /// The key of a position of a prompt. `before` is the key of the position before it; for the first position it is the
  /// seed of the namespace.
  [[nodiscard]] PositionKey next(std::span<const Token> prompt, std::uint32_t position,
                                 PositionKey before) const noexcept {
    const std::size_t step = std::size_t{step_pages_} * static_cast<std::size_t>(page_size_tokens_);
    return XXH3_64bits_withSeed(prompt.data() + (position - 1) * step, step * sizeof(Token), before);
  }
  /// Memory for the keys of a prompt of this many tokens, shortened to what reserve() made. Valid until the next call.
  [[nodiscard]] std::span<PositionKey> open(std::int64_t tokens) noexcept {
    prompt_.resize(std::min(static_cast<std::size_t>(count_of_tokens(tokens)), prompt_.capacity()));
    return prompt_;
  }
  [[nodiscard]] std::size_t bytes() const noexcept { return (keys_.size() + prompt_.size()) * sizeof(PositionKey); }

 private:
  std::int32_t page_size_tokens_;
  std::uint32_t step_pages_;
  Table<PositionKey> keys_;          ///< by page of the arena
  std::vector<PositionKey> prompt_;  ///< scratch
};

}  // namespace stateport::detail
