// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/c/state_check.h>
#include <stateport/core/model/error.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "handle_table.hpp"
#include "memory_moves.hpp"
#include "request_cache.hpp"
#include "transfers.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace stateport::c {

/// A function of the caller's, or null.
struct KvFunction {
  std::int64_t (*call)(const std::uint64_t* prefixes, std::size_t count, void* context) = nullptr;
  void* context = nullptr;
};
[[nodiscard]] KvFunction read_kv_function(const stateport_request_cache_options* options);

/// KV of which that function knows.
class ToldKv final : public KvDirectory {
 public:
  ToldKv(Object& cache, KvFunction function) : cache_(cache), function_(function) {}

  // An exception would leave the cache half changed: the program ends instead.
  [[nodiscard]] std::int64_t leading_blocks(std::span<const PrefixHash> blocks) noexcept override {
    static_assert(sizeof(PrefixHash) == 2 * sizeof(std::uint64_t));
    const Callback callback(cache_);
    return function_.call(blocks.empty() ? nullptr : blocks[0].words.data(), blocks.size(), function_.context);
  }
  /// The options of the cache, with this if there is a function.
  [[nodiscard]] RequestCacheOptions added_to(RequestCacheOptions options) noexcept {
    if (function_.call != nullptr) options.tiers.kv_elsewhere = this;
    return options;
  }

 private:
  Object& cache_;
  KvFunction function_;
};

struct CacheObject final : Object {
  static constexpr Kind kind = Kind::request_cache;
  CacheObject(const RequestCacheOptions& options, KvFunction kv_function)
      : Object(kind),
        groups(group_count(options)),
        kv(*this, kv_function),
        cache(make_request_cache(kv.added_to(options))),
        plan(cache->options()),
        commits(groups),
        commit_memory(cache->options()) {
    const auto requests = static_cast<std::size_t>(options.max_requests);
    for (GroupCommitArrays& commit : commits) commit.reserve(requests, saves_max(cache->options()));
    state.reserve(1, 0, 0);
    end_copies.reserve(1);
    refused.reserve(requests * breakpoints_max);
    kv_moves.reserve(requests * static_cast<std::size_t>(cache->options().drafts));
    if (CacheIntegrity* const integrity = cache->integrity())
      checks.reserve(static_cast<std::size_t>(integrity->usage().checks_max));
    if (CacheTiers* const below = cache->tiers()) transfers.reserve(below->transfers_max());
  }

  [[nodiscard]] CacheTiers& tiers() const { return part(cache->tiers(), "has no tiers: its options named none"); }
  [[nodiscard]] CacheArena& arena() const { return part(cache->arena(), "has no arena: its options named none"); }
  [[nodiscard]] CachePrefixes& prefixes() const {
    return part(cache->prefixes(), "has no pins and no prefetches: its options named no prefixes");
  }
  [[nodiscard]] CacheSessions& sessions() const {
    return part(cache->sessions(), "has no sessions: its options named none");
  }
  [[nodiscard]] CacheTenants& tenants() const {
    return part(cache->tenants(), "has no quotas: its options named no tenant_quotas");
  }
  [[nodiscard]] CacheIntegrity& integrity() const {
    return part(cache->integrity(), "names no checks: its options have no integrity");
  }

  /// Keeps transfers of an answer, behind those of the same call, until the next call. Returns where they lie.
  const stateport_transfer* keep(TransferPlan answered) {
    const std::size_t first = transfers.size();
    for (const Transfer& transfer : answered) transfers.push_back(to_c(transfer));
    return transfers.data() + first;
  }
  /// The same for a struct with `transfers` and `transfer_count`.
  template <class Struct>
  [[nodiscard]] Struct with_transfers(Struct reported, TransferPlan answered) {
    reported.transfers = keep(answered);
    reported.transfer_count = answered.size();
    return reported;
  }

  /// A part that the options may leave out.
  template <class Part>
  [[nodiscard]] static Part& part(Part* given, const char* lack) {
    require_state(given != nullptr, "cache", lack);
    return *given;
  }

  std::size_t groups;
  ToldKv kv;
  std::unique_ptr<RequestCache> cache;
  // The answers of the last call.
  PassPlanArrays plan;
  std::vector<GroupCommitArrays> commits;
  MemoryPlanArrays commit_memory;
  GroupPlanArrays state;
  std::vector<PassRow> rows;
  std::vector<stateport_transfer> transfers;
  std::vector<stateport_slot_copy> end_copies;
  std::vector<stateport_refused_breakpoint> refused;
  std::vector<stateport_kv_move> kv_moves;
  std::vector<stateport_state_check> checks;  ///< of the last take_checks
};

}  // namespace stateport::c
