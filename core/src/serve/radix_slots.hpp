// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/pool/kv_page_pool.hpp>
#include <stateport/core/tree/prefix_tree.hpp>

#include "serve/growing_hashes.hpp"
#include "serve/request_index.hpp"

#include <cstdint>
#include <vector>

namespace stateport::detail {

/// The index by tokens with states in slots: requests run in live slots and own the KV that the prefix tree does not
/// hold yet.
///
/// A request keeps the longest path that it shares with the tree locked, so that neither its KV nor the state that it
/// restores is evicted. Slots for checkpoints are taken when a pass is placed, or when it settles, at most
/// options.checkpoints at a time, and donated to the tree when it settles. The live slot is donated at the end, if the
/// request ends with a page: with separate_checkpoints a copy of it.
class RadixSlots final : public RequestIndex {
 public:
  explicit RadixSlots(RequestBook& book);

  [[nodiscard]] CacheUsage usage() const noexcept override;

  std::optional<OpenedPrompt> open(RequestId request, const PromptNames& names) override;
  bool reserve(RequestId request, std::int64_t upto) override;
  void place(Pass& pass, std::size_t index) override;
  void unplace(Pass& pass) override;
  void settle(Pass& pass, std::size_t index, std::int32_t sampled) override;
  [[nodiscard]] std::int64_t quiet_until(RequestId request) const override;
  void publish(Pass& pass) override;
  void close(RequestId request, RequestEnd how, const ReuseHint& hint) override;
  void forget_all() override;
  [[nodiscard]] KvRow kv_of(RequestId request) const override;
  [[nodiscard]] std::span<const std::int32_t> slots_of(RequestId request, std::size_t) const override {
    return {&requests_[request.index()].live, 1};
  }
  [[nodiscard]] const GrowingHashes& hashes_of(RequestId request, std::int64_t tokens) override;
  [[nodiscard]] std::int64_t cached_now(RequestId request) override;
  [[nodiscard]] bool reserve_load(RequestId request, std::int64_t tokens, std::int64_t cached_tokens,
                                  std::vector<std::int32_t>& kv_blocks, std::span<SlotId> slots) override;
  SlotId end_load(RequestId request, std::int64_t tokens, bool done) override;
  void check() const override;

 private:
  struct Request {
    std::int32_t live = -1;             ///< its slot, as the one column of its row
    std::vector<KvIndex> row;           ///< KV of every token that memory was found for; whole pages
    std::int64_t protected_tokens = 0;  ///< of the row, that are the tree's
    PrefixLock lock;
    PrefixMatch hit;
    std::int64_t made_tokens = 0;   ///< > 0: the planned pass saves no state here, because the tree has it
    std::optional<NodeId> decoded;  ///< the last checkpoint of its decoding
    Namespace name_space;           ///< with the media
    GrowingHashes hashes;           ///< with events or tiers: of the pages of its tokens
    PrefixLock cached;              ///< while something is loaded: all that the tree has of the prompt
    SlotId loading;                 ///< where a checkpoint is loaded to
  };

  [[nodiscard]] const Namespace& name_space(RequestId request) const noexcept {
    return requests_[request.index()].name_space;
  }
  void look_further(RequestId request, OpenedPrompt& opened) const;
  void evict(EvictDemand demand);
  void take_back(const Freed& freed);
  /// A slot for a checkpoint; none if there are too many, or all are locked. It is the caller's.
  [[nodiscard]] SlotId take_slot();
  [[nodiscard]] bool is_made(RequestId request, std::int64_t tokens);
  void share_kv(RequestId request, std::int64_t tokens);
  void return_slot(SlotId slot);
  void save(Pass& pass, const RowPlan& row, std::int64_t at);
  void plan_saves(Pass& pass, const RowPlan& row);
  void settle_steps(const RowPlan& row);
  [[nodiscard]] SlotId publish_state(RequestId request, std::int64_t tokens);
  struct Donation {
    bool ends = false;   ///< the request does
    bool spare = false;  ///< kept because there is room
    ReuseHint hint;
  };
  [[nodiscard]] bool donate(RequestId request, SlotId slot, std::int64_t tokens, const Donation& donation);
  void hold_path(RequestId request, std::int64_t tokens);
  [[nodiscard]] bool keep_copy(RequestId request, const ReuseHint& hint);
  void tell_end(RequestId request, const ReuseHint& hint);
  void on_kv_event(const KvEvent& event);
  void keep_to_budget();

  PromptHasher hasher_;
  PrefixTree tree_;
  KvPagePool kv_;
  std::vector<Request> requests_;
  Freed freed_;
  std::vector<std::int64_t> positions_;  ///< of the saves of one row
  std::int64_t evicted_states_ = 0;
  std::int64_t evicted_kv_tokens_ = 0;
  std::int32_t checkpoint_slots_ = 0;     ///< slots of requests beside the live ones
  std::span<const Token> inserted_;       ///< the tokens of the tree's insert that runs
  std::span<const KvIndex> inserted_kv_;  ///< and their KV
  std::vector<PrefixHash> state_prefix_;  ///< by slot, with events: prefix of the state that the tree holds in it
  std::vector<std::uint8_t> told_;        ///< by slot: a state was told as stored
};

}  // namespace stateport::detail
