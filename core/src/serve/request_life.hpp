// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include "serve/batch_check.hpp"
#include "serve/busy_rows.hpp"
#include "serve/draft_trees.hpp"
#include "serve/held_prefixes.hpp"
#include "serve/memory_arena.hpp"
#include "serve/request_book.hpp"
#include "serve/request_clock.hpp"
#include "serve/request_epochs.hpp"
#include "serve/request_forks.hpp"
#include "serve/request_index.hpp"
#include "serve/request_integrity.hpp"
#include "serve/request_lookups.hpp"
#include "serve/request_tiers.hpp"
#include "serve/tenant_marks.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace stateport::detail {

/// The life of requests, whatever the index: their numbers and tokens, outstanding passes, the checks of everything
/// that comes in, statistics. Rows that are quiet (RequestIndex) are counted here alone.
class RequestLife final : public RequestCache {
 public:
  explicit RequestLife(const RequestCacheOptions& options);

  [[nodiscard]] std::optional<StartedRequest> start(const Prompt& prompt) override;
  [[nodiscard]] std::optional<StartedRequest> refresh(RequestId request) override;
  [[nodiscard]] bool fork(RequestId request, std::span<const Token> tokens, std::span<RequestId> forks) override;
  [[nodiscard]] PromptChunk chunk(RequestId request, std::int64_t budget_tokens) const override;
  [[nodiscard]] PassPlan plan(std::span<const PassRow> rows, std::span<const std::int32_t> parents) override;
  void cancel(PassId pass) override;
  [[nodiscard]] PassCommit commit(PassId pass, std::span<const std::int32_t> counts, std::span<const Token> sampled,
                                  std::span<const std::int32_t> steps) override;
  [[nodiscard]] HitPlaces places(RequestId request, std::size_t group) const override;
  [[nodiscard]] std::optional<InsertedPrefix> insert(RequestId request, std::int64_t tokens) override;
  EndedRequest end(RequestId request, RequestEnd how, const ReuseHint& hint) override;
  [[nodiscard]] std::span<const Token> tokens(RequestId request) const override {
    return forks_.tokens(check_running(book_.records, request).id);
  }
  [[nodiscard]] std::int64_t computed(RequestId request) const override {
    return check_running(book_.records, request).computed;
  }
  [[nodiscard]] KvRow kv(RequestId request) const override;
  [[nodiscard]] RowState state(RequestId request, std::size_t group) const override;
  [[nodiscard]] std::int32_t running_requests() const noexcept override { return book_.running; }
  [[nodiscard]] CacheTiers* tiers() noexcept override { return tiers_ ? &*tiers_ : nullptr; }
  [[nodiscard]] CacheArena* arena() noexcept override { return arena_ ? &*arena_ : nullptr; }
  [[nodiscard]] CacheEpochs& epochs() noexcept override { return *epochs_; }
  [[nodiscard]] CacheTenants* tenants() noexcept override { return book_.tenants ? &*book_.tenants : nullptr; }
  [[nodiscard]] CachePrefixes* prefixes() noexcept override { return prefixes_ ? &*prefixes_ : nullptr; }
  [[nodiscard]] CacheSessions* sessions() noexcept override { return book_.sessions ? &*book_.sessions : nullptr; }
  [[nodiscard]] CacheIntegrity* integrity() noexcept override { return integrity_ ? &*integrity_ : nullptr; }
  void reset() override;
  [[nodiscard]] const RequestCacheOptions& options() const noexcept override { return book_.options; }
  [[nodiscard]] const CacheStats& stats() const noexcept override { return book_.stats; }
  [[nodiscard]] CacheUsage usage() const noexcept override {
    CacheUsage usage = index_->usage();
    usage.waiting = lookups_.waiting();
    return usage;
  }
  [[nodiscard]] std::size_t take_events(std::span<CacheEvent> out) override;
  void check_invariants() const override;

 private:
  [[nodiscard]] bool waits(RequestId request) const noexcept {
    return lookups_.waits(request) || forks_.waits(request);
  }
  Pass& plan_rows(std::span<const PassRow> rows, bool inserts);
  [[nodiscard]] PassCommit settle_oldest(std::span<const std::int32_t> counts, std::span<const Token> sampled,
                                         std::span<const std::int32_t> steps = {});
  void settle_row(Pass& pass, std::size_t index, std::int32_t sampled);
  [[nodiscard]] PassCommit take_commit();
  void end_now(RequestId request, RequestEnd how);
  void end_points();
  [[nodiscard]] TransferPlan take_transfers() { return tiers_ ? tiers_->take_transfers() : TransferPlan{}; }

  RequestBook book_;
  std::unique_ptr<RequestIndex> index_;
  RequestLookups lookups_;
  RequestForks forks_;
  DraftTrees trees_;
  BatchCheck check_;
  std::vector<RequestId> free_requests_;
  std::int32_t naming_requests_ = 0;  ///< that run, and whose prompts have breakpoints
  std::vector<GroupCommit> group_commits_;
  std::vector<std::int32_t> inserted_kv_;  ///< of the last insert(): its commit may replace some in the request
  std::optional<TenantMarks> marks_;       ///< with options.scrub
  BusyRows busy_rows_;
  PassId last_pass_ = 0;
  std::optional<RequestTiers> tiers_;
  std::optional<RequestEpochs> epochs_;
  std::optional<RequestIntegrity> integrity_;
  std::optional<MemoryArena> arena_;
  RequestClock clock_;
  std::optional<HeldPrefixes> prefixes_;
};

}  // namespace stateport::detail
