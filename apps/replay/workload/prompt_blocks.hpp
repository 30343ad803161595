// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "containers/flat_map.hpp"
#include "workload/content.hpp"
#include "workload/workload.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::replay {

/// Numbers the blocks of prompts: equal prefixes have equal numbers, 0, 1, … in the order in which they were first
/// seen.
class PromptBlocks {
 public:
  using Block = std::uint32_t;
  static constexpr Block none = UINT32_MAX;

  /// Makes this the current prompt. O(blocks).
  void read(std::span<const BlockIdentity> identities);

  [[nodiscard]] std::int32_t size() const noexcept { return static_cast<std::int32_t>(blocks_.size()); }
  /// The block whose end is after `depth` >= 1 blocks of the current prompt.
  [[nodiscard]] Block at(std::int32_t depth) const noexcept { return blocks_[static_cast<std::size_t>(depth) - 1]; }
  /// A name of each prefix of the current prompt, of 1 … size() blocks.
  [[nodiscard]] std::span<const Content> keys() const noexcept { return keys_; }

  /// The block before, of any block seen; none for a first one.
  [[nodiscard]] Block parent(Block block) const noexcept { return parents_[block]; }
  [[nodiscard]] std::size_t count() const noexcept { return parents_.size(); }

 private:
  FlatMap<Content, Block> numbers_;
  std::vector<Block> parents_;
  std::vector<Block> blocks_;
  std::vector<Content> keys_;
};

}  // namespace stateport::replay
