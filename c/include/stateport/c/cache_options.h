// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_CACHE_OPTIONS_H
#define STATEPORT_C_CACHE_OPTIONS_H

#include <stateport/c/align_options.h>
#include <stateport/c/eviction.h>
#include <stateport/c/transfers.h>

/// Options of a request cache: <stateport/core/serve/cache_options.hpp>, which has the rules. Plain data. Members
/// have the names and the defaults of C++. 0 stands for the default of an option for which 0 is not valid.
#ifdef __cplusplus
extern "C" {
#endif

/// How a cache finds the longest prefix of a prompt that it has. Each index works with each layout.
typedef enum stateport_cache_index {
  STATEPORT_INDEX_HASH = 0,  ///< by the hash of each block
  STATEPORT_INDEX_TREE       ///< by tokens, in a prefix tree
} stateport_cache_index;

/// The hash of blocks of tokens.
typedef enum stateport_block_hash {
  STATEPORT_HASH_SHA256 = 0,
  STATEPORT_HASH_XXH3_128  ///< faster; without a secret hash_seed for a single tenant
} stateport_block_hash;

/// The positions in a prompt, in whole blocks, at which passes leave checkpoints. n is the last one before the prompt's
/// last token; the prompt continues from the state after p blocks; j blocks have cached KV, p <= j <= n. See
/// CheckpointPlacement in the C++ header.
typedef enum stateport_checkpoint_placement {
  STATEPORT_PLACE_PASSES = 0,  ///< at j, and at the end of each pass, at most n
  STATEPORT_PLACE_LAST,        ///< n
  STATEPORT_PLACE_BRANCH,      ///< n and j
  STATEPORT_PLACE_RUNGS,       ///< those, and n - 1, n - 2 and n - 4 beyond j
  STATEPORT_PLACE_EVERY        ///< all that are not cached
} stateport_checkpoint_placement;

/// One memory that KV and states share: the cache moves it between them while it serves, by the moves of its answers
/// (cache_arena.h). Both stores have addresses for the most that the cache may ever use of them (kv_tokens,
/// checkpoints): as much as `bytes` can hold, if one part may take all of it. An extent is the smallest run of blocks,
/// or of slots, whose memory can be mapped and unmapped by itself.
typedef struct stateport_arena {
  size_t size;
  int64_t bytes;                ///< of physical memory for the extents of both parts; 0: no arena
  int32_t kv_extent_count;      ///< KV blocks of one extent; 0: 1
  int64_t kv_extent_bytes;      ///< of physical memory that it takes, in all layers together
  int32_t states_extent_count;  ///< slots of one extent, of the store that checkpoints lie in; 0: 1
  int64_t states_extent_bytes;  ///< of physical memory that it takes, in all layers and tensors together
  double state_share;           ///< of `bytes`, that states have at the start, up to 1; 0: 0.5; STATEPORT_NONE: none
} stateport_arena;

/// States lie in slots: each running request has a live slot, and each checkpoint has a slot.
typedef struct stateport_slot_layout {
  size_t size;
  uint64_t layout_fingerprint;  ///< stateport_spec_info.fingerprint; 0 is refused unless unchecked_layout is set
  int32_t checkpoints;          ///< states that can be kept beside those of running requests
  /// Not 0: checkpoints lie in a store of their own, for example of a stateport_spec_quantised, with layout_fingerprint
  /// and the state_bytes of `eviction` of that store. Slots of running requests are [0, max_requests) of the live
  /// store, slots for checkpoints [0, checkpoints) of the other: copies before a pass go from the latter to the former,
  /// those after it back. 0: one store has both.
  stateport_flag separate_checkpoints;
  /// Distance from the start of a pass, in tokens, at which a pass over a prompt can save states; 0: every token; -1:
  /// only at its end.
  int32_t scan_alignment_tokens;
  int32_t placement;  ///< stateport_checkpoint_placement
  /// > 0: the state that a prompt leaves at n lies before its last `tail_tokens` tokens instead, for chat templates
  /// that swap the text before an answer or drop reasoning in the next turn. Not with STATEPORT_PLACE_EVERY. 0: 64, in
  /// namespaces whose prompts would lose more tokens without a tail: the cache learns that. -1: no tail.
  int64_t tail_tokens;
  /// Positions of stateport_prompt.breakpoints at which one pass of a request saves its state on its way, beside those
  /// that the placement saves, from 0 to 8; at the others a chunk ends. Each costs a scratch state of every request.
  int32_t breakpoint_saves;
  /// Index tree, with a placement other than passes: > 0: also at multiples of this number of tokens (whole blocks)
  /// beyond j, as long as there is a free slot and room in the budget. These checkpoints are evicted first.
  int64_t spare_checkpoint_tokens;
  /// Decoding leaves a checkpoint at multiples of it (whole blocks); 0: only at the end of a request.
  int64_t decode_checkpoint_tokens;
  /// > 0: the bytes that cached KV and checkpoints may take together whenever a request ends, by state_bytes and
  /// kv_bytes_per_token of `eviction`, which must name both. Memory of running requests counts and stays. A tree may
  /// exceed it by the KV of the request that just ended and its last state, unless hix decides.
  int64_t budget_bytes;
  const stateport_arena* arena;  ///< KV and states share one memory physically; null: no. Not with budget_bytes
} stateport_slot_layout;

/// Layers that share a block table of states.
typedef struct stateport_state_group {
  size_t size;
  int32_t block_size_tokens;  ///< of states; a multiple of the options' block_size_tokens
  /// Of running requests and of checkpoints together. Index tree: a running request keeps one checkpoint, too.
  int32_t blocks;
  int32_t conv_window;          ///< the shortest of the group's conv states; 0: it has none
  uint64_t layout_fingerprint;  ///< stateport_spec_info.fingerprint of the group's layers
} stateport_state_group;

/// States lie in blocks that the columns of block tables name.
typedef struct stateport_column_layout {
  size_t size;
  int32_t mode;                         ///< stateport_align_mode; index tree: not none
  const stateport_state_group* groups;  ///< at least one
  size_t group_count;
  /// Mode align: a chunk ends on the last boundary before the prompt's last `tail_tokens` tokens, instead of the last
  /// one before its last token. 0 and -1: see stateport_slot_layout.
  int64_t tail_tokens;
} stateport_column_layout;

/// Prompts that wait for a request which computes their prefix, so that it is computed once. A prompt waits if it
/// shares more with the unfinished prompt of an earlier request than is cached. The earlier request leaves a checkpoint
/// at the end of the shared prefix, at up to eight positions. The wait is over once that request has computed the
/// prefix, has ended, or computes with old weights. The prompt then reuses all that is cached, and may wait for another
/// request. An engine passes over a request that waits, and runs the others.
typedef struct stateport_share_running {
  size_t size;
  /// A prompt waits for at least this number of tokens beyond its hit; 0: no prompt waits. Costs a hash of each block
  /// of a prompt with index tree. Not in mode none.
  int64_t least_tokens;
  /// Commits and inserts since a request began to wait, after which it waits no longer; 0: 1024.
  int32_t longest_commits;
} stateport_share_running;

/// Pins and prefetches: see cache_prefixes.h. Bytes are counted by state_bytes and kv_bytes_per_token of
/// stateport_eviction_options: KV in whole blocks, and states.
typedef struct stateport_prefix_options {
  size_t size;
  int32_t pins;              ///< at a time; 0: none. Not in mode none.
  int64_t pinned_bytes;      ///< that pins may keep together
  int32_t prefetches;        ///< at a time; 0: none. Needs tiers.
  int64_t prefetched_bytes;  ///< that loads of prefetches may take together while they are under way
} stateport_prefix_options;

/// Sessions, by stateport_reuse_hint.session: see cache_sessions.h.
typedef struct stateport_session_options {
  size_t size;
  int32_t remembered;  ///< that the cache remembers, rounded up to a power of two; 0: none
  double idle_s;       ///< > 0: a session that no request named for this many seconds is closed with the next start
  int64_t most_bytes;  ///< > 0: contents of a session that owns more are demoted until it owns no more than that
} stateport_session_options;

typedef struct stateport_request_cache_options {
  size_t size;
  int32_t index;                           ///< stateport_cache_index
  const stateport_slot_layout* slots;      ///< null: `columns` is given
  const stateport_column_layout* columns;  ///< null: `slots` is given
  int32_t max_requests;                    ///< that run at a time
  int64_t max_request_tokens;              ///< of one request: prompt, output and drafts together
  int32_t drafts;                          ///< of a row, at most
  int32_t block_size_tokens;               ///< of KV; index tree: of a page; 0: 16
  int64_t kv_tokens;                       ///< room for KV; rounded down to whole blocks
  stateport_flag unchecked_layout;         ///< not 0: a layout_fingerprint of 0 is accepted, and compares nothing
  /// Of states, and of leaves of a tree; null: LRU, while order 0 is hix. Index hash with columns: no hix and no gdsf.
  const stateport_eviction_options* eviction;
  int32_t position_tokens;  ///< index tree, hix: distance of the positions whose history is kept; 0: 64
  int32_t hash;             ///< stateport_block_hash, of blocks
  /// Enters every hash of a block, and the table of a tree. Two seeds share nothing, in tiers neither; 0: none. A
  /// secret random value where tenants are not trusted, the same for all that share files or a store. No error, event
  /// or statistic tells it.
  uint64_t hash_seed;
  /// Number of the weights: part of every name of contents, in tiers and events too, unless it is 0. A process that
  /// finds the files or the remote store of earlier ones names their weights by it. See cache_epochs.h.
  uint64_t epoch;
  stateport_flag overlap;  ///< not 0: a pass may be planned while the one before is not committed
  /// Not 0: keep events for stateport_request_cache_take_events. Events that are not taken in time are lost, the oldest
  /// first, and the numbers have a gap.
  stateport_flag events;
  /// Not 0: plans name memory that changes tenant (stateport_namespace.salt), to be set to zero before the copies and
  /// the pass: stateport_pass_plan.scrub_…, stateport_group_plan.clear. Memory that the engine leaves out is not
  /// scrubbed. For tiers see stateport_state_tiers_options.scrub.
  stateport_flag scrub;
  /// Not 0: the cache names the checks of checkpoints. See cache_integrity.h.
  stateport_flag integrity;
  /// Tenants that can have a quota at a time, at most 64; 0: none. See cache_tenants.h.
  int32_t tenant_quotas;
  const stateport_share_running* share_running;  ///< null: no prompt waits for another request
  const stateport_prefix_options* prefixes;      ///< null: neither pins nor prefetches
  const stateport_session_options* sessions;     ///< null: none
  const stateport_tier_options* tiers;           ///< the tiers below the device; null: none
  /// Of a forward over the tokens [from, to), for the FLOPs in statistics, from 0 to 1e100; both 0: tokens count.
  double cost_linear;
  double cost_quadratic;
} stateport_request_cache_options;

#ifdef __cplusplus
}
#endif

#endif
