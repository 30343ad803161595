// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/stream.hpp>
#include <stateport/core/serve/request_cache.hpp>
#include <stateport/kernels/slot_copier.hpp>
#include <stateport/kernels/state_store.hpp>

#include "cache.hpp"
#include "kv_store.hpp"
#include "random_numbers.hpp"
#include "state_stores.hpp"

#include <cstdint>
#include <vector>

namespace stateport::engine {

/// The arena that these options give to a cache of slots: extents of a few numbers, and memory for a part of them.
[[nodiscard]] ArenaOptions arena_options(const CacheOptions& options, const RequestCacheOptions& cache);

/// Carries out the memory plans of a cache: copies at once, moves late and in any order. The content of memory that is
/// unmapped is lost.
class EngineArena {
 public:
  /// The arguments must outlive it.
  EngineArena(const CacheOptions& options, RequestCache& cache, KvStore& kv, StateStores& states);

  void take(const MemoryPlan& plan);
  /// Some moves end.
  void poll();
  /// All moves end. False: none was under way.
  bool settle_all();
  [[nodiscard]] std::int64_t moves() const noexcept { return moves_; }
  [[nodiscard]] std::int64_t copies() const noexcept { return copies_; }

 private:
  void end(const MemoryMove& move);

  ArenaOptions options_;
  std::int32_t block_size_;
  CacheArena& arena_;
  KvStore& kv_;
  StateStores& states_;
  StateStore blocks_;
  SlotCopier copier_;
  Stream stream_ = Stream::default_stream();
  test::Random random_;
  std::vector<MemoryMove> under_way_;
  std::int64_t moves_ = 0;
  std::int64_t copies_ = 0;  ///< of KV blocks
};

}  // namespace stateport::engine
