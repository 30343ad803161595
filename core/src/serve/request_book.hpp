// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/pool/copy_plan.hpp>
#include <stateport/core/serve/request_cache.hpp>
#include <stateport/core/stats/cache_stats.hpp>

#include "serve/cache_news.hpp"
#include "serve/elastic_index.hpp"
#include "serve/pass_queue.hpp"
#include "serve/request_record.hpp"
#include "serve/session_book.hpp"
#include "serve/state_ages.hpp"
#include "serve/state_checks.hpp"
#include "serve/tail_use.hpp"
#include "serve/tenant_shares.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace stateport::detail {

/// The data that RequestLife, its index and its tiers share: the requests, their passes, and the answer of the current
/// call. Construction reserves address space for all that the options allow.
struct RequestBook {
  /// The copies of one commit, for one group.
  struct After {
    std::vector<SlotCopy> from_scratch;
    std::vector<SlotCopy> copies;
    std::vector<StepCommit> steps;
  };

  /// Positions of other requests that wait for one (PrefixWaits), at most.
  static constexpr std::size_t awaited_max = 8;

  struct ForkLink {
    RequestId point;         ///< of a fork that has not begun: the request whose computed tokens it goes on from
    std::int32_t forks = 0;  ///< forks of the request that have not begun
  };

  /// Positions on the grid of states, ascending; some may be 0 or equal.
  struct NamedPositions {
    std::array<std::int64_t, breakpoints_max + awaited_max> at = {};
    std::size_t count = 0;
    [[nodiscard]] std::span<const std::int64_t> all() const noexcept { return std::span(at).first(count); }
  };

  explicit RequestBook(const RequestCacheOptions& options);
  RequestBook(const RequestBook&) = delete;
  RequestBook& operator=(const RequestBook&) = delete;

  [[nodiscard]] const RequestRecord& record(RequestId request) const noexcept { return records[request.index()]; }
  /// Of a fork that has not begun.
  [[nodiscard]] RequestId point_of(RequestId fork) const noexcept { return fork_links[fork.index()].point; }
  [[nodiscard]] const OpenedPrompt& opened_of(RequestId request) const noexcept { return opened[request.index()]; }
  /// The checkpoint that the request, which has not begun, continues from.
  [[nodiscard]] SlotId hit_of(RequestId request, std::size_t group) const noexcept {
    return in_columns ? states.of(request)[group].conv_source() : opened_of(request).hit;
  }

  /// Where the request leaves a checkpoint, whatever the placement.
  [[nodiscard]] std::span<const std::int64_t> breakpoints_of(RequestId request) const noexcept {
    return named[request.index()].all();
  }
  /// Prompt::breakpoints alone.
  [[nodiscard]] std::span<const std::int64_t> asked_breakpoints_of(RequestId request) const noexcept {
    return asked[request.index()].all();
  }
  void note_need(MemoryPart part, std::int64_t numbers) noexcept {
    if (slots.arena.bytes > 0) need[static_cast<std::size_t>(part)] += static_cast<std::int32_t>(numbers);
  }
  void note_lack(MemoryPart part, std::int64_t numbers) noexcept {
    std::int32_t& lacked = lack[static_cast<std::size_t>(part)];
    lacked = std::max(lacked, static_cast<std::int32_t>(numbers));
  }
  /// The request continues from the state in this slot. A pin and a prefetch only look.
  void note_reuse(RequestId request, SlotId slot) noexcept {
    if (!record(request).holds_prefix) ages.reused(slot, now_s);
  }
  /// The request asks for memory, from now on.
  void ask(RequestId request) noexcept {
    if (tenants) [[unlikely]]
      tenants->ask(request);
    if (sessions) [[unlikely]]
      sessions->ask(request);
  }
  /// The request reuses this KV: a block, or with index tree a page. A pin and a prefetch only look.
  void note_shared(RequestId request, std::int32_t kv) noexcept {
    if (sessions && !record(request).holds_prefix) sessions->reuse_kv(request, kv);
  }
  void ask_for_nobody() noexcept {
    if (tenants) tenants->ask_for_nobody();
  }
  /// The same for a state in its group.
  void note_shared_state(RequestId request, std::size_t group, SlotId state) noexcept {
    if (sessions && !record(request).holds_prefix) sessions->reuse_state(request, group, state);
  }
  [[nodiscard]] TenantOwners* kv_owners() noexcept { return tenants ? &tenants->kv() : nullptr; }
  [[nodiscard]] TenantOwners* state_owners(std::size_t group = 0) noexcept {
    return tenants ? &tenants->states(group) : nullptr;
  }
  void set_breakpoints(RequestId request, std::span<const std::int64_t> positions) noexcept;
  /// Another request waits for this position, a multiple of grid_tokens behind the computed tokens. False: it is not
  /// there, and awaited_max others are.
  [[nodiscard]] bool can_await(RequestId request, std::int64_t position) const noexcept;
  void await(RequestId request, std::int64_t position) noexcept;

  const RequestCacheOptions options;
  const SlotLayout& slots;      ///< slot_layout(options)
  const ColumnLayout& columns;  ///< column_layout(options)
  const std::size_t groups;
  const std::int64_t grid_tokens;  ///< state_grid_tokens(options)
  const bool in_columns;  ///< a pass leaves the states after its drafts in columns; false: in steps of scratch memory
  CacheNews news;
  PassQueue passes;
  std::vector<RequestRecord> records;  ///< by request
  std::vector<OpenedPrompt> opened;    ///< by request
  std::vector<ForkLink> fork_links;    ///< by request
  std::vector<NamedPositions> asked;   ///< by request: Prompt::breakpoints
  std::vector<NamedPositions> named;   ///< by request: these, and those for which other requests wait
  /// After the computed tokens. The index says in open() where a state begins, RequestIndex::note_memory() fills in the
  /// slots.
  StateTable states;
  std::vector<After> after;  ///< by group, of this commit
  std::vector<SlotCopy> end_copies;
  std::int32_t published = 0;  ///< checkpoints of this commit
  std::int32_t dropped = 0;
  std::vector<RefusedBreakpoint> refused;  ///< of this commit
  std::int32_t running = 0;                ///< requests
  bool forgetting = false;                 ///< contents that go now are forgotten, and not counted as evicted
  ElasticIndex* elastic = nullptr;         ///< the index, if an arena can move its memory
  std::optional<TenantShares> tenants;     ///< with options.tenant_quotas
  std::optional<SessionBook> sessions;     ///< with options.sessions
  std::optional<StateChecks> checks;       ///< with options.integrity
  /// By MemoryPart: the most numbers that were missing at once, since an arena looked.
  std::array<std::int32_t, memory_part_count> lack = {};
  /// By MemoryPart, with an arena: numbers that requests took, since it looked.
  std::array<std::int32_t, memory_part_count> need = {};
  TailUse tails;
  CacheStats stats;
  StateAges ages;    ///< of checkpoints; none with index hash in columns
  double now_s = 0;  ///< of the last start(); never goes back
};

}  // namespace stateport::detail
