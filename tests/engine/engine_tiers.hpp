// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/pinned_resource.hpp>
#include <stateport/backends/stream.hpp>
#include <stateport/core/serve/request_cache.hpp>
#include <stateport/kernels/state_store.hpp>
#include <stateport/tiers/state_tiers.hpp>

#include "cache.hpp"
#include "engine_integrity.hpp"
#include "late_lane.hpp"
#include "random_numbers.hpp"

#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace stateport::engine {

/// The tiers below the device: carries out the transfers of a RequestCache and reports their results. An engine would
/// only call poll() in every step. This class is made to be awkward: stores are late, and answers are taken now and
/// then. Unless it is hasty, its behaviour follows from the schedule's seed alone, although files have threads of their
/// own.
class EngineTiers {
 public:
  /// Reports to the cache the images that an earlier engine left in the folder. All but the options must outlive it;
  /// `states` are the stores of the groups, `kv` the blocks of KV. `integrity` may be null.
  EngineTiers(const CacheOptions& options, const std::string& folder, RequestCache& cache,
              std::vector<const StateStore*> states, StateStore kv, TierCounts& counts, EngineIntegrity* integrity);

  /// Enqueues the transfers of an answer of the cache: before all else that it names.
  void take(TransferPlan transfers);
  /// The same for an answer that names nothing else.
  void take_all(TransferPlan transfers);
  /// May end some of the transfers under way.
  void poll();
  /// Tells the cache of all answers that there are.
  void settle();
  /// Waits for the transfers under way. False: there are none.
  bool wait();
  void wait_for_all();
  /// Writes all that is cached to files.
  void drain();
  /// Loses the transfers under way. Files that are being written are completed, unless it is hasty.
  void break_off() const { let_files_end(); }
  void check_invariants() const;

 private:
  [[nodiscard]] StateTiersOptions options_of(const CacheOptions& options, const std::string& folder,
                                             const RequestCache& cache, std::vector<const StateStore*> states);
  void attach();
  void damage(const std::string& folder, std::uint64_t seed) const;
  void count(const Transfer& transfer, TransferStatus status);
  [[nodiscard]] bool under_way() const;
  void let_files_end() const;

  RequestCache& cache_;
  TierCounts& counts_;
  EngineIntegrity* integrity_;
  test::Random random_;
  bool hasty_;
  Stream stream_ = Stream::default_stream();
  PinnedResource memory_;
  StateStore kv_;
  LateLane* lane_ = nullptr;
  StateTiers tiers_;
  std::map<TransferId, Transfer> transfers_;  ///< that are not answered
  std::vector<ImageKey> attached_;
};

/// The options of the tiers: room, and the times of transfers.
[[nodiscard]] TierOptions tier_options(const CacheOptions& options, const RequestCacheOptions& cache);

}  // namespace stateport::engine
