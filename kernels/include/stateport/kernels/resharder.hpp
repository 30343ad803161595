// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/stream.hpp>
#include <stateport/core/model/model_layout.hpp>
#include <stateport/core/pool/copy_plan.hpp>
#include <stateport/kernels/shard_store.hpp>
#include <stateport/kernels/slot_copier.hpp>

#include <span>

namespace stateport {

/// Copies states between stores that share a model differently: ranks of tensor-parallel groups of other sizes, stages
/// of other pipelines, and the objects of a remote tier. All pieces of all tensors go in one launch. Element types and
/// memory orders are converted on the way, as by SlotCopier: pieces of equal types are moved bit for bit.
///
/// Sources together are one state: slot s of each of them. So are destinations. Each destination gets its whole part; a
/// piece that several sources hold is read from the first of them.
///
/// Tensors in blocks (int8_block32): a piece is moved to a tensor of the same type, or converted where it is the whole
/// tensor of the side that is in blocks. Blocks are split between rows only.
///
/// Memory, graphs, threads and errors are as those of SlotCopier.
class Resharder {
 public:
  /// Throws InvalidArgument as plan_reshard and SlotCopier, for no source or destination, a store that is nullptr or
  /// whose tensors are not those of its shard (kind, shape, layers that differ by one number), and for blocks that
  /// would have to be cut.
  Resharder(const ModelLayout& layout, std::span<const ShardStore> sources, std::span<const ShardStore> destinations);
  Resharder(const ModelLayout& layout, const ShardStore& source, const ShardStore& destination)
      : Resharder(layout, {&source, 1}, {&destination, 1}) {}

  /// Copies src_slot of the sources to dst_slot of the destinations for each entry of `plan`; negative slots skip. One
  /// launch. Throws InvalidArgument as SlotCopier::copy_slots; nothing is copied then.
  void copy_slots(const Stream& stream, CopyPlan plan) { copier_.copy_slots(stream, plan); }

 private:
  SlotCopier copier_;
};

}  // namespace stateport
