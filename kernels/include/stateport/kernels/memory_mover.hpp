// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/event.hpp>
#include <stateport/backends/stream.hpp>
#include <stateport/core/pool/memory_move.hpp>
#include <stateport/kernels/slot_copier.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace stateport {

class CacheArena;
class ElasticStore;

/// Carries out the memory plans of a RequestCache, between the store of its KV and that of its states.
///
///     mover.enqueue(answer.memory, stream);  // after the other work of this answer was enqueued
///     …
///     count = mover.poll(settled);           // later: tell the cache
///
/// enqueue() enqueues the copies of KV and carries out maps. An unmap waits until the stream has come to the point
/// where it was enqueued; poll() and finish() carry it out then, in the order of enqueue(). A move that the system
/// refuses, or a map above the resource's limit, ends with done = false, and nothing has changed.
///
/// Has no thread of its own; enqueue() and poll() wait for no work of the device. After construction nothing is
/// allocated, except while more moves than the stores have extents wait for their end or for poll(). Calls come from
/// one thread at a time. Unmaps that are not carried out when the mover goes are not carried out at all.
class MemoryMover {
 public:
  /// How one move ended.
  struct Settled {
    std::uint64_t id = 0;  ///< MemoryMove::id
    bool done = false;     ///< false: it was refused, and nothing has changed
    friend constexpr bool operator==(const Settled&, const Settled&) noexcept = default;
  };

  /// The stores must outlive the mover, and nobody else may map or unmap their extents while it exists. Throws as
  /// SlotCopier.
  MemoryMover(ElasticStore& kv, ElasticStore& states);
  MemoryMover(const MemoryMover&) = delete;
  MemoryMover& operator=(const MemoryMover&) = delete;
  ~MemoryMover();

  /// Maps the extents that the cache counts as mapped: call it before the first plan. Precondition: the extents of the
  /// arena are those of the stores. Throws InvalidArgument where a store has more of them; OutOfMemory when the
  /// resource refuses one.
  void begin(const CacheArena& arena);

  /// `stream`: the last work that uses the extents to be unmapped is on it, or ordered before it. Throws
  /// InvalidArgument for an unknown part, an extent that does not exist, a map of one that is mapped or whose unmap is
  /// not settled, an unmap of one that is not mapped or already waits for that, and copies that SlotCopier refuses, or
  /// from or to a block that is not mapped; InvalidState while the stream
  /// captures a graph; BackendError as Event. Nothing has changed then. O(moves * tensors), and the system's calls.
  void enqueue(const MemoryPlan& plan, const Stream& stream);

  /// Carries out unmaps whose time has come, writes moves that have ended to `out`, the first first, and returns how
  /// many; the others stay for the next call. Throws BackendError when work before an unmap failed.
  [[nodiscard]] std::size_t poll(std::span<Settled> out);

  /// Waits for the streams, and carries out all unmaps. poll() reports them.
  void finish();

  /// Unmaps that wait for their stream.
  [[nodiscard]] std::size_t waiting() const noexcept { return unmaps_.count; }

 private:
  enum class Extent : std::uint8_t { unmapped, mapped, leaving };

  /// Unmaps of one enqueue().
  struct Batch {
    std::optional<Event> event;  ///< made when first needed
    std::size_t unmaps = 0;
  };

  /// First in, first out, in memory of a fixed size.
  template <class T>
  struct Ring {
    std::vector<T> items;
    std::size_t first = 0;
    std::size_t count = 0;

    [[nodiscard]] T& front() noexcept { return items[first]; }
    /// The place behind the last item, which is the last item when `count` has grown.
    [[nodiscard]] T& next() noexcept { return items[(first + count) % items.size()]; }
    void pop() noexcept {
      first = (first + 1) % items.size();
      --count;
    }
  };

  [[nodiscard]] ElasticStore& store(const MemoryMove& move) const noexcept;
  [[nodiscard]] Extent& state(const MemoryMove& move) noexcept;
  void require_move(const MemoryMove& move) const;
  void note_planned(MovePlan moves);
  void forget_planned(MovePlan moves) noexcept;
  void carry_out(const MemoryMove& move);
  void carry_out_batch();

  void require_mapped_blocks(CopyPlan copies) const;

  std::array<ElasticStore*, memory_part_count> stores_;
  SlotCopier kv_copier_;
  std::array<std::vector<Extent>, memory_part_count> extents_;  ///< as they will be after the moves under way
  Ring<MemoryMove> unmaps_;
  Ring<Batch> batches_;  ///< of the unmaps
  std::vector<Settled> settled_;
};

}  // namespace stateport
