// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace stateport {

/// The contents of the device that one session alone has used.
struct SessionUsage {
  bool is_open = false;        ///< false: it was closed, or the cache does not know it (any more)
  std::int64_t kv_tokens = 0;  ///< of whole blocks
  std::int64_t states = 0;     ///< checkpoints; in columns: blocks of states
  std::int64_t bytes = 0;      ///< of both, by RequestCacheOptions::memory
};

/// Sessions of a RequestCache: conversations, sub-agents, one-shot tools, each with a number (ReuseHint::session of a
/// Prompt). A session owns the KV and the states that its requests make, until a request of another session, or of
/// none, reuses them: then they are shared for good, and no session owns them.
///
///     unknown ── start with its number ──► open ── close, last_turn, idle_s ──► closed
///                                           ▲                                     │
///                                           └──── start with its number ──────────┘
///
/// Contents of a closed session are demoted: an eviction takes them before all other contents, whatever the order of
/// eviction is. Nothing is evicted as long as there is room. When the session speaks again it is open, and all that is
/// left of its contents competes as before. So do contents of an open session with more than most_bytes, until it has
/// no more than that. Pinned contents, those of running requests and those within a tenant's floor stay. Tiers below
/// the device know no sessions.
///
/// The cache remembers about SessionOptions::remembered sessions. A session that is seen later may replace one that was
/// not heard of for long; contents of that one are then as those without a session.
///
/// Ranks of a group make these calls at the same point of their sequence of calls. No call allocates. Not thread-safe,
/// as its cache.
class CacheSessions {
 public:
  /// The session expects no further prompt. RequestCache::end() of a request closes its session, too, if the hint that
  /// holds for the end has last_turn. False: it is unknown, or closed already. Throws InvalidArgument for 0, which is
  /// no session. O(1).
  virtual bool close(std::uint64_t session) = 0;
  /// Throws InvalidArgument for 0. O(1).
  [[nodiscard]] virtual SessionUsage usage(std::uint64_t session) const = 0;
  /// Number of times that a session was closed, since construction.
  [[nodiscard]] virtual std::int64_t closed_sessions() const noexcept = 0;

 protected:
  ~CacheSessions() = default;
};

}  // namespace stateport
