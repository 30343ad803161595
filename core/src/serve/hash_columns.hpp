// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "serve/column_rows.hpp"
#include "serve/hashed_kv.hpp"
#include "serve/request_index.hpp"

#include <cstdint>
#include <span>
#include <vector>

namespace stateport::detail {

/// The index by block hash with states in the columns of block tables: blocks of states are found by hash, as blocks of
/// KV are.
class HashColumns final : public RequestIndex {
 public:
  explicit HashColumns(RequestBook& book);

  [[nodiscard]] CacheUsage usage() const noexcept override;

  std::optional<OpenedPrompt> open(RequestId request, const PromptNames& names) override;
  std::optional<OpenedPrompt> refresh(RequestId request) override;
  [[nodiscard]] bool fork(RequestId fork, RequestId point, bool takes_over) override;
  bool reserve(RequestId request, std::int64_t upto) override {
    return kv_.reserve(request, upto) && rows_.reserve(request, upto);
  }
  void place(Pass& pass, std::size_t index) override { rows_.place(pass, index); }
  void unplace(Pass& pass) override { rows_.unplace(pass); }
  void settle(Pass& pass, std::size_t index, std::int32_t sampled) override;
  /// A block of KV becomes full at its end.
  [[nodiscard]] std::int64_t quiet_until(RequestId request) const override {
    return rows_.quiet_until(request, options_.block_size_tokens);
  }
  void publish(Pass&) override {}
  void close(RequestId request, RequestEnd how, const ReuseHint& hint) override;
  [[nodiscard]] bool has_state(RequestId request, std::int64_t tokens) const override {
    return kv_.finds_all(request, tokens) && has_states(request, tokens);
  }
  void forget_all() override;
  void forget(const Forgotten& forgotten) override;
  void withdraw(std::size_t group, SlotId slot) override;
  [[nodiscard]] PromptChunk split(const RequestRecord& record, std::int64_t start, std::int64_t tokens) const override {
    return rows_.split(record, start, tokens);
  }
  [[nodiscard]] KvRow kv_of(RequestId request) const override { return kv_.row(request); }
  [[nodiscard]] std::span<const std::int32_t> slots_of(RequestId request, std::size_t group) const override {
    return rows_.slots_of(request, group);
  }
  [[nodiscard]] const GrowingHashes& hashes_of(RequestId request, std::int64_t) override { return kv_.hashes(request); }
  [[nodiscard]] std::int64_t cached_now(RequestId request) override {
    return static_cast<std::int64_t>(kv_.cached_blocks(request)) * options_.block_size_tokens;
  }
  [[nodiscard]] bool reserve_load(RequestId request, std::int64_t tokens, std::int64_t cached_tokens,
                                  std::vector<std::int32_t>& kv_blocks, std::span<SlotId> slots) override;
  SlotId end_load(RequestId request, std::int64_t tokens, bool done) override;
  bool evict_own() override;
  void check() const override;

 private:
  [[nodiscard]] BlockId find_state(RequestId request, std::size_t group, std::int64_t tokens) const;
  [[nodiscard]] OpenedPrompt take_hit(RequestId request, std::span<const BlockId> cached, std::int64_t reused_tokens);
  [[nodiscard]] std::int64_t longest_hit(RequestId request, std::span<const BlockId> cached) const;
  [[nodiscard]] bool has_states(RequestId request, std::int64_t tokens) const;
  [[nodiscard]] std::span<const SlotId> states_at(RequestId request, std::int64_t tokens);
  [[nodiscard]] LostHit why_lost(RequestId request, std::int64_t reused_tokens, std::span<const BlockId> cached) const;
  void publish_states(const RowPlan& row, std::size_t group);

  HashedKv kv_;
  ColumnRows rows_;
  std::vector<SlotId> found_;  ///< [groups] of one lookup
};

}  // namespace stateport::detail
