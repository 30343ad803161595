// SPDX-License-Identifier: Apache-2.0
#include "mark_world.hpp"

#include "violation.hpp"

#include <algorithm>

namespace stateport::soak {

MarkWorld::MarkWorld(const RequestCacheOptions& options)
    : options_(options),
      checkpoints_(static_cast<std::size_t>(has_separate_checkpoints(options) ? checkpoint_slots(options) : 0)),
      scratch_(static_cast<std::size_t>(scratch_slots(options))),
      steps_(static_cast<std::size_t>(options.max_requests)),
      kv_(static_cast<std::size_t>(kv_blocks(options)) * static_cast<std::size_t>(options.block_size_tokens)) {
  for (std::size_t g = 0; g < group_count(options); ++g)
    slots_.emplace_back(static_cast<std::size_t>(state_slots(options, g)));
  must(options.drafts < StateMark::marks_max, "more drafts than a state has marks for");
}

/// The copies of a launch run in no order: all read the states from before the launch.
void MarkWorld::copy(CopyPlan plan, const Slots& from, Slots& to) {
  validate(plan, static_cast<std::int32_t>(from.size()), static_cast<std::int32_t>(to.size()), &from == &to);
  sources_.clear();
  for (const SlotCopy& copy : plan) {
    StateMark source;
    if (copy.src_slot >= 0) source = from[static_cast<std::size_t>(copy.src_slot)];
    if (copy.recurrent_src_slot >= 0) {
      const StateMark& recurrent = from[static_cast<std::size_t>(copy.recurrent_src_slot)];
      source.recurrent_tokens = recurrent.recurrent_tokens;
      source.recurrent = recurrent.recurrent;
    }
    sources_.push_back(source);
  }
  for (std::size_t i = 0; i < plan.size(); ++i) {
    if (lose_every_copies > 0 && ++copies_ % lose_every_copies == 0) continue;
    StateMark& dst = to[static_cast<std::size_t>(plan[i].dst_slot)];
    const StateMark old = dst;
    dst = sources_[i];
    if (plan[i].src_slot < 0) {
      dst = old;
      dst.recurrent_tokens = sources_[i].recurrent_tokens;
      dst.recurrent = sources_[i].recurrent;
    } else if (dst.base >= 0) {
      dst.base += plan[i].conv_shift;
    }
    if (plan[i].recurrent_src_slot < 0) {
      dst.recurrent_tokens = old.recurrent_tokens;
      dst.recurrent = old.recurrent;
    }
  }
}

void MarkWorld::before(const PassPlan& plan) {
  must(plan.ready, "a pass runs that is not planned");
  for (const SlotCopy& copy : plan.fork_copies) copy_block(copy);
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    for (const SlotId slot : plan.groups[g].clear) slots_[g].at(slot.index()) = StateMark::whole(0, 0);
    copy(plan.groups[g].copies, checkpoints(g), slots_[g]);
  }
  for (auto& steps : steps_) steps.clear();
}

bool MarkWorld::holds(const RowState& state, std::size_t group, std::int64_t tokens, Mark mark) const {
  if (state.read_column < 0) return tokens == 0;
  const StateMark& recurrent = slots_[group].at(state.recurrent_source().index());
  if (recurrent.recurrent_tokens != tokens || recurrent.recurrent != mark) return false;
  const StateMark& conv = slots_[group].at(state.conv_source().index());
  const std::int64_t at = tokens - conv.first;
  return conv.base >= 0 && conv.base + state.read_bias == tokens && at >= 0 && at < conv.count &&
         conv.marks[static_cast<std::size_t>(at)] == mark;
}

void MarkWorld::read(const RowPlan& row, std::span<const Mark> marks) const {
  must(row.room, "a row runs that has no room");
  for (std::int64_t at = 0; at < row.start; ++at)
    must(kv_.at(static_cast<std::size_t>(row.kv.at(at))) == marks[static_cast<std::size_t>(at) + 1],
         "a pass reads KV of other tokens");
  for (std::size_t g = 0; g < slots_.size(); ++g)
    must(holds(row.states[g], g, row.start, marks[static_cast<std::size_t>(row.start)]),
         "a pass reads the state of other tokens");
}

void MarkWorld::run_tree(std::size_t index, const RowPlan& row, std::span<const Mark> marks,
                         std::span<const Step> steps) {
  read(row, marks);
  for (std::size_t step = 0; step < steps.size(); ++step) {
    kv_.at(static_cast<std::size_t>(row.kv.at(row.start + static_cast<std::int64_t>(step)))) = steps[step].mark;
    steps_.at(index).push_back(StateMark::whole(steps[step].tokens, steps[step].mark));
  }
}

void MarkWorld::move_kv(std::span<const KvMove> moves) {
  for (const KvMove& move : moves)
    kv_.at(static_cast<std::size_t>(move.dst)) = kv_.at(static_cast<std::size_t>(move.src));
}

void MarkWorld::wipe(MemoryPart part, std::int32_t first, std::int32_t count) {
  if (part == MemoryPart::kv) {
    const std::int32_t blocks = std::min(count, kv_blocks(options_) - first);
    for (std::int32_t i = 0; i < blocks; ++i) std::ranges::fill(block(first + i), Mark{0});
    return;
  }
  Slots& slots = checkpoints(0);
  const std::int32_t end = std::min(first + count, static_cast<std::int32_t>(slots.size()));
  std::fill(slots.begin() + first, slots.begin() + end, StateMark{});
}

void MarkWorld::run(std::size_t index, const RowPlan& row, std::span<const Mark> marks) {
  const auto start = static_cast<std::size_t>(row.start);
  const auto end = start + static_cast<std::size_t>(row.tokens);
  must(end < marks.size(), "a pass runs over tokens that are not known");
  read(row, marks);
  for (std::size_t at = start; at < end; ++at)
    kv_.at(static_cast<std::size_t>(row.kv.at(static_cast<std::int64_t>(at)))) = marks[at + 1];
  if (!in_columns(options_) && row.drafts > 0)
    for (std::size_t at = start; at < end; ++at)
      steps_.at(index).push_back(StateMark::whole(static_cast<std::int64_t>(at) + 1, marks[at + 1]));
  for (std::size_t g = 0; g < slots_.size(); ++g) write(g, row.states[g], row, marks);
}

void MarkWorld::write(std::size_t group, const RowState& state, const RowPlan& row, std::span<const Mark> marks) {
  const auto after = [&](std::int64_t tokens) {
    return StateMark::whole(row.start + tokens, marks[static_cast<std::size_t>(row.start + tokens)]);
  };
  for (const StateSave& save : state.saves) {
    must(save.in_scratch || !has_separate_checkpoints(options_),
         "a pass saves a state in a store that it does not reach");
    (save.in_scratch ? scratch_ : slots_[group]).at(save.slot.index()) = after(save.offset);
  }
  if (!in_columns(options_) && row.drafts > 0) return;
  for (std::int32_t draft = 0; draft <= row.drafts; ++draft) {
    const StateMark reached = after(row.tokens - row.drafts + draft);
    StateMark& target = slots_[group].at(state.target(draft).index());
    target.recurrent_tokens = reached.recurrent_tokens;
    target.recurrent = reached.recurrent;
  }
  StateMark& conv = slots_[group].at(state.target().index());
  conv.base = conv.first = row.start + row.tokens - row.drafts;
  conv.count = row.drafts + 1;
  const auto first = marks.begin() + static_cast<std::ptrdiff_t>(conv.first);
  std::copy(first, first + conv.count, conv.marks.begin());
}

void MarkWorld::after(const PassCommit& commit) {
  for (const StepCommit& step : commit.groups[0].steps) {
    const auto& states = steps_.at(static_cast<std::size_t>(step.row));
    if (step.live_step >= 0) slots_[0].at(step.live_slot.index()) = states.at(static_cast<std::size_t>(step.live_step));
    if (step.kept_step >= 0)
      checkpoint(0, step.kept_slot.value()) = states.at(static_cast<std::size_t>(step.kept_step));
  }
  for (std::size_t g = 0; g < slots_.size(); ++g) {
    copy(commit.groups[g].from_scratch, scratch_, checkpoints(g));
    copy(commit.groups[g].copies, slots_[g], checkpoints(g));
  }
}

void MarkWorld::after_end(CopyPlan copies) {
  must(copies.empty() || has_separate_checkpoints(options_), "an end answers copies for a store that is not there");
  copy(copies, slots_[0], checkpoints(0));
}

}  // namespace stateport::soak
