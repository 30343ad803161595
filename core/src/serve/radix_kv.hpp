// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/pool/kv_page_pool.hpp>
#include <stateport/core/tree/prefix_tree.hpp>

#include "serve/growing_hashes.hpp"
#include "serve/request_book.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace stateport::detail {

/// Gets the places of states back that the tree of a RadixKv gave up, one place for each group of layers.
class StatePlaces {
 public:
  virtual void on_freed(std::span<const SlotId> places) = 0;

 protected:
  ~StatePlaces() = default;
};

/// KV of requests, found by tokens: a PrefixTree and, for each request, the KV that the tree does not hold yet. The
/// tree holds a state by a number of its own (SlotId), below PrefixTree::slots(). The places of the state on the
/// device, one for each group of layers, are known here.
///
/// A request keeps the longest path that it shares with the tree locked, so that neither its KV nor the state that it
/// restores is evicted. Nothing allocates after construction.
class RadixKv final : public ElasticIndex {
 public:
  /// What the tree has to know of a state that it gets.
  struct Donation {
    bool ends = false;   ///< the request does
    bool spare = false;  ///< kept because there is room
    ReuseHint hint;
  };

  /// The tree holds `states` states, at multiples of `grid_tokens` tokens. `owner` may be null: nobody has to know of
  /// states that the tree gives up.
  RadixKv(RequestBook& book, std::int32_t states, std::int32_t grid_tokens, StatePlaces* owner);
  RadixKv(const RadixKv&) = delete;
  RadixKv& operator=(const RadixKv&) = delete;

  /// Looks a prompt up, which the record holds already, and locks its hit. If `live` is not null, the request gets a
  /// number of its own, too, and another state is evicted for it if need be. None: there is no such number, and nothing
  /// is locked.
  [[nodiscard]] std::optional<OpenedPrompt> open(RequestId request, const PromptNames& names, SlotId* live);
  /// See RequestIndex.
  [[nodiscard]] std::optional<OpenedPrompt> refresh(RequestId request);
  /// The fork shares the whole pages of its point's computed tokens. The tree has them from now on. `takes_over`: see
  /// RequestIndex.
  void fork(RequestId fork, RequestId point, bool takes_over);
  /// Takes KV for `upto` tokens, whole pages. False: there is too little.
  [[nodiscard]] bool reserve(RequestId request, std::int64_t upto);

  /// A number for a state, of the caller; none if all are taken by the tree's locked states and by callers.
  [[nodiscard]] SlotId take_state();
  void return_state(SlotId state);
  /// The tree has the state after the first `tokens` tokens of the request.
  [[nodiscard]] bool has_state(RequestId request, std::int64_t tokens) const;
  /// The state after `tokens` tokens, whole pages, is (or will be, in order of the stream) at `places`, and `state` is
  /// its number; none: the tree has it, or keeps the KV without a state. The request reads the tree's KV from now on,
  /// and its own is free where the tree had it. True if the tree took the state.
  [[nodiscard]] bool donate(RequestId request, SlotId state, std::span<const SlotId> places, std::int64_t tokens,
                            const Donation& donation);
  /// The request reads the tree's KV for its first `tokens` tokens from now on, and holds that path.
  void hold_path(RequestId request, std::int64_t tokens);
  [[nodiscard]] std::span<const SlotId> places(SlotId state) const noexcept {
    return std::span(places_).subspan(state.index() * book_.groups, book_.groups);
  }
  /// The end of the path that the request holds.
  [[nodiscard]] NodeId node(RequestId request) const { return requests_[request.index()].lock.node(); }
  /// Makes the tree give up the state at the end of the request's path, unless another request holds it, too.
  void drop_state(RequestId request, NodeId node);
  /// How many tokens the end of the tree's part of the request has.
  [[nodiscard]] std::int64_t held_tokens(RequestId request) const noexcept {
    return requests_[request.index()].held_tokens;
  }

  /// Frees as much as `demand` says if it can; false: nothing was free. Where tenants have shares: one victim.
  bool evict(EvictDemand demand);
  /// The request ends with no further state. The policy hears of the last one if the request left it, or continued from
  /// it and has passed no later multiple of `step` tokens. `decoded`: the last state is one of its decoding.
  void report_end(RequestId request, const ReuseHint& hint, std::int64_t step, bool decoded);
  /// The request ends: its KV behind `kept` tokens is free.
  void release_kv(RequestId request, std::int64_t kept);
  /// The contents that the request held can be evicted.
  void unlock(RequestId request);
  void forget_all();
  /// See RequestIndex. `end`: of the path to this node alone.
  void forget(const Forgotten& forgotten, NodeId end = {});
  /// The tree loses this state. Its number is the caller's, who returns it once no request reads the state any more.
  void withdraw(SlotId state);

  [[nodiscard]] std::int32_t free_numbers(MemoryPart part) const noexcept override;
  [[nodiscard]] bool is_free(MemoryPart part, std::int32_t number) const override;
  void close(MemoryPart part, std::span<const NumberRange> ranges) override;
  void open(MemoryPart part, std::int32_t first, std::int32_t count) override;
  void count_movable(MemoryPart part, std::int32_t count, std::span<std::int32_t> by_extent) override;
  void vacate(MemoryPart part, std::vector<SlotCopy>& copies) override;
  bool evict_least() override { return evict({.bytes = 1}); }
  bool evict_held_state() override;

  [[nodiscard]] KvRow row(RequestId request) const noexcept {
    return {.ids = requests_[request.index()].row, .tokens_per_id = 1};
  }
  [[nodiscard]] const GrowingHashes& hashes_of(RequestId request, std::int64_t tokens);
  [[nodiscard]] std::int64_t cached_now(RequestId request) const;
  /// For a load of the first `tokens` tokens: holds the KV of the first `cached_tokens`, which the tree has, takes KV
  /// for all, and appends the blocks behind the cached ones. False: the tree has less by now, or there is no room.
  [[nodiscard]] bool reserve_load(RequestId request, std::int64_t tokens, std::int64_t cached_tokens,
                                  std::vector<std::int32_t>& kv_blocks);
  /// The load ends. `done`: the state that it brought was donated, and is the request's hit; answers its number.
  SlotId end_load(RequestId request, std::int64_t tokens, bool done);

  /// Of the tree's states alone.
  [[nodiscard]] CacheUsage usage() const noexcept;
  [[nodiscard]] const PrefixTree& tree() const noexcept { return tree_; }
  void check() const;

 private:
  struct Request {
    std::vector<KvIndex> row;      ///< KV of every token that memory was found for; whole pages
    std::int64_t held_tokens = 0;  ///< of the row, that are the tree's
    PrefixLock lock;
    PrefixMatch hit;
    Namespace name_space;  ///< with the media
    GrowingHashes hashes;  ///< with events, tiers or share_running: of the pages of its tokens
    PrefixLock cached;     ///< while something is loaded: all that the tree has of the prompt
  };

  [[nodiscard]] OpenedPrompt opened_at_hit(RequestId request);
  void reclaim(const Freed& freed);
  void on_kv_event(const KvEvent& event);

  RequestBook& book_;
  const RequestCacheOptions& options_;
  StatePlaces* owner_;
  TenantOwners* kv_owners_;     ///< of pages; null: tenants have no shares
  TenantOwners* state_owners_;  ///< of numbers for states; null also if these are no memory
  PromptHasher hasher_;
  PrefixTree tree_;
  KvPagePool kv_;
  std::vector<Request> requests_;
  Freed freed_;
  std::int64_t evicted_states_ = 0;
  std::int64_t evicted_kv_tokens_ = 0;
  std::span<const Token> inserted_;        ///< the tokens of the tree's insert that runs
  std::span<const KvIndex> inserted_kv_;   ///< and their KV
  NamespaceTag inserted_tag_{};            ///< and their namespace
  std::vector<SlotId> places_;             ///< [states, groups]
  std::vector<PrefixHash> prefix_of_;      ///< by state, with events or tiers
  std::vector<std::uint8_t> is_reported_;  ///< by state: events and tiers know that it is stored
};

}  // namespace stateport::detail
