// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/buffer.hpp>
#include <stateport/backends/memory_resource.hpp>
#include <stateport/backends/stream.hpp>
#include <stateport/core/model/ids.hpp>
#include <stateport/core/model/state_spec.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport {

/// Order of an owned store in memory. layer_major: [tensor][slot], as forward kernels index it. slot_major:
/// [slot][tensor], one slot is one contiguous image, for tiers and network transfers.
enum class StoreLayout : std::uint8_t { layer_major, slot_major };

/// Where one state tensor lies: slot s starts at base + s * slot_stride_bytes.
struct StateTensorView {
  StateTensorSpec spec;
  std::byte* base = nullptr;
  std::int64_t slot_stride_bytes = 0;  ///< at least the bytes from first to last element: slots may be padded

  [[nodiscard]] std::byte* slot_data(SlotId slot) const noexcept { return base + slot.value() * slot_stride_bytes; }
};

struct StoreOptions {
  std::int32_t slots = 0;
  StoreLayout layout = StoreLayout::layer_major;
};

/// Memory for `slots` states of one spec, or a view of an engine's own tensors: addresses and their contents, nothing
/// else. SlotCopier moves and clears states. Movable, not copyable. Immutable, so that any number of threads may read
/// it.
class StateStore {
 public:
  /// Owns its memory: one allocation from `resource`, which must outlive the store; nothing is cleared. Tensors are
  /// 256-byte aligned, slots 16-byte aligned. Throws InvalidArgument (slots < 1, more bytes than memory has) and
  /// OutOfMemory.
  StateStore(MemoryResource& resource, StateSpec spec, const StoreOptions& options,
             const Stream& stream = Stream::default_stream());

  /// A view of memory that the engine keeps alive; any base alignment, any stride, tensors in any order. Touches no
  /// memory and no device. Throws InvalidArgument: no tensor, slots < 1, null base, a stride that is smaller than a
  /// slot, or by which all slots need more bytes than memory has.
  [[nodiscard]] static StateStore view(std::span<const StateTensorView> tensors, std::int32_t slots);

  StateStore(StateStore&&) noexcept;
  StateStore& operator=(StateStore&&) noexcept;
  ~StateStore();

  [[nodiscard]] const StateSpec& spec() const noexcept { return spec_; }
  [[nodiscard]] std::int32_t slots() const noexcept { return slots_; }
  [[nodiscard]] std::span<const StateTensorView> tensors() const noexcept { return tensors_; }
  /// Identifies the meaning of the bytes of a slot (kinds, types, strides, shapes); part of every StateTag.
  [[nodiscard]] std::uint64_t fingerprint() const noexcept { return spec_.fingerprint(); }

 private:
  StateStore(StateSpec spec, std::vector<StateTensorView> tensors, std::int32_t slots);

  StateSpec spec_;
  std::vector<StateTensorView> tensors_;
  std::int32_t slots_ = 0;
  Buffer memory_;  ///< empty for a view
};

}  // namespace stateport
