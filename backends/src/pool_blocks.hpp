// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/ids.hpp>

#include "containers/flat_map.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace stateport::detail {

/// The bookkeeping of a PoolResource: which parts of its slabs are free, and whose. Touches no memory of a slab and
/// knows no stream; a lane is the number that the pool gives a stream.
///
///     slab ═ used │ free, lane 0 │ used │ free, lane 2 │ free, lane 0
///
/// The blocks of a slab are linked by address. Two free blocks of one lane never touch: they are joined. Not
/// thread-safe.
class PoolBlocks {
 public:
  static constexpr std::size_t granule_bytes = 256;  ///< sizes and addresses of blocks are multiples of this
  static constexpr std::int32_t max_lanes = 32;

  struct Slab {
    std::byte* memory;
    std::size_t bytes;
  };

  PoolBlocks();

  /// Rounded up to whole granules. Precondition: no overflow.
  [[nodiscard]] static constexpr std::size_t rounded(std::size_t bytes) noexcept {
    return (bytes + granule_bytes - 1) / granule_bytes * granule_bytes;
  }

  /// A further lane. Precondition: fewer than max_lanes.
  std::int32_t add_lane() noexcept;
  [[nodiscard]] std::int32_t lane_count() const noexcept { return static_cast<std::int32_t>(lanes_.size()); }

  /// Takes in a new slab as one free block of `lane`. Precondition: memory and bytes are multiples of the granule.
  void add_slab(Slab slab, std::int32_t lane) noexcept;
  /// Room for one add_slab and one take: neither allocates after it. Throws std::bad_alloc.
  void reserve();
  /// Hands out `bytes` (a multiple of the granule) at a multiple of `alignment`, from the free blocks of `lane`, or
  /// nullptr. Precondition: reserve() was called since the last add_slab and take.
  [[nodiscard]] std::byte* take(std::size_t bytes, std::size_t alignment, std::int32_t lane);
  [[nodiscard]] bool fits(std::size_t bytes, std::size_t alignment, std::int32_t lane) const noexcept {
    return find(bytes, alignment, lane).valid();
  }
  /// False, with nothing changed, for memory that is not handed out. The block belongs to `lane` then.
  bool give(std::byte* memory, std::int32_t lane) noexcept;
  /// All free blocks of one lane belong to another then. O(free blocks of `from`).
  void absorb(std::int32_t from, std::int32_t into) noexcept;
  /// Drops a slab that is one free block of `lane`, if there is any. O(free blocks of `lane`).
  [[nodiscard]] std::optional<Slab> remove_free_slab(std::int32_t lane) noexcept;

  [[nodiscard]] bool has_free(std::int32_t lane) const noexcept;
  [[nodiscard]] std::size_t reserved_bytes() const noexcept { return reserved_bytes_; }
  [[nodiscard]] std::size_t used_bytes() const noexcept { return used_bytes_; }

  /// Throws std::logic_error naming the first broken invariant. O(blocks).
  void check_invariants() const;

 private:
  using BlockId = Id<struct PoolBlockTag>;
  static constexpr std::int32_t bin_count = 320;  ///< 8 per power of two: the last holds blocks of 2^49 bytes and more

  enum class State : std::uint8_t { spare, free, used };
  struct Block {
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
    BlockId lower = {};  ///< neighbours in the slab, by address
    BlockId upper = {};
    BlockId previous = {};  ///< in the list of its bin; spare blocks are linked by next
    BlockId next = {};
    std::int32_t lane = -1;  ///< of a free block
    State state = State::spare;
  };
  struct Lane {
    std::array<BlockId, bin_count> heads;
    std::array<std::uint64_t, bin_count / 64> filled{};  ///< bit b: bin b has a block
  };
  struct AddressHash {
    // Addresses are multiples of the granule: their low bits would all fall together.
    std::size_t operator()(const std::byte* memory) const noexcept;
  };

  [[nodiscard]] static std::int32_t bin_of(std::size_t bytes) noexcept;
  [[nodiscard]] static std::int32_t next_filled(const Lane& lane, std::int32_t bin) noexcept;
  [[nodiscard]] Block& at(BlockId id) noexcept { return blocks_[id.index()]; }
  [[nodiscard]] const Block& at(BlockId id) const noexcept { return blocks_[id.index()]; }
  [[nodiscard]] Lane& lane_at(std::int32_t lane) noexcept { return lanes_[static_cast<std::size_t>(lane)]; }
  [[nodiscard]] const Lane& lane_at(std::int32_t lane) const noexcept { return lanes_[static_cast<std::size_t>(lane)]; }

  [[nodiscard]] BlockId find(std::size_t bytes, std::size_t alignment, std::int32_t lane) const noexcept;
  [[nodiscard]] BlockId smallest_fit(BlockId head, std::size_t bytes, std::size_t alignment) const noexcept;
  void link(BlockId id) noexcept;
  void unlink(BlockId id) noexcept;
  [[nodiscard]] BlockId new_block(const Block& block) noexcept;
  void drop_block(BlockId id) noexcept;
  /// Cuts `bytes` off the low end of a block in no bin; returns the rest, in no bin.
  [[nodiscard]] BlockId split(BlockId id, std::size_t bytes) noexcept;
  /// Joins a block in no bin with the free neighbours of its lane, and links the result.
  void join_and_link(BlockId id) noexcept;
  void check_slab(BlockId lowest, std::size_t& seen_blocks, std::size_t& seen_bytes, std::size_t& seen_used) const;
  void check_bins(std::size_t& seen_free) const;

  std::vector<Block> blocks_;
  std::vector<Lane> lanes_;  ///< room for max_lanes is reserved
  FlatMap<std::byte*, BlockId, AddressHash> used_;
  BlockId spare_;
  std::int32_t spare_count_ = 0;
  std::size_t reserved_bytes_ = 0;
  std::size_t used_bytes_ = 0;
};

}  // namespace stateport::detail
