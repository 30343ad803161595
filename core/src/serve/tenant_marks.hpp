// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/hash/block_hash.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "hash/sha256.hpp"
#include "serve/pass_queue.hpp"
#include "serve/request_record.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace stateport::detail {

/// For RequestCacheOptions::scrub: which tenant wrote last to each place that a pass may name. A place whose writer is
/// not known counts as another tenant's.
///
/// A pass that is placed names the places that become its tenants', and they are theirs from then on. If it does not
/// run, they count as not cleared.
class TenantMarks {
 public:
  /// The arguments must outlive it.
  TenantMarks(const RequestCacheOptions& options, const StateTable& states);

  /// Makes room in a pass for all that place() and place_drafts() may add to it.
  void reserve(Pass& pass) const;
  /// The request is this tenant's until another begins with its number.
  void begin(RequestId request, const std::optional<NameKey>& salt);
  /// The request is the tenant's that `other` is.
  void begin_as(RequestId request, RequestId other) noexcept { tenant_[request.index()] = tenant_[other.index()]; }
  /// The pass is placed: adds the rows whose scratch memory for steps is to be cleared, of those that are quiet, too.
  void place_drafts(Pass& pass);
  /// A busy row of the pass was placed: adds the memory that is to be cleared for it to the pass.
  void place(Pass& pass, std::size_t index);
  /// The pass will not run.
  void forget(const Pass& pass) noexcept;
  /// Slots take the contents of others.
  void copied(std::size_t group, const GroupCommit& commit) noexcept;
  /// A load will write to these, or to a part of them.
  void loading(std::span<const std::int32_t> kv_blocks, std::span<const SlotId> slots) noexcept;
  /// All that the request has of its first `tokens` tokens is there.
  void loaded(RequestId request, const KvRow& kv, std::int64_t tokens) noexcept;
  /// KV blocks took the contents of others.
  void kv_moved(CopyPlan copies) noexcept;
  /// These numbers of a part have memory that anybody may have written.
  void memory_came(MemoryPart part, std::int32_t first, std::int32_t count) noexcept;
  /// The tenant of the request was the last to write to its KV behind `computed` tokens.
  [[nodiscard]] bool owns_rest(RequestId request, const KvRow& kv, std::int64_t computed) const noexcept;

 private:
  /// 128 bits of a tenant's name: no table of names grows.
  using Tenant = PrefixHash;
  using Writers = std::vector<Tenant>;

  [[nodiscard]] std::size_t block_of(const KvRow& kv, std::size_t block) const noexcept;
  [[nodiscard]] std::size_t blocks_of(const KvRow& kv) const noexcept;
  void place_columns(Pass& pass, const RowPlan& row, const Tenant& tenant);
  void place_slots(Pass& pass, std::size_t index, const Tenant& tenant);

  const RequestCacheOptions& options_;
  const StateTable& states_;
  bool in_columns_;
  bool separate_;  ///< checkpoints lie in a store of their own
  Sha256 sha256_;
  std::vector<Tenant> tenant_;  ///< by request
  Writers kv_;                  ///< by KV block
  std::vector<Writers> slots_;  ///< by group and slot of the store that has the states of running requests
  Writers scratch_;
  Writers draft_rows_;
};

}  // namespace stateport::detail
