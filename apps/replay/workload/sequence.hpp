// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/ids.hpp>

#include "workload/content.hpp"
#include "workload/workload.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::replay {

/// One request's tokens, prompt and answer, and a name for every prefix of them. O(tokens / block) to make.
class Sequence {
 public:
  Sequence() = default;
  /// `known`: identities of the leading blocks. The blocks after them, up to `tokens`, are named after `own` and differ
  /// from those of all other sequences.
  Sequence(std::int64_t block_size_tokens, std::int64_t tokens, std::span<const BlockIdentity> known,
           std::uint64_t own);

  /// The first `tokens` tokens; empty_content for tokens <= 0. Precondition: tokens <= those of the constructor.
  [[nodiscard]] Content prefix(std::int64_t tokens) const noexcept;
  /// The token at a position, equal where the blocks are. The first two of a block are its identity. Precondition: as
  /// prefix(position + 1).
  [[nodiscard]] Token token(std::int64_t position) const noexcept;
  /// Of the full blocks.
  [[nodiscard]] std::span<const BlockIdentity> identities() const noexcept {
    return std::span(identities_).first(boundaries_.size() - 1);
  }
  [[nodiscard]] std::int64_t tokens() const noexcept { return tokens_; }
  /// [k] is the prefix of k full blocks.
  [[nodiscard]] std::span<const Content> boundaries() const noexcept { return boundaries_; }

 private:
  std::int64_t block_size_tokens_ = 1;
  std::int64_t tokens_ = 0;
  std::vector<BlockIdentity> identities_;
  std::vector<Content> boundaries_;
};

/// For every request, whose blocks name its answer: the next request of its session, if that continues the prompt; else
/// the request itself. A trace contains no answers: the next prompt of a session contains the answer to the one before.
/// O(total blocks).
[[nodiscard]] std::vector<std::size_t> find_continuations(const Workload& workload);

}  // namespace stateport::replay
