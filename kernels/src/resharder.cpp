// SPDX-License-Identifier: Apache-2.0
#include <stateport/kernels/resharder.hpp>

#include "reshard_pieces.hpp"

#include <algorithm>

namespace stateport {
namespace {

std::int32_t slots_of(std::span<const ShardStore> shards) {
  const auto fewest =
      std::ranges::min_element(shards, {}, [](const ShardStore& shard) { return shard.store->slots(); });
  return fewest->store->slots();
}

SlotCopier copier_of(const ModelLayout& layout, std::span<const ShardStore> sources,
                     std::span<const ShardStore> destinations) {
  const kernels::ReshardPieces pieces = kernels::cut_pieces(layout, sources, destinations);
  return SlotCopier(StateStore::view(pieces.source, slots_of(sources)),
                    StateStore::view(pieces.destination, slots_of(destinations)));
}

}  // namespace

Resharder::Resharder(const ModelLayout& layout, std::span<const ShardStore> sources,
                     std::span<const ShardStore> destinations)
    : copier_(copier_of(layout, sources, destinations)) {}

}  // namespace stateport
