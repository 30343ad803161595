// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_types.hpp>

#include <cstdint>
#include <optional>

namespace stateport {

/// Names a pin. Pins are numbered from 1; 0 is no pin.
using PinId = std::uint64_t;

/// Names a prefetch. Prefetches are numbered from 1; 0 is no prefetch.
using PrefetchId = std::uint64_t;

/// The answer of CachePrefixes::pin().
struct PinnedPrefix {
  PinId pin = 0;  ///< 0: nothing was pinned
  /// The longest prefix of the prompt whose KV and state are cached on the device, in tokens. The pin keeps exactly
  /// this prefix. Without a pin: the length that it would have had.
  std::int64_t tokens = 0;
  /// The prefix is cached and was not pinned: all pins are taken, PrefixOptions::pinned_bytes would be exceeded, or
  /// less memory than one request of max_request_tokens needs would be left.
  bool refused = false;
};

/// The answer of CachePrefixes::prefetch().
struct Prefetch {
  PrefetchId prefetch = 0;         ///< 0: nothing is on its way
  std::int64_t cached_tokens = 0;  ///< the longest prefix that is cached on the device already
  /// The load that was begun. Without tokens the remote tier is asked for contents first.
  std::optional<TierLoad> load;
  /// All prefetches are taken, so no tier was searched.
  bool refused = false;
  TransferPlan transfers;  ///< see CacheTiers
};

/// Pins and prefetches: how much they hold now, and their number since construction.
struct PrefixUsage {
  std::int32_t pins = 0;
  std::int64_t pinned_kv_tokens = 0;  ///< of whole blocks; KV that several pins keep is counted once
  std::int64_t pinned_states = 0;     ///< the same; in columns: blocks of states
  std::int64_t pinned_bytes = 0;      ///< of both, by RequestCacheOptions::memory
  std::int32_t prefetches = 0;        ///< under way
  std::int64_t made_pins = 0;
  std::int64_t refused_pins = 0;
  std::int64_t ended_leases = 0;  ///< pins that ended by their lease
  std::int64_t made_prefetches = 0;
  std::int64_t refused_prefetches = 0;  ///< not begun, or without room for their load
  std::int64_t prefetched_tokens = 0;   ///< that completed prefetches added to the cached prefixes of the device
};

/// Prefixes that a RequestCache keeps or loads although no request runs that needs them. A pin and a prefetch take no
/// request number, no live slot and no row of a pass.
///
/// A pin holds a prefix as a running request holds its hit: neither its KV nor its state is evicted. It costs nothing
/// but this memory, which counts for its tenant (CacheTenants). Requests that start from the prefix, and evictions of
/// longer and shorter prefixes, are as without the pin.
///
/// A prefetch loads a prefix from the tiers. Its load ends as the load of a request does (CacheTiers::settle), and then
/// the prefix is cached on the device like any other. The load takes memory that is free, or whose content can be
/// evicted; it never takes memory that a request, a pin or another load holds. It is refused if it would exceed
/// PrefixOptions::prefetched_bytes, or if pins and loads of prefetches together would leave less memory than one
/// request of max_request_tokens needs.
///
/// Contents that are forgotten (CacheEpochs, RequestCache::reset) end their pins: no later prompt could find them. A
/// prefetch of such contents adds nothing.
///
/// Ranks of a group make these calls at the same point of their sequence of calls. No call allocates. Not thread-safe,
/// as its cache.
class CachePrefixes {
 public:
  /// Pins the longest cached prefix of the prompt, also all of it: `tokens` of the answer says how long it is. Of the
  /// prompt, the tokens, the namespace, the media and the time count. The pin ends with unpin(), or with the first
  /// start(), pin() or prefetch() at least `lease_s` seconds later; 0: it has no lease. Throws InvalidArgument for a
  /// prompt that start() refuses or that has more than max_request_tokens - 1 tokens, and for a lease that is negative
  /// or not finite. O(tokens); in an arena also O(blocks of KV + checkpoints).
  virtual PinnedPrefix pin(const Prompt& prompt, double lease_s = 0) = 0;
  /// The pin ends: its prefix can be evicted like any other, as one that was used now. False: it had ended before, by
  /// its lease or because its contents were forgotten. Throws InvalidArgument for a number that no pin has had.
  /// O(tokens).
  virtual bool unpin(PinId pin) = 0;

  /// Loads the longest prefix of the prompt that the tiers have, if it is longer than the one on the device and worth
  /// its load. Of the prompt, the same members count, and `search`, which must not be `device`. Throws InvalidArgument
  /// for a prompt that pin() refuses and such a search. O(tokens).
  virtual Prefetch prefetch(const Prompt& prompt) = 0;
  /// The prefetch is under way. Throws InvalidArgument for a number that no prefetch has had. O(prefetches).
  [[nodiscard]] virtual bool is_prefetching(PrefetchId prefetch) const = 0;

  /// O(1).
  [[nodiscard]] virtual const PrefixUsage& usage() const noexcept = 0;

 protected:
  ~CachePrefixes() = default;
};

}  // namespace stateport
