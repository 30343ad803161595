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
  std::int64_t withdrawn_states = 0;        ///< checkpoints that withdraw() took back; in columns: blocks of states
  std::int64_t unchecked_states = 0;        ///< checkpoints that found no room in the list of checks
  std::int64_t checks_max =
      0;  ///< the most checks that one take() answers: IntegrityOptions::checks_max is at least that
};

/// Integrity checks of a RequestCache: which checkpoints are to be summed and compared (StateIntegrity does it), and
/// how wrong ones are taken back.
///
///     start, plan, commit, end … ─► take ─► begin the checks ─► execute the answer ─► end the checks
///     poll names faults ─► withdraw ─► end the requests that read a wrong state as preempted, and start them again
///
/// A state that a fault names was read already. An engine that waits for the verdicts of a plan before it runs the pass
/// cancels the plan, and no token depends on the state. One that does not wait drops the tokens of the pass for the
/// requests that the faults name.
///
/// Ranks of a group call withdraw() with the same checkpoints at the same point of their sequence of calls: a fault of
/// one rank is a fault of all. No call allocates. Not thread-safe, as its cache.
class CacheIntegrity {
 public:
  /// The checks that were decided since the last call: those of transfers first, each part in order. An engine calls it
  /// after each call of the cache whose answer it executes, and begins the checks before the work of that answer. Valid
  /// until the next take(). Checkpoints beyond the room of the list stay without checks
  /// (IntegrityUsage::unchecked_states): there is none if every answer is followed by a take(). O(checks).
  [[nodiscard]] virtual CheckPlan take() = 0;

  /// No later prompt finds the checkpoints that the faults name, on the device or in a tier, and none of them is stored
  /// any more. The next answer with transfers drops their images; after a crash before that, files may still have them.
  /// A load that is under way goes on. Requests that hold one keep it until they end. A checkpoint that is not in its
  /// slot any more is left alone, so that faults may come late and twice. KV stays. Answers the number of checkpoints
  /// that were taken back. Throws InvalidArgument for a group or a slot that is not there, and a kind that is none;
  /// nothing has changed then. Index tree in columns: O(checkpoints) for each fault; else O(1).
  virtual std::int32_t withdraw(std::span<const StateFault> faults) = 0;

  /// O(1).
  [[nodiscard]] virtual const IntegrityUsage& usage() const noexcept = 0;

 protected:
  ~CacheIntegrity() = default;
};

}  // namespace stateport
