// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/ids.hpp>
#include <stateport/core/pool/kv_page_pool.hpp>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace stateport::detail {

/// Where the KV of blocks lies. In an arena a block with content has a number of its own, which changes when the
/// content moves to other memory; number 0 is not used. Without an arena a block lies at its own number.
class KvPlaces {
 public:
  /// `blocks` with the reserved one, as many as there are numbers.
  KvPlaces(std::int32_t blocks, bool arena);

  [[nodiscard]] bool in_arena() const noexcept { return pool_.has_value(); }
  /// The number of a block with content.
  [[nodiscard]] std::int32_t of(BlockId block) const noexcept {
    return pool_ ? number_of_[block.index()] : block.value();
  }
  /// Gives numbers to blocks. Precondition in an arena: as many are free.
  void take(std::span<const BlockId> fresh);
  /// The blocks lost their content.
  void give_back(std::span<const BlockId> blocks);
  /// All blocks did.
  void reset() noexcept;

  // In an arena.
  [[nodiscard]] KvPagePool& numbers() noexcept { return *pool_; }
  [[nodiscard]] const KvPagePool& numbers() const noexcept { return *pool_; }
  /// The block that lies at this number; BlockId{}: none.
  [[nodiscard]] BlockId at(std::int32_t number) const noexcept { return block_at_[static_cast<std::size_t>(number)]; }
  /// Moves the content of a number to a free one, which it answers. Precondition: there is one.
  std::int32_t move(std::int32_t number);

 private:
  std::optional<KvPagePool> pool_;       ///< pages of one index
  std::vector<std::int32_t> number_of_;  ///< by block
  std::vector<BlockId> block_at_;        ///< by number
};

}  // namespace stateport::detail
