// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/pool/kv_page_pool.hpp>
#include <stateport/core/tree/prefix_tree.hpp>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace stateport::test {

/// How a request takes checkpoints.
enum class CheckpointStyle : std::uint8_t {
  /// The live state is copied to a fresh slot at the end of every chunk, and donated at the end. Needs page_size 1:
  /// the end of a chunk is the end of a page.
  copy_live,
  /// The forward pass writes a second state at a position of the grid ("tracks" it) to one of two slots of the
  /// request; that slot is donated and a fresh one takes its place.
  donate_tracked,
};

/// KV and slots in the life of a request: it takes them, donates some to the prefix tree, and gives the rest back.
///
///     start ──► extend ──► cache_unfinished ──► … ──► append ──► plan_decode ──► append ──► … ──► finish or abort
///                  ▲──────────── chunks ─────────┘                  ▲──── passes ────┘
///
/// Nothing moves here: a plan says which states the engine copies or clears before the forward pass and where the
/// pass must write a checkpoint. A request keeps the path that it matched locked. After the request life cycle of
/// SGLang. Requests of different namespaces share nothing, but no record is kept of the tenant that last wrote KV or a
/// slot. An engine that scrubs memory which changes tenant uses RequestCache, see RequestCacheOptions::scrub. Bad input
/// throws InvalidArgument and changes nothing, plan_decode() and append() too early InvalidState; a pool that is short
/// is an answer (none), after which only evictions have happened. `freed` reports what left; it is back in its pool
/// already. A call that throws std::bad_alloc may have done a part of its work: end the requests and reset the tree
/// then. Not thread-safe.
class TreeRequests {
 public:
  struct Options {
    CheckpointStyle style = CheckpointStyle::donate_tracked;
    std::int64_t track_interval = 256;  ///< donate_tracked: decoding tracks at multiples of it; whole pages
  };

  /// Where the forward pass writes the state after `position` tokens. A chunk that is shorter than the grid tracks the
  /// state that it begins with.
  struct Track {
    std::int64_t position = 0;
    SlotId slot;
    bool at_branching = false;  ///< position is where an earlier prompt diverged
    friend constexpr bool operator==(const Track&, const Track&) noexcept = default;
  };

  struct Started {
    RequestId request;
    SlotId live_slot;                ///< the request's working slot
    std::int64_t prefix_tokens = 0;  ///< the forward pass begins here
    std::optional<std::int64_t> branching_position;
    std::optional<SlotCopy> restore;  ///< the first extend will ask for this copy
    std::optional<LostHit> lost;
  };

  /// Before a forward pass over the tokens [start, upto).
  struct ExtendPlan {
    std::int64_t start = 0;
    std::span<const KvIndex> kv;      ///< of the tokens [start, upto); valid until the next call
    std::optional<SlotCopy> restore;  ///< copy this state first,
    std::optional<SlotId> clear;      ///< or clear this slot first
    std::optional<Track> track;
  };

  /// Before a pass that feeds the last output token and drafts after it.
  struct DecodePlan {
    std::span<const KvIndex> kv;  ///< of the tokens that the pass feeds; valid until the next call
    std::optional<Track> track;   ///< with drafts: if the pass keeps tokens up to there, see append()
  };

  struct Cached {
    std::int64_t protected_tokens = 0;   ///< of the prefix that the request now holds in the tree
    bool adopted = false;                ///< the tree took a checkpoint
    std::optional<SlotCopy> checkpoint;  ///< copy_live: enqueue it now; needless if the tree did not adopt it
  };

  /// The tree and the pool must outlive this object. Throws InvalidArgument if their page sizes differ, for copy_live
  /// with page_size > 1, or if track_interval is not a multiple of the page size.
  TreeRequests(PrefixTree& tree, KvPagePool& kv, Options options);

  /// Looks the prompt up without its last token, which the pass needs, and takes the request's slots. None if a slot
  /// cannot be had. `prompt` has at least one token.
  std::optional<Started> start(std::span<const Token> prompt, const Namespace& name_space, Freed& freed);

  /// Takes KV for the prompt up to `upto` tokens and plans the pass. None if KV is short.
  std::optional<ExtendPlan> extend(RequestId request, std::int64_t upto, Freed& freed);

  /// After a pass over a part of the prompt (`chunked`) or all of it: keeps the computed prefix in the tree, up to its
  /// checkpoint. If no slot is free, the checkpoint is dropped and counted.
  Cached cache_unfinished(RequestId request, bool chunked, Freed& freed);

  /// Takes KV for a pass that feeds the last output token and `drafts` proposed ones. None if KV is short. A plan whose
  /// pass did not run is replaced by the next one.
  std::optional<DecodePlan> plan_decode(RequestId request, std::int64_t drafts, Freed& freed);

  /// Adds the tokens that a pass sampled: one after the pass over the prompt; else the kept ones, at most one for each
  /// token that was fed. Gives back the KV of drafts that were not kept. True if the plan's track lies within the kept
  /// tokens: from now on its slot counts as written.
  bool append(RequestId request, std::span<const Token> sampled, Freed& freed);

  /// Keeps the computed prefix up to its checkpoint, and gives back the rest. A preempted request is finished, too: it
  /// starts again with tokens() and hits the kept prefix. The hint tells a learning policy about prompts that may
  /// continue this one.
  void finish(RequestId request, Freed& freed, const ReuseHint& hint = {});
  /// Keeps only the prefixes that cache_unfinished kept.
  void abort(RequestId request, Freed& freed);

  [[nodiscard]] std::span<const Token> tokens(RequestId request) const { return checked(request).tokens; }
  [[nodiscard]] std::span<const KvIndex> kv_row(RequestId request) const { return checked(request).row; }
  [[nodiscard]] std::int64_t protected_tokens(RequestId request) const { return checked(request).protected_tokens; }
  [[nodiscard]] NodeId locked_node(RequestId request) const { return checked(request).lock.node(); }
  [[nodiscard]] SlotId live_slot(RequestId request) const { return checked(request).live; }
  /// donate_tracked only; none otherwise.
  [[nodiscard]] std::array<SlotId, 2> track_slots(RequestId request) const { return checked(request).tracks; }
  [[nodiscard]] std::int64_t dropped_checkpoints() const noexcept { return dropped_checkpoints_; }

  /// Throws std::logic_error naming the first broken invariant.
  void check_invariants() const;

 private:
  struct Request {
    RequestId id;               ///< none: the row is free
    std::vector<Token> tokens;  ///< prompt, then output
    std::size_t prompt_tokens = 0;
    Namespace name_space;
    std::vector<KvIndex> row;  ///< KV of all computed tokens
    std::int64_t protected_tokens = 0;
    PrefixLock lock;
    SlotId live;
    std::array<SlotId, 2> tracks;
    std::int64_t planned = 0;           ///< tokens of the pass that plan_decode took KV for
    std::optional<Track> decode_track;  ///< of that pass
    std::size_t next_track = 0;
    std::size_t kept_track = 1;
    std::optional<std::int64_t> tracked;  ///< tracks[kept_track] holds the state at this position
    std::optional<std::int64_t> branching;
    PrefixMatch hit;
    bool live_state_pending = true;  ///< the live slot has not been restored or cleared yet

    [[nodiscard]] std::int64_t computed() const noexcept { return static_cast<std::int64_t>(row.size()); }
  };

  [[nodiscard]] const Request& checked(RequestId request) const;
  [[nodiscard]] Request& checked(RequestId request);
  [[nodiscard]] RequestId free_request();
  [[nodiscard]] bool take_slots(std::span<SlotId> out, Freed& freed);
  void release_slot(SlotId slot, Freed& freed);
  void release_kv(std::span<const KvIndex> kv, Freed& freed);
  void evict(EvictDemand demand, Freed& freed);
  [[nodiscard]] bool grow_row(Request& request, std::int64_t upto, Freed& freed);
  [[nodiscard]] std::optional<Track> plan_track(const Request& request, std::int64_t upto) const;
  void note_track(Request& request, Track& track);
  void shrink_row(Request& request, std::int64_t upto, Freed& freed);
  void drop_decode_plan(Request& request, Freed& freed);
  /// Inserts the first `tokens` tokens of the request.
  struct Donation {
    std::int64_t tokens = 0;
    bool chunked = false;
    bool finished = false;
    ReuseHint hint;
  };
  InsertResult donate(const Request& request, SlotId slot, const Donation& donation, Freed& freed);
  void end(Request& request, SlotId adopted, std::int64_t kept_tokens, Freed& freed);

  PrefixTree& tree_;
  KvPagePool& kv_;
  Options options_;
  std::vector<Request> requests_;
  std::vector<RequestId> free_requests_;
  Freed scratch_;  ///< of one call of the tree
  std::int64_t dropped_checkpoints_ = 0;
};

}  // namespace stateport::test
