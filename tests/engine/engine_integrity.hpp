// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/stream.hpp>
#include <stateport/core/serve/request_cache.hpp>
#include <stateport/kernels/state_integrity.hpp>
#include <stateport/kernels/state_store.hpp>

#include "cache.hpp"
#include "random_numbers.hpp"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace stateport::engine {

/// Checks the checkpoints of an engine, waits for each verdict and withdraws what is wrong. Now and then it writes to a
/// checkpoint itself. Throws std::logic_error unless the faults are exactly the reads of checkpoints that it wrote to.
class EngineIntegrity {
 public:
  /// `cache` and `stores`, one of each group, must outlive it. `counts` is added to.
  EngineIntegrity(const CacheOptions& options, RequestCache& cache, std::vector<const StateStore*> stores,
                  CacheCounts& counts);

  /// Begins the checks of the last answer of the cache, before the work of that. Those of states that a pass reads wait
  /// for the pass.
  void begin();
  void end();
  /// Begins the checks of the pass that runs now, before its copies.
  void begin_pass();
  /// False: the states of some rows are wrong, so the pass must not run.
  [[nodiscard]] bool end_pass();
  /// The pass does not run.
  void cancel() { reads_.clear(); }
  /// Its state was wrong in the last pass.
  [[nodiscard]] bool is_wrong(RequestId request) const { return wrong_.contains(request); }
  /// Between begin and end: sums what copies of a group move.
  [[nodiscard]] StateIntegrity& sums() noexcept { return sums_; }

  /// Writes to a checkpoint in which no request works, or does nothing.
  void damage(const std::function<bool(const StateCheck&)>& is_worked_in);
  /// A load will write to this slot.
  void expect_load(std::int32_t group, SlotId slot) { kept_.erase({group, slot}); }

 private:
  using StateBytes = std::vector<std::vector<std::byte>>;  ///< [tensors]
  struct Kept {
    StateCheck check;
    StateBytes bytes;
  };

  [[nodiscard]] StateBytes read(std::int32_t group, SlotId slot) const;
  void write(std::int32_t group, SlotId slot, const StateBytes& bytes) const;
  [[nodiscard]] StateBytes damaged(std::int32_t group, const StateBytes& bytes);
  void remember_published();

  CacheOptions options_;
  RequestCache& cache_;
  std::vector<const StateStore*> stores_;
  CacheCounts& counts_;
  Stream stream_ = Stream::default_stream();
  StateIntegrity sums_;
  test::Random random_;
  std::vector<StateCheck> begun_;
  std::vector<StateCheck> reads_;                         ///< of the pass that runs next
  std::set<RequestId> wrong_;                             ///< with faults in the last pass
  std::map<std::pair<std::int32_t, SlotId>, Kept> kept_;  ///< by group and slot: nobody has written to it
  std::vector<std::vector<StateBytes>> old_;              ///< [groups]: some states from before
  std::set<std::uint64_t> damaged_;                       ///< StateCheck::content
};

}  // namespace stateport::engine
