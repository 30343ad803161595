// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/eviction_policy.hpp>
#include <stateport/core/model/ids.hpp>
#include <stateport/core/serve/cache_options.hpp>
#include <stateport/core/serve/request_types.hpp>
#include <stateport/core/tree/prefix_types.hpp>

#include "model.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

namespace stateport::engine {

/// A request began, or began again, with this number of known tokens and with this version of the weights.
struct Began {
  std::int64_t known = 0;
  std::uint64_t weights = 0;
};

/// A request while it runs.
struct Sequence {
  std::int32_t id = 0;          ///< of the request
  std::int32_t slot = -1;       ///< request slot in [0, max_running), its own while it runs
  std::vector<Token> tokens;    ///< prompt and output so far, as the device knows it
  std::int64_t read_back = 0;   ///< of these, that the host has read back
  std::int64_t prefill = 0;     ///< tokens known when it started, or started again
  std::int64_t computed = 0;    ///< tokens whose KV and state are there, of passes that the host has read back
  std::int64_t end_tokens = 0;  ///< the request is complete with this number of tokens
  bool loading = false;         ///< something was on its way from a tier when `computed` was set
  bool scheduled = false;       ///< it was ready for a batch once
  std::vector<KvIndex> kv;      ///< where the KV of each token lies, up to the end of the pass
  std::vector<std::int64_t> breakpoints = {};  ///< of the prompt
  std::int32_t fork_of = -1;  ///< the request whose first `fork_at` tokens it goes on from, if that runs then
  std::int64_t fork_at = 0;
  std::vector<Began> began = {};  ///< the last one holds as long as it runs

  [[nodiscard]] std::int64_t known() const noexcept { return static_cast<std::int64_t>(tokens.size()); }
};

/// The part of a pass for one sequence: tokens [start, start + scheduled), the last `drafts` of them proposed.
struct Row {
  Sequence* sequence = nullptr;  ///< null: it was stopped after it was planned
  std::int32_t index = 0;        ///< in the batch
  std::int64_t start = 0;        ///< known when the plan is complete
  std::int64_t scheduled = 0;
  std::int64_t drafts = 0;
  std::vector<std::int32_t> parents = {};  ///< of the drafts, if they are a tree; see RequestCache::plan
  bool room = true;
  std::int32_t step = 0;        ///< the last one that is kept
  std::int64_t sampled_at = 0;  ///< the tokens that the pass added are tokens [sampled_at, sampled_at + sampled);
  std::int64_t sampled = 0;     ///< 0: a chunk before the prompt's last

  /// The step that this one follows, -1 for step 0. A step counts the tokens of the row from 0.
  [[nodiscard]] std::int64_t parent(std::int64_t step) const {
    return parents.empty() || step == 0 ? step - 1 : parents[static_cast<std::size_t>(step - 1)];
  }
  /// Tokens computed when the pass is over. Needs `sampled`.
  [[nodiscard]] std::int64_t end() const noexcept {
    return start + scheduled - drafts + (sampled > 1 ? sampled - 1 : 0);
  }
};

/// Transfers between the device and the tiers that were answered as done.
struct TierCounts {
  std::int64_t stored_states = 0;  ///< of one group
  std::int64_t stored_blocks = 0;
  std::int64_t loaded_states = 0;
  std::int64_t loaded_blocks = 0;
  std::int64_t host_hits = 0;  ///< requests that loaded something, from the host alone
  std::int64_t file_hits = 0;  ///< and from files, too
  std::int64_t restarts = 0;
  std::int64_t attached_images = 0;  ///< that an engine found when it started
  std::int64_t foreign_images = 0;   ///< of these and others, those of another layout
  std::int64_t restored_states = 0;  ///< loaded states that an earlier engine had written
  std::int64_t lost_images = 0;      ///< that a load did not find, or found damaged
  std::int64_t refused_images = 0;   ///< stores and copies that found no room

  TierCounts& operator+=(const TierCounts& other);
};

struct CacheCounts {
  std::int64_t lookup_tokens = 0;   ///< asked for
  std::int64_t hit_tokens = 0;      ///< not computed again
  std::int64_t copies = 0;          ///< states copied by the library: restores, checkpoints, moves
  std::int64_t evictions = 0;       ///< states that lost their place
  std::int64_t planned_ahead = 0;   ///< batches, before the one before them was read back
  std::int64_t ready_ahead = 0;     ///< of these, whose plan was complete at once
  std::int64_t memory_moves = 0;    ///< in an arena: extents that got memory or gave it back
  std::int64_t awaited_tokens = 0;  ///< of hit_tokens: that sequences waited for
  std::int64_t forks = 0;           ///< sequences that began as forks
  std::int64_t stale = 0;           ///< sequences that ran when their weights became old
  std::int64_t kv_copies = 0;       ///< the same: KV blocks that were copied out of such an extent
  std::int64_t kv_moves = 0;        ///< of tokens that a tree of drafts had elsewhere
  std::int64_t checks = 0;          ///< of checkpoints that were read
  std::int64_t damaged = 0;         ///< checkpoints that something wrote to
  std::int64_t faults = 0;          ///< of checks, those that failed
  std::int64_t withdrawn = 0;       ///< checkpoints that the cache took back
  TierCounts tiers;

  CacheCounts& operator+=(const CacheCounts& other);
};

/// Planted mistakes, which the comparison of tokens and states must find: with one, no invariant is checked.
enum class Fault : std::uint8_t {
  none,
  older_split,  ///< align: chunks may pass a block boundary; in a program whose cache publishes blocks unasked
  wrong_shift,  ///< align: a copy that shifts conv windows does so by one token too few
  moved_state,  ///< tree: a split moves the state to its upper part; in a program that was linked with such a tree
  // The next three are in programs of their own, too. They need tiers.
  early_publish,   ///< an image can be read before the copy that fills it is done
  shallow_load,    ///< a load brings the state of one block before, if there is one
  untyped_images,  ///< neither fingerprints nor images tell the types of their tensors
  unread_verdicts  ///< with CacheOptions::damage: passes run whatever the checks of their states say
};

/// Room below the device, in checkpoints with some KV each. None: no tiers.
struct TierRoom {
  std::int32_t host = 0;
  std::int32_t files = 0;
  bool write_through = false;
  bool short_queue = false;  ///< of stores
  bool slow_files = false;   ///< so that some hits are not worth loading
  bool hasty = false;        ///< files end when they end: a run is not the same each time
  bool damage = false;       ///< some of the files that an engine finds are damaged, or go
  std::uint64_t seed = 0;    ///< of when copies and files end

  [[nodiscard]] bool any() const noexcept { return host + files > 0; }
};

/// Numbers of an extent, and how much memory there is beyond the least. kv_blocks 0: no arena.
struct ArenaRoom {
  std::int32_t kv_blocks = 0;
  std::int32_t state_slots = 1;
  std::int32_t more = 0;   ///< extents of states
  std::uint64_t seed = 0;  ///< of when moves end
};

struct CacheOptions {
  std::int32_t max_running = 2;
  std::int32_t max_tokens = 1;    ///< of one sequence, drafts included
  std::int32_t drafts = 0;        ///< K, at most
  bool trees = false;             ///< drafts are trees, where the cache allows it
  std::int32_t block_size = 4;    ///< tokens of a KV block, or of a page
  std::int32_t kv_tokens = 64;    ///< room for KV, at least max_tokens and a block
  std::int32_t checkpoints = 2;   ///< states that can be kept beside the running ones
  std::int32_t alignment = 1;     ///< the scan can save a state at multiples of it
  std::int32_t tail = 0;          ///< SlotLayout::tail_tokens; in columns of align mode
  std::int32_t named_saves = 0;   ///< SlotLayout::breakpoint_saves
  std::int32_t state_groups = 1;  ///< block tables of states, 1 or 2 (align and all mode)
  ConvLayout conv_layout = ConvLayout::sd;
  ElementType type = ElementType::fp32;         ///< of states and KV
  EvictionOrder eviction = EvictionOrder::lru;  ///< slots, tree
  std::uint64_t model = 0;                      ///< equal numbers, equal weights
  TierRoom tiers;
  ArenaRoom arena;          ///< of caches in slots
  std::uint64_t epoch = 0;  ///< RequestCacheOptions::epoch
  bool overlap = false;     ///< batches are planned before the one before them is read back
  bool refresh = false;     ///< prompts are looked up again when they are scheduled
  ShareRunning share;
  bool tenants = false;  ///< requests of even and odd ids are two tenants', and memory that changes tenant is scrubbed
  bool held = false;     ///< prefixes are pinned and prefetched, and sessions closed, while requests run
  bool integrity = false;    ///< checkpoints are checked
  std::uint64_t damage = 0;  ///< with integrity: seed of what writes to checkpoints; 0: nothing does
  Fault fault = Fault::none;
};

/// The cache of KV and states, as a scheduler uses it. A batch's life:
///
///     chunk (each row) ─► plan ─► before_forward ─► read_state, wrote_state (each token) ─► after_forward
///
/// With CacheOptions::overlap a second batch may be planned between plan and after_forward of the first, and may run
/// before that if its plan is complete.
class EngineCache {
 public:
  virtual ~EngineCache() = default;

  /// Finds the cached prefix of sequence.tokens and sets `computed`; at least one token is left. False: no room now.
  [[nodiscard]] virtual bool start(Sequence& sequence) = 0;
  /// Starts a sequence as a fork of the other one, which has computed the first sequence.fork_at tokens, and of which
  /// no batch is under way. False: no room now.
  [[nodiscard]] virtual bool fork(Sequence& /*sequence*/, const Sequence& /*other*/) { return false; }
  /// How many of `tokens` tokens of the prompt to run in the next batch; 0: it waits for a larger budget.
  [[nodiscard]] virtual std::int64_t chunk(const Sequence&, std::int64_t tokens) { return tokens; }
  /// How many of `drafts` drafts to check in a step.
  [[nodiscard]] virtual std::int64_t drafts(std::int64_t drafts) { return drafts; }
  /// Drafts may be trees.
  [[nodiscard]] virtual bool allows_trees() const { return false; }
  /// Plans the next batch, in place of the last plan if that has not run. Sets `room` of each row and, if the plan is
  /// complete, `start` and the KV of its sequence. False: it is not complete before the batch before it is settled.
  virtual bool plan(std::span<Row> rows) = 0;
  /// Carries out the work before the pass. False: some sequences would read wrong states (is_wrong), and the plan is
  /// void.
  virtual bool before_forward() = 0;
  /// The last before_forward() refused the state of the sequence, which must be preempted.
  [[nodiscard]] virtual bool is_wrong(const Sequence&) const { return false; }
  /// The state after row.start tokens.
  virtual void read_state(const Row& row, ModelState& state) = 0;
  /// `state` is the one after row.start + done tokens.
  virtual void wrote_state(const Row& row, std::int64_t done, const ModelState& state) = 0;
  /// The host has read back the tokens that the oldest batch sampled. Completes the plan of the batch after it, if
  /// there is one.
  virtual void after_forward(std::span<const Row> rows, std::span<Row> next) = 0;
  /// The state after sequence.computed tokens, while no batch with the sequence runs.
  virtual void final_state(const Sequence& sequence, ModelState& state) = 0;
  /// If the sequence is preempted it starts again later.
  virtual void stop(Sequence& sequence, RequestEnd how) = 0;
  /// Forgets everything. No sequence runs.
  virtual void reset() = 0;
  /// Everything that is cached was made by old weights: of all tenants, or of this one. Sequences may run.
  virtual void forget(std::optional<std::int32_t> /*tenant*/) {}
  /// The sequence started before that. None: the cache does not know, because it keeps nothing.
  [[nodiscard]] virtual std::optional<bool> is_stale(const Sequence&) const { return std::nullopt; }

  /// False: something is on its way to the sequence from a tier, or another sequence is computing its prefix, and no
  /// batch can have it. Sets `computed` when that has ended.
  [[nodiscard]] virtual bool ready(Sequence&) { return true; }
  /// Waits for transfers between the device and the tiers. False: none is under way.
  virtual bool wait() { return false; }
  /// The cache is not used any more. No sequence runs. `keep`: the next cache must find the content of this one.
  virtual void shut_down(bool /*keep*/) {}

  [[nodiscard]] virtual KvStore& kv() = 0;
  [[nodiscard]] virtual CacheCounts counts() const = 0;
  virtual void check_invariants() const = 0;
};

}  // namespace stateport::engine
