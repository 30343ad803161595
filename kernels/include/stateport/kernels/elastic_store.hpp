// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/elastic_resource.hpp>
#include <stateport/backends/memory_range.hpp>
#include <stateport/backends/stream.hpp>
#include <stateport/core/model/state_spec.hpp>
#include <stateport/core/pool/memory_move.hpp>
#include <stateport/kernels/state_store.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport {

namespace kernels {
struct ElasticArrangement;
}

/// A StateStore whose slots get and lose their memory by extents, and never their addresses. It serves states, and KV
/// as well: slots are KV blocks then, and the tensors of the spec are K and V of each layer.
///
///     ElasticResource resource({.limit_bytes = budget_bytes});
///     ElasticStore kv(resource, kv_spec, {.slots = blocks});
///     ElasticStore states(resource, state_spec, {.slots = checkpoints});
///     MemoryMover mover(kv, states);
///
/// Memory order. Tensors begin at multiples of the resource's granularity. The stride of slots is padded to a larger
/// power of two where that takes less than 1/16 of a slot more, so that extents are small.
/// - layer_major: [tensor][slot]. An extent is a run of slots in each tensor. A tensor "stays" if a slot of it has less
///   than 1/16 of the bytes of the largest tensor (conv states beside recurrent ones), and all such tensors together
///   have less than 1/16 of a slot's bytes: it has memory for all slots at all times, and no part in extents.
/// - slot_major: [slot][tensor]. An extent is a run of slots. Nothing stays.
///
/// Memory of an extent is undefined when it is mapped. No work may use a slot of an extent that is not mapped, except
/// tensors that stay.
///
/// map and unmap allocate nothing. They and is_mapped come from one thread at a time; any number of threads may use
/// store(). Neither may be called while a stream is captured into a graph.
class ElasticStore {
 public:
  /// Reserves the addresses of all slots, and maps the tensors that stay. `resource` must outlive the store; several
  /// stores may share one, and its limit. The memory goes back in the order of `stream`. Throws InvalidArgument as
  /// StateStore; OutOfMemory when the system has no such addresses, or no memory for the tensors that stay.
  ElasticStore(ElasticResource& resource, const StateSpec& spec, const StoreOptions& options,
               const Stream& stream = Stream::default_stream());
  ElasticStore(const ElasticStore&) = delete;
  ElasticStore& operator=(const ElasticStore&) = delete;
  ~ElasticStore();

  /// A view of all slots.
  [[nodiscard]] const StateStore& store() const noexcept { return store_; }

  /// `count` slots, and the `bytes` of physical memory that they take when mapped. The last extent takes as much, even
  /// if it has fewer slots.
  [[nodiscard]] ExtentShape extent() const noexcept { return extent_; }
  [[nodiscard]] std::int32_t extents() const noexcept { return static_cast<std::int32_t>(is_mapped_.size()); }
  /// Physical memory of the tensors that stay.
  [[nodiscard]] std::int64_t fixed_bytes() const noexcept { return fixed_bytes_; }

  /// All of these throw InvalidArgument for an extent that does not exist. New stores have no extent mapped.
  [[nodiscard]] bool is_mapped(std::int32_t extent) const;
  [[nodiscard]] std::int32_t mapped_extents() const noexcept { return mapped_extents_; }
  /// Returns false, with nothing changed, when the resource refuses. Throws InvalidArgument when it is mapped.
  [[nodiscard]] bool map(std::int32_t extent);
  /// The caller sees to it that no work uses the extent any more. Throws InvalidArgument when it is not mapped;
  /// BackendError when the system refuses: it stays mapped then, with contents undefined. If the system refuses the way
  /// back, too, the extent has holes: it counts as unmapped, and cannot be mapped again.
  void unmap(std::int32_t extent);

 private:
  /// A run of slots in one tensor, or of whole slots in slot_major.
  struct Moving {
    std::byte* base = nullptr;  ///< of extent 0
    std::size_t bytes = 0;      ///< of one extent
  };

  ElasticStore(ElasticResource& resource, const kernels::ElasticArrangement& arrangement, std::int32_t slots,
               const Stream& stream);
  [[nodiscard]] std::span<const MemoryRange> ranges_of(std::int32_t extent);

  ElasticResource* resource_;
  Buffer memory_;
  StateStore store_;
  ExtentShape extent_;
  std::int64_t fixed_bytes_ = 0;
  std::int32_t mapped_extents_ = 0;
  std::vector<bool> is_mapped_;
  std::vector<Moving> moving_;
  std::vector<MemoryRange> ranges_;  ///< of the extent at hand
};

}  // namespace stateport
