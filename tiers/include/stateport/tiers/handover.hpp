// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/memory_resource.hpp>
#include <stateport/backends/stream.hpp>
#include <stateport/core/pool/copy_plan.hpp>
#include <stateport/core/tier/transfer_plan.hpp>
#include <stateport/kernels/state_store.hpp>
#include <stateport/parts/reshard.hpp>
#include <stateport/tiers/object_set.hpp>
#include <stateport/tiers/remote_options.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace stateport {

/// Bytes that a transport moves from one rank's memory to another's: one object of a state. Offsets are those in the
/// rank's set of objects (ObjectSet), which lies in a place of a HandoverEnd.
struct HandoverRange {
  std::int32_t src_rank = 0;
  std::int32_t dst_rank = 0;
  std::uint64_t src_offset = 0;
  std::uint64_t dst_offset = 0;
  std::uint64_t bytes = 0;
  friend constexpr bool operator==(const HandoverRange&, const HandoverRange&) noexcept = default;
};

/// How a state goes from one group of ranks to another, as from those that compute prompts to those that decode.
struct HandoverPlan {
  ObjectGrid grid;  ///< of the sets of both groups
  std::vector<HandoverRange> ranges;
};

/// Every rank of the destinations gets every object of its share once, from the smallest source that has it. The grid
/// is the coarsest by which all ranks can cut their shares. Ranges are ordered by (destination as given, offset there).
/// `options`: of the sets; its grid is not read. Ranks whose stores have other element types name an encoding for both
/// kinds of tensors: a kind that it leaves out is as in their layouts. Throws InvalidArgument as ObjectSet, for a rank
/// named twice on one side, and for an object that no source has. A pure function. O(objects log objects).
[[nodiscard]] HandoverPlan plan_handover(const ModelLayout& layout, std::span<const ReshardRank> sources,
                                         std::span<const ReshardRank> destinations, const ObjectSetOptions& options);

/// One rank's end of hand-overs: memory for sets of objects on their way, in places, and the packing and unpacking of
/// them. It moves nothing between ranks: give memory() to a transport, and let it move ranges of a HandoverPlan.
///
///     source       pack ──► its copy is done ──► seal ──► the transport moves ranges
///     destination  the transport says that they came ──► check ──► unpack
///
/// Element types and conv layouts are converted by packing (into the encoding) and unpacking (into the store's).
///
/// Calls on one end must come from one thread at a time; check may run beside others. Nothing waits but the
/// constructor and the destructor.
class HandoverEnd {
 public:
  /// Takes places * set().bytes() bytes from `memory`, which the host can write. It must outlive the end, as must
  /// `store`. `options`: with the grid of the plan. Throws InvalidArgument as ObjectSet and Resharder, and for places <
  /// 1 or more than memory has; OutOfMemory.
  HandoverEnd(MemoryResource& memory, const SharedLayout& shared, const StateStore& store,
              const ObjectSetOptions& options, std::int32_t places);
  HandoverEnd(HandoverEnd&&) noexcept;
  HandoverEnd& operator=(HandoverEnd&&) noexcept;
  ~HandoverEnd();

  [[nodiscard]] const ObjectSet& set() const noexcept;
  [[nodiscard]] std::int32_t places() const noexcept;
  /// All places, one behind the other: place p begins at p * set().bytes(). A multiple of 4 KiB.
  [[nodiscard]] std::span<std::byte> memory() const noexcept;
  /// Throws InvalidArgument for a place that is none.
  [[nodiscard]] std::span<std::byte> place(std::int32_t place) const;

  /// Enqueues the copies of slots (src_slot) into places (dst_slot), in one launch. Throws as Resharder::copy_slots.
  void pack(const Stream& stream, CopyPlan plan);
  /// Writes headers with checksums once the copy is done. Throws InvalidArgument as ObjectSet::seal, and as place().
  void seal(std::int32_t place, const ImageKey& key);
  /// Whether the objects are the whole and undamaged state that `key` names: done, damaged, foreign_layout or
  /// wrong_position. A place of a new end is damaged until something comes. Reads every byte. Throws as place().
  [[nodiscard]] TransferStatus check(std::int32_t place, const ImageKey& key) const;
  /// Enqueues the copies of places (src_slot) into slots (dst_slot), in one launch. Only of places that were checked.
  /// Throws as Resharder::copy_slots.
  void unpack(const Stream& stream, CopyPlan plan);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stateport
