// SPDX-License-Identifier: Apache-2.0
#include "serve/tenant_shares.hpp"

#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/model/error.hpp>

#include "serve/arena_sizes.hpp"
#include "serve/request_options.hpp"
#include "serve/tenant_name.hpp"

#include <algorithm>
#include <utility>

namespace stateport::detail {
namespace {

std::int64_t block_bytes(const RequestCacheOptions& options) {
  return options.memory.of(options.block_size_tokens, 0);
}

/// Of a slot, or of a block of states.
std::int64_t state_bytes(const RequestCacheOptions& options) {
  return options.memory.state_bytes / static_cast<std::int64_t>(group_count(options));
}

/// A KV block of an index by hash takes the state in its slot along.
std::int64_t kv_victim_bytes(const RequestCacheOptions& options) {
  const bool has_state = options.index == CacheIndex::hash && !in_columns(options);
  return block_bytes(options) + (has_state ? options.memory.state_bytes : 0);
}

/// Bytes that KV and states share. An extent of an arena may take more memory than the bytes of its numbers.
std::int64_t shared_bytes(const RequestCacheOptions& options) {
  const SlotLayout& slots = slot_layout(options);
  if (slots.budget_bytes > 0) return slots.budget_bytes;
  const auto bytes_of = [](const ExtentShape& extent, std::int64_t number_bytes) {
    return static_cast<double>(extent.bytes) / static_cast<double>(extent.count * number_bytes);
  };
  const double most = std::max(bytes_of(slots.arena.kv, block_bytes(options)),
                               bytes_of(slots.arena.states, options.memory.state_bytes));
  return static_cast<std::int64_t>(static_cast<double>(slots.arena.bytes - arena_headroom_bytes(options)) / most);
}

/// All that KV and states may take.
std::int64_t memory_bytes(const RequestCacheOptions& options) {
  if (!in_columns(options) && shares_memory(slot_layout(options))) return shared_bytes(options);
  double bytes = static_cast<double>(kv_blocks(options)) * static_cast<double>(block_bytes(options));
  for (std::size_t g = 0; g < group_count(options); ++g)
    bytes += static_cast<double>(checkpoint_slots(options, g)) * static_cast<double>(state_bytes(options));
  return static_cast<std::int64_t>(std::min(bytes, static_cast<double>(INT64_MAX / 4)));
}

}  // namespace

TenantShares::TenantShares(const RequestCacheOptions& options)
    : options_(options),
      ledger_(static_cast<std::size_t>(options.tenant_quotas), memory_bytes(options)),
      kv_(ledger_, &TenantAccount::kv_bytes, block_bytes(options), kv_victim_bytes(options),
          static_cast<std::size_t>(kv_blocks(options)) + 1),
      names_(index_rows(options)) {
  for (std::size_t g = 0; g < group_count(options); ++g)
    states_.emplace_back(ledger_, &TenantAccount::state_bytes, state_bytes(options), state_bytes(options),
                         static_cast<std::size_t>(checkpoint_slots(options, g)) + reserved_state_blocks);
}

void TenantShares::begin(RequestId request, const std::optional<NameKey>& salt) {
  names_[request.index()] = tenant_name(sha256_, salt);
  ask(request);
}

/// All states of its tenant could go: an extent that is given away takes any number of them.
bool TenantShares::is_movable(SlotId slot) const noexcept {
  const TenantAccount& account = ledger_[states_[0].of(slot.index())];
  return account.floor_bytes == 0 || account.kv_bytes >= account.floor_bytes;
}

void TenantShares::keep_to_limits() {
  for (std::size_t i = 1; i < ledger_.size(); ++i) {
    const auto tenant = static_cast<TenantId>(i);
    if (!ledger_[tenant].is_over()) continue;
    ledger_.trim(tenant);
    while (ledger_[tenant].is_over() && index_->evict_own()) {
    }
  }
}

void TenantShares::check(std::int64_t kv_blocks, std::int64_t states) const {
  std::int64_t kv_bytes = 0, state_bytes = 0;
  for (std::size_t i = 0; i < ledger_.size(); ++i) {
    kv_bytes += ledger_[static_cast<TenantId>(i)].kv_bytes;
    state_bytes += ledger_[static_cast<TenantId>(i)].state_bytes;
  }
  require_invariant(kv_bytes == kv_blocks * kv_.bytes_each(), "TenantShares", "KV has another tenant, or none");
  require_invariant(state_bytes == states * states_[0].bytes_each(), "TenantShares", "a state has no tenant");
}

void TenantShares::reset() noexcept {
  kv_.reset();
  for (TenantOwners& states : states_) states.reset();
}

/// Floors are kept to within a victim of each tenant. Pins and prefetches of others may take memory beside them.
void TenantShares::check_floors(std::int64_t floor_bytes, const char* argument) const {
  const std::int64_t block = options_.block_size_tokens;
  const std::int64_t kv_needed = ceil_div(options_.max_request_tokens, block) * block_bytes(options_);
  const std::int64_t kv_room = options_.kv_tokens / block * block_bytes(options_);
  constexpr std::int64_t most = INT64_MAX / 4;
  const std::int64_t held =
      std::min(options_.prefixes.pinned_bytes, most) + std::min(options_.prefixes.prefetched_bytes, most);
  const auto require_room = [&](std::int64_t room, std::int64_t needed, const char* rule) {
    require(floor_bytes <= room - needed - held, argument, floor_bytes, rule);
  };
  require_room(kv_room, kv_needed, "is too much, with other floors: kv_tokens must have room for one request besides");
  constexpr const char* states_rule = "is too much, with other floors: one request must find room for its states";
  if (const auto* const columns = std::get_if<ColumnLayout>(&options_.layout)) {
    for (const StateGroup& group : columns->groups) {
      const std::int64_t needed = request_state_blocks(options_, group);
      require_room(group.blocks * state_bytes(options_), needed * state_bytes(options_), states_rule);
    }
    return;
  }
  const SlotLayout& slots = slot_layout(options_);
  require_room(slots.checkpoints * options_.memory.state_bytes, options_.memory.state_bytes, states_rule);
  if (shares_memory(slots))
    require_room(shared_bytes(options_), kv_needed + options_.memory.state_bytes,
                 "is too much, with other floors: the shared memory must have room for one request besides");
}

void TenantShares::set_quota(const TenantQuota& quota) {
  require(quota.floor_bytes >= 0, "floor_bytes", quota.floor_bytes, "must not be negative");
  require(quota.most_bytes >= 0, "most_bytes", quota.most_bytes, "must not be negative");
  require(quota.most_bytes == 0 || quota.most_bytes >= quota.floor_bytes, "most_bytes", quota.most_bytes,
          "must be 0 or at least floor_bytes");
  const ArenaOptions& arena = slot_layout(options_).arena;
  require(quota.floor_bytes == 0 || arena.bytes == 0 || arena.states.count == 1, "floor_bytes", quota.floor_bytes,
          "must be 0 in an arena with several states in an extent: states of a floor would hold whole extents");
  const PrefixHash name = tenant_name(sha256_, quota.salt);
  const TenantId before = ledger_.find(name);
  const bool sets = quota.floor_bytes > 0 || quota.most_bytes > 0;
  TenantId tenant = before;
  for (std::size_t i = ledger_.size(); before == TenantLedger::others && i-- > 1;)
    if (!ledger_[static_cast<TenantId>(i)].used) tenant = static_cast<TenantId>(i);
  require(!sets || tenant != TenantLedger::others, "salt", "of a further tenant",
          "must be one of tenant_quotas tenants at a time");
  std::int64_t floors = std::min(quota.floor_bytes, INT64_MAX / 4);  // no memory has as much, and sums fit
  for (std::size_t i = 1; i < ledger_.size(); ++i) {
    const TenantAccount& account = ledger_[static_cast<TenantId>(i)];
    // An unused account has no floor; a tenant may keep a block and a state more.
    if (i != tenant) floors += account.floor_bytes;
    if (account.floor_bytes > 0 || (i == tenant && quota.floor_bytes > 0))
      floors += block_bytes(options_) + options_.memory.state_bytes;
  }
  if (quota.floor_bytes > 0) check_floors(floors, "floor_bytes");
  if (!sets && before == TenantLedger::others) return;
  TenantAccount& account = ledger_[tenant];
  account.name = name;
  account.used = sets;
  account.floor_bytes = quota.floor_bytes;
  account.most_bytes = quota.most_bytes;
  const TenantId now = sets ? tenant : TenantLedger::others;
  if (now != before) {
    kv_.classify(name, now);
    for (TenantOwners& states : states_) states.classify(name, now);
    ledger_.accounts_changed();
  }
}

TenantUsage TenantShares::usage(const std::optional<NameKey>& salt) const {
  const PrefixHash name = tenant_name(sha256_, salt);
  if (const TenantId tenant = ledger_.find(name); tenant != TenantLedger::others)
    return {.kv_bytes = ledger_[tenant].kv_bytes, .state_bytes = ledger_[tenant].state_bytes};
  TenantUsage usage{.kv_bytes = kv_.bytes_of(name)};
  for (const TenantOwners& states : states_) usage.state_bytes += states.bytes_of(name);
  return usage;
}

void require_tenant_quotas(const RequestCacheOptions& options) {
  require(options.tenant_quotas >= 0 && options.tenant_quotas <= tenant_quotas_max, "tenant_quotas",
          options.tenant_quotas, "must be from 0 to 64");
  require(options.tenant_quotas == 0 || std::cmp_greater_equal(options.memory.state_bytes, group_count(options)),
          "memory.state_bytes", options.memory.state_bytes,
          "must be at least the number of groups where tenants have quotas: each block of a state counts");
}

}  // namespace stateport::detail
