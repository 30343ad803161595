// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/memory_resource.hpp>

#include <cstddef>
#include <memory>

namespace stateport {

/// Carves allocations out of slabs of an upstream resource. Work whose sizes repeat settles after a few rounds: from
/// then on neither upstream nor the host heap is asked again.
///
/// A coalescing pool. Blocks are multiples of 256 bytes; free blocks lie in bins by size (8 per power of two), and a
/// request takes the smallest block of its own bin that fits, else any block of the next larger bin that has one. The
/// rest of a block stays free; a freed block joins its free neighbours. Bins: two-level segregated fit (Masmano et
/// al., "TLSF", 2004), with a search of the request's own bin added, so that a size freed is found again.
///
/// Stream order. A free block belongs to the stream that freed it, and may be handed out on that stream at once. When
/// no block of a stream fits, blocks of other streams are taken over: the stream is made to wait for an event of the
/// others, the host waits for nothing. Only when that does not help either is upstream asked for a slab; when upstream
/// is exhausted, slabs that are free as a whole go back to it and it is asked once more.
///
/// Streams that gave memory back must live as long as the pool (the pool keeps those alive that `Stream::create` made).
/// Up to 32 streams are told apart; memory given back on a further stream first waits for that stream.
class PoolResource final : public MemoryResource {
 public:
  struct Options {
    std::size_t initial_bytes = 0;                   ///< one slab of this size is taken at construction; 0: none
    std::size_t slab_bytes = std::size_t{64} << 20;  ///< least size of a later slab; a larger request gets its own
  };

  /// `upstream` must outlive the pool. Throws InvalidArgument for slab_bytes == 0, and what upstream throws.
  explicit PoolResource(MemoryResource& upstream);
  PoolResource(MemoryResource& upstream, const Options& options);
  /// Gives every slab back, after waiting for the streams that used them. All memory must have been given back.
  ~PoolResource() override;
  PoolResource(const PoolResource&) = delete;
  PoolResource& operator=(const PoolResource&) = delete;

  /// Gives the slabs that are free as a whole back to upstream, in the order of `stream`. Returns their bytes.
  std::size_t release_unused(const Stream& stream);

  [[nodiscard]] std::size_t reserved_bytes() const noexcept;  ///< held from upstream
  [[nodiscard]] std::size_t used_bytes() const noexcept;      ///< handed out, rounded up to whole blocks

  /// Throws std::logic_error naming the first broken invariant. O(blocks).
  void check_invariants() const;

 private:
  struct Impl;

  void* do_allocate(std::size_t bytes, std::size_t alignment, const Stream& stream) override;
  void do_deallocate(void* memory, std::size_t bytes, std::size_t alignment, const Stream& stream) noexcept override;
  MemoryKind do_kind() const noexcept override;

  std::unique_ptr<Impl> impl_;
};

}  // namespace stateport
