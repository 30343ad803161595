// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/prompt_facts.hpp>
#include <stateport/core/hash/block_hash.hpp>
#include <stateport/core/hash/name_key.hpp>
#include <stateport/core/model/ids.hpp>
#include <stateport/core/pool/copy_plan.hpp>
#include <stateport/core/pool/memory_move.hpp>
#include <stateport/core/stats/cache_stats.hpp>
#include <stateport/core/tier/transfer_plan.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

/// Inputs and outputs of a RequestCache. Plain data.
namespace stateport {

/// An image, a sound or another input that stands at a position of a prompt. Two prompts that differ in it share
/// nothing from its block on; with the index `tree`, which knows tokens alone, they share nothing at all.
struct MediaKey {
  NameKey id;                    ///< of the content, for example its hash
  std::int64_t first_token = 0;  ///< position in the prompt; ascending
};

/// How far start() looks for states and KV that a prompt can reuse.
enum class PromptSearch : std::uint8_t {
  everywhere,  ///< on the device and below, and the remote tier is asked for more
  known,       ///< the remote tier is not asked
  device       ///< nothing is loaded, and no other request awaited: the request can run at once
};

/// Positions that one prompt can name (Prompt::breakpoints).
inline constexpr std::size_t breakpoints_max = 8;

/// A prompt to start a request with. The spans are read during the call alone.
struct Prompt {
  std::span<const Token> tokens;  ///< all that is known; of a request that starts again: prompt and output so far
  Namespace name_space;
  std::span<const MediaKey> media;
  ReuseHint hint;    ///< about prompts that may continue this one, unless end() gives a better one
  double now_s = 0;  ///< the caller's clock in seconds; never goes back but after a reset()
  PromptSearch search = PromptSearch::everywhere;
  /// Positions at which later prompts may leave this one: where its system prompt, its last turn or the text before its
  /// answer ends. In tokens from the start, ascending, from 1 to the length of the prompt, at most breakpoints_max. The
  /// passes leave a checkpoint at each of them, rounded down (StartedRequest::breakpoints), whatever the placement.
  /// chunk() ends passes there, unless they save the state on their way (SlotLayout::breakpoint_saves). Such
  /// checkpoints count and are evicted as all others.
  std::span<const std::int64_t> breakpoints = {};
};

/// The load of a request that starts. Without tokens the remote tier is asked for contents first
/// (Transfer::Kind::find), which are then loaded while the request goes on waiting.
struct TierLoad {
  std::int64_t tokens = 0;       ///< the first pass begins behind these; 0: not known yet, nor are the bytes
  std::int64_t bytes = 0;        ///< to load from tiers; KV that the engine keeps elsewhere is not counted
  Medium medium = Medium::host;  ///< the slowest tier that something is loaded from; elsewhere: none of them
};

/// A request that waits until another one has computed the prefix that both share (ShareRunning).
struct PrefixWait {
  RequestId request;        ///< the one that computes it
  std::int64_t tokens = 0;  ///< length of the prefix, where that request is to leave a checkpoint

  friend bool operator==(const PrefixWait&, const PrefixWait&) = default;
};

struct StartedRequest {
  RequestId request;
  /// The first pass begins here, unless `load` or `waits_for` is set; less than the prompt.
  std::int64_t reused_tokens = 0;
  std::int64_t lost_tokens = 0;  ///< whose KV is cached beyond reused_tokens, and which are computed again
  /// Why no more is reused. Without lost_tokens it is never_stored. None: all whole blocks before the last token of the
  /// prompt are reused, or the request waits.
  std::optional<LostHit> lost;
  /// More is on its way from a tier, or may be. Until that has ended (CacheTiers::settle) no pass can run the request:
  /// chunk() answers 0. The engine computes the tokens that do not arrive.
  std::optional<TierLoad> load;
  /// Another request is computing more of this prompt. Until the wait is over no pass can run this request: chunk()
  /// answers 0. Then RequestCache::computed() says how much it reuses.
  std::optional<PrefixWait> waits_for;
  TransferPlan transfers;  ///< see CacheTiers
  /// Where the checkpoints of Prompt::breakpoints are to lie, one for each: rounded down to whole blocks, in columns to
  /// those of the last group. 0: inside the first block, so nowhere. Valid until the request ends.
  std::span<const std::int64_t> breakpoints;
};

/// Numbers of requests that no pass can run yet, by the reason.
struct WaitingRequests {
  std::int32_t for_answers = 0;   ///< the remote tier was asked for contents
  std::int32_t for_loads = 0;     ///< something is loaded from a tier
  std::int32_t for_requests = 0;  ///< another request computes their prefix (ShareRunning)

  friend bool operator==(const WaitingRequests&, const WaitingRequests&) = default;
};

/// How much of a prompt the next pass of a request runs, in tokens.
struct PromptChunk {
  std::int64_t tokens = 0;        ///< at most the budget
  std::int64_t least_budget = 0;  ///< the smallest budget for which `tokens` is not 0; 0: the request waits

  friend bool operator==(const PromptChunk&, const PromptChunk&) = default;
};

/// One row of a batch: the pass runs `tokens` tokens of the request, the last `drafts` of them proposed by a draft
/// model. While the prompt is not done `drafts` is 0; afterwards `tokens` is 1 + drafts.
struct PassRow {
  RequestId request;
  std::int32_t tokens = 0;
  std::int32_t drafts = 0;
};

/// Names a planned pass. Passes are numbered from 1, in the order in which they were planned.
using PassId = std::uint64_t;

/// Where the KV of a request lies: ids[i] holds the tokens [i * tokens_per_id, (i + 1) * tokens_per_id). A commit may
/// replace the ids of blocks that are full by those of blocks with the same content, which another request computed.
struct KvRow {
  std::span<const std::int32_t> ids;  ///< block ids; with an index by tokens one KV index a token
  std::int32_t tokens_per_id = 1;

  [[nodiscard]] constexpr KvIndex at(std::int64_t position) const noexcept {
    const std::int64_t within = position % tokens_per_id;
    return static_cast<KvIndex>(ids[static_cast<std::size_t>(position / tokens_per_id)] * tokens_per_id + within);
  }
};

/// A state that the pass writes on its way: the one after `offset` of its tokens.
struct StateSave {
  std::int32_t offset = 0;
  SlotId slot;
  bool in_scratch = false;  ///< `slot` is one of the engine's scratch states, else one for checkpoints
};

/// Where a pass reads the state of a row and where it writes the states after, in one group of layers.
///
/// `slots` is the row of the block table (layout in columns), or the live slot (layout in slots); of a fork that has
/// not begun, then the slot that it reads. A column is an index into it. With drafts the layouts differ:
///
///     in slots:    slots[write_column] is not written. The pass leaves the state after each of its tokens in scratch
///                  memory of the engine, and the commit says which of them moves where (StepCommit).
///     in columns:  the recurrent state after the tokens without drafts goes to slots[write_column], and the one after
///                  d drafts to slots[write_column + d]. The conv window of slots[write_column] takes d more tokens.
struct RowState {
  std::span<const std::int32_t> slots;
  std::int32_t read_column = -1;     ///< -1: the row begins with the empty state
  std::int32_t read_bias = 0;        ///< tokens past the state of read_column, see below
  std::int32_t write_column = 0;     ///< takes the state at the end of the pass
  std::span<const StateSave> saves;  ///< ascending in offset

  /// The conv window is [read_bias, read_bias + W) of this slot.
  [[nodiscard]] constexpr SlotId conv_source() const noexcept { return slot(read_column); }
  [[nodiscard]] constexpr SlotId recurrent_source() const noexcept { return slot(read_column + read_bias); }
  [[nodiscard]] constexpr SlotId target(std::int32_t drafts = 0) const noexcept { return slot(write_column + drafts); }

 private:
  [[nodiscard]] constexpr SlotId slot(std::int32_t column) const noexcept {
    return SlotId{slots[static_cast<std::size_t>(column)]};
  }
};

/// The plan for one row of a batch.
struct RowPlan {
  RequestId request;
  bool room = false;  ///< false: there is no room for the row. It does not run, and nothing of it is planned.
  std::int32_t tokens = 0;
  std::int32_t drafts = 0;
  std::int64_t start = 0;            ///< the pass computes the tokens [start, start + tokens)
  KvRow kv;                          ///< at least up to start + tokens
  std::span<const RowState> states;  ///< [groups]
};

/// Work to enqueue before a pass, for one group of layers. The copies of one group run in any order.
struct GroupPlan {
  std::span<const SlotId> clear;  ///< slots that begin with the empty state, or (scrub) were another tenant's
  /// In slots: restores, from slots for checkpoints to live ones. In columns: within the store, moves of running states
  /// and checkpoints.
  CopyPlan copies;
};

/// With RequestCacheOptions::scrub: memory that another tenant may have written, beside the slots of GroupPlan::clear.
/// It is set to zero before the copies and the pass.
struct ScrubPlan {
  std::span<const std::int32_t> kv_blocks;   ///< numbers of KV blocks, in every layer
  std::span<const SlotId> scratch;           ///< scratch states (StateSave::in_scratch)
  std::span<const std::int32_t> draft_rows;  ///< rows of the pass: the scratch memory of their steps (StepCommit)
};

struct PassPlan {
  PassId pass = 0;
  TransferPlan transfers;  ///< see CacheTiers: they come before all other work of the plan
  /// False: the pass was planned ahead, and where its rows begin depends on an earlier pass that is not committed.
  /// Memory is reserved, rows with and without room are known; `start`, `states` and all copies are not. commit() of
  /// that pass answers the complete plan.
  bool ready = false;
  std::span<const RowPlan> rows;      ///< in the order of the batch
  std::span<const GroupPlan> groups;  ///< [groups]
  std::int32_t rows_without_room = 0;
  ScrubPlan scrub;
  /// After the scrub, before the pass: copies of whole KV blocks, in every layer and in any order. src_slot and
  /// dst_slot are their numbers. A fork that begins inside a block writes to a copy of it.
  CopyPlan fork_copies;
  MemoryPlan memory;  ///< see CacheArena; only with rows without room
};

/// The places of a request's hit in the memory of the cache.
struct HitPlaces {
  std::int64_t tokens = 0;  ///< the length of the hit; 0: there is none, and the other members have no meaning
  KvRow kv;                 ///< names the KV of these tokens, and perhaps of more
  SlotId state;  ///< holds the state after these tokens: a slot for checkpoints; in columns: a block of states
};

/// For a row with drafts (in slots): states in the engine's scratch memory that become the live state and a
/// checkpoint. A step counts the tokens of the row from 0; a negative step means that there is none. As StepCommitter
/// takes them.
struct StepCommit {
  std::int32_t row = 0;  ///< of the pass
  std::int32_t live_step = -1;
  SlotId live_slot;
  std::int32_t kept_step = -1;
  SlotId kept_slot;  ///< for a checkpoint
};

/// The KV of a token that a pass with a tree of drafts kept: it moves from one KV index to another, in every layer.
struct KvMove {
  KvIndex src = 0;
  KvIndex dst = 0;

  friend bool operator==(const KvMove&, const KvMove&) = default;
};

/// Work to enqueue after a pass, for one group of layers.
struct GroupCommit {
  CopyPlan from_scratch;  ///< from StateSave::slot in scratch to slots for checkpoints
  CopyPlan
      copies;  ///< after the steps. In slots: from live slots to slots for checkpoints; in columns: within the store
  std::span<const StepCommit> steps;  ///< at most one a row, ascending in row
};

/// A position of StartedRequest::breakpoints that a pass ran over without leaving a checkpoint.
struct RefusedBreakpoint {
  RequestId request;
  std::int64_t tokens = 0;

  friend bool operator==(const RefusedBreakpoint&, const RefusedBreakpoint&) = default;
};

struct PassCommit {
  /// With trees of drafts: before all other work of the commit. Those of one row run in this order, because one may
  /// read a place that the next one writes.
  std::span<const KvMove> kv_moves;
  TransferPlan transfers;               ///< see CacheTiers: they come before the copies, and before those of `next`
  std::span<const GroupCommit> groups;  ///< [groups]
  std::int32_t published_states = 0;    ///< checkpoints that requests can start from, from now on
  std::int32_t dropped_states = 0;      ///< checkpoints for which there was no room
  /// There was no room for them, or the pass could neither stop nor save its state there.
  std::span<const RefusedBreakpoint> refused_breakpoints;
  MemoryPlan memory;  ///< see CacheArena
  /// The plan of the pass that was planned ahead and was not ready. It is now.
  std::optional<PassPlan> next;
};

/// Memory for a prefix that the engine has computed by other means, and the copies that make it a checkpoint.
struct InsertedPrefix {
  /// Has one row, and the transfers of the whole call. The engine copies the KV of the tokens [start, start + tokens)
  /// to its `kv`, and the state of each group after them to states[g].target(). groups[g].copies are empty.
  PassPlan plan;
  PassCommit commit;  ///< to be enqueued after the engine's copies
};

/// Why a request ends.
enum class RequestEnd : std::uint8_t {
  finished,   ///< complete: the computed prefix is kept up to its last state
  preempted,  ///< the same; it will start again
  aborted     ///< no more is kept than was published
};

/// Work to enqueue after the end of a request, before any later call. Empty but for index tree with
/// separate_checkpoints: transfers that other ends decide come with the next answer.
struct EndedRequest {
  TransferPlan transfers;  ///< see CacheTiers: they come before the copies
  CopyPlan copies;         ///< from live slots to slots for checkpoints
};

}  // namespace stateport
