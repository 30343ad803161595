// SPDX-License-Identifier: Apache-2.0
#ifndef STATEPORT_C_REQUEST_CACHE_H
#define STATEPORT_C_REQUEST_CACHE_H

#include <stateport/c/cache_options.h>
#include <stateport/c/request_types.h>
#include <stateport/c/statistics.h>
#include <stateport/c/status.h>
#include <stateport/c/transfers.h>

/// The one interface that an engine needs, for each index and each layout: stateport::RequestCache. The conventions are
/// in stateport/c/core.h, the rules in the C++ header.
#ifdef __cplusplus
extern "C" {
#endif

/// A cache of KV and states that decides and moves no byte. One request:
///
///     start → (chunk → plan → [before] → forward → commit → [after])* → end
///
///     [before]  scrub, and for each group: clear, copies
///     [after]   for each group: steps, from_scratch, copies
///
/// A plan is for a whole batch. Passes are committed in the order of their plans. Memory that plans and commits name
/// (pointers in their outputs) belongs to the cache and stays until the next plan, cancel, commit or reset, and for a
/// row until its request ends: a plan that is ready is enqueued before the commit of the pass before it. The transfers
/// of an answer stay until the next call of the cache, its memory work until the next plan, insert, commit or
/// take_memory.
typedef struct stateport_request_cache stateport_request_cache;

/// Sizes that the engine must provide, and how many requests run.
typedef struct stateport_request_cache_info {
  size_t size;
  size_t groups;               ///< of layers: in columns those of the layout, else one
  int32_t kv_blocks;           ///< KV indices of plans are below it times block_size_tokens
  int32_t scratch_slots;       ///< for stateport_state_save.in_scratch
  int32_t running_requests;    ///< with those that ended and wait for a load, or for their forks
  size_t transfers_under_way;  ///< to and from tiers, named and not settled
  // Requests that no pass can run yet.
  int32_t waiting_for_answers;   ///< the remote tier was asked
  int32_t waiting_for_loads;     ///< something is loaded from a tier
  int32_t waiting_for_requests;  ///< another request computes their prefix (stateport_share_running)
} stateport_request_cache_info;

stateport_status stateport_request_cache_create(const stateport_request_cache_options* options,
                                                stateport_request_cache** out);
stateport_status stateport_request_cache_destroy(stateport_request_cache* cache);
stateport_status stateport_request_cache_describe(stateport_request_cache* cache, stateport_request_cache_info* out);
/// Slots that the engine's store of a group must have.
stateport_status stateport_request_cache_state_slots(stateport_request_cache* cache, size_t group, int32_t* out);
/// The same of the store of checkpoints; with separate_checkpoints it is another one.
stateport_status stateport_request_cache_checkpoint_slots(stateport_request_cache* cache, size_t group, int32_t* out);

/// Looks prompts up in order and takes the memory that each needs to run. out: [count]. The first one that is refused,
/// or for which there is no room (STATEPORT_NO_CAPACITY: nothing was taken for it), ends the call: those before it have
/// started, and `done` says how many.
stateport_status stateport_request_cache_start(stateport_request_cache* cache, const stateport_prompt* prompts,
                                               size_t count, stateport_started_request* out, size_t* done);
/// Looks the prompt of a request up again before its first pass: since the start other requests may have computed more
/// of it. An engine asks when it is about to schedule the request. The device alone is searched. More is a deeper
/// state, or more KV behind the same state: reused_tokens stays, and the prompt leaves its checkpoints where it now
/// branches off. found: 1: `out` replaces the answer of the start, and memory that failed or cancelled plans took for
/// the request is free again. 0: no more is found, or the request waits for a tier or for another request: nothing has
/// changed, and `out` is not written. Refused: a request that does not run, and with STATEPORT_INVALID_STATE one that
/// has committed a pass or inserted a prefix, or is in an outstanding pass.
stateport_status stateport_request_cache_refresh(stateport_request_cache* cache, int64_t request,
                                                 stateport_started_request* out, uint8_t* found);
/// Starts forks of a request: requests that go on behind its computed tokens, for n samples, beams, or other
/// continuations. Fork i has these computed tokens, then tokens[i * k] … tokens[i * k + k - 1], with k = count /
/// fork_count. One token counts as sampled: the fork decodes. More are a prompt. The forks have the namespace and the
/// hint of the request, and share its KV and its state. Nothing is copied before their first plan:
///
///     in slots:    the first pass of a fork reads the state of the request (read_slot), and writes its own.
///                  An engine whose kernels work in place copies the state first.
///     in columns:  copies of the group plan have a copy of the state.
///     both:        fork_copies of the plan have a copy of the last block of KV, if that is not full.
///
/// Until all its forks have begun (their first commit or insert) or ended, the request itself waits: chunk says 0. It
/// may end: it then keeps its memory and its number until they have, and leaves no state at its end. The last fork of a
/// request that has ended begins with its first plan, which gives it the memory of the request and copies nothing. A
/// fork can be forked once it has begun. STATEPORT_NO_CAPACITY: fewer request numbers than forks are free, and nothing
/// has changed. Refused: a request that does not run, no forks, a count that is no multiple of theirs, a fork longer
/// than max_request_tokens; with STATEPORT_INVALID_STATE a request that has not computed its prompt, that is in an
/// outstanding pass, and a fork that has not begun. forks: [fork_count].
stateport_status stateport_request_cache_fork(stateport_request_cache* cache, int64_t request, const int32_t* tokens,
                                              size_t count, int64_t* forks, size_t fork_count);
/// How many of the next budgets[i] tokens of each prompt to run in one pass: tokens [count]; 0: wait for a larger
/// budget, for a tier, or for another request. After the prompt: the budget. With a pass outstanding: behind that.
/// least_budgets: null, or [count]: the smallest budget for which tokens[i] is not 0; 0: the request waits.
stateport_status stateport_request_cache_chunk(stateport_request_cache* cache, const int64_t* requests,
                                               const int64_t* budgets, size_t count, int64_t* tokens,
                                               int64_t* least_budgets);
/// Plans one pass. Rows without room are named; the others run. Refused: a request that does not run or is named twice,
/// counts that do not fit.
stateport_status stateport_request_cache_plan(stateport_request_cache* cache, const stateport_pass_batch* batch,
                                              stateport_pass_plan* out);
/// The newest outstanding pass did not run. Another one is refused with STATEPORT_INVALID_STATE.
stateport_status stateport_request_cache_cancel(stateport_request_cache* cache, uint64_t pass);
/// The pass ran (or is enqueued) and sampled: counts[i] tokens for row i, all in `sampled` one after the other. A count
/// is 0 for a row without room or whose request ended, and for a part of the prompt; 0 or 1 where the prompt ends; else
/// 1 … tokens of the row. Refused: counts that do not fit, and with STATEPORT_INVALID_STATE a pass that is not the
/// oldest outstanding one or was never planned.
stateport_status stateport_request_cache_commit(stateport_request_cache* cache, uint64_t pass, const int32_t* counts,
                                                size_t rows, const int32_t* sampled, size_t sampled_count,
                                                stateport_pass_commit* out);
/// Names the KV and, in one group of layers, the checkpoint of a request's hit. Both stay in place until the first
/// commit, insert or refresh of the request or its end. STATEPORT_INVALID_STATE after the first commit or insert, and
/// while the request waits.
stateport_status stateport_request_cache_places(stateport_request_cache* cache, int64_t request, size_t group,
                                                stateport_hit_places* out);
/// Inserts the KV and the state of the first `tokens` tokens of a prompt. The engine has both in memory of its own: it
/// computed them there, or another node sent them. The engine enqueues the transfers of `plan`, scrubs and clears as
/// `plan` names it, copies the KV of [start[0], tokens) to kv[0] and the state after them to write_slot[0] of
/// each group, and enqueues the copies of `commit`: all before any later call. The plan itself has no copies. The
/// tokens count as computed from then on. The state becomes a checkpoint if the tokens are whole blocks (in columns:
/// of every group, and not in mode none), whatever the placement; commit.dropped_states is 1 if it finds no room. After
/// all tokens of the prompt the request can only end, or be forked. Some of the KV may be cached already. Index hash in
/// slots: its blocks are named again, and must get the same content. Otherwise the request reads the cached KV, and no
/// request reads the engine's copy. STATEPORT_NO_CAPACITY: the tokens find no room. Refused: tokens that are computed
/// already or beyond the prompt, a request that waits, and with STATEPORT_INVALID_STATE a call while a pass is
/// outstanding.
stateport_status stateport_request_cache_insert(stateport_request_cache* cache, int64_t request, int64_t tokens,
                                                stateport_pass_plan* plan, stateport_pass_commit* commit);

/// Ends requests, with their computed and committed tokens: all, or none. how: stateport_request_end. hints: null, or
/// [count]: about prompts that may continue them. out: null if the cache has no index tree with separate_checkpoints,
/// or the requests are aborted. Refused: a request that does not run, or is named twice; more than one with index tree
/// and separate_checkpoints, unless they are aborted: each can have copies.
stateport_status stateport_request_cache_end(stateport_request_cache* cache, const int64_t* requests, size_t count,
                                             int32_t how, const stateport_reuse_hint* hints,
                                             stateport_ended_requests* out);

stateport_status stateport_request_cache_request(stateport_request_cache* cache, int64_t request,
                                                 stateport_running_request* out);
/// Where the state after the computed tokens of a request lies, in one group of layers, once everything that was asked
/// for is enqueued: a group plan of one row, without copies.
stateport_status stateport_request_cache_state(stateport_request_cache* cache, int64_t request, size_t group,
                                               stateport_group_plan* out);

/// Forgets everything that is cached, in tiers too, but for the remote tier: the next answer with transfers names the
/// drops. While a request runs or a transfer is under way it forgets all namespaces instead, as
/// stateport_request_cache_forget does one.
stateport_status stateport_request_cache_reset(stateport_request_cache* cache);
stateport_status stateport_request_cache_stats(stateport_request_cache* cache, stateport_cache_stats* out);
/// The same, the contents of the cache and the work of its tiers in the text format of Prometheus, ended by a zero
/// byte, as far as `capacity` bytes have room; `bytes` needed for all of it, with that zero. prefix: of the names:
/// letters, digits, _ and :; null: "stateport".
stateport_status stateport_request_cache_prometheus(stateport_request_cache* cache, const char* prefix, char* text,
                                                    size_t capacity, size_t* bytes);
/// Moves the oldest events, at most `capacity`, into `out`, and their number into `count`.
stateport_status stateport_request_cache_take_events(stateport_request_cache* cache, stateport_cache_event* out,
                                                     size_t capacity, size_t* count);
/// Recounts everything; STATEPORT_INTERNAL_ERROR names the first violation.
stateport_status stateport_request_cache_check(stateport_request_cache* cache);

#ifdef __cplusplus
}
#endif

#endif
