// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/stream.hpp>
#include <stateport/core/model/ids.hpp>
#include <stateport/core/pool/copy_plan.hpp>

#include <cstdint>
#include <memory>
#include <span>

namespace stateport {

class StateIntegrity;
class StateStore;

/// Layers [begin, end) of a state, by StateTensorSpec::layer.
struct LayerRange {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  friend constexpr bool operator==(const LayerRange&, const LayerRange&) noexcept = default;
};
inline constexpr LayerRange all_layers = {0, INT32_MAX};

/// Copies states from one or two source stores to one destination store. Making a copier uploads the tile table and
/// waits. A later call is one launch for all layers, tensors and copies, on the caller's stream. Up to
/// inline_copies_max copies never wait or allocate. If a slot of either store is one piece without gaps
/// (StoreLayout::slot_major, tensors of whole 16-byte words), and one store lies in pinned memory of the host and the
/// other on the device, the vendor's copy engine copies the states instead, with one call for each.
///
/// Source and destination need the same tensors (kind, shape); they may differ in memory layout, padding, alignment,
/// strides of the conv states (sd, ds, or an engine's own: rearranged on the way; gaps stay as they are) and, for fp32,
/// fp16 and bf16, in element type (converted, round to nearest even). Tensors of equal types and strides are moved bit
/// for bit. Source and destination may be one store, or views of one pool from different slots on.
///
/// Recurrent tensors of these types become int8_block32 in a store of checkpoints (see quantised()), and come back. A
/// block's scale is its largest magnitude / 127, rounded up to fp16; values are rounded to nearest even. A restored
/// element differs by at most half of the scale: 1 / 253 of its block's largest magnitude, if this is from 0.008 to
/// 8.3 million. A block of zeros stays one; above 127 * 65504, elements become 127 * 65504; a block with an
/// infinity or a NaN becomes NaN. The next checkpoint of a restored state has the same bytes. All backends give the
/// same bytes.
///
/// Every copy may be limited to some layers: an engine that copies layer by layer overlaps the copies of the first
/// layers with the forward of those that follow. Copies of disjoint ranges of layers add up to one of all layers. A
/// range beyond the layers of the stores throws InvalidArgument; an empty one copies nothing.
///
/// Graphs. Once the copier is made, every call may be captured, on a stream that a Stream has named before. A plan in
/// host memory becomes part of the graph. A plan of more than inline_copies_max copies is refused during a capture: use
/// copy_slots_on_device. A graph needs the copier for as long as it is replayed.
///
/// The stores' memory must stay where it is while the copier exists. Making a copier and destroying it wait for the
/// device. Calls on one copier must come from one thread at a time. A launch that the vendor's runtime refuses throws
/// BackendError. Memory that kernels cannot reach, as pageable memory of the host or that of another GPU, is refused
/// with InvalidArgument when the copier is made.
class SlotCopier {
 public:
  /// Host plans of up to this many copies travel as kernel arguments; longer ones through pinned staging memory, which
  /// grows with a plan of more than 512 copies that is longer than all before it.
  static constexpr std::int32_t inline_copies_max = 192;

  /// Within one store.
  explicit SlotCopier(const StateStore& store);
  /// Throws InvalidArgument when shapes, kinds or the number of tensors differ, types cannot be converted, or the
  /// stores share memory but not whole slots.
  SlotCopier(const StateStore& source, const StateStore& destination);
  /// Two sources for commit_scratch: row-packed scratch states and live states.
  SlotCopier(const StateStore& scratch, const StateStore& live, const StateStore& destination);
  SlotCopier(SlotCopier&&) noexcept;
  SlotCopier& operator=(SlotCopier&&) noexcept;
  ~SlotCopier();

  /// Copies src_slot of the (first) source to dst_slot for each entry; negative slots skip, equal slots of one store
  /// do nothing. `plan` may be reused when the call returns. Throws InvalidArgument as stateport::validate, and for
  /// conv_shift != 0; nothing is copied then.
  void copy_slots(const Stream& stream, CopyPlan plan, LayerRange layers = all_layers);

  /// The copy of the align modes: as copy_slots, but conv tokens [conv_shift, window) go to [0, window - conv_shift),
  /// the rest of the destination's window stays, and the recurrent state comes from recurrent_src_slot. The source
  /// slot may be the destination: overlapping shifts are correct. Any strides, element size, padding and alignment.
  /// Throws also for conv_shift >= the conv window.
  void copy_shifted(const Stream& stream, CopyPlan plan, LayerRange layers = all_layers);

  /// copy_shifted for a plan that lies in device memory and is read when the kernel runs (a graph replay sees new
  /// values). Parts with a slot or shift out of range are skipped; chains are the caller's to avoid. At most 8,192 of
  /// these calls may be under way.
  void copy_slots_on_device(const Stream& stream, const SlotCopy* plan, std::int32_t count,
                            LayerRange layers = all_layers);

  /// Intermediates (scratch row → slot) and ends (live slot → slot) of one step in one launch. Needs two sources.
  /// Throws InvalidArgument as copy_slots, for each plan and for both together.
  void commit_scratch(const Stream& stream, CopyPlan intermediates, CopyPlan ends, LayerRange layers = all_layers);

  /// Zeroes slots of the destination store, gaps and padding excepted. Negative slots are skipped; throws
  /// InvalidArgument for a slot too large. All threads of a CPU share the work, so clearing a new store spreads its
  /// pages over the memory nodes of the threads that will copy.
  void clear_slots(const Stream& stream, std::span<const SlotId> slots);

 private:
  friend class StateIntegrity;  // sums the states that copies move
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stateport
