// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/evict/eviction_policy.hpp>
#include <stateport/core/hash/block_hash.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace stateport::detail {

/// Numbers an account of a TenantLedger.
using TenantId = std::uint8_t;

/// The quota of a tenant, and the bytes that it holds.
struct TenantAccount {
  PrefixHash name;    ///< 128 bits of the tenant's name
  bool used = false;  ///< a tenant has this quota
  std::int64_t floor_bytes = 0;
  std::int64_t most_bytes = 0;  ///< 0: no limit
  std::int64_t kv_bytes = 0;
  std::int64_t state_bytes = 0;

  [[nodiscard]] std::int64_t bytes() const noexcept { return kv_bytes + state_bytes; }
  [[nodiscard]] bool is_over(std::int64_t more = 0) const noexcept {
    return most_bytes > 0 && bytes() + more > most_bytes;
  }
};

/// Accounts of the tenants of a cache, and the one rule of their shares: whose content may be evicted for whom. Account
/// `others` is that of all tenants without a quota. A plain table: its owner changes the accounts.
class TenantLedger {
 public:
  static constexpr TenantId others = 0;
  static constexpr TenantId nobody = UINT8_MAX;  ///< asks for memory that no tenant needs, or owns a free number

  /// When a victim is taken: the smallest turn goes first, and within a turn the policy decides.
  enum class Turn : std::uint8_t {
    first,     ///< its tenant has more than its quota allows
    by_worth,  ///< not protected
    last,      ///< the asking tenant's own, within its floor
    never      ///< within the floor of another tenant
  };

  /// `memory_bytes`: all the memory that tenants share.
  TenantLedger(std::size_t quotas, std::int64_t memory_bytes) : accounts_(1 + quotas), memory_bytes_(memory_bytes) {
    accounts_[others].used = true;
  }

  [[nodiscard]] std::size_t size() const noexcept { return accounts_.size(); }
  [[nodiscard]] TenantAccount& operator[](TenantId tenant) noexcept { return accounts_[tenant]; }
  [[nodiscard]] const TenantAccount& operator[](TenantId tenant) const noexcept { return accounts_[tenant]; }
  /// The account of this tenant: `others` if it has no quota. O(quotas).
  [[nodiscard]] TenantId find(const PrefixHash& name) const noexcept {
    for (std::size_t i = 1; i < accounts_.size(); ++i)
      if (accounts_[i].used && accounts_[i].name == name) return static_cast<TenantId>(i);
    return others;
  }

  /// The part of the memory that is the tenant's floor.
  [[nodiscard]] double floor_share(TenantId tenant) const noexcept {
    return static_cast<double>(accounts_[tenant].floor_bytes) / static_cast<double>(memory_bytes_);
  }

  /// For whom memory is freed.
  struct Asker {
    TenantId tenant = nobody;
    PrefixHash name;
    bool trims = false;  ///< the tenant gives up content of its own, and nobody else does
  };
  /// From now on.
  void ask(const Asker& asker) noexcept { asker_ = asker; }
  void trim(TenantId tenant) noexcept { asker_ = {.tenant = tenant, .name = {}, .trims = true}; }
  [[nodiscard]] const Asker& asking() const noexcept { return asker_; }
  [[nodiscard]] TenantId asker() const noexcept { return asker_.tenant; }

  /// Content has another account from now on. Orders of victims notice it by the number of such changes.
  void accounts_changed() noexcept { ++changes_; }
  [[nodiscard]] std::uint64_t changes() const noexcept { return changes_; }

  /// Bytes of the tenant's content that the asking tenant may have evicted.
  [[nodiscard]] std::int64_t takeable_bytes(TenantId tenant) const noexcept {
    const TenantAccount& account = accounts_[tenant];
    if (tenant == asker_.tenant) return account.bytes();
    return asker_.trims ? 0 : std::max<std::int64_t>(account.bytes() - account.floor_bytes, 0);
  }
  /// The same of all tenants.
  [[nodiscard]] std::int64_t takeable_bytes() const noexcept {
    std::int64_t sum = 0;
    for (std::size_t i = 0; i < accounts_.size(); ++i) sum += takeable_bytes(static_cast<TenantId>(i));
    return sum;
  }
  /// When a victim of the tenant that frees at most `bytes` bytes is taken.
  [[nodiscard]] Turn turn(TenantId tenant, std::int64_t bytes) const noexcept {
    const TenantAccount& account = accounts_[tenant];
    const bool own = tenant == asker_.tenant;
    const bool keeps_floor = account.floor_bytes == 0 || account.bytes() - bytes >= account.floor_bytes;
    if (!own && (asker_.trims || !keeps_floor)) return Turn::never;
    if (account.is_over(own ? bytes : 0)) return Turn::first;
    return keeps_floor ? Turn::by_worth : Turn::last;
  }

 private:
  std::vector<TenantAccount> accounts_;
  std::int64_t memory_bytes_;
  Asker asker_;
  std::uint64_t changes_ = 0;
};

/// The accounts of a ledger, for policies. Derived classes know the account of each candidate.
class LedgerTenants : public CandidateTenants {
 public:
  explicit LedgerTenants(const TenantLedger& ledger) : accounts_(ledger) {}
  [[nodiscard]] std::size_t accounts() const noexcept final { return accounts_.size(); }
  [[nodiscard]] double floor_share(std::uint8_t account) const noexcept final { return accounts_.floor_share(account); }

 protected:
  ~LedgerTenants() = default;

 private:
  const TenantLedger& accounts_;
};

/// The owners of the numbers of one part of a cache's memory: KV blocks or pages, slots, or blocks of states. Keeps the
/// bytes of that part in the ledger. Every number that is handed out belongs to the tenant that asked for it. Of
/// blocks, these are the tenants of candidates.
class TenantOwners final : public LedgerTenants {
 public:
  /// `part`: the sum in an account that counts `bytes_each` bytes for each number. An eviction of one number frees at
  /// most `victim_bytes`: other content may go with it.
  TenantOwners(TenantLedger& ledger, std::int64_t TenantAccount::*part, std::int64_t bytes_each,
               std::int64_t victim_bytes, std::size_t numbers)
      : LedgerTenants(ledger),
        ledger_(ledger),
        part_(part),
        bytes_each_(bytes_each),
        victim_bytes_(victim_bytes),
        owner_(numbers, TenantLedger::nobody),
        name_(numbers) {}

  [[nodiscard]] const TenantLedger& ledger() const noexcept { return ledger_; }
  [[nodiscard]] std::int64_t bytes_each() const noexcept { return bytes_each_; }
  [[nodiscard]] std::int64_t victim_bytes() const noexcept { return victim_bytes_; }
  /// nobody: the number is free.
  [[nodiscard]] TenantId of(std::size_t number) const noexcept { return owner_[number]; }
  [[nodiscard]] std::uint8_t account_of(std::uint32_t index) const noexcept override { return of(index); }

  /// Of a number that is not free.
  [[nodiscard]] const PrefixHash& name_of(std::size_t number) const noexcept { return name_[number]; }

  /// The asking tenant gets the number, which is free.
  void take(std::size_t number) noexcept { enter(number, ledger_.asker(), ledger_.asking().name); }
  void give(std::size_t number) noexcept {
    ledger_[owner_[number]].*part_ -= bytes_each_;
    owner_[number] = TenantLedger::nobody;
  }
  /// The content of a number moves to one that is free.
  void move(std::size_t from, std::size_t to) noexcept {
    enter(to, owner_[from], name_[from]);
    give(from);
  }
  /// All numbers of this tenant go to another account.
  void classify(const PrefixHash& name, TenantId tenant) noexcept {
    for (std::size_t number = 0; number < owner_.size(); ++number) {
      if (owner_[number] == TenantLedger::nobody || name_[number] != name) continue;
      give(number);
      enter(number, tenant, name);
    }
  }
  [[nodiscard]] std::int64_t bytes_of(const PrefixHash& name) const noexcept {
    std::int64_t bytes = 0;
    for (std::size_t number = 0; number < owner_.size(); ++number)
      if (owner_[number] != TenantLedger::nobody && name_[number] == name) bytes += bytes_each_;
    return bytes;
  }
  /// Every number is free.
  void reset() noexcept {
    for (std::size_t number = 0; number < owner_.size(); ++number)
      if (owner_[number] != TenantLedger::nobody) give(number);
  }

 private:
  void enter(std::size_t number, TenantId tenant, const PrefixHash& name) noexcept {
    owner_[number] = tenant;
    name_[number] = name;
    ledger_[tenant].*part_ += bytes_each_;
  }

  TenantLedger& ledger_;
  std::int64_t TenantAccount::*part_;
  std::int64_t bytes_each_;
  std::int64_t victim_bytes_;
  std::vector<TenantId> owner_;   ///< by number
  std::vector<PrefixHash> name_;  ///< by number, of the tenant
};

}  // namespace stateport::detail
