// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include "cache.hpp"
#include "engine_arena.hpp"
#include "engine_integrity.hpp"
#include "engine_tiers.hpp"
#include "state_stores.hpp"

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stateport::engine {

/// The options that make a cache of this name: slots, tree, tree-copy (checkpoints at the ends of passes alone), align,
/// all, tree-align, tree-all.
[[nodiscard]] RequestCacheOptions request_cache_options(std::string_view name, const CacheOptions& options);

/// All that an engine writes to serve with RequestCache, whatever the index.
class RequestEngineCache final : public EngineCache {
 public:
  /// `folder`: of the tier of files, if there is one.
  RequestEngineCache(std::string_view name, const CacheOptions& options, const std::string& folder = {});

  [[nodiscard]] bool start(Sequence& sequence) override;
  [[nodiscard]] bool fork(Sequence& sequence, const Sequence& other) override;
  [[nodiscard]] std::int64_t chunk(const Sequence& sequence, std::int64_t tokens) override;
  [[nodiscard]] std::int64_t drafts(std::int64_t drafts) override;
  [[nodiscard]] bool allows_trees() const override { return !in_columns(cache_->options()); }
  bool plan(std::span<Row> rows) override;
  bool before_forward() override;
  [[nodiscard]] bool is_wrong(const Sequence& sequence) const override {
    return integrity_ && integrity_->is_wrong(id(sequence));
  }
  void read_state(const Row& row, ModelState& state) override { stores_.read(states(row), state); }
  void wrote_state(const Row& row, std::int64_t done, const ModelState& state) override {
    stores_.wrote(row, states(row), done, state);
  }
  void after_forward(std::span<const Row> rows, std::span<Row> next) override;
  void final_state(const Sequence& sequence, ModelState& state) override;
  void stop(Sequence& sequence, RequestEnd how) override;
  void reset() override;
  void forget(std::optional<std::int32_t> tenant) override;
  [[nodiscard]] std::optional<bool> is_stale(const Sequence& sequence) const override;
  [[nodiscard]] bool ready(Sequence& sequence) override;
  bool wait() override { return tiers_ && tiers_->wait(); }
  void shut_down(bool keep) override;
  [[nodiscard]] KvStore& kv() override { return kv_; }
  [[nodiscard]] CacheCounts counts() const override;
  void check_invariants() const override;

 private:
  [[nodiscard]] RequestId id(const Sequence& sequence) const { return ids_[static_cast<std::size_t>(sequence.slot)]; }
  [[nodiscard]] std::span<const RowState> states(const Row& row) const {
    return plan_.rows[static_cast<std::size_t>(row.index)].states;
  }
  [[nodiscard]] PassPlan plan_rows(std::span<const PassRow> batch, std::span<const std::int32_t> parents);
  /// The newest pass does not run.
  void cancel(PassId pass);
  /// A request that has begun works in this slot.
  [[nodiscard]] bool is_worked_in(const StateCheck& check) const;
  void take(const PassPlan& plan, std::span<Row> rows);
  /// Pins or prefetches the prompt of the sequence, or closes a session.
  void hold(const Sequence& sequence, const Namespace& name_space);
  /// Gives the first tenant a floor, as large as it can be if `large`, and the second one a limit.
  void set_quotas(bool large);
  /// Throws if no request of its tenant had this prefix of the sequence.
  void check_own(const Sequence& sequence, std::int64_t tokens) const;

  CacheOptions options_;
  std::unique_ptr<RequestCache> cache_;
  StateStores stores_;
  PinnedResource kv_memory_;
  KvStore kv_;
  std::vector<RequestId> ids_;            ///< by request slot
  std::vector<const Sequence*> running_;  ///< by request slot, once planned
  std::vector<std::uint8_t> has_begun_;   ///< by request slot: it was in a pass, or is a fork
  std::vector<PassId> passes_;            ///< outstanding, oldest first
  bool waits_ = false;                    ///< the newest one has not run
  PassPlan plan_;                         ///< complete, of the batch that runs next
  CacheCounts counts_;
  std::array<std::vector<std::vector<Token>>, 2> served_;  ///< by tenant: tokens of started and ended requests
  std::optional<EngineIntegrity> integrity_;
  std::optional<EngineTiers> tiers_;
  std::optional<EngineArena> arena_;
  std::deque<PinId> pins_;  ///< oldest first; some may have ended
};

}  // namespace stateport::engine
