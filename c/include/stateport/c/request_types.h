// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_REQUEST_TYPES_H
#define STATEPORT_C_REQUEST_TYPES_H

#include <stateport/c/copies.h>
#include <stateport/c/eviction.h>
#include <stateport/c/hash.h>
#include <stateport/c/memory_move.h>
#include <stateport/c/prefix_tree.h>
#include <stateport/c/statistics.h>
#include <stateport/c/transfers.h>

/// Inputs and outputs of a stateport_request_cache: request_types.hpp in C++. Plain data.
#ifdef __cplusplus
extern "C" {
#endif

/// How far a start looks for states and KV that a prompt can reuse.
typedef enum stateport_prompt_search {
  STATEPORT_SEARCH_EVERYWHERE = 0,  ///< on the device and below, and the remote tier is asked for more
  STATEPORT_SEARCH_KNOWN,           ///< the remote tier is not asked
  STATEPORT_SEARCH_DEVICE           ///< nothing is loaded, and no other request awaited: the request can run at once
} stateport_prompt_search;

typedef struct stateport_prompt {
  size_t size;
  const int32_t* tokens;  ///< all that is known; of a request that starts again: prompt and output so far
  size_t count;
  const stateport_namespace* name_space;  ///< null: none
  const stateport_media_key* media;
  size_t media_count;
  const stateport_reuse_hint* hint;  ///< null: nothing is known
  double now_s;                      ///< the caller's clock in seconds; never goes back but after a reset
  int32_t search;                    ///< stateport_prompt_search
  /// Positions at which later prompts may leave this one, in tokens from the start: ascending, from 1 to `count`, at
  /// most 8. The passes leave a checkpoint at each, rounded down, whatever the placement: a chunk ends there, or the
  /// pass saves its state on its way (stateport_slot_layout.breakpoint_saves). Not in mode none.
  const int64_t* breakpoints;
  size_t breakpoint_count;
} stateport_prompt;

typedef struct stateport_started_request {
  size_t size;
  /// Names the request until it ends; then the number is refused. The low 32 bits are below max_requests, and no two
  /// running requests have the same: engines can use them as an array index.
  int64_t request;
  int32_t lost;           ///< stateport_lost_hit: why not more is reused
  int64_t reused_tokens;  ///< the first pass begins here, unless the request waits; less than the prompt
  int64_t lost_tokens;    ///< whose KV is cached beyond reused_tokens, and which are computed again
  /// More is on its way from a tier: the first pass begins behind this number of tokens. 0: nothing is. With
  /// load_medium STATEPORT_MEDIUM_REMOTE it is 0 while that tier is asked for contents, which are then loaded. Until
  /// the load has ended (stateport_request_cache_loading) no pass can run the request. The engine computes the tokens
  /// that do not arrive.
  int64_t load_tokens;
  int64_t load_bytes;  ///< to load from tiers: KV that the engine keeps is not counted
  /// stateport_medium: the slowest tier that something is loaded from; elsewhere: only KV that the engine keeps is;
  /// device: nothing is.
  int32_t load_medium;
  /// Another request is computing more of this prompt (stateport_share_running): its number; STATEPORT_NONE: this one
  /// waits for none. Until the wait is over no pass can run this request: chunk says 0. Then
  /// stateport_running_request.computed says how much it reuses.
  int64_t waits_for_request;
  int64_t waits_for_tokens;  ///< length of the prefix, where that request is to leave a checkpoint; 0: no wait
  const stateport_transfer* transfers;  ///< see cache_tiers.h
  size_t transfer_count;
  /// Where the checkpoints of the prompt's breakpoints are to lie: rounded down to whole blocks, in columns to those of
  /// the last group; 0: nowhere. Valid until the request ends.
  const int64_t* breakpoints;
  size_t breakpoint_count;
} stateport_started_request;

/// The rows of a pass, one array each. A row runs tokens[i] tokens, the last drafts[i] of them proposed. While the
/// prompt is not done drafts[i] is 0; afterwards tokens[i] is 1 + drafts[i].
typedef struct stateport_pass_batch {
  size_t size;
  const int64_t* request;
  const int32_t* tokens;
  const int32_t* drafts;  ///< null: all 0
  size_t rows;
  /// Drafts that are a tree (in slots): for each draft, one row after the other, the step that it follows. A step
  /// counts the tokens of a row from 0: draft i is step i + 1, and its parent is a step in [0, i]. Null: the drafts of
  /// each row are a chain. The pass writes the KV of step s to the place of token start + s.
  const int32_t* parents;
  size_t parent_count;
} stateport_pass_batch;

/// A state that the pass writes on its way: the one after `offset` of the row's tokens. 16 bytes for ever.
typedef struct stateport_state_save {
  int32_t row;
  int32_t offset;
  int32_t slot;
  int32_t in_scratch;  ///< not 0: `slot` is one of the engine's scratch states, else one of the store
} stateport_state_save;

/// The plan of a pass for one group of layers. Arrays [rows] are in the order of the batch.
///
/// A row reads the conv window [read_bias, read_bias + W) of read_slot and the recurrent state of read_recurrent_slot;
/// STATEPORT_NONE: it begins with the empty state. It writes the state at its end to write_slot. With drafts:
///
///     in slots:    write_slot is not written. The pass leaves the state after each of its tokens in scratch memory of
///                  the engine, and the commit says which of them moves where (stateport_step_commit).
///     in columns:  the recurrent state after d drafts goes to slots[i][write_column[i] + d]; the conv window of
///                  write_slot takes d more tokens.
typedef struct stateport_group_plan {
  size_t size;
  const int32_t* clear;  ///< slots that begin with the empty state, or (scrub) were another tenant's
  size_t clear_count;
  const stateport_slot_copy* copies;  ///< within the store, in any order
  size_t copy_count;
  /// [rows] the row of the block table (layout in columns), or the live slot; of a fork that has not begun, then the
  /// one that it reads.
  const int32_t* const* slots;
  const int32_t* slot_count;           ///< [rows]
  const int32_t* read_column;          ///< [rows] index into slots[i]; -1: the row begins with the empty state
  const int32_t* read_bias;            ///< [rows] tokens past the state of read_column
  const int32_t* write_column;         ///< [rows] index into slots[i]
  const int32_t* read_slot;            ///< [rows]
  const int32_t* read_recurrent_slot;  ///< [rows]
  const int32_t* write_slot;           ///< [rows]
  const stateport_state_save* saves;   ///< ascending in row and offset
  size_t save_count;
} stateport_group_plan;

/// A planned pass. The caller sets `size`, `groups` and `group_count` before the call.
typedef struct stateport_pass_plan {
  size_t size;
  stateport_group_plan* groups;  ///< room for what each group needs; null: not wanted
  size_t group_count;            ///< of the cache, or 0
  uint64_t pass;
  const stateport_transfer* transfers;  ///< see cache_tiers.h: they come before all other work of the plan
  size_t transfer_count;
  /// 0: planned ahead, and where its rows begin depends on a pass that is not committed: memory is reserved, and `room`
  /// is known; `start`, states and copies are not. The commit of that pass tells the complete plan.
  int32_t ready;
  int32_t rows_without_room;
  size_t rows;
  const uint8_t* room;       ///< [rows] 0: the row does not run, and nothing of it is planned
  const int64_t* start;      ///< [rows] the pass computes the tokens [start, start + tokens)
  const int32_t* const* kv;  ///< [rows] kv[i][k] holds the tokens [k, k + 1) * kv_tokens_per_id of the request
  const int64_t* kv_count;   ///< [rows]
  int32_t kv_tokens_per_id;  ///< block ids: the block size; with a tree one KV index a token
  /// With stateport_request_cache_options.scrub: memory that another tenant may have written, to be set to zero before
  /// the copies and the pass.
  const int32_t* scrub_kv;  ///< numbers of KV blocks, in every layer
  size_t scrub_kv_count;
  const int32_t* scrub_scratch;  ///< scratch states (stateport_state_save.in_scratch)
  size_t scrub_scratch_count;
  const int32_t* scrub_draft_rows;  ///< rows of the pass: the scratch memory of their steps
  size_t scrub_draft_rows_count;
  /// See cache_arena.h; only with rows without room. Whole KV blocks, in every layer: src_slot and dst_slot are their
  /// numbers.
  const stateport_slot_copy* kv_copies;
  size_t kv_copy_count;
  const stateport_memory_move* moves;  ///< the same; after these copies
  size_t move_count;
  /// After the scrub, before the pass: copies of whole KV blocks, in every layer and in any order. A fork that begins
  /// inside a block writes to a copy of it.
  const stateport_slot_copy* fork_copies;
  size_t fork_copy_count;
} stateport_pass_plan;

/// Of a row with drafts (in slots): states in scratch memory of the engine that become the live state and a
/// checkpoint. A step counts the tokens of the row from 0; STATEPORT_NONE: there is none. 20 bytes for ever.
typedef struct stateport_step_commit {
  int32_t row;
  int32_t live_step;
  int32_t live_slot;
  int32_t kept_step;
  int32_t kept_slot;
} stateport_step_commit;

/// Work to enqueue after a pass, for one group of layers.
typedef struct stateport_group_commit {
  size_t size;
  const stateport_step_commit* steps;  ///< at most one a row, ascending
  size_t step_count;
  const stateport_slot_copy* from_scratch;  ///< source: stateport_state_save.slot in scratch
  size_t from_scratch_count;
  const stateport_slot_copy* copies;  ///< within the store, after the steps
  size_t copy_count;
} stateport_group_commit;

/// A position of stateport_started_request.breakpoints that a pass ran over without leaving a checkpoint. 16 bytes for
/// ever.
typedef struct stateport_refused_breakpoint {
  int64_t request;
  int64_t tokens;
} stateport_refused_breakpoint;

/// The KV of a token that a pass with a tree of drafts kept: it moves from one KV index to another, in every layer. A
/// KV index is a block number times the block size, plus the position inside the block. 8 bytes for ever.
typedef struct stateport_kv_move {
  int32_t src;
  int32_t dst;
} stateport_kv_move;

/// A committed pass. The caller sets `size`, `groups`, `group_count`, `next` and `steps` before the call.
typedef struct stateport_pass_commit {
  size_t size;
  stateport_group_commit* groups;  ///< room for what each group needs; null: not wanted
  size_t group_count;              ///< of the cache, or 0
  stateport_pass_plan* next;       ///< room for a plan, set up as for a plan; needed with `overlap` alone
  /// See cache_tiers.h: they come before the copies, and before those of `next`.
  const stateport_transfer* transfers;
  size_t transfer_count;
  int32_t has_next;          ///< not 0: a pass that was planned ahead was not ready, and is now; `next` tells it
  int32_t published_states;  ///< checkpoints that requests can start from, from now on
  int32_t dropped_states;    ///< checkpoints for which there was no room
  /// There was no room for them, or the pass could neither stop nor save its state there.
  const stateport_refused_breakpoint* refused_breakpoints;
  size_t refused_breakpoint_count;
  const stateport_slot_copy* kv_copies;  ///< see cache_arena.h: of whole KV blocks, as in a plan
  size_t kv_copy_count;
  const stateport_memory_move* moves;  ///< the same; after these copies
  size_t move_count;
  /// [rows] after a plan with parents: the last step of each row that is kept. The steps on the path to it are kept: as
  /// many drafts as its count says, less one. Null: the plan has none.
  const int32_t* steps;
  /// With trees of drafts: before all other work of the commit. Those of one row run in this order, because one may
  /// read a place that the next one writes.
  const stateport_kv_move* kv_moves;
  size_t kv_move_count;
} stateport_pass_commit;

/// A running request.
typedef struct stateport_running_request {
  size_t size;
  const int32_t* tokens;  ///< prompt and sampled tokens
  size_t count;
  int64_t computed;  ///< tokens whose KV and state are there, of committed passes
  const int32_t* kv;
  size_t kv_count;
  int32_t kv_tokens_per_id;
} stateport_running_request;

/// The places of a request's hit in the memory of the cache, in one group of layers.
typedef struct stateport_hit_places {
  size_t size;
  int64_t tokens;     ///< the length of the hit; 0: there is none, and the other members have no meaning
  const int32_t* kv;  ///< kv[k] holds the tokens [k, k + 1) * kv_tokens_per_id, at least those of the hit
  size_t kv_count;
  int32_t kv_tokens_per_id;
  int32_t state;  ///< holds the state after these tokens: a slot for checkpoints; in columns: a block of states
} stateport_hit_places;

/// Why a request ends.
typedef enum stateport_request_end {
  STATEPORT_FINISHED = 0,  ///< complete: the computed prefix is kept up to its last state
  STATEPORT_PREEMPTED,     ///< the same; it will start again
  STATEPORT_ABORTED        ///< no more is kept than was published
} stateport_request_end;

/// Work to enqueue after requests have ended, before any later call. Empty but for index tree with
/// separate_checkpoints: transfers that other ends decide come with the next answer.
typedef struct stateport_ended_requests {
  size_t size;
  const stateport_transfer* transfers;  ///< see cache_tiers.h: they come before the copies
  size_t transfer_count;
  const stateport_slot_copy* copies;  ///< from live slots to slots for checkpoints
  size_t copy_count;
} stateport_ended_requests;

typedef enum stateport_event_kind {
  STATEPORT_EVENT_STORED = 0,  ///< can be found from now on
  STATEPORT_EVENT_REMOVED,     ///< can not be found any more
  STATEPORT_EVENT_CLEARED      ///< nothing can be found any more; other members have no meaning
} stateport_event_kind;

/// A change of the contents of a cache, for routers.
typedef struct stateport_cache_event {
  size_t size;
  uint64_t sequence;   ///< counts up by one from 1
  int32_t kind;        ///< stateport_event_kind
  int32_t content;     ///< stateport_content
  int32_t medium;      ///< stateport_medium
  int32_t group;       ///< of a state
  uint64_t prefix[2];  ///< names the block, or the state, with everything before it: see stateport_hash_blocks
  uint64_t parent[2];  ///< stored KV: of the block before; zeros for the first one of a prompt
  int64_t tokens;      ///< stored: from the start of the prompt to the end of the block, or to the state
} stateport_cache_event;

#ifdef __cplusplus
}
#endif

#endif
