// SPDX-License-Identifier: Apache-2.0
// Checkpoints of a prefill.
#include <stateport/c/checkpoints.h>

#include <stateport/parts/checkpoint_budget.hpp>
#include <stateport/parts/checkpoint_planner.hpp>

#include "allocator_object.hpp"
#include "arguments.hpp"
#include "copies.hpp"
#include "guard.hpp"

#include <algorithm>

using namespace stateport;
using namespace stateport::c;

namespace {

static_assert(STATEPORT_CHECKPOINTS_MAX == max_checkpoints_per_chunk);

/// Its calls change the allocator, so they take turns with those on the allocator, by the allocator's mutex alone.
struct PlannerObject final : Object {
  static constexpr Kind kind = Kind::checkpoint_planner;
  PlannerObject(std::shared_ptr<AllocatorObject> of, const CheckpointPlannerOptions& options)
      : Object(kind), allocator(std::move(of)), planner(allocator->allocator, options) {
    const auto rows = static_cast<std::size_t>(options.max_rows);
    from_scratch.reserve(rows * max_checkpoints_per_chunk);
    from_live.reserve(rows);
  }
  ~PlannerObject() override {
    const std::lock_guard turn(allocator->mutex());
    if (pending) planner.abandon();
  }
  [[nodiscard]] const Object& turn_owner() const noexcept override { return *allocator; }

  std::shared_ptr<AllocatorObject> allocator;
  CheckpointPlanner planner;
  bool pending = false;  ///< a commit is neither published nor abandoned
  std::vector<stateport_slot_copy> from_scratch;
  std::vector<stateport_slot_copy> from_live;
};

class Call {
 public:
  explicit Call(const stateport_checkpoint_planner* handle)
      : object_(find<PlannerObject>(handle, "planner")), turn_(object_->allocator->mutex()) {}
  [[nodiscard]] PlannerObject* operator->() const noexcept { return object_.get(); }

 private:
  std::shared_ptr<PlannerObject> object_;
  std::unique_lock<std::mutex> turn_;
};

/// The arrays of a chunk of C, as C++ wants them.
struct ChunkRows {
  std::vector<BlockId> blocks;
  std::vector<PrefixHash> prefixes;
};

PrefillChunk from_c(const stateport_prefill_chunk& given, ChunkRows& rows) {
  static_cast<void>(array(given.prefixes, given.prefix_count, "prefixes"));
  rows.prefixes.clear();
  for (std::size_t i = 0; i < given.prefix_count; ++i)
    rows.prefixes.push_back({{given.prefixes[2 * i], given.prefixes[2 * i + 1]}});
  return {.row = given.row,
          .live_slot = SlotId{given.live_slot},
          .prompt_tokens = given.prompt_tokens,
          .finished_tokens = given.finished_tokens,
          .skip_tokens = given.skip_tokens,
          .chunk_tokens = given.chunk_tokens,
          .matched_blocks = given.matched_blocks,
          .required_blocks = given.required_blocks,
          .blocks = read_ids(given.blocks, given.block_count, "blocks", rows.blocks),
          .prefixes = rows.prefixes};
}

stateport_planned_checkpoints planned_to_c(const PlannedCheckpoints& planned) noexcept {
  stateport_planned_checkpoints result = {.count = planned.count, .end_block = planned.end_block.value()};
  std::ranges::copy(planned.offsets, result.offsets);
  write_ids<BlockId>(planned.blocks, result.blocks);
  return result;
}

}  // namespace

stateport_status stateport_checkpoint_planner_create(stateport_slot_allocator* allocator,
                                                     const stateport_checkpoint_options* options,
                                                     stateport_checkpoint_planner** out) {
  return guarded([&] {
    create(out, [&] {
      auto of = find<AllocatorObject>(allocator, "allocator");
      const auto given = read_struct<stateport_checkpoint_options>(options, "options");
      CheckpointPlannerOptions wanted{.layout_fingerprint = given.layout_fingerprint};
      if (given.block_size_tokens != 0) wanted.block_size_tokens = given.block_size_tokens;
      if (given.alignment_tokens != 0) wanted.alignment_tokens = given.alignment_tokens;
      if (given.max_rows != 0) wanted.max_rows = given.max_rows;
      const std::lock_guard turn(of->mutex());
      return std::make_shared<PlannerObject>(of, wanted);
    });
  });
}

stateport_status stateport_checkpoint_planner_destroy(stateport_checkpoint_planner* planner) {
  return guarded([&] { destroy<PlannerObject>(planner, "planner"); });
}

stateport_status stateport_checkpoint_planner_plan(stateport_checkpoint_planner* planner,
                                                   const stateport_prefill_chunk* chunks, size_t count,
                                                   stateport_planned_checkpoints* out, size_t* done) {
  return guarded([&] {
    const Call call(planner);
    const auto given = read_structs(chunks, count, "chunks");
    const OutArray result(out, count, "out");
    std::size_t& planned = checked(done, "done");
    planned = 0;
    ChunkRows rows;
    for (const stateport_prefill_chunk& chunk : given) {
      result.write(planned, planned_to_c(call->planner.plan(from_c(chunk, rows))));
      ++planned;
    }
  });
}

stateport_status stateport_checkpoint_planner_device_arrays(stateport_checkpoint_planner* planner, int32_t rows,
                                                            stateport_checkpoint_arrays* out) {
  return guarded([&] {
    const Call call(planner);
    const Out result(out, "out");
    const CheckpointArrays arrays = call->planner.device_arrays(rows);
    result.write({.offsets = arrays.offsets.data(), .counts = arrays.counts.data()});
  });
}

stateport_status stateport_checkpoint_planner_commit(stateport_checkpoint_planner* planner,
                                                     stateport_checkpoint_commit* out) {
  return guarded([&] {
    const Call call(planner);
    const Out result(out, "out");
    const CheckpointCommit commit = call->planner.commit();
    call->pending = true;
    to_c(commit.from_scratch, call->from_scratch);
    to_c(commit.from_live, call->from_live);
    result.write({.from_scratch = call->from_scratch.data(),
                  .scratch_count = call->from_scratch.size(),
                  .from_live = call->from_live.data(),
                  .live_count = call->from_live.size(),
                  .dropped = commit.dropped});
  });
}

stateport_status stateport_checkpoint_planner_publish(stateport_checkpoint_planner* planner) {
  return guarded([&] {
    const Call call(planner);
    call->planner.publish();
    call->pending = false;
  });
}
stateport_status stateport_checkpoint_planner_abandon(stateport_checkpoint_planner* planner) {
  return guarded([&] {
    const Call call(planner);
    call->planner.abandon();
    call->pending = false;
  });
}
stateport_status stateport_checkpoint_planner_clear(stateport_checkpoint_planner* planner) {
  return guarded([&] { Call(planner)->planner.clear(); });
}
stateport_status stateport_checkpoint_planner_check(stateport_checkpoint_planner* planner) {
  return guarded([&] { Call(planner)->planner.check_invariants(); });
}

stateport_status stateport_scratch_slots_bound(int64_t max_tokens, int32_t block_size_tokens, int32_t max_requests,
                                               int32_t* out) {
  return guarded([&] { checked(out, "out") = scratch_slots_bound(max_tokens, block_size_tokens, max_requests); });
}

stateport_status stateport_slots_for_budget(size_t budget_bytes, size_t slot_bytes, int32_t scratch_slots,
                                            int64_t* out) {
  return guarded([&] { checked(out, "out") = slots_for_budget(budget_bytes, slot_bytes, scratch_slots); });
}
