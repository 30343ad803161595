// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <vector>

#include <stateport/core/pool/kv_page_pool.hpp>
#include <stateport/core/serve/tree_requests.hpp>
#include <stateport/core/tree/prefix_tree.hpp>

#include "cache.hpp"
#include "live_slots.hpp"

namespace stateport::engine {

/// Finds states by tokens: TreeRequests over a PrefixTree. Checkpoints are copies of live states at the ends of chunks,
/// or written by the forward to a slot that is donated.
class TreeCache final : public EngineCache {
 public:
  TreeCache(const CacheOptions& options, CheckpointStyle style);

  [[nodiscard]] bool start(Sequence& sequence) override;
  [[nodiscard]] bool reserve(const Row& row) override;
  void before_forward(std::span<const Row> rows) override;
  void read_state(const Row& row, ModelState& state) override { states_.read(live(row), state); }
  void wrote_state(const Row& row, std::int64_t done, const ModelState& state) override;
  void after_forward(std::span<const Row> rows) override;
  void stop(Sequence& sequence, bool aborted) override;
  void reset() override;
  [[nodiscard]] std::size_t kv_indices() const override;
  [[nodiscard]] CacheCounts counts() const override { return counts_; }
  void check_invariants() const override { requests_.check_invariants(); }

 private:
  struct Request {
    RequestId id;
    std::optional<SlotCopy> restore;           ///< before the next pass,
    std::optional<SlotId> clear;               ///< or this
    std::optional<TreeRequests::Track> track;  ///< of the next pass
  };

  [[nodiscard]] Request& request(const Sequence& sequence) { return running_[static_cast<std::size_t>(sequence.slot)]; }
  [[nodiscard]] SlotId live(const Row& row) { return requests_.live_slot(request(*row.sequence).id); }
  [[nodiscard]] bool reserve_prompt(const Row& row, Request& request);
  void keep_chunk(const Row& row, std::vector<SlotCopy>& copies);
  void accept_tokens(const Row& row);
  void count_freed();

  CheckpointStyle style_;
  PrefixTree tree_;
  KvPagePool kv_;
  TreeRequests requests_;
  LiveSlots states_;
  std::vector<Request> running_;  ///< by request slot
  Freed freed_;
  CacheCounts counts_;
};

}  // namespace stateport::engine
