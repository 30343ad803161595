// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/cache_event.hpp>
#include <stateport/core/serve/request_types.hpp>

#include "containers/flat_map.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::replay {

/// A router's knowledge of the caches of all nodes, from their events: the nodes that have the KV and the state of a
/// prefix, on the device or in a tier of their own. Content of a remote tier is left out, because all nodes have it.
/// Not thread-safe.
class CheckpointMap {
 public:
  /// How deep a node could start a prompt.
  struct Reach {
    std::uint32_t node = 0;
    std::int32_t blocks = 0;
  };

  explicit CheckpointMap(std::size_t nodes) : reach_(nodes) {}

  /// Precondition: node < nodes; events of one node come in their order. O(nodes that have the prefix).
  void hear(std::uint32_t node, const CacheEvent& event);
  /// The node has nothing any more. O(all).
  void forget(std::uint32_t node);
  /// For each node that could start a prompt with these blocks from a state, the deepest such place: there is a state,
  /// and KV of all blocks before it. In no order. O(blocks * nodes that have them). Valid until the next call.
  [[nodiscard]] std::span<const Reach> reaches(std::span<const PrefixHash> prefixes);

  [[nodiscard]] std::size_t prefixes() const noexcept { return holders_.size(); }

 private:
  /// A set of media for each content.
  struct Holder {
    std::uint32_t node = 0;
    std::uint8_t kv = 0;
    std::uint8_t states = 0;
  };
  struct Walk {
    std::uint64_t number = 0;  ///< the walk that the rest is of
    std::int32_t kv_blocks = 0;
    std::int32_t state_blocks = 0;
  };
  struct PrefixKey {
    [[nodiscard]] std::size_t operator()(const PrefixHash& prefix) const noexcept { return prefix.words[0]; }
  };
  [[nodiscard]] bool walk_on(const Holder& holder, std::int32_t depth);

  FlatMap<PrefixHash, std::vector<Holder>, PrefixKey> holders_;
  std::vector<Walk> reach_;  ///< by node
  std::uint64_t walk_ = 0;
  std::vector<Reach> found_;
};

}  // namespace stateport::replay
