// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/request_cache.hpp>

#include "workload/content.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::replay {

/// States that a mover must have for a cache.
struct StateRoom {
  std::int32_t slots = 0;
  std::int32_t scratch_slots = 0;
  std::int32_t checkpoint_slots = 0;  ///< of a store of their own; 0: there is none
};

[[nodiscard]] inline StateRoom room_for(const RequestCacheOptions& cache) {
  return {.slots = state_slots(cache),
          .scratch_slots = scratch_slots(cache),
          .checkpoint_slots = slot_layout(cache).separate_checkpoints ? checkpoint_slots(cache) : 0};
}

struct MoverCounts {
  std::int64_t transfers = 0;   ///< of states, between tiers or with the device
  std::int64_t restores = 0;    ///< requests that continued from a checkpoint
  std::int64_t verified = 0;    ///< states compared word by word with the expected state
  std::int64_t mismatches = 0;  ///< of these, the ones with a wrong word
  std::int64_t commits = 0;     ///< states published
  double copy_seconds = 0;      ///< time of the copies that plans and commits name
  double transfer_seconds = 0;  ///< time of transfers to their ends
  double forward_seconds = 0;   ///< time of the stand-in for the model
  double verify_seconds = 0;
  double copy_share_of_memcpy = 0;  ///< median of (time of memcpy) / (time of our copy), same sizes; 0: not measured
  std::size_t state_bytes = 0;      ///< of a state as it is in memory
  std::size_t copy_bytes = 0;       ///< read and written by a copy between a state and a checkpoint
};

/// A forward of one state: it writes the state after some more tokens and, with drafts, the recurrent states after each
/// of these, too. Numbers of slots are of the store, those of `conv_out` and the outs of a save may be of scratch.
struct StateWrite {
  Content from = empty_content;    ///< the prefix whose state is read
  std::int32_t conv_in = -1;       ///< slots that are read; -1: the empty state
  std::int32_t recurrent_in = -1;  ///< the same for the recurrent state
  std::int32_t bias = 0;           ///< the conv window that is read begins this number of tokens into its slot
  std::int32_t advanced = 0;       ///< tokens from the state that is read to the one that is written, without drafts
  std::int32_t drafts = 0;
  std::int32_t conv_out = -1;       ///< takes the conv window of history + drafts tokens
  std::uint32_t first_out = 0;      ///< in PassForward::recurrent_out: 1 + drafts slots
  std::uint32_t first_content = 0;  ///< in PassForward::window: history + drafts names
  bool in_scratch = false;          ///< the slots that are written are scratch
};

/// The forward of a whole batch. No two writes of one list write the same slot, or one that another reads.
struct PassForward {
  std::span<const StateWrite> saves;    ///< states that the pass leaves on its way; made before the targets
  std::span<const StateWrite> targets;  ///< a target may be written over the state that it is made from
  std::span<const std::int32_t> recurrent_out;
  /// The prefixes that end at the last `history` tokens of a state that is written, then those with one draft more
  /// each. Drafts that are not kept have names of their own.
  std::span<const Content> window;
};

/// Makes and moves the states that a cache plans.
class PassMover {
 public:
  virtual ~PassMover() = default;

  /// Enqueues the copies that a pass needs before it.
  virtual void before(const PassPlan& plan) = 0;
  virtual void forward(const PassForward& forward) = 0;
  /// Enqueues the copies that follow a pass.
  virtual void after(const PassCommit& commit) = 0;
  /// Enqueues the copies that follow the end of a request.
  virtual void after_end(CopyPlan copies) = 0;
  /// Carries out a plan, to its end: appends an answer for each transfer that wants one.
  virtual void transfer(TransferPlan transfers, std::vector<TransferResult>& answers) = 0;
  /// The number of 16-byte words of the state that `state` reads which are not those of the state after `window`
  /// [history], the prefixes that end at its last tokens. `restored`: a request continues from it.
  [[nodiscard]] virtual std::uint64_t check(const RowState& state, std::span<const Content> window, bool restored) = 0;

  [[nodiscard]] virtual MoverCounts counts() const = 0;
};

/// Moves nothing: for questions about hit rates and planning times alone.
class NoPasses final : public PassMover {
 public:
  void before(const PassPlan&) override {}
  void forward(const PassForward&) override {}
  void after(const PassCommit& commit) override { counts_.commits += commit.published_states; }
  void after_end(CopyPlan) override {}
  void transfer(TransferPlan transfers, std::vector<TransferResult>& answers) override {
    for (const Transfer& transfer : transfers)
      if (transfer.kind != Transfer::Kind::drop) answers.push_back({.id = transfer.id});
  }
  std::uint64_t check(const RowState&, std::span<const Content>, bool restored) override {
    counts_.restores += restored;
    return 0;
  }
  [[nodiscard]] MoverCounts counts() const override { return counts_; }

 private:
  MoverCounts counts_;
};

}  // namespace stateport::replay
