// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/host_resource.hpp>
#include <stateport/core/pool/kv_page_pool.hpp>

#include "cache.hpp"

#include <map>

namespace stateport::engine {

/// Keeps nothing: every sequence is computed from its first token. States lie on the host.
class NoCache final : public EngineCache {
 public:
  explicit NoCache(const CacheOptions& options)
      : kv_(options.kv_tokens, 1),
        kv_store_(memory_, static_cast<std::size_t>(kv_.capacity()) + 1, Model::attention_layers, options.type) {}

  [[nodiscard]] bool start(Sequence& sequence) override;
  bool plan(std::span<Row> rows) override;
  bool before_forward() override { return true; }
  void read_state(const Row& row, ModelState& state) override { state = states_[row.sequence->slot][row.start]; }
  void wrote_state(const Row& row, std::int64_t done, const ModelState& state) override {
    states_[row.sequence->slot][row.start + done] = state;
  }
  void after_forward(std::span<const Row> rows, std::span<Row> next) override;
  void final_state(const Sequence& sequence, ModelState& state) override {
    state = states_[sequence.slot][sequence.computed];
  }
  void stop(Sequence& sequence, RequestEnd how) override;
  void reset() override {}
  [[nodiscard]] KvStore& kv() override { return kv_store_; }
  [[nodiscard]] CacheCounts counts() const override { return counts_; }
  void check_invariants() const override { kv_.check_invariants(); }

 private:
  KvPagePool kv_;
  HostResource memory_;
  KvStore kv_store_;
  std::map<std::int32_t, std::map<std::int64_t, ModelState>> states_;  ///< by request slot and tokens
  CacheCounts counts_;
};

}  // namespace stateport::engine
