// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/cache_arena.hpp>
#include <stateport/core/serve/cache_epochs.hpp>
#include <stateport/core/serve/cache_event.hpp>
#include <stateport/core/serve/cache_integrity.hpp>
#include <stateport/core/serve/cache_options.hpp>
#include <stateport/core/serve/cache_prefixes.hpp>
#include <stateport/core/serve/cache_sessions.hpp>
#include <stateport/core/serve/cache_tenants.hpp>
#include <stateport/core/serve/cache_tiers.hpp>
#include <stateport/core/serve/request_types.hpp>
#include <stateport/core/stats/cache_stats.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

namespace stateport {

/// Contents of a RequestCache, for requests to come and for those that run, and its evictions.
struct CacheUsage {
  std::int64_t kv_tokens = 0;          ///< of whole blocks
  std::int64_t states = 0;             ///< checkpoints; in columns: blocks of states, with those of running requests
  std::int64_t evicted_kv_tokens = 0;  ///< since construction
  std::int64_t evicted_states = 0;     ///< that lost their place to others, since construction
  std::size_t metadata_bytes = 0;      ///< index tree: of its nodes and its policy, beside tokens and KV indices
  WaitingRequests waiting;             ///< without those that ended
};

/// The cache of KV and recurrent states as an engine sees it: one interface for each index and each layout.
///
///     start ─► (chunk ─► plan ─► [before] ─► forward ─► commit ─► [after])* ─► end
///
///     [before]  scrub, fork_copies, and for each group: clear, copies
///     [after]   kv_moves, and for each group: steps, from_scratch, copies
///
/// The cache decides and moves no byte: the engine enqueues the work of plans and commits on one stream, in this order.
/// A plan is for a whole batch. A row finds room or not, as a whole; rows without room are named and the others run.
///
/// With tiers() below the device, contents that these calls evict are stored there, and contents that they find there
/// are loaded: answers name these transfers, see CacheTiers.
///
/// Outstanding passes. A pass is outstanding from plan() to its commit(). Without `overlap` there is at most one: a
/// plan while one is outstanding replaces it. With `overlap` there are at most two: plan() while one is outstanding
/// plans ahead, and while two are outstanding it replaces the second. A pass that is replaced must not have run;
/// cancel() says that the newest pass did not run. Commits settle in the order of the plans. A plan that is `ready` may
/// be enqueued before the commit of the pass before it. One that is not waits for PassCommit::next of that commit.
///
/// Everything that a plan names stays as it is until its commit, its replacement or the end of the row's request.
/// A request may end while a pass with it is outstanding: its row is void, and commit() takes no tokens for it.
///
/// Never a wrong state: a hit is confirmed by 128 bits of the prefix's hash, its token count and the layout, or by the
/// tokens themselves; a 63-bit key alone is no hit.
///
/// Bad input throws InvalidArgument that names it, a call at a wrong time InvalidState; both change nothing. No room is
/// an answer. Not thread-safe.
///
/// Memory. Construction reserves address space for the largest sizes that the options allow, and throws std::bad_alloc
/// if it cannot. The system backs it with memory on first use. No other call allocates, so none can run out of memory;
/// only the text of an error does, and the first NameKey of a long name in a thread. A new cache for 10^6 tokens of KV
/// in blocks of 16, for 256 requests of up to 131,072 tokens and for 1,024 checkpoints reserves 200 to 320 MiB and uses
/// 5 to 15 MiB. Tiers that have room for n images of KV reserve 1 KiB x n and up to 180 MiB more, and use 270 bytes x n
/// and up to 25 MiB more. A system that does not overcommit (Linux: vm.overcommit_memory = 2) counts all of it as used;
/// by default Linux refuses a reservation of more than all memory in one piece.
class RequestCache {
 public:
  virtual ~RequestCache() = default;
  RequestCache(const RequestCache&) = delete;
  RequestCache& operator=(const RequestCache&) = delete;

  /// Looks the prompt up, takes a request number and, in slots, a live slot; plan() takes the rest. None: one is not
  /// free; nothing was taken. Throws for a prompt that is empty or longer than max_request_tokens, media that do not
  /// ascend or are not inside the prompt, breakpoints that Prompt does not allow or with mode none, a bad hint, and a
  /// clock that goes back. O(tokens), and with share_running O(requests * log(tokens)) besides.
  [[nodiscard]] virtual std::optional<StartedRequest> start(const Prompt& prompt) = 0;

  /// Looks the prompt of a request up again that has not begun: since start() other requests may have computed more of
  /// it. An engine asks when it is about to schedule the request. The device alone is searched. More is a deeper state,
  /// or more KV behind the same state: reused_tokens stays, and the prompt leaves its checkpoints where it now branches
  /// off. None: no more is found, or the request waits for a tier or for another request, and nothing changed. Else
  /// the answer replaces that of start(), and memory that failed or cancelled plans took for the request is free again.
  /// Throws InvalidArgument for
  /// a request that does not run, InvalidState after its first commit or insert, for a fork, and while a pass
  /// with it is outstanding. O(tokens); hashes no block.
  [[nodiscard]] virtual std::optional<StartedRequest> refresh(RequestId request) = 0;

  /// Starts forks of a request: requests that go on behind its computed tokens, for n samples, beams, or other
  /// continuations. Fork i has these computed tokens, then tokens[i * k, (i + 1) * k), with k = tokens.size() /
  /// forks.size(). One token counts as sampled: the fork decodes. More are a prompt. The forks have the namespace and
  /// the hint of the request, and share its KV and its state. Nothing is copied before their first plan:
  ///
  ///     in slots:    the first pass of a fork reads the state of the request (RowState::read_column is 1) and writes
  ///                  its own. An engine whose kernels work in place copies conv_source() to target() first.
  ///     in columns:  GroupPlan::copies has a copy of the state.
  ///     both:        PassPlan::fork_copies has a copy of the last block of KV, if that is not full.
  ///
  /// Until all its forks have begun (their first commit or insert) or ended, the request itself waits: chunk() answers
  /// 0. It may end: it then keeps its memory and its number until they have, and leaves no state at its end. So a beam
  /// search forks the beams that go on, and then ends them. A fork can be forked once it has begun.
  ///
  /// A fork that begins needs memory beside that of its request: a live state, and a block of KV if the last one is not
  /// full. The last fork of a request that has ended needs none: it begins with its first plan, which gives it the
  /// memory of the request and copies nothing. So it finds room where the request would have. If memory is short for
  /// more, the engine ends the request, and forks until one is left.
  ///
  /// False: fewer request numbers than forks are free, and nothing changed. Throws InvalidArgument for a request that
  /// does not run, no forks, a number of tokens that is no multiple of theirs, and a fork longer than
  /// max_request_tokens; InvalidState for a request that has not computed its prompt, that is in an outstanding pass,
  /// and for a fork that has not begun. O(tokens.size()); the first plan of a fork is O(its tokens).
  [[nodiscard]] virtual bool fork(RequestId request, std::span<const Token> tokens, std::span<RequestId> forks) = 0;

  /// How many of the next `budget_tokens` tokens of the prompt to run in one pass; 0: wait for a larger budget, for a
  /// tier, or for another request (ShareRunning). A pass ends at a breakpoint of the prompt, and where another
  /// request waits for it, if it does not save its state there: an engine asks after the last start(). In columns a
  /// pass ends on a boundary, also on the last one before the prompt's last token: the same prompt hits there (or
  /// before its tail: ColumnLayout::tail_tokens). A budget below a block may therefore run nothing. After the prompt:
  /// budget_tokens. With a pass outstanding: behind that. Throws for a request that does not run and a budget < 0.
  /// O(1).
  [[nodiscard]] virtual PromptChunk chunk(RequestId request, std::int64_t budget_tokens) const = 0;

  /// Plans one pass for the batch. The spans of the plan are valid until the next plan(), insert(), cancel(), commit()
  /// or reset(), and for a row until its request ends. Throws for more rows than max_requests, a request that does not
  /// run or is named twice, tokens < 1 or beyond the prompt or max_request_tokens, drafts < 0 or > K or in a pass over
  /// the prompt, and a row that decodes with tokens other than 1 + drafts; InvalidState for a row that decodes without
  /// a token to feed. O(rows), and O(blocks) that are new.
  ///
  /// Drafts that are a tree (in slots): `parents` has for each draft, one row after the other, the step that it
  /// follows. A step counts the tokens of a row from 0: draft i is step i + 1, and its parent is a step in [0, i].
  /// Empty: the drafts of each row are a chain. The pass writes the KV of step s to the place of token start + s.
  /// Throws for parents in columns, for another number of parents than drafts, and for a parent that is no
  /// earlier step.
  [[nodiscard]] virtual PassPlan plan(std::span<const PassRow> rows, std::span<const std::int32_t> parents = {}) = 0;

  /// The newest outstanding pass did not run. The moves of its memory plan hold all the same. Throws InvalidState for
  /// another one.
  virtual void cancel(PassId pass) = 0;

  /// The pass ran (or is enqueued) and sampled: counts[i] tokens for row i of the plan, all in `sampled` one after the
  /// other. A count is 0 for a row without room or whose request ended, and for a part of the prompt; 0 or 1 where the
  /// prompt ends; else 1 … tokens of the row. Blocks that are full and states that are written can be found from now
  /// on. The spans of the answer are valid like those of plan(). Throws InvalidState for a pass that is not the oldest
  /// outstanding one or was never planned, InvalidArgument for counts that do not fit.
  ///
  /// After a plan with parents: steps[i] is the last step of row i that is kept, and the steps on the path to it are
  /// kept. Its path has counts[i] - 1 drafts, whose tokens are the first ones that the row sampled.
  /// PassCommit::kv_moves bring their KV to where it belongs. No effect for rows without drafts, and rows that keep
  /// nothing.
  [[nodiscard]] virtual PassCommit commit(PassId pass, std::span<const std::int32_t> counts,
                                          std::span<const Token> sampled, std::span<const std::int32_t> steps = {}) = 0;

  /// Names the KV and the checkpoint of a request's hit, for an engine that copies them into memory of its own. Both
  /// stay in place, and the answer valid, until the first commit, insert or refresh of the request or its end. Throws
  /// InvalidArgument for a request that does not run and a group that does not exist, InvalidState after the first
  /// commit or insert, for a fork, and while the request waits. O(1).
  [[nodiscard]] virtual HitPlaces places(RequestId request, std::size_t group = 0) const = 0;

  /// Inserts the KV and the state of the first `tokens` tokens of the request's prompt. The engine has both in memory
  /// of its own: it computed them there, or another node sent them.
  ///
  ///     insert ─► (with tiers: transfers) ─► [before] ─► the engine's copies ─► [after]
  ///
  /// All of this is enqueued before any later call. The tokens count as computed from then on. The state becomes a
  /// checkpoint if the tokens are whole blocks of KV (in columns: of every group, and not in mode none), whatever the
  /// placement; PassCommit::dropped_states is 1 if it finds no room. After all tokens of the prompt the request can
  /// only end, or be forked: to decode, start it with the sampled token as part of the prompt. Some of the KV may be
  /// cached already. Index hash in slots: its blocks are named again, and must get the same content. Otherwise the
  /// request reads the cached KV, and no request reads the engine's copy. None: the tokens find no room; with an arena
  /// CacheArena::take() has moves that may make some. Throws InvalidArgument for a request that does not run or waits,
  /// and for tokens that are computed already or beyond the prompt; InvalidState while a pass is outstanding.
  /// O(tokens).
  [[nodiscard]] virtual std::optional<InsertedPrefix> insert(RequestId request, std::int64_t tokens) = 0;

  /// The request ends with its computed and committed tokens. By the hint hix values the last state that the request
  /// left; with any order, last_turn closes the session of the request (CacheSessions). Else the hint has no effect
  /// with other orders, after an abort, if the request left no state (for a tree a hit that is the last whole page
  /// counts as left), or (index tree) if that state has fewer than position_tokens tokens. Throws for a request that
  /// does not run and a bad hint. With index tree and separate_checkpoints the engine must execute the answer; it is
  /// valid until the next call.
  virtual EndedRequest end(RequestId request, RequestEnd how, const ReuseHint& hint = {}) = 0;
  EndedRequest finish(RequestId request, const ReuseHint& hint = {}) {
    return end(request, RequestEnd::finished, hint);
  }
  EndedRequest preempt(RequestId request) { return end(request, RequestEnd::preempted); }
  void abort(RequestId request) { end(request, RequestEnd::aborted); }

  /// Prompt and sampled tokens; valid until the next commit, or the end of the request. All of these throw for a
  /// request that does not run.
  [[nodiscard]] virtual std::span<const Token> tokens(RequestId request) const = 0;
  /// Tokens with KV and state: reused, loaded, inserted, or committed.
  [[nodiscard]] virtual std::int64_t computed(RequestId request) const = 0;
  [[nodiscard]] virtual KvRow kv(RequestId request) const = 0;
  /// Where the state after computed() tokens lies, once everything that was asked for has been enqueued.
  [[nodiscard]] virtual RowState state(RequestId request, std::size_t group = 0) const = 0;
  /// Requests that started and did not end, and those that ended while a load for them was under way, or before their
  /// forks had begun.
  [[nodiscard]] virtual std::int32_t running_requests() const noexcept = 0;

  /// The tiers below the device; nullptr without RequestCacheOptions::tiers.
  [[nodiscard]] virtual CacheTiers* tiers() noexcept = 0;

  /// Weights that change, and namespaces to forget.
  [[nodiscard]] virtual CacheEpochs& epochs() noexcept = 0;

  /// The memory that KV and states share; nullptr without SlotLayout::arena.
  [[nodiscard]] virtual CacheArena* arena() noexcept = 0;

  /// The shares of tenants; nullptr without RequestCacheOptions::tenant_quotas.
  [[nodiscard]] virtual CacheTenants* tenants() noexcept = 0;

  /// Pins and prefetches; nullptr without RequestCacheOptions::prefixes.
  [[nodiscard]] virtual CachePrefixes* prefixes() noexcept = 0;

  /// Sessions that can be closed; nullptr without RequestCacheOptions::sessions.
  [[nodiscard]] virtual CacheSessions* sessions() noexcept = 0;

  /// Checks of checkpoints; nullptr without RequestCacheOptions::integrity.
  [[nodiscard]] virtual CacheIntegrity* integrity() noexcept = 0;

  /// Forgets everything that is cached, in tiers too, but for the remote tier, where it stays. The next answer with
  /// transfers names the drops. The eviction policy and tail_tokens keep what they learned, and the epoch stays. The
  /// caller's clock may begin again. While a request runs or a transfer is under way it forgets all namespaces instead,
  /// as CacheEpochs::forget() does one, and the clock goes on.
  virtual void reset() = 0;

  [[nodiscard]] virtual const RequestCacheOptions& options() const noexcept = 0;
  /// Counts a request with its first commit or insert, or with its end if it has none.
  [[nodiscard]] virtual const CacheStats& stats() const noexcept = 0;
  /// O(1), with tiers O(max_requests).
  [[nodiscard]] virtual CacheUsage usage() const noexcept = 0;
  /// Moves the oldest events into `out`, at most as many as it has room for, and returns how many. Throws InvalidState
  /// without RequestCacheOptions::events.
  [[nodiscard]] virtual std::size_t take_events(std::span<CacheEvent> out) = 0;
  /// Throws std::logic_error naming the first broken invariant. O(all).
  virtual void check_invariants() const = 0;

 protected:
  RequestCache() = default;
};

/// Throws InvalidArgument:
/// - max_requests, max_request_tokens, block_size_tokens or position_tokens < 1, drafts < 0, kv_tokens <
///   max_request_tokens rounded up to whole blocks, a fingerprint of 0 without unchecked_layout;
/// - more slots, scratch states or KV indices than 32 bits number, more bytes in all than 64 bits count;
/// - what check_compute_cost, check_memory_cost and check_tier_options refuse;
/// - tenant_quotas outside [0, tenant_quotas_max];
/// - slots: checkpoints, an alignment or a budget that is negative, tail_tokens < -1, or > 0 with placement every,
///   breakpoint_saves outside [0, breakpoints_max], separate_checkpoints without checkpoints, decode_checkpoint_tokens
///   or spare_checkpoint_tokens that are not whole blocks, spare_checkpoint_tokens with index hash or with placement
///   passes; an arena with budget_bytes, with extents of no numbers or of fewer bytes than numbers, a state_share
///   outside [0, 1], or too few bytes for the KV of one request of max_request_tokens, a state of each request and one
///   more, and the free memory;
/// - prefixes: more than 65,536 pins or prefetches, negative numbers, pins in mode none, prefetches without tiers;
/// - sessions: more than 2^20 of them, negative numbers, an idle time that is not finite;
/// - columns: no group, and for a group a block size that is not a multiple of block_size_tokens and of the group
///   before, or not larger than drafts (overlap: 2 * drafts), fewer blocks than one request needs, or a conv window (if
///   any) not longer than drafts; tail_tokens < -1, or > 0 without mode align; index tree or tiers with mode none;
///   index hash with an order that learns.
[[nodiscard]] std::unique_ptr<RequestCache> make_request_cache(const RequestCacheOptions& options);

}  // namespace stateport
