// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/pool/kv_page_pool.hpp>

#include "cache.hpp"
#include "live_slots.hpp"

namespace stateport::engine {

/// Keeps nothing: every sequence is computed from its first token.
class NoCache final : public EngineCache {
 public:
  explicit NoCache(const CacheOptions& options);

  [[nodiscard]] bool start(Sequence& sequence) override;
  [[nodiscard]] bool reserve(const Row& row) override;
  void before_forward(std::span<const Row>) override {}
  void read_state(const Row& row, ModelState& state) override { states_.read(live(row), state); }
  void wrote_state(const Row& row, std::int64_t done, const ModelState& state) override {
    states_.wrote_state(row, done, live(row), state);
  }
  void after_forward(std::span<const Row> rows) override;
  void stop(Sequence& sequence, bool aborted) override;
  void reset() override {}
  [[nodiscard]] std::size_t kv_indices() const override;
  [[nodiscard]] CacheCounts counts() const override { return counts_; }
  void check_invariants() const override { kv_.check_invariants(); }

 private:
  [[nodiscard]] static SlotId live(const Row& row) { return SlotId{row.sequence->slot}; }

  KvPagePool kv_;
  LiveSlots states_;
  CacheCounts counts_;
};

}  // namespace stateport::engine
