// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_EVICTION_H
#define STATEPORT_C_EVICTION_H

#include <stateport/c/status.h>

/// What to evict from a tree or a slot allocator, and facts for a policy that learns: stateport::EvictionPolicy,
/// stateport::ReuseHint. The conventions are in stateport/c/core.h, the rules in the C++ headers.
#ifdef __cplusplus
extern "C" {
#endif

/// Names and order are those of stateport::EvictionOrder.
typedef enum stateport_eviction {
  STATEPORT_EVICT_HIX = 0,  ///< learned from the requests and from the caller's hints
  STATEPORT_EVICT_GDSF,
  STATEPORT_EVICT_LRU,
  STATEPORT_EVICT_LFU,
  STATEPORT_EVICT_FIFO,
  STATEPORT_EVICT_SLRU,
  STATEPORT_EVICT_PRIORITY,
  STATEPORT_EVICT_MRU,
  STATEPORT_EVICT_FILO
} stateport_eviction;

/// The policy of one cache. Orders other than hix and gdsf need nothing else, unless the cache keeps to a budget in
/// bytes.
typedef struct stateport_eviction_options {
  size_t size;
  int32_t order;               ///< stateport_eviction
  int32_t samples;             ///< hix: candidates drawn in turn for a victim; 0: 24; -1: all are compared
  int64_t state_bytes;         ///< hix, gdsf, budgets, quotas: of a state; 0: 4,096 times that of a token's KV
  int64_t kv_bytes_per_token;  ///< hix, gdsf, budgets, quotas; 0 with state_bytes
  /// hix, gdsf: the cost that a hit saves by the tokens [from, to): linear * (to - from) + quadratic * (to * to - from
  /// * from). From 0 to 1e100 each; both 0: tokens count, linear is 1.
  double benefit_linear;
  double benefit_quadratic;
  /// hix: whose history is remembered, cached or not: 64 bytes each, with tenant_quotas 80; 0: 16,384
  uint64_t positions;
} stateport_eviction_options;

/// The caller's knowledge about a prompt's future: hix then values the end of this prompt differently from others of
/// its kind. No hint, or one of zeros, says nothing. Refused whatever the policy: a factor that is not positive (0 is
/// 1) and a negative time.
///
/// The multipliers are of the rate of uses, at any age; together they are rounded to half octaves, within 1/16 and 16.
typedef struct stateport_reuse_hint {
  size_t size;
  stateport_flag last_turn;          ///< not 0: no continuation of the prompt is expected: 1/8
  stateport_flag tool_call_pending;  ///< not 0: it goes on as soon as a tool has answered: 4
  double factor;                     ///< for other knowledge; 0: 1
  double expected_idle_s;  ///< no use is expected before this time has passed; afterwards the hint says nothing
  /// Names a conversation whose next prompt goes on from this one; 0: unknown. If its next one does not, no prompt is
  /// expected to return to this end: 1/8 from then on. Of a prompt: the session that owns its contents, see
  /// cache_sessions.h.
  uint64_t session;
  /// In (0, 1): how likely a later prompt goes on from this one; 0: not given. The weight of such a value is learned
  /// from earlier prompts with a like value.
  double continues;
} stateport_reuse_hint;

#ifdef __cplusplus
}
#endif

#endif
