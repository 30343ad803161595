// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/model_layout.hpp>

#include <cstdint>
#include <span>
#include <vector>

namespace stateport {

/// One rank's part of a model's state.
struct ReshardRank {
  std::int32_t global_rank = 0;
  ModelShard shard;
};

/// One piece: elements [src_begin, src_end) of a rank's tensor, counted along the extent that is split, become elements
/// [dst_begin, dst_end) of another rank's. Says nothing about element types and memory orders.
struct ReshardSlice {
  std::int32_t src_rank = 0;
  std::int32_t dst_rank = 0;
  std::int32_t tensor = 0;      ///< of ModelLayout::whole()
  std::int32_t band = 0;        ///< of its TensorSplit
  std::int32_t src_tensor = 0;  ///< among those of the source
  std::int32_t dst_tensor = 0;
  std::int64_t src_begin = 0;
  std::int64_t src_end = 0;
  std::int64_t dst_begin = 0;
  std::int64_t dst_end = 0;
  friend constexpr bool operator==(const ReshardSlice&, const ReshardSlice&) noexcept = default;
};

/// The pieces that together give every destination rank its state, ordered by (source rank, destination rank, conv
/// before recurrent, band, tensor). A piece that several sources hold is read from the smallest rank. Throws InvalidArgument
/// for shards that the layout cannot have (ModelLayout::resolve), a rank named twice on one side, and a piece that no
/// source holds. A pure function. O(ranks² * tensors).
[[nodiscard]] std::vector<ReshardSlice> plan_reshard(const ModelLayout& layout, std::span<const ReshardRank> sources,
                                                     std::span<const ReshardRank> destinations);

}  // namespace stateport
