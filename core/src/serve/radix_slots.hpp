// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "serve/answer_use.hpp"
#include "serve/radix_kv.hpp"
#include "serve/request_index.hpp"

#include <cstdint>
#include <optional>
#include <vector>

namespace stateport::detail {

/// The index by tokens with states in slots: a request runs in a live slot. The slots of the store are the numbers by
/// which the tree holds states.
///
/// Slots for checkpoints are taken when a pass is placed, or when it settles, at most SlotLayout::checkpoints at a
/// time, and donated to the tree when it settles. The live slot is donated at the end, if the request ends with a page:
/// with separate_checkpoints a copy of it.
class RadixSlots final : public RequestIndex {
 public:
  explicit RadixSlots(RequestBook& book);

  [[nodiscard]] CacheUsage usage() const noexcept override;

  std::optional<OpenedPrompt> open(RequestId request, const PromptNames& names) override;
  std::optional<OpenedPrompt> refresh(RequestId request) override;
  [[nodiscard]] bool fork(RequestId fork, RequestId point, bool takes_over) override;
  [[nodiscard]] PromptChunk split(const RequestRecord& record, std::int64_t start, std::int64_t tokens) const override;
  bool reserve(RequestId request, std::int64_t upto) override { return kv_.reserve(request, upto); }
  void place(Pass& pass, std::size_t index) override;
  void unplace(Pass& pass) override;
  void settle(Pass& pass, std::size_t index, std::int32_t sampled) override;
  [[nodiscard]] std::int64_t quiet_until(RequestId request) const override;
  void publish(Pass& pass) override;
  void close(RequestId request, RequestEnd how, const ReuseHint& hint) override;
  [[nodiscard]] bool has_state(RequestId request, std::int64_t tokens) const override {
    return kv_.has_state(request, tokens);
  }
  void forget(const Forgotten& forgotten) override { kv_.forget(forgotten); }
  void withdraw(std::size_t, SlotId slot) override;
  void forget_all() override;
  [[nodiscard]] KvRow kv_of(RequestId request) const override { return kv_.row(request); }
  [[nodiscard]] std::span<const std::int32_t> slots_of(RequestId request, std::size_t) const override {
    return columns_of(requests_[request.index()].columns);
  }
  [[nodiscard]] const GrowingHashes& hashes_of(RequestId request, std::int64_t tokens) override {
    return kv_.hashes_of(request, tokens);
  }
  [[nodiscard]] std::int64_t cached_now(RequestId request) override { return kv_.cached_now(request); }
  [[nodiscard]] bool reserve_load(RequestId request, std::int64_t tokens, std::int64_t cached_tokens,
                                  std::vector<std::int32_t>& kv_blocks, std::span<SlotId> slots) override;
  SlotId end_load(RequestId request, std::int64_t tokens, bool done) override;
  bool evict_own() override { return kv_.evict_least(); }
  void check() const override;

 private:
  struct Request {
    LiveColumns columns = no_columns;  ///< with separate_checkpoints the live slot stays from one request to the next
    std::int64_t made_tokens = 0;      ///< > 0: the planned pass saves no state here, because the tree has it
    std::optional<NodeId> decoded;     ///< the last checkpoint of its decoding
    SlotId loading;                    ///< where a checkpoint is loaded to
  };

  void begin_from(RequestId request, const OpenedPrompt& opened);
  /// A slot for a checkpoint; none if there are too many, or all are locked. It is the caller's.
  [[nodiscard]] SlotId take_slot();
  void return_slot(SlotId slot);
  [[nodiscard]] bool is_made(RequestId request, std::int64_t tokens);
  void share_kv(RequestId request, std::int64_t tokens);
  void save(Pass& pass, const RowPlan& row, std::int64_t at);
  void plan_saves(Pass& pass, const RowPlan& row);
  void settle_steps(const Pass& pass, std::size_t index);
  [[nodiscard]] SlotId publish_state(RequestId request, std::int64_t tokens);
  [[nodiscard]] bool keep_copy(RequestId request, const ReuseHint& hint);
  [[nodiscard]] bool keeps_end(RequestId request, RequestEnd how);
  void keep_to_budget();
  void return_withdrawn(RequestId closing = {});

  RadixKv kv_;
  std::vector<Request> requests_;
  std::vector<std::int64_t> positions_;  ///< of the saves of one row
  AnswerUse answers_;                    ///< with tails
  std::vector<std::uint8_t> ends_;       ///< with tails, by slot: it has a state behind an answer, yet unused
  std::vector<SlotId> withdrawn_;        ///< slots of states that the tree has lost, and that requests may still read
  std::int32_t taken_ = 0;               ///< slots for checkpoints that the tree does not have yet
};

}  // namespace stateport::detail
