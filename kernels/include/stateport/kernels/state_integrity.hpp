// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/backends/stream.hpp>
#include <stateport/core/pool/copy_plan.hpp>
#include <stateport/core/pool/state_check.hpp>
#include <stateport/kernels/slot_copier.hpp>

#include <cstdint>
#include <memory>
#include <span>

namespace stateport {

class StateStore;

struct IntegrityOptions {
  /// Checks that may be under way: begun, and not yet answered by poll(). At least the most that one begin() takes.
  /// Each takes 16 bytes of device memory for each tensor.
  std::int32_t checks_max = 4096;
};

/// Finds checkpoints whose bytes changed between their publication and their use: a late write, a copy on the wrong
/// stream, a slot that was given away too early. It keeps a sum of 8 bytes for each slot and tensor, in device memory.
/// CacheIntegrity names the checks. One that publishes a state remembers its sums, one that reads it compares. Copies
/// sum the bytes that they move anyway; the bytes of other states are read once more.
///
///     before a pass:  begin(take()) ─► copy_slots(restores) ─► end ─► [wait ─► poll] ─► forward
///     after a pass:   begin(take()) ─► kernels of the commit, copy_slots(checkpoints) ─► end
///     when the engine has waited for a pass: poll, before it trusts the tokens
///
/// What is found. Any change of one word of 32 bits, and of more words unless their changes cancel out by chance (1 in
/// 2^32). A slot of another publication is found by its number, whatever its bytes are. A NaN or an infinity in a
/// tensor of fp32, fp16 or bf16, or in a scale of int8_block32, is found when the state is published, and again
/// whenever it is read. The sums are of whole slots: room for drafts behind a conv window counts, so that it must not
/// hold a NaN. Not found are a source that was wrong before it was copied and a published state that was never
/// written, but for NaN and infinity: the sums are those of the bytes that lie there. Nor are a write between the check
/// and the forward that reads the state, and an attacker who knows the sums.
///
/// After a BackendError verdicts may be wrong or stay out: make a new object, and withdraw what it checked.
///
/// All calls enqueue on the stream of the engine and wait for nothing, but for wait(). No call allocates, but for
/// copy_slots() where SlotCopier allocates. None may be captured into a graph. Not thread-safe. The stores must outlive
/// the object.
class StateIntegrity {
 public:
  /// `stores`: one for each group of layers, the one with the checkpoints. Throws InvalidArgument for no store, a null
  /// one and checks_max < 1. Waits for the device.
  explicit StateIntegrity(std::span<const StateStore* const> stores, const IntegrityOptions& options = {});
  StateIntegrity(StateIntegrity&&) noexcept;
  StateIntegrity& operator=(StateIntegrity&&) noexcept;
  ~StateIntegrity();

  /// Takes checks as CacheIntegrity::take() names them. Enqueues the checks of states that transfers read
  /// (StateCheck::request is none), because later work of the answer may overwrite them; a state that an earlier check
  /// of the list publishes waits for end(). Waits for the stream if more than checks_max checks would be under way.
  /// Throws InvalidArgument for more than checks_max checks, a group or a slot that is not there, content 0, and a
  /// stream that is captured; InvalidState if end() is due, if checks_max faults wait for poll(), or if another stream
  /// has not ended its checks. O(checks), as end().
  void begin(const Stream& stream, CheckPlan checks);
  /// copier.copy_slots(stream, plan), which also sums the states of one group that begin() named: checkpoints that the
  /// plan reads are in the source of the copier, those that it publishes in the destination. The n-th whole copy of a
  /// slot serves the n-th check of it. Throws as that call does, InvalidState before begin(), and InvalidArgument for a
  /// group that is not there, a stream that is captured, and a `copier` neither of whose stores has the tensors and the
  /// slots of the group's store.
  void copy_slots(const Stream& stream, SlotCopier& copier, CopyPlan plan, std::int32_t group = 0);
  /// Enqueues the sums of all other states that begin() named, then compares or remembers, in the order of the list.
  /// Throws InvalidState before begin(), and InvalidArgument for a stream that is captured.
  void end(const Stream& stream);

  /// The faults of checks that the device has finished, in the order of begin(), at most checks_max. Each is answered
  /// once, and none is lost. Valid until the next call.
  [[nodiscard]] std::span<const StateFault> poll();
  /// Waits for the stream, so that poll() answers all checks that have ended.
  void wait(const Stream& stream);

  /// Checks whose verdicts poll() has answered.
  [[nodiscard]] std::int64_t checked() const noexcept;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stateport
