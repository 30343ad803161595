// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_STATISTICS_H
#define STATEPORT_C_STATISTICS_H

#include <stddef.h>
#include <stdint.h>

/// Savings of a cache, and reasons why it did not save more: stateport::CacheStats, stateport::LostHit. Plain data.
#ifdef __cplusplus
extern "C" {
#endif

/// Why a request could not use all of the KV that it matched.
typedef enum stateport_lost_hit {
  STATEPORT_LOST_NOTHING = 0,
  STATEPORT_LOST_NO_CHECKPOINT,   ///< KV is there, but no state was stored at a usable boundary
  STATEPORT_LOST_OFF_GRID,        ///< the match ends between two boundaries of the grid
  STATEPORT_LOST_EVICTED,         ///< a state was stored there and has been evicted
  STATEPORT_LOST_TOO_FEW_TOKENS,  ///< using it would leave fewer tokens than the forward needs
  STATEPORT_LOST_LOCKED_POOL,     ///< no live slot could be freed
  STATEPORT_LOST_EVICTED_KV,      ///< its KV was cached and has been evicted
  /// No KV of this prefix is cached: no request has computed it, or it has been evicted and the cache does not remember
  /// it.
  STATEPORT_LOST_NEVER_STORED,
  STATEPORT_LOST_TIER_COSTS_MORE,  ///< a tier below the device has it, and computing it is faster than loading it
  STATEPORT_LOST_TIER_FAILED       ///< a tier had it, and did not deliver it as it should be
} stateport_lost_hit;

enum { STATEPORT_LOST_REASONS_MAX = 16 };  ///< room for all of them, and for those that may come
enum { STATEPORT_MEDIA_MAX = 8 };          ///< the same of stateport_medium

/// Buckets of histograms. The upper bounds double, and belong to their buckets. The last bucket has no bound.
enum { STATEPORT_AGE_BUCKETS = 24 };    ///< from 1 second
enum { STATEPORT_TOKEN_BUCKETS = 16 };  ///< from 64 tokens

/// Plain counters since the cache was made. A request is counted with its first commit or insert, or with its end if it
/// has none. Arrays are by stateport_lost_hit.
typedef struct stateport_cache_stats {
  size_t size;
  int64_t requests;
  int64_t requests_hit;
  int64_t prompt_tokens;
  int64_t hit_tokens;
  double hit_flops;  ///< by the cost in the cache's options; tokens without one
  int64_t lost_requests[STATEPORT_LOST_REASONS_MAX];
  int64_t lost_tokens[STATEPORT_LOST_REASONS_MAX];
  double lost_flops[STATEPORT_LOST_REASONS_MAX];
  int64_t evicted_states;  ///< that lost their place to others
  double reuse_age_p50_s;  ///< of states since their last use, when a request continued from them: upper bounds, powers
  double reuse_age_p90_s;  ///< of two; 0: no age was counted
  double eviction_age_p50_s;  ///< of states since their last use, when they were evicted
  double eviction_age_p90_s;
  int64_t evicted_kv_tokens;    ///< since the cache was made
  int64_t kv_tokens;            ///< of whole blocks, cached or of running requests
  int64_t states;               ///< checkpoints; in columns: blocks of states, with those of running requests
  int64_t breakpoints_kept;     ///< positions of stateport_prompt.breakpoints that a pass left a checkpoint at
  int64_t breakpoints_refused;  ///< those that a pass ran over without one
  int64_t awaited_tokens;       ///< of hit_tokens: reused because a request waited (stateport_share_running)
  int64_t forks;                ///< that were started: they are not among the requests
  /// Of hit_tokens: that requests loaded from tiers, by the slowest stateport_medium of each load.
  int64_t loaded_tokens[STATEPORT_MEDIA_MAX];
  int64_t reuse_ages[STATEPORT_AGE_BUCKETS];     ///< as reuse_age_p50_s
  int64_t eviction_ages[STATEPORT_AGE_BUCKETS];  ///< as eviction_age_p50_s
  int64_t hit_depths[STATEPORT_TOKEN_BUCKETS];   ///< requests by their hit tokens
  /// Requests by the tokens that they computed again though their KV was cached when they were looked up.
  int64_t loss_depths[STATEPORT_TOKEN_BUCKETS];
} stateport_cache_stats;

#ifdef __cplusplus
}
#endif

#endif
