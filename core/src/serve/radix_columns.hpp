// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "serve/column_rows.hpp"
#include "serve/radix_kv.hpp"
#include "serve/request_index.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace stateport::detail {

/// The index by tokens with states in the columns of block tables. The tree holds the blocks of all groups at one
/// boundary as one state, and evicts them together, in the order of its policy. Blocks of the tree make room for blocks
/// of running requests.
class RadixColumns final : public RequestIndex, private StatePlaces {
 public:
  explicit RadixColumns(RequestBook& book);

  [[nodiscard]] CacheUsage usage() const noexcept override;

  std::optional<OpenedPrompt> open(RequestId request, const PromptNames& names) override;
  std::optional<OpenedPrompt> refresh(RequestId request) override;
  [[nodiscard]] bool fork(RequestId fork, RequestId point, bool takes_over) override;
  bool reserve(RequestId request, std::int64_t upto) override;
  void place(Pass& pass, std::size_t index) override { rows_.place(pass, index); }
  void unplace(Pass& pass) override { rows_.unplace(pass); }
  void settle(Pass& pass, std::size_t index, std::int32_t sampled) override;
  /// The tree has no part in a request between two boundaries.
  [[nodiscard]] std::int64_t quiet_until(RequestId request) const override {
    return rows_.quiet_until(request, rows_.blocks(0).block_size());
  }
  void publish(Pass&) override {}
  void close(RequestId request, RequestEnd how, const ReuseHint& hint) override;
  [[nodiscard]] bool has_state(RequestId request, std::int64_t tokens) const override {
    return kv_.has_state(request, tokens);
  }
  void forget(const Forgotten& forgotten) override { kv_.forget(forgotten); }
  void withdraw(std::size_t group, SlotId slot) override;
  void forget_all() override;
  [[nodiscard]] PromptChunk split(const RequestRecord& record, std::int64_t start, std::int64_t tokens) const override {
    return rows_.split(record, start, tokens);
  }
  [[nodiscard]] KvRow kv_of(RequestId request) const override { return kv_.row(request); }
  [[nodiscard]] std::span<const std::int32_t> slots_of(RequestId request, std::size_t group) const override {
    return rows_.slots_of(request, group);
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
  void on_freed(std::span<const SlotId> places) override;
  [[nodiscard]] OpenedPrompt take_hit(RequestId request, OpenedPrompt opened);
  [[nodiscard]] bool can_free(std::size_t group, std::int64_t blocks) const;
  template <class Take>
  [[nodiscard]] bool evict_until(Take&& take);
  [[nodiscard]] bool holds_states(RequestId request, std::int64_t boundary);
  void donate(RequestId request, std::int64_t boundary);

  ColumnRows rows_;
  RadixKv kv_;
  std::vector<SlotId> published_;  ///< [groups] of one boundary
};

}  // namespace stateport::detail
