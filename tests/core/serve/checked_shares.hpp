// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace stateport::test {

/// A RequestCache with tenant_quotas that checks the promises of quotas around every call: a tenant that has no part in
/// a call keeps what it has within its floor, and no tenant has more than its limit once nothing runs.
class CheckedShares final : public RequestCache {
 public:
  explicit CheckedShares(const RequestCacheOptions& options)
      : cache_(make_request_cache(options)), tenants_(*this, *cache_->tenants()) {}

  std::optional<StartedRequest> start(const Prompt& prompt) override {
    const Guard guard(*this, {prompt.name_space.salt});
    auto started = cache_->start(prompt);
    if (started) salts_[started->request] = prompt.name_space.salt;
    return started;
  }
  PromptChunk chunk(RequestId request, std::int64_t budget_tokens) const override {
    return cache_->chunk(request, budget_tokens);
  }
  std::optional<StartedRequest> refresh(RequestId request) override {
    const Guard guard(*this, {salts_.at(request)});
    return cache_->refresh(request);
  }
  bool fork(RequestId request, std::span<const Token> tokens, std::span<RequestId> forks) override {
    const Guard guard(*this, {salts_.at(request)});
    const bool has_numbers = cache_->fork(request, tokens, forks);
    for (const RequestId fork : forks)
      if (has_numbers) salts_[fork] = salts_.at(request);
    return has_numbers;
  }
  PassPlan plan(std::span<const PassRow> rows, std::span<const std::int32_t> parents) override {
    Salts salts = of_passes();
    for (const PassRow& row : rows) salts.push_back(salts_.at(row.request));
    const Guard guard(*this, salts);
    PassPlan plan = cache_->plan(rows, parents);
    if (passes_.size() == (options().overlap ? 2 : 1)) passes_.pop_back();
    passes_.emplace_back();
    for (const PassRow& row : rows) passes_.back().push_back(row.request);
    return plan;
  }
  void cancel(PassId pass) override {
    const Guard guard(*this, of_passes());
    cache_->cancel(pass);
    passes_.pop_back();
  }
  PassCommit commit(PassId pass, std::span<const std::int32_t> counts, std::span<const Token> sampled,
                    std::span<const std::int32_t> steps) override {
    const Guard guard(*this, of_passes());
    PassCommit commit = cache_->commit(pass, counts, sampled, steps);
    passes_.erase(passes_.begin());
    check_limits();
    return commit;
  }
  HitPlaces places(RequestId request, std::size_t group) const override { return cache_->places(request, group); }
  std::optional<InsertedPrefix> insert(RequestId request, std::int64_t tokens) override {
    const Guard guard(*this, {salts_.at(request)});
    return cache_->insert(request, tokens);
  }
  EndedRequest end(RequestId request, RequestEnd how, const ReuseHint& hint) override {
    const Guard guard(*this, {salts_.at(request)});
    const EndedRequest ended = cache_->end(request, how, hint);
    check_limits();
    return ended;
  }
  std::span<const Token> tokens(RequestId request) const override { return cache_->tokens(request); }
  std::int64_t computed(RequestId request) const override { return cache_->computed(request); }
  KvRow kv(RequestId request) const override { return cache_->kv(request); }
  RowState state(RequestId request, std::size_t group) const override { return cache_->state(request, group); }
  std::int32_t running_requests() const noexcept override { return cache_->running_requests(); }
  CacheTiers* tiers() noexcept override { return cache_->tiers(); }
  CacheArena* arena() noexcept override { return cache_->arena(); }
  CacheEpochs& epochs() noexcept override { return cache_->epochs(); }
  CacheTenants* tenants() noexcept override { return &tenants_; }
  CachePrefixes* prefixes() noexcept override { return cache_->prefixes(); }
  CacheSessions* sessions() noexcept override { return cache_->sessions(); }
  CacheIntegrity* integrity() noexcept override { return cache_->integrity(); }
  void reset() override {
    cache_->reset();
    for (const auto& [salt, quota] : quotas_) REQUIRE(bytes_of(quota.salt) == 0);
  }
  const RequestCacheOptions& options() const noexcept override { return cache_->options(); }
  const CacheStats& stats() const noexcept override { return cache_->stats(); }
  CacheUsage usage() const noexcept override { return cache_->usage(); }
  std::size_t take_events(std::span<CacheEvent> out) override { return cache_->take_events(out); }
  void check_invariants() const override { cache_->check_invariants(); }

  static inline std::int64_t protected_calls = 0;  ///< of others, while a tenant had at most its floor

 private:
  using Salt = std::optional<NameKey>;
  using Salts = std::vector<Salt>;

  /// Compares the bytes of tenants before and after a call.
  class Guard {
   public:
    Guard(const CheckedShares& cache, Salts acting) : cache_(cache), acting_(std::move(acting)) {
      for (const auto& [salt, quota] : cache_.quotas_) before_.push_back(cache_.bytes_of(quota.salt));
    }
    ~Guard() {
      std::size_t at = 0;
      for (const auto& [salt, quota] : cache_.quotas_) {
        const std::int64_t before = before_[at++];
        if (std::ranges::count(acting_, quota.salt) > 0 || quota.floor_bytes == 0) continue;
        if (quota.most_bytes > 0 && before > quota.most_bytes) continue;  // it comes back to its limit
        CHECK(cache_.bytes_of(quota.salt) >= std::min(before, quota.floor_bytes));
        protected_calls += before > 0 && before <= quota.floor_bytes;
      }
    }
    Guard(const Guard&) = delete;
    Guard& operator=(const Guard&) = delete;

   private:
    const CheckedShares& cache_;
    Salts acting_;
    std::vector<std::int64_t> before_;
  };

  class Tenants final : public CacheTenants {
   public:
    Tenants(CheckedShares& cache, CacheTenants& tenants) : cache_(cache), tenants_(tenants) {}
    void set_quota(const TenantQuota& quota) override {
      tenants_.set_quota(quota);
      cache_.quotas_[quota.salt ? quota.salt->length() : 0] = quota;
    }
    TenantUsage usage(const std::optional<NameKey>& salt) const override { return tenants_.usage(salt); }

   private:
    CheckedShares& cache_;
    CacheTenants& tenants_;
  };

  [[nodiscard]] std::int64_t bytes_of(const Salt& salt) const {
    const TenantUsage usage = cache_->tenants()->usage(salt);
    return usage.kv_bytes + usage.state_bytes;
  }
  /// No request, no pass and no pin holds memory.
  void check_limits() const {
    if (cache_->prefixes() != nullptr && cache_->prefixes()->usage().pins > 0) return;
    if (running_requests() > 0 || !passes_.empty()) return;
    for (const auto& [salt, quota] : quotas_)
      REQUIRE((quota.most_bytes == 0 || bytes_of(quota.salt) <= quota.most_bytes));
  }
  [[nodiscard]] Salts of_passes() const {
    Salts salts;
    for (const auto& rows : passes_)
      for (const RequestId request : rows) salts.push_back(salts_.at(request));
    return salts;
  }

  std::unique_ptr<RequestCache> cache_;
  Tenants tenants_;
  std::map<RequestId, Salt> salts_;
  std::vector<std::vector<RequestId>> passes_;   ///< outstanding
  std::map<std::uint64_t, TenantQuota> quotas_;  ///< by the length of the name, which tells tenants of tests apart
};

}  // namespace stateport::test
