// SPDX-License-Identifier: Apache-2.0
#include "state_stores.hpp"

#include <algorithm>
#include <vector>

namespace stateport::engine {

StateSpec StateStores::spec(const CacheOptions& options, const RequestCacheOptions& cache, std::size_t group) {
  const bool blocks = in_columns(cache);
  const StateLayout layout{.conv_window = static_cast<std::int64_t>(conv_history) + (blocks ? options.drafts : 0),
                           .conv_layout = options.conv_layout,
                           .type = options.type};
  std::vector<std::size_t> layers = {0, 1, 2, 3};
  // With two groups the delta nets have one of their own, with blocks of twice the size.
  if (blocks && options.state_groups == 2) layers = {group, group + 2};
  return Model::state_spec(layout, layers);
}

StateStores::Group::Group(const StateSpec& spec, std::int32_t slots, const Stream& stream, std::byte poison)
    : store(memory, spec, {.slots = slots}), io(store, stream), copier(store) {
  io.poison(poison);
}

StateStores::StateStores(const CacheOptions& options, const RequestCacheOptions& cache) : options_(options) {
  // NaN, but where checks look at the room for drafts behind the conv window of a checkpoint: there large numbers.
  const auto poison = options.integrity && in_columns(cache) && options.drafts > 0 ? std::byte{0x7b} : std::byte{0xff};
  for (std::size_t g = 0; g < group_count(cache); ++g)
    groups_.emplace_back(spec(options, cache, g), state_slots(cache, g), stream_, poison);
  const StateStore& store = groups_.front().store;
  if (scratch_slots(cache) > 0) {
    scratch_.emplace(spec(options, cache, 0), scratch_slots(cache), stream_, poison);
    committer_.emplace(scratch_->store, store, store);
  }
  if (!in_columns(cache) && options.drafts > 0)
    steps_.emplace(store, options.max_running, 1 + options.drafts, options.trees, stream_);
}

std::vector<const StateStore*> StateStores::stores() const {
  std::vector<const StateStore*> stores;
  for (const Group& group : groups_) stores.push_back(&group.store);
  return stores;
}

void StateStores::copy(std::size_t group, CopyPlan plan, StateIntegrity* sums) {
  std::vector<SlotCopy> copies(plan.begin(), plan.end());
  if (options_.fault == Fault::wrong_shift)
    for (SlotCopy& copy : copies)
      if (copy.conv_shift > 0) --copy.conv_shift;
  SlotCopier& copier = groups_[group].copier;
  const auto is_whole = [](const SlotCopy& copy) {
    return copy.conv_shift == 0 && copy.src_slot == copy.recurrent_src_slot;
  };
  const auto parts = std::ranges::stable_partition(copies, is_whole);
  if (sums != nullptr)
    sums->copy_slots(stream_, copier, {copies.begin(), parts.begin()}, static_cast<std::int32_t>(group));
  copier.copy_shifted(stream_, sums != nullptr ? std::span(parts) : copies);
}

void StateStores::forget(std::int32_t first, std::int32_t count) {
  std::vector<SlotId> slots;
  for (std::int32_t slot = first; slot < std::min(first + count, groups_[0].store.slots()); ++slot)
    slots.emplace_back(slot);
  groups_[0].copier.clear_slots(stream_, slots);
  stream_.synchronize();
}

std::int64_t StateStores::before(const PassPlan& plan, StateIntegrity* sums) {
  if (!plan.scrub.scratch.empty()) scratch_->copier.clear_slots(stream_, plan.scrub.scratch);
  std::int64_t count = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const GroupPlan& group = plan.groups[g];
    if (!group.clear.empty()) groups_[g].copier.clear_slots(stream_, group.clear);
    copy(g, group.copies, sums);
    count += std::ssize(group.copies);
  }
  stream_.synchronize();  // the model runs on the host
  return count;
}

std::int64_t StateStores::after(const PassCommit& commit, StateIntegrity* sums) {
  std::vector<DraftSteps::Commit> steps;
  for (const StepCommit& step : commit.groups[0].steps)
    steps.push_back({.row = step.row,
                     .live_step = step.live_step,
                     .live_slot = step.live_slot,
                     .kept_step = step.kept_step,
                     .kept_slot = step.kept_slot});
  if (steps_) steps_->commit(steps);
  std::int64_t count = 0;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    const GroupCommit& group = commit.groups[g];
    if (committer_ && (sums == nullptr || !group.from_scratch.empty()))
      committer_->commit_scratch(stream_, group.from_scratch, group.copies);
    else
      copy(g, group.copies, sums);
    count += std::ssize(group.from_scratch) + std::ssize(group.copies);
  }
  return count;
}

void StateStores::read(std::span<const RowState> states, ModelState& state) {
  for (std::size_t g = 0; g < groups_.size(); ++g)
    if (states[g].read_column >= 0)
      groups_[g].io.read(states[g].conv_source(), states[g].read_bias, states[g].recurrent_source(), state);
}

void StateStores::wrote(const Row& row, std::span<const RowState> states, std::int64_t done, const ModelState& state) {
  if (steps_ && row.drafts > 0) return steps_->put(row.index, done - 1, state);
  const auto draft = static_cast<std::int32_t>(done - (row.scheduled - row.drafts));
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (const StateSave& save : states[g].saves)
      if (save.offset == done) (save.in_scratch ? scratch_->io : groups_[g].io).write(save.slot, state);
    if (draft >= 0) groups_[g].io.write_step(states[g].target(), states[g].target(draft), draft, state);
  }
}

}  // namespace stateport::engine
