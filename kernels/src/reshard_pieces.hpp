// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/kernels/shard_store.hpp>
#include <stateport/parts/reshard.hpp>

#include <span>
#include <vector>

namespace stateport::kernels {

/// Pieces of states as tensors of two stores: source[i] is copied to destination[i]. They have equal kinds and shapes,
/// and mean nothing but the elements that they span.
struct ReshardPieces {
  std::vector<StateTensorView> source;
  std::vector<StateTensorView> destination;
};

/// Cuts the states that Resharder copies. Throws as its constructor.
[[nodiscard]] ReshardPieces cut_pieces(const ModelLayout& layout, std::span<const ShardStore> sources,
                                       std::span<const ShardStore> destinations);

}  // namespace stateport::kernels
