// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/pool/state_check.hpp>

#include <array>
#include <cstdint>
#include <span>

namespace stateport {

/// Checks and faults since construction.
struct IntegrityUsage {
  std::int64_t published = 0;               ///< checks that remember a checkpoint
  std::int64_t reads = 0;                   ///< checks that compare one
  std::array<std::int64_t, 3> faults = {};  ///< that withdraw() was told, by StateFault::Kind
  std::int64_t withdrawn_states = 0;        ///< that withdraw() took back: faults whose checkpoint was there
  std::int64_t unchecked_states = 0;        ///< checkpoints, and reads of some, that found no room in the list
  std::int64_t checks_max = 0;              ///< of one take(); IntegrityOptions::checks_max is at least that
};

/// Integrity checks of a RequestCache: which checkpoints are to be summed and compared (StateIntegrity does it), and
/// how wrong ones are taken back.
///
///     start, plan, commit, end … ─► take ─► begin the checks ─► execute the answer ─► end the checks
///     poll names faults ─► cancel the plan, withdraw ─► end the requests that read a wrong state, and start them again
///
/// A state that a fault names was read already. An engine that waits for the verdicts of a plan before it runs the pass
/// cancels the plan, and no token depends on the state. One that does not wait polls before it commits the pass, and
/// ends the requests that the faults name as aborted. A request that has committed the pass already has published
/// checkpoints of a wrong state: the engine ends it as aborted, and withdraws what the request published.
///
/// Ranks of a group call withdraw() with the same checkpoints at the same point of their sequence of calls: a fault of
/// one rank is a fault of all. No call allocates. Not thread-safe, as its cache.
class CacheIntegrity {
 public:
  /// The checks that were decided since the last call: those of transfers first, each part in order. An engine calls it
  /// after each call of the cache whose answer it executes and after each end(), and begins the checks before the work
  /// of that answer. Valid until the next take(). Checkpoints beyond the room of the list stay without checks
  /// (IntegrityUsage::unchecked_states): there is none if every answer is followed by a take(). O(checks).
  [[nodiscard]] virtual CheckPlan take() = 0;

  /// No later prompt finds the checkpoints that the faults name, on the device or in a tier, and none of them is stored
  /// any more. Images in the remote tier stay there, and may be found again. The next answer with transfers drops the
  /// others; after a crash before that, files may still have them. A load of such an image that is under way goes on.
  /// Requests that hold a checkpoint keep it until they end; its pins end. A checkpoint that is not in its slot any
  /// more is left alone, so that faults may come late and twice. KV stays. Answers the number of checkpoints that were
  /// taken back. Throws InvalidArgument for a group or a slot that is not there, and a kind that is none; nothing has
  /// changed then. O(slots + requests) for each fault.
  virtual std::int32_t withdraw(std::span<const StateFault> faults) = 0;

  /// O(1).
  [[nodiscard]] virtual const IntegrityUsage& usage() const noexcept = 0;

 protected:
  ~CacheIntegrity() = default;
};

}  // namespace stateport
