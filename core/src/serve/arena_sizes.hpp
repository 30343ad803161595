// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/cache_options.hpp>

#include <cstdint>

namespace stateport::detail {

/// Numbers of extents, for both parts of an arena.
struct ArenaExtents {
  std::int64_t kv = 0;
  std::int64_t states = 0;
};

/// KV and states share the memory of the device, by a budget or in an arena.
[[nodiscard]] constexpr bool shares_memory(const SlotLayout& layout) noexcept {
  return layout.budget_bytes > 0 || layout.arena.bytes > 0;
}

/// Memory that no content has: a 96th of the arena, and at least two extents of each part.
[[nodiscard]] std::int64_t arena_headroom_bytes(const RequestCacheOptions& options) noexcept;
/// Extents that stay mapped: KV for one request of max_request_tokens, and a state for every running request and one
/// more.
[[nodiscard]] ArenaExtents arena_least_extents(const RequestCacheOptions& options);
[[nodiscard]] ArenaExtents arena_extents_at_start(const RequestCacheOptions& options);

/// The arena holds this much content beside its headroom. `states` counts those of running requests that lie in it.
[[nodiscard]] bool arena_holds(const RequestCacheOptions& options, std::int64_t kv_tokens,
                               std::int64_t states) noexcept;

/// Throws InvalidArgument for an arena that no cache of these sizes can have.
void require_arena(const RequestCacheOptions& options);

}  // namespace stateport::detail
