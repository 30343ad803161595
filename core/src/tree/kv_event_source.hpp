// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/hash/block_hasher.hpp>
#include <stateport/core/tree/prefix_types.hpp>

#include "containers/table.hpp"

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace stateport::detail {

/// Tells a callback which pages of the arena hold KV, by digest. Without a callback it is off: every call but is_on()
/// is then a mistake. Splitting a segment moves no page, so there is nothing to tell.
class KvEventSource {
 public:
  using Callback = std::function<void(const KvEvent&)>;

  KvEventSource(Callback tell, const BlockHasherOptions& hash) : tell_(std::move(tell)) {
    if (tell_) hasher_.emplace(hash);
  }

  [[nodiscard]] bool is_on() const noexcept { return hasher_.has_value(); }

  /// Makes room for `new_pages` pages of one prompt and for an arena of `arena_pages`.
  void reserve(std::size_t new_pages, std::size_t arena_pages);
  /// Computes the digests that stored() will tell for `tokens`, whole pages after page `parent` of the arena, or at the
  /// start of a prompt. Precondition: room for them.
  void prepare(std::optional<std::uint32_t> parent, std::span<const Token> tokens, const Namespace& name_space);
  /// The next `pages` of the prepared pages, which have these tokens, are in the arena from `first_page` on.
  void stored(std::uint32_t first_page, std::uint32_t pages, std::span<const Token> tokens,
              const Namespace& name_space);
  void removed(std::uint32_t first_page, std::uint32_t pages) {
    tell_({.kind = KvEvent::Kind::removed, .blocks = std::span(digests_).subspan(first_page, pages)});
  }
  void cleared() { tell_({.kind = KvEvent::Kind::cleared}); }

 private:
  Callback tell_;
  std::optional<BlockHasher> hasher_;
  Table<BlockDigest> digests_;  ///< by page of the arena
  std::vector<BlockDigest> prepared_;
  std::size_t reported_ = 0;  ///< of the prepared pages
  BlockDigest parent_;        ///< of the next prepared page
};

}  // namespace stateport::detail
