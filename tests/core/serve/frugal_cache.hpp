// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/error.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "heap_counter.hpp"

#include <doctest/doctest.h>

#include <cstdint>
#include <memory>
#include <span>

namespace stateport::test {

/// Makes a call in which every allocation throws std::bad_alloc.
template <class Call>
auto frugal(Call&& call) {
  struct End {
    ~End() { fail_heap_allocation(0); }
  } end;
  fail_heap_allocation(1, true);
  return call();
}

/// A RequestCache in which every call that allocates throws std::bad_alloc. Its construction is tried with each of its
/// allocations failing before.
class FrugalCache final : public RequestCache {
 public:
  explicit FrugalCache(const RequestCacheOptions& options) {
    fail_each_allocation([&](std::uint64_t) { cache_ = make_request_cache(options); }, [](std::uint64_t) {});
    if (cache_->tiers() != nullptr) tiers_ = std::make_unique<Tiers>(*cache_->tiers());
    epochs_ = std::make_unique<Epochs>(cache_->epochs());
    if (cache_->arena() != nullptr) arena_ = std::make_unique<Arena>(*cache_->arena());
    if (cache_->prefixes() != nullptr) prefixes_ = std::make_unique<Prefixes>(*cache_->prefixes());
    if (cache_->integrity() != nullptr) integrity_ = std::make_unique<Integrity>(*cache_->integrity());
    if (cache_->tenants() != nullptr) tenants_ = std::make_unique<Tenants>(*cache_->tenants());
  }

  std::optional<StartedRequest> start(const Prompt& prompt) override {
    return frugal([&] { return cache_->start(prompt); });
  }
  PromptChunk chunk(RequestId request, std::int64_t budget_tokens) const override {
    return frugal([&] { return cache_->chunk(request, budget_tokens); });
  }
  std::optional<StartedRequest> refresh(RequestId request) override {
    return frugal([&] { return cache_->refresh(request); });
  }
  bool fork(RequestId request, std::span<const Token> tokens, std::span<RequestId> forks) override {
    // The text of an error allocates.
    try {
      return frugal([&] { return cache_->fork(request, tokens, forks); });
    } catch (const std::bad_alloc&) {
      CHECK_THROWS_AS(static_cast<void>(cache_->fork(request, tokens, forks)), InvalidState);
      return cache_->fork(request, tokens, forks);
    }
  }
  PassPlan plan(std::span<const PassRow> rows, std::span<const std::int32_t> parents = {}) override {
    return frugal([&] { return cache_->plan(rows, parents); });
  }
  void cancel(PassId pass) override {
    frugal([&] { cache_->cancel(pass); });
  }
  PassCommit commit(PassId pass, std::span<const std::int32_t> counts, std::span<const Token> sampled,
                    std::span<const std::int32_t> steps = {}) override {
    return frugal([&] { return cache_->commit(pass, counts, sampled, steps); });
  }
  HitPlaces places(RequestId request, std::size_t group) const override {
    return frugal([&] { return cache_->places(request, group); });
  }
  std::optional<InsertedPrefix> insert(RequestId request, std::int64_t tokens) override {
    return frugal([&] { return cache_->insert(request, tokens); });
  }
  EndedRequest end(RequestId request, RequestEnd how, const ReuseHint& hint) override {
    return frugal([&] { return cache_->end(request, how, hint); });
  }
  std::span<const Token> tokens(RequestId request) const override { return cache_->tokens(request); }
  std::int64_t computed(RequestId request) const override { return cache_->computed(request); }
  KvRow kv(RequestId request) const override { return cache_->kv(request); }
  RowState state(RequestId request, std::size_t group) const override { return cache_->state(request, group); }
  std::int32_t running_requests() const noexcept override { return cache_->running_requests(); }
  CacheTiers* tiers() noexcept override { return tiers_.get(); }
  CacheArena* arena() noexcept override { return arena_.get(); }
  CacheEpochs& epochs() noexcept override { return *epochs_; }
  CacheTenants* tenants() noexcept override { return tenants_.get(); }
  CachePrefixes* prefixes() noexcept override { return prefixes_.get(); }
  CacheSessions* sessions() noexcept override { return cache_->sessions(); }
  CacheIntegrity* integrity() noexcept override { return integrity_.get(); }
  void reset() override {
    frugal([&] { cache_->reset(); });
  }
  const RequestCacheOptions& options() const noexcept override { return cache_->options(); }
  const CacheStats& stats() const noexcept override { return cache_->stats(); }
  CacheUsage usage() const noexcept override { return cache_->usage(); }
  std::size_t take_events(std::span<CacheEvent> out) override {
    return frugal([&] { return cache_->take_events(out); });
  }
  void check_invariants() const override { cache_->check_invariants(); }

 private:
  class Tiers final : public CacheTiers {
   public:
    explicit Tiers(CacheTiers& tiers) : tiers_(tiers) {}
    SettledTransfers settle(std::span<const TransferResult> results) override {
      return frugal([&] { return tiers_.settle(results); });
    }
    bool is_loading(RequestId request) const override { return tiers_.is_loading(request); }
    std::size_t transfers_under_way() const noexcept override { return tiers_.transfers_under_way(); }
    std::size_t transfers_max() const noexcept override { return tiers_.transfers_max(); }
    TransferPlan drain() override {
      return frugal([&] { return tiers_.drain(); });
    }
    bool attach(Medium medium, const ImageKey& image) override {
      return frugal([&] { return tiers_.attach(medium, image); });
    }
    void set_speeds(const TierSpeeds& speeds) override {
      frugal([&] { tiers_.set_speeds(speeds); });
    }
    TierUsage usage(Medium medium) const override { return tiers_.usage(medium); }

   private:
    CacheTiers& tiers_;
  };

  class Epochs final : public CacheEpochs {
   public:
    explicit Epochs(CacheEpochs& epochs) : epochs_(epochs) {}
    std::uint64_t advance(std::uint64_t epoch) override {
      return frugal([&] { return epochs_.advance(epoch); });
    }
    std::uint64_t current() const noexcept override { return epochs_.current(); }
    void forget(const Namespace& name_space, ForgetBy by) override {
      frugal([&] { epochs_.forget(name_space, by); });
    }
    std::span<const ForgetRecord> forgotten() const noexcept override { return epochs_.forgotten(); }
    bool adopt(std::span<const ForgetRecord> records) override {
      return frugal([&] { return epochs_.adopt(records); });
    }
    bool is_stale(RequestId request) const override { return epochs_.is_stale(request); }

   private:
    CacheEpochs& epochs_;
  };

  class Arena final : public CacheArena {
   public:
    explicit Arena(CacheArena& arena) : arena_(arena) {}
    void settle(std::uint64_t move, bool done) override {
      // The text of an error allocates.
      try {
        frugal([&] { arena_.settle(move, done); });
      } catch (const std::bad_alloc&) {
        arena_.settle(move, done);
        FAIL("settle() allocated");
      }
    }
    MemoryPlan take() override {
      return frugal([&] { return arena_.take(); });
    }
    bool is_mapped(MemoryPart part, std::int32_t extent) const override { return arena_.is_mapped(part, extent); }
    ArenaUsage usage() const noexcept override { return arena_.usage(); }

   private:
    CacheArena& arena_;
  };

  class Tenants final : public CacheTenants {
   public:
    explicit Tenants(CacheTenants& tenants) : tenants_(tenants) {}
    void set_quota(const TenantQuota& quota) override {
      // The text of an error allocates.
      try {
        frugal([&] { tenants_.set_quota(quota); });
      } catch (const std::bad_alloc&) {
        CHECK_THROWS_AS(tenants_.set_quota(quota), InvalidArgument);
        tenants_.set_quota(quota);
      }
    }
    TenantUsage usage(const std::optional<NameKey>& salt) const override {
      return frugal([&] { return tenants_.usage(salt); });
    }

   private:
    CacheTenants& tenants_;
  };

  class Prefixes final : public CachePrefixes {
   public:
    explicit Prefixes(CachePrefixes& prefixes) : prefixes_(prefixes) {}
    PinnedPrefix pin(const Prompt& prompt, double lease_s) override {
      return frugal([&] { return prefixes_.pin(prompt, lease_s); });
    }
    bool unpin(PinId pin) override {
      return frugal([&] { return prefixes_.unpin(pin); });
    }
    Prefetch prefetch(const Prompt& prompt) override {
      return frugal([&] { return prefixes_.prefetch(prompt); });
    }
    bool is_prefetching(PrefetchId prefetch) const override { return prefixes_.is_prefetching(prefetch); }
    const PrefixUsage& usage() const noexcept override { return prefixes_.usage(); }

   private:
    CachePrefixes& prefixes_;
  };

  class Integrity final : public CacheIntegrity {
   public:
    explicit Integrity(CacheIntegrity& integrity) : integrity_(integrity) {}
    CheckPlan take() override {
      return frugal([&] { return integrity_.take(); });
    }
    std::int32_t withdraw(std::span<const StateFault> faults) override {
      return frugal([&] { return integrity_.withdraw(faults); });
    }
    const IntegrityUsage& usage() const noexcept override { return integrity_.usage(); }

   private:
    CacheIntegrity& integrity_;
  };

  std::unique_ptr<RequestCache> cache_;
  std::unique_ptr<Tiers> tiers_;
  std::unique_ptr<Epochs> epochs_;
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Tenants> tenants_;
  std::unique_ptr<Prefixes> prefixes_;
  std::unique_ptr<Integrity> integrity_;
};

}  // namespace stateport::test
