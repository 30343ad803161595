// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "workload/workload.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::replay {

/// The tokens of one conversation as a sequence of pieces of content, cut into blocks as they come. Two streams that
/// begin with the same pieces have the same identities for every block that lies inside that beginning.
class TokenStream {
 public:
  /// A position to come back to.
  struct Mark {
    std::int64_t tokens = 0;
    std::uint64_t partial_block = 0;
  };

  explicit TokenStream(std::int64_t block_size_tokens) : block_size_tokens_(block_size_tokens) {}

  /// Appends `tokens` tokens of the text named `content`.
  void append(std::uint64_t content, std::int64_t tokens);

  [[nodiscard]] Mark mark() const noexcept { return now_; }
  /// Drops everything after `mark`. Precondition: taken from this stream, or from one that it was copied from, and
  /// not after a later rewind before it.
  void rewind(const Mark& mark);

  [[nodiscard]] std::int64_t tokens() const noexcept { return now_.tokens; }
  [[nodiscard]] std::span<const BlockIdentity> full_blocks() const noexcept { return blocks_; }

 private:
  std::int64_t block_size_tokens_;
  Mark now_;
  std::vector<BlockIdentity> blocks_;
};

}  // namespace stateport::replay
