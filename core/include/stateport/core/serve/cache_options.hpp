// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/evict/eviction_policy.hpp>
#include <stateport/core/hash/block_hasher.hpp>
#include <stateport/core/model/cost.hpp>
#include <stateport/core/pool/memory_move.hpp>
#include <stateport/core/tier/tier_options.hpp>

#include <cstddef>
#include <cstdint>
#include <variant>
#include <vector>

namespace stateport {

/// How a cache finds the longest prefix of a prompt that it has. Each index works with each layout.
enum class CacheIndex : std::uint8_t {
  hash,  ///< by the hash of each block; KV is evicted by its last use
  tree   ///< by tokens, in a prefix tree, whose leaves are evicted by RequestCacheOptions::eviction
};

/// Where passes over a prompt leave checkpoints, in whole blocks. The hit has p blocks. The cached KV has j blocks;
/// p <= j, and blocks beyond n do not count. n is the last position before the prompt's last token: the same prompt can
/// continue from no later state. If n is 0, or the scan cannot stop at n, a prompt of whole blocks leaves the state at
/// its end instead. SlotLayout::tail_tokens moves n.
enum class CheckpointPlacement : std::uint8_t {
  passes,  ///< at j, and at the end of each pass, rounded down to a position at which the scan can stop, at most n.
           ///< Index hash: in place of that end, at the start of the last block that the pass touches, and n
  last,    ///< n
  branch,  ///< n and j
  rungs,   ///< those, and n - 1, n - 2 and n - 4 beyond j: for prompts that share all but the last blocks
  every    ///< all that are not cached, the end of a prompt of whole blocks too
};

/// One memory that KV and states share: the cache moves it between them while it serves, by the moves of its answers
/// (MemoryMove, CacheArena). An extent is mapped, or it is not and the cache uses none of its numbers; the bytes of all
/// mapped extents are never more than `bytes`. Both stores have addresses for the most that the cache may ever use of
/// them (kv_tokens, checkpoints): as much as `bytes` can hold, if one part may take all of it.
///
/// The cache keeps a 96th of the memory free (at least two extents of each part), and in each part as much as one of
/// the last passes took. It evicts by worth whatever is worth the least, as with budget_bytes, and moves free extents
/// to the part that is short of them. For the rest of the prompts that the last pass computed it makes room ahead. In
/// each part that is at most an eighth of the memory. Extents that hold KV of a running request stay where they are,
/// and so do those that hold its state: without separate_checkpoints a tree had better have extents of one slot. A row
/// of a pass that finds no room may find it once the moves of that answer are settled.
struct ArenaOptions {
  std::int64_t bytes = 0;    ///< of physical memory for the extents of both parts; 0: no arena
  ExtentShape kv;            ///< of KV blocks
  ExtentShape states;        ///< of slots of the store that checkpoints lie in
  double state_share = 0.5;  ///< of `bytes`, that states have at the start
};

/// States lie in slots: each running request has a live slot, and each checkpoint has a slot. A pass restores a
/// checkpoint by a copy.
struct SlotLayout {
  /// StateStore::fingerprint() of the store that checkpoints lie in. 0 is refused unless unchecked_layout, because a
  /// restore then compares nothing.
  std::uint64_t layout_fingerprint = 0;
  std::int32_t checkpoints = 0;  ///< states that can be kept beside those of running requests
  /// Checkpoints lie in a store of their own, for example a quantised() one, with layout_fingerprint and
  /// memory.state_bytes of that store. Slots of running requests are [0, max_requests) of the live store. Slots for
  /// checkpoints are [0, checkpoints) of the other store, which tiers are given. False: one store has both, in any
  /// order.
  bool separate_checkpoints = false;
  /// A pass over a prompt can save states at multiples of this many tokens from its start; 0: after every token; -1:
  /// only at its end.
  std::int32_t scan_alignment_tokens = 0;
  /// A checkpoint is left out where a pass cannot stop (scan_alignment_tokens) or finds no room.
  CheckpointPlacement placement = CheckpointPlacement::passes;
  /// > 0: the state that a prompt leaves at n lies before the prompt's last `tail_tokens` tokens instead, for chat
  /// templates that swap the text before an answer or drop reasoning in the next turn: such a turn leaves the prompt
  /// near its end. The pass saves that state on its way, rounded down to where the scan can stop; if it cannot stop in
  /// between, chunk() ends the pass there. A named position (Prompt::breakpoints) behind it takes its place. A prompt
  /// whose hit lies there already leaves the state at n: the same prompt a third time continues from n. One whose KV is
  /// cached less than a tail beyond its hit leaves none at j. Index tree: the
  /// state at the end of a finished request is kept only in namespaces where prompts continue answers. Not with
  /// placement every.
  ///
  /// 0: 64, in namespaces whose prompts would lose more tokens without a tail than with one. The cache learns that from
  /// where prompts that run, or are inserted, leave earlier ones: inside their last 64 tokens, or behind their end. -1:
  /// no tail.
  std::int64_t tail_tokens = 0;
  /// Named positions (Prompt::breakpoints) at which one pass of a request saves its state on its way, beside those that
  /// the placement saves, where the scan can stop; at the others chunk() ends the pass. Each costs a scratch state of
  /// every request (scratch_slots).
  std::int32_t breakpoint_saves = 0;
  /// Index tree, with another placement than passes: > 0: also at multiples of this number of tokens (whole blocks)
  /// beyond j, as long as that takes nothing from others: there is a free slot and, with budget_bytes, room. hix learns
  /// nothing from such a state, and evicts it before all states that it knows.
  std::int64_t spare_checkpoint_tokens = 0;
  /// Decoding leaves a checkpoint at multiples of this number of tokens (whole blocks); 0: only at the end of a
  /// request.
  std::int64_t decode_checkpoint_tokens = 0;
  /// > 0: the bytes that cached KV and checkpoints may take together, by `memory`, whenever a request ends. Memory of
  /// running requests counts and stays; kv_tokens and checkpoints are limits besides. A tree spares the KV of the
  /// request that just ended and its last state, unless hix decides: it may exceed the budget by these until the next
  /// end.
  std::int64_t budget_bytes = 0;
  /// KV and states share one memory physically. Not with budget_bytes.
  ArenaOptions arena;
};

/// Layers that share a block table of states.
struct StateGroup {
  std::int32_t block_size_tokens = 0;    ///< of states; a multiple of RequestCacheOptions::block_size_tokens
  std::int32_t blocks = 0;               ///< of checkpoints and running requests (index tree: each keeps a checkpoint)
  std::int32_t conv_window = 0;          ///< W, the shortest of the group's conv states; 0: it has none
  std::uint64_t layout_fingerprint = 0;  ///< of the group's store; 0 is refused unless unchecked_layout
};

/// States lie in blocks that the columns of block tables name. A pass reads a checkpoint where it lies, and leaves
/// states at the boundaries of blocks. With index tree all groups have a checkpoint at a boundary, or none.
struct ColumnLayout {
  AlignMode mode = AlignMode::align;  ///< all: the pass itself writes the state at every boundary; index tree: not none
  std::vector<StateGroup> groups;     ///< at least one
  /// Mode align: chunk() ends a pass on the last boundary before the prompt's last `tail_tokens` tokens instead of the
  /// last one before its last token. 0 and -1: see SlotLayout::tail_tokens.
  std::int64_t tail_tokens = 0;
};

/// RequestCacheOptions::tenant_quotas.
inline constexpr std::int32_t tenant_quotas_max = 64;

/// Prompts that wait for a request which computes their prefix, so that it is computed once. A prompt waits if it
/// shares more with the unfinished prompt of an earlier request than is cached. The earlier request leaves a checkpoint
/// at the end of the shared prefix, as at a breakpoint of its own (SlotLayout::breakpoint_saves), at up to eight
/// positions.
///
/// The wait is over once the earlier request has computed the prefix, has ended, or computes with old weights. The
/// prompt then reuses all that is cached, and may wait for another request. Commits, inserts and ends of requests end
/// waits.
///
/// An engine passes over a request that waits, as over one that waits for a tier, and runs the others. If requests
/// queue for long before they run, their waits may run out: RequestCache::refresh() finds the prefix then, too.
struct ShareRunning {
  /// A prompt waits for at least this number of tokens beyond its hit; 0: no prompt waits. Costs a hash of each block
  /// of a prompt with index tree.
  std::int64_t least_tokens = 0;
  /// Commits and inserts of the cache since a request began to wait, after which it waits no longer, for no request.
  std::int32_t longest_commits = 1024;
};

/// Pins and prefetches of a cache (CachePrefixes). Each of them reserves as much as a request in the tables of the
/// cache, but no live slot. Bytes are counted by RequestCacheOptions::memory: KV in whole blocks, and states.
struct PrefixOptions {
  std::int32_t pins = 0;              ///< at a time
  std::int64_t pinned_bytes = 0;      ///< that pins may keep together
  std::int32_t prefetches = 0;        ///< at a time; needs tiers
  std::int64_t prefetched_bytes = 0;  ///< that loads of prefetches may take together while they are under way
};

/// Sessions of a cache (CacheSessions), by ReuseHint::session.
struct SessionOptions {
  /// That the cache remembers, rounded up to a power of two; 0: none. Each uses 48 bytes; all together use 4 bytes for
  /// each KV block or page and each checkpoint.
  std::int32_t remembered = 0;
  /// > 0: a session that no request named for this many seconds is closed with the next start().
  double idle_s = 0;
  /// > 0: contents of a session that owns more bytes are demoted, as if it were closed, until it owns no more than
  /// that.
  std::int64_t most_bytes = 0;
};

struct RequestCacheOptions {
  CacheIndex index = CacheIndex::hash;
  std::variant<SlotLayout, ColumnLayout> layout;  ///< of states in the engine's stores
  std::int32_t max_requests = 0;                  ///< that run at a time
  std::int64_t max_request_tokens = 0;            ///< of one request, prompt, output and drafts together
  std::int32_t drafts = 0;                        ///< K: drafts of a row, at most
  std::int32_t block_size_tokens = 16;            ///< of KV; index tree: of a page
  std::int64_t kv_tokens = 0;                     ///< room for KV; rounded down to whole blocks
  bool unchecked_layout = false;                  ///< accept a layout_fingerprint of 0
  /// The order that evicts states and leaves of a tree. Index hash in columns: one for each group, neither hix nor
  /// gdsf.
  EvictionOrder eviction = EvictionOrder::lru;
  EvictionOptions eviction_options;
  MemoryCost memory;  ///< of a state and of a token's KV, by which gdsf and hix weigh them and budget_bytes counts
  std::int32_t position_tokens = 64;           ///< index tree, hix: see PrefixTreeOptions
  BlockHashKind hash = BlockHashKind::sha256;  ///< of blocks
  /// A secret where tenants are not trusted, see BlockHasherOptions::seed; 0: none. It enters hashes of prefixes (so
  /// names in tiers, events) and (index tree) the table of nodes. No error, event or statistic tells it.
  std::uint64_t hash_seed = 0;
  /// Number of the weights: part of every name of contents, in tiers and events too, unless it is 0. A process that
  /// finds the files or the remote store of earlier ones names their weights by it. See CacheEpochs.
  std::uint64_t epoch = 0;
  /// A pass may be planned while the one before it is not committed.
  bool overlap = false;
  /// Keep events for take_events(). At least 65,536 can wait, and as many as one call can bring; then the oldest are
  /// lost, and CacheEvent::sequence has a gap. None is lost if they are taken after each call.
  bool events = false;
  /// Memory that changes tenant (Namespace::salt; no salt is a tenant) is cleared before a pass of the new one: plans
  /// name it in PassPlan::scrub and GroupPlan::clear. Slots for checkpoints and the destinations of loads need nothing:
  /// all their bytes are written before any pass can read them. Memory that no plan has named yet counts as another
  /// tenant's, also after reset(). The cache moves no byte: KV of an engine that ignores the lists, or that is loaded
  /// by its own means in part, is not scrubbed, nor are registers and on-chip memory of the device. Tiers:
  /// StateTiersOptions.
  bool scrub = false;
  /// Name the checks of checkpoints (CacheIntegrity), which StateIntegrity makes. Each checkpoint costs 56 bytes, and
  /// reserves 320 more for lists.
  bool integrity = false;
  /// Tenants that can have a TenantQuota at a time (CacheTenants), at most tenant_quotas_max; 0: none. Each uses
  /// 20 to 50 bytes of memory for each KV block or page and reserves up to 130; all together use 20 to 60 bytes
  /// besides. Bytes are counted by `memory`, whose state_bytes must be at least the number of groups.
  std::int32_t tenant_quotas = 0;
  ShareRunning share_running;
  PrefixOptions prefixes;
  SessionOptions sessions;
  /// The tiers below the device. They hold whole blocks of KV and the states at their ends, and cost a hash of each
  /// block. See CacheTiers.
  TierOptions tiers;
  ComputeCost cost;  ///< for the FLOPs in stats()
};

/// The layout is one in columns, else one in slots.
[[nodiscard]] constexpr bool in_columns(const RequestCacheOptions& options) noexcept {
  return std::holds_alternative<ColumnLayout>(options.layout);
}
/// The layout, if it is of this kind; else one without checkpoints, or without groups.
[[nodiscard]] const SlotLayout& slot_layout(const RequestCacheOptions& options) noexcept;
[[nodiscard]] const ColumnLayout& column_layout(const RequestCacheOptions& options) noexcept;
/// Groups of layers: in columns as many as the layout has, else one.
[[nodiscard]] std::size_t group_count(const RequestCacheOptions& options) noexcept;

// Sizes of an engine's stores and arrays. These functions throw InvalidArgument as make_request_cache() does, but look
// at no fingerprint of a layout, which an engine knows once its stores are made. O(groups).

/// Slots that the engine's store of this group must have. Every slot that a plan names is below it, but for those for
/// checkpoints with separate_checkpoints.
[[nodiscard]] std::int32_t state_slots(const RequestCacheOptions& options, std::size_t group = 0);
/// Slots that the store of checkpoints must have: that of state_slots(), or with separate_checkpoints its own.
[[nodiscard]] std::int32_t checkpoint_slots(const RequestCacheOptions& options, std::size_t group = 0);
/// Scratch states that the passes need for StateSave::in_scratch: as many as the placement and breakpoint_saves let
/// each request save in a pass; 0 in columns, and for index tree without separate_checkpoints.
[[nodiscard]] std::int32_t scratch_slots(const RequestCacheOptions& options);
/// KV blocks that the engine must have; every KV index that a plan names is below it times block_size_tokens.
[[nodiscard]] std::int32_t kv_blocks(const RequestCacheOptions& options);

/// The largest number of states that one pass can save on its way (RowState::saves), in all rows and groups together.
[[nodiscard]] std::size_t saves_max(const RequestCacheOptions& options);

}  // namespace stateport
