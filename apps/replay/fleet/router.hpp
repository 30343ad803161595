// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/hash/block_hash.hpp>
#include <stateport/core/serve/cache_event.hpp>
#include <stateport/core/serve/request_types.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace stateport::replay {

/// How a request finds its node.
enum class Route : std::uint8_t {
  round_robin,  ///< one node after the other
  session,      ///< by a hash of the conversation
  prefix        ///< where the deepest checkpoint is
};

[[nodiscard]] std::string_view name(Route route) noexcept;

/// Facts about a node that a router may know.
struct NodeLoad {
  bool up = true;
  std::int64_t waiting_tokens = 0;  ///< to be computed for requests sent there, as far as the router knows
};

/// Facts about a request that a router may know.
struct RoutedPrompt {
  std::uint64_t conversation = 0;
  std::span<const PrefixHash> prefixes;  ///< of its whole blocks, without one that has the last token; of routers that
                                         ///< hear events
};

struct RoutePick {
  std::size_t node = 0;
  std::int32_t hit_blocks = 0;  ///< that the node need not compute
};

/// Sends requests to nodes. Equal inputs give equal answers.
class Router {
 public:
  virtual ~Router() = default;

  /// Precondition: a node is up.
  [[nodiscard]] virtual RoutePick pick(const RoutedPrompt& prompt, std::span<const NodeLoad> nodes) = 0;
  /// Whether hear() and forget() have any effect.
  [[nodiscard]] virtual bool hears_events() const noexcept { return false; }
  /// Something changed in the cache of a node.
  virtual void hear(std::size_t /*node*/, const CacheEvent& /*event*/) {}
  /// The node went down, and its cache with it.
  virtual void forget(std::size_t /*node*/) {}
};

/// `prefix`: of the nodes with the deepest checkpoint the one with the fewest waiting tokens, of those the one that was
/// picked least recently; of all nodes where no node has a checkpoint. A checkpoint does not count on a node where more
/// than `imbalance_tokens` wait beyond the least of all, nor one that saves less than a quarter of the prompt's blocks.
[[nodiscard]] std::unique_ptr<Router> make_router(Route route, std::size_t nodes, std::int64_t imbalance_tokens);

}  // namespace stateport::replay
