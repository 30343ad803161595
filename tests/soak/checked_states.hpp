// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include "mark_world.hpp"
#include "random_numbers.hpp"

#include <cstdint>
#include <vector>

namespace stateport::soak {

/// Checks the checkpoints of an engine as StateIntegrity does, but keeps whole states where that has sums. Throws
/// Violation for a checkpoint that changed after it was published.
class CheckedStates {
 public:
  /// The cache, with RequestCacheOptions::integrity, and the world must outlive it.
  CheckedStates(RequestCache& cache, MarkWorld& world);

  /// Takes the checks of the last answer, before its work.
  void begin();
  /// After its work.
  void end();
  /// The cache is told that some checkpoint is wrong, as it is if another rank finds a fault.
  void withdraw_some(test::Random& random);
  /// Writes to a checkpoint, if it finds one.
  void write_to_some(test::Random& random);

 private:
  struct Published {
    StateCheck check;
    StateMark state;
  };
  void check(const StateCheck& check);
  [[nodiscard]] const Published& pick(test::Random& random) const;

  RequestCache& cache_;
  MarkWorld& world_;
  std::vector<std::vector<Published>> published_;  ///< [groups][slots]
  std::vector<StateCheck> begun_;
};

}  // namespace stateport::soak
