// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/pool/block_pool.hpp>
#include <stateport/parts/external_block_pool.hpp>

#include <cstdint>
#include <optional>
#include <span>

namespace stateport::c {

/// The KV blocks of an allocator: a pool of its own, or books of the engine's pool.
class AllocatorBlocks {
 public:
  enum class Owner : std::uint8_t { allocator, engine };

  AllocatorBlocks(Owner owner, const BlockPoolOptions& options);

  [[nodiscard]] BlockDirectory& directory() noexcept;
  /// Throw InvalidArgument if the blocks have the other owner.
  [[nodiscard]] BlockPool& own();
  [[nodiscard]] ExternalBlockPool& engines();
  /// Null if the blocks have the other owner.
  [[nodiscard]] const BlockPool* own_or_null() const noexcept { return own_ ? &*own_ : nullptr; }
  [[nodiscard]] const ExternalBlockPool* engines_or_null() const noexcept { return engines_ ? &*engines_ : nullptr; }

  // Functions of both pools.
  void retain(std::span<const BlockId> blocks);
  void release(std::span<const BlockId> blocks);
  void register_hashes(std::span<const BlockId> blocks, std::span<const BlockHash> hashes,
                       std::span<const BlockHash> parents);
  void advance_tick() noexcept;
  void check_invariants() const;

 private:
  std::optional<BlockPool> own_;
  std::optional<ExternalBlockPool> engines_;
};

}  // namespace stateport::c
