// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include "evict/tenant_ledger.hpp"
#include "hash/sha256.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace stateport::detail {

/// The evictions that shares of tenants ask an index for.
class SharedIndex {
 public:
  /// Evicts content of the tenant that TenantLedger::trim() named, the least worth of it. False: requests hold it all.
  virtual bool evict_own() = 0;

 protected:
  ~SharedIndex() = default;
};

/// The quotas of tenants, and whose all the memory is that an index hands out. The index takes and gives numbers of
/// `kv` and `states`; RequestLife says for which request it works.
class TenantShares final : public CacheTenants {
 public:
  /// The options must outlive this.
  explicit TenantShares(const RequestCacheOptions& options);

  void set_index(SharedIndex& index) noexcept { index_ = &index; }
  [[nodiscard]] TenantOwners& kv() noexcept { return kv_; }
  /// Of slots, or of the blocks of states of a group.
  [[nodiscard]] TenantOwners& states(std::size_t group = 0) noexcept { return states_[group]; }
  [[nodiscard]] const TenantLedger& ledger() const noexcept { return ledger_; }

  /// The request is this tenant's until another begins with its number. It asks for memory from now on.
  void begin(RequestId request, const std::optional<NameKey>& salt);
  /// The request is the tenant's that `other` is.
  void begin_as(RequestId request, RequestId other) noexcept { names_[request.index()] = names_[other.index()]; }
  /// The request asks for memory from now on.
  void ask(RequestId request) noexcept {
    const PrefixHash& name = names_[request.index()];
    ledger_.ask({.tenant = ledger_.find(name), .name = name});
  }
  /// The tenant of this KV block asks from now on.
  void ask_for_block(BlockId block) noexcept {
    ledger_.ask({.tenant = kv_.of(block.index()), .name = kv_.name_of(block.index())});
  }
  /// The tenant of this KV block gives it up in this call, whoever asks.
  template <class Call>
  auto trim(BlockId block, Call&& call) {
    const TenantLedger::Asker before = ledger_.asking();
    ledger_.trim(kv_.of(block.index()));
    const auto result = call();
    ledger_.ask(before);
    return result;
  }
  /// Memory is freed for no tenant.
  void ask_for_nobody() noexcept { ledger_.ask({}); }
  /// The state in this slot can be evicted for another tenant, whatever other states are evicted with it.
  [[nodiscard]] bool is_movable(SlotId slot) const noexcept;
  /// Evicts what tenants have beyond their limits.
  void keep_to_limits();
  /// The asking request may have this KV evicted, with a state.
  [[nodiscard]] bool is_takeable(std::int32_t kv) const noexcept {
    const TenantId owner = kv_.of(static_cast<std::size_t>(kv));
    return owner == TenantLedger::nobody ||
           ledger_.turn(owner, kv_.bytes_each() + states_[0].bytes_each()) != TenantLedger::Turn::never;
  }
  /// Throws std::logic_error unless tenants together have this number of KV blocks and of states. O(accounts).
  void check(std::int64_t kv_blocks, std::int64_t states) const;
  /// Nothing is cached, and no request runs.
  void reset() noexcept;

  void set_quota(const TenantQuota& quota) override;
  [[nodiscard]] TenantUsage usage(const std::optional<NameKey>& salt) const override;

 private:
  void check_floors(std::int64_t floor_bytes, const char* argument) const;

  const RequestCacheOptions& options_;
  TenantLedger ledger_;
  TenantOwners kv_;                  ///< index hash: of blocks; index tree: of pages
  std::deque<TenantOwners> states_;  ///< by group
  std::vector<PrefixHash> names_;    ///< by request, of its tenant
  mutable Sha256 sha256_;
  SharedIndex* index_ = nullptr;
};

/// Throws InvalidArgument for a number of quotas that no cache can have.
void require_tenant_quotas(const RequestCacheOptions& options);

}  // namespace stateport::detail
