// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_CACHE_PREFIXES_H
#define STATEPORT_C_CACHE_PREFIXES_H

#include <stateport/c/request_cache.h>
#include <stateport/c/status.h>
#include <stateport/c/transfers.h>

/// Prefixes that a request cache keeps or loads although no request runs that needs them: stateport::CachePrefixes. The
/// conventions are in stateport/c/core.h.
///
/// A pin holds a prefix as a running request holds its hit: neither its KV nor its state is evicted. A prefetch loads a
/// prefix from the tiers; when its load has ended (stateport_request_cache_settle) the prefix is cached on the device
/// like any other. Neither takes a request number nor a live slot. Pins and loads of prefetches always leave the memory
/// that one request of max_request_tokens needs. Contents that are forgotten end their pins, and a prefetch of them
/// adds nothing.
///
/// Of a stateport_prompt the tokens, the namespace, the media, the time and, for a prefetch, the search count. Prompts
/// have at most max_request_tokens - 1 tokens.
///
/// STATEPORT_INVALID_STATE for a cache without stateport_request_cache_options.prefixes.
#ifdef __cplusplus
extern "C" {
#endif

typedef struct stateport_pinned_prefix {
  size_t size;
  uint64_t pin;    ///< names the pin; 0: nothing was pinned
  int64_t tokens;  ///< length of the longest cached prefix, which the pin keeps; without a pin: that it would have kept
  /// 1: it is cached and was not pinned: all pins are taken, pinned_bytes would be exceeded, or too little memory would
  /// be left.
  stateport_flag refused;
} stateport_pinned_prefix;

typedef struct stateport_prefetch {
  size_t size;
  uint64_t prefetch;      ///< names the prefetch; 0: nothing is on its way
  int64_t cached_tokens;  ///< length of the longest prefix that is cached on the device already
  int64_t load_tokens;    ///< length of the prefix that is being loaded; 0: none, or the remote tier is asked first
  int64_t load_bytes;
  int32_t load_medium;     ///< stateport_medium: the slowest tier that something is loaded from; device: none
  stateport_flag refused;  ///< 1: all prefetches are taken, so no tier was searched
  const stateport_transfer* transfers;  ///< see cache_tiers.h
  size_t transfer_count;
} stateport_prefetch;

/// Pins and prefetches: the memory that they hold now, and their numbers since the cache was made.
typedef struct stateport_prefix_usage {
  size_t size;
  int32_t pins;
  int64_t pinned_kv_tokens;  ///< of whole blocks; KV that several pins keep is counted once
  int64_t pinned_states;     ///< the same; in columns: blocks of states
  int64_t pinned_bytes;
  int32_t prefetches;  ///< under way
  int64_t made_pins;
  int64_t refused_pins;
  int64_t ended_leases;  ///< pins that ended by their lease
  int64_t made_prefetches;
  int64_t refused_prefetches;  ///< not begun, or without room for their load
  int64_t prefetched_tokens;   ///< that completed prefetches added to the cached prefixes of the device
} stateport_prefix_usage;

/// Pins the longest cached prefix of the prompt, also all of it. The pin ends with unpin, or with the first start, pin
/// or prefetch at least `lease_s` seconds later; 0: it has no lease. Refused: a prompt that start refuses, and a lease
/// that is negative or not finite. O(tokens).
stateport_status stateport_request_cache_pin(stateport_request_cache* cache, const stateport_prompt* prompt,
                                             double lease_s, stateport_pinned_prefix* out);
/// The pin ends. unpinned: 0: it had ended before, by its lease or because its contents were forgotten. Refused: a
/// number that no pin has had. O(tokens).
stateport_status stateport_request_cache_unpin(stateport_request_cache* cache, uint64_t pin, uint8_t* unpinned);
/// Loads the longest prefix of the prompt that the tiers have, if it is longer than the one on the device and worth its
/// load. The load takes memory that is free or can be evicted. Refused: a prompt that pin refuses, and the search
/// STATEPORT_SEARCH_DEVICE. O(tokens).
stateport_status stateport_request_cache_prefetch(stateport_request_cache* cache, const stateport_prompt* prompt,
                                                  stateport_prefetch* out);
/// under_way: 1 until all of the prefetch has ended. Refused: a number that no prefetch has had. O(prefetches).
stateport_status stateport_request_cache_prefetching(stateport_request_cache* cache, uint64_t prefetch,
                                                     uint8_t* under_way);
/// O(1).
stateport_status stateport_request_cache_prefix_usage(stateport_request_cache* cache, stateport_prefix_usage* out);

#ifdef __cplusplus
}
#endif

#endif
