// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/align_planner.hpp>

#include <stateport/core/error.hpp>

#include <algorithm>

namespace stateport {
namespace {

void validate(const AlignOptions& options) {
  require(!options.groups.empty(), "groups", options.groups.size(), "must name at least one group");
  require(options.mode >= AlignMode::none && options.mode <= AlignMode::all, "mode", static_cast<int>(options.mode),
          "is not a mode");
  require(options.max_requests >= 1, "max_requests", options.max_requests, "must be at least 1");
  require(options.drafts >= 0, "drafts", options.drafts, "must not be negative");
  for (const AlignGroup& group : options.groups) {
    require(group.block_size_tokens >= 1, "block_size_tokens", group.block_size_tokens, "must be at least 1");
    require(group.blocks >= 1, "blocks", group.blocks, "must be at least 1 (the null block)");
    require(group.conv_window == 0 || group.conv_window > options.drafts, "conv_window", group.conv_window,
            "must be 0 or longer than drafts: a bias of up to drafts tokens has to leave one");
    require(group.retention.interval_tokens.value_or(0) >= 0, "interval_tokens",
            group.retention.interval_tokens.value_or(0), "must not be negative");
  }
}

/// A row of a block table whose ids are checked when they are looked at.
class Row {
 public:
  Row(const BlockTable& table, std::size_t row, std::int32_t blocks)
      : ids_(table.ids.data() + static_cast<std::int64_t>(row) * table.row_stride),
        columns_(table.columns),
        blocks_(blocks) {}

  [[nodiscard]] std::int32_t block(std::int64_t column) const noexcept {
    return block_of_column(ids_, columns_, column);
  }
  void check(std::int64_t column) const {
    require(block(column) < blocks_, "block id", block(column), "is not a block of the group");
  }
  [[nodiscard]] ColumnCopy copy(std::int32_t src_column, std::int32_t dst_column, std::int32_t bias) const {
    const ColumnCopy resolved = resolve_column_copy(ids_, columns_, src_column, dst_column, bias);
    const SlotCopy& copy = resolved.copy;
    const std::int32_t largest = std::max({copy.src_slot, copy.dst_slot, copy.recurrent_src_slot});
    require(largest < blocks_, "block id", largest, "is not a block of the group");
    return resolved;
  }

 private:
  const std::int32_t* ids_;
  std::int32_t columns_;
  std::int32_t blocks_;
};

struct PlannedCopy {
  bool copy = false;
  std::int32_t src_column = 0;
  std::int32_t dst_column = 0;
  std::int32_t bias = 0;
};

}  // namespace

AlignPlanner::AlignPlanner(AlignOptions options) : options_(std::move(options)) {
  validate(options_);
  const auto requests = static_cast<std::size_t>(options_.max_requests);
  seen_.resize(requests, 0);
  groups_.reserve(options_.groups.size());
  for (const AlignGroup& group : options_.groups) {
    groups_.push_back({.column = std::vector<std::int32_t>(requests, forgotten_column),
                       .accepted = std::vector<std::int32_t>(requests, neutral_accepted),
                       .plan = {},
                       .decisions = std::vector<Decision>(requests),
                       .written = std::vector<std::uint32_t>(static_cast<std::size_t>(group.blocks), 0),
                       .publication = PublicationCheck(group.blocks)});
    groups_.back().plan.reserve(requests);
  }
}

void AlignPlanner::add_request(RequestId request, std::int64_t computed) {
  check_request(request);
  require(computed >= 0 && computed <= INT32_MAX, "computed", computed, "must be a 32-bit count");
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    groups_[g].column[request.index()] = seed_column(computed, options_.groups[g].block_size_tokens);
    groups_[g].accepted[request.index()] = neutral_accepted;
  }
}

void AlignPlanner::forget(std::span<const RequestId> finished, std::span<const RequestId> preempted,
                          std::span<const RequestId> resumed) {
  for (const auto list : {finished, preempted, resumed})
    for (const RequestId request : list) check_request(request);
  for (const auto list : {finished, preempted, resumed})
    for (const RequestId request : list)
      for (Group& group : groups_) {
        group.column[request.index()] = forgotten_column;
        group.accepted[request.index()] = neutral_accepted;
      }
}

AlignStep AlignPlanner::pre_step(const AlignBatch& batch, std::span<const BlockTable> tables) {
  check_batch(batch);
  check_tables(tables, batch.request.size());
  const bool align = options_.mode == AlignMode::align;
  const auto decide = [&](std::size_t g, std::size_t row, std::size_t slot, Decision& decision) -> PlannedCopy {
    const Group& group = groups_[g];
    decision = {.column = group.column[slot], .accepted = group.accepted[slot], .running = 0};
    if (!align) return {};
    const AlignPreStep step = align_pre_step(batch.computed[row], batch.scheduled[row], decision.column,
                                             decision.accepted, options_.groups[g].block_size_tokens);
    decision.column = step.column;
    decision.accepted = step.accepted;
    return {step.copy, step.src_column, step.column, step.bias};
  };
  const AlignStep step = plan_step(batch.request, tables, decide);
  commit(batch.request, step);
  return step;
}

void AlignPlanner::accept(std::span<const std::int32_t> request, std::span<const std::int32_t> sampled) {
  check_requests(request);
  require(sampled.size() == request.size(), "sampled", sampled.size(), "must have one entry per batch row");
  for (std::size_t row = 0; row < request.size(); ++row)
    if (request[row] >= 0)
      require(sampled[row] >= 0 && sampled[row] <= 1 + options_.drafts, "sampled", sampled[row],
              "must be between 0 and 1 + drafts");
  for (std::size_t row = 0; row < request.size(); ++row)
    if (request[row] >= 0)
      for (Group& group : groups_)
        group.accepted[static_cast<std::size_t>(request[row])] = accepted_after_sampling(sampled[row]);
}

AlignStep AlignPlanner::post_step(const AlignBatch& batch, std::span<const BlockTable> tables) {
  check_batch(batch);
  check_tables(tables, batch.request.size());
  if (options_.mode == AlignMode::all) {
    const auto decide = [&](std::size_t g, std::size_t row, std::size_t slot, Decision& decision) -> PlannedCopy {
      decision = {.column = all_mode_column(batch.computed[row], batch.scheduled[row], options_.drafts,
                                            options_.groups[g].block_size_tokens),
                  .accepted = groups_[g].accepted[slot],
                  .running = 0};
      return {};
    };
    const AlignStep step = plan_step(batch.request, tables, decide);
    commit(batch.request, step);
    return step;
  }
  return plan_post_step(batch.request, tables, [&](std::size_t row, std::int32_t) {
    const std::int64_t drafts = batch.drafts.empty() ? 0 : batch.drafts[row];
    return std::int64_t{batch.computed[row]} + batch.scheduled[row] - drafts;
  });
}

AlignStep AlignPlanner::post_step_advanced(std::span<const std::int32_t> request,
                                           std::span<const std::int32_t> new_computed,
                                           std::span<const BlockTable> tables) {
  check_requests(request);
  require(new_computed.size() == request.size(), "new_computed", new_computed.size(),
          "must have one entry per batch row");
  for (std::size_t row = 0; row < request.size(); ++row)
    if (request[row] >= 0) require(new_computed[row] >= 0, "new_computed", new_computed[row], "must not be negative");
  check_tables(tables, request.size());
  return plan_post_step(request, tables, [&](std::size_t row, std::int32_t accepted) {
    return std::int64_t{new_computed[row]} - accepted + 1;
  });
}

template <class RunningOf>
AlignStep AlignPlanner::plan_post_step(std::span<const std::int32_t> request, std::span<const BlockTable> tables,
                                       RunningOf&& running_of) {
  const bool align = options_.mode == AlignMode::align;
  const auto decide = [&](std::size_t g, std::size_t row, std::size_t slot, Decision& decision) -> PlannedCopy {
    const Group& group = groups_[g];
    decision = {.column = group.column[slot], .accepted = group.accepted[slot], .running = 0};
    if (!align) return {};
    require(decision.column != forgotten_column, "request", request[row], "has no remembered column");
    decision.running = running_of(row, decision.accepted);
    const AlignPostStep step = align_post_step_running(decision.running, decision.accepted, decision.column,
                                                       options_.groups[g].block_size_tokens);
    const Row blocks(tables[g], row, options_.groups[g].blocks);
    for (std::int32_t j = 0; j <= options_.drafts; ++j) blocks.check(std::int64_t{decision.column} + j);
    decision.accepted = step.accepted;
    return {step.moves_bytes, step.src_column, step.dst_column, step.bias};
  };
  const AlignStep step = plan_step(request, tables, decide);
  if (align) record_forward(request, tables);
  commit(request, step);
  return step;
}

CopyPlan AlignPlanner::plan(std::int32_t group) const {
  return group_at(group).plan;
}
std::span<const std::int32_t> AlignPlanner::columns(std::int32_t group) const {
  return group_at(group).column;
}
std::span<const std::int32_t> AlignPlanner::accepted(std::int32_t group) const {
  return group_at(group).accepted;
}
PublicationCheck& AlignPlanner::publication(std::int32_t group) {
  return const_cast<Group&>(group_at(group)).publication;
}

void AlignPlanner::gather_accepted(std::int32_t group, std::span<const std::int32_t> request,
                                   std::span<std::int32_t> out) const {
  const std::vector<std::int32_t>& accepted = group_at(group).accepted;
  require(out.size() >= request.size(), "out", out.size(), "must have at least one entry per batch row");
  for (const std::int32_t slot : request)
    require(slot < options_.max_requests, "request", slot, "is not a request slot");
  std::ranges::fill(out, neutral_accepted);
  for (std::size_t row = 0; row < request.size(); ++row)
    if (request[row] >= 0) out[row] = accepted[static_cast<std::size_t>(request[row])];
}

void AlignPlanner::fill_retention(std::int32_t group, std::int64_t start_column,
                                  std::span<const std::int64_t> boundaries, std::span<std::uint8_t> keep) const {
  static_cast<void>(group_at(group));
  require(start_column >= 0, "start_column", start_column, "must not be negative");
  const AlignGroup& spec = options_.groups[static_cast<std::size_t>(group)];
  fill_retention_mask(spec.retention, spec.block_size_tokens, start_column, boundaries, keep);
}

PrefillCheckpoint AlignPlanner::checkpoint_in(std::int32_t group, PrefillCheckpointQuery chunk) const {
  static_cast<void>(group_at(group));
  require(chunk.hash_block >= 1, "hash_block", chunk.hash_block, "must be at least 1");
  require(chunk.alignment >= 0, "alignment", chunk.alignment, "must not be negative");
  require(chunk.start >= 0 && chunk.start <= chunk.end, "start", chunk.start, "must lie in [0, end]");
  chunk.state_block = options_.groups[static_cast<std::size_t>(group)].block_size_tokens;
  return prefill_checkpoint(chunk);
}

void AlignPlanner::check_invariants() const {
  constexpr const char* structure = "AlignPlanner";
  for (const Group& group : groups_) {
    for (const std::int32_t accepted : group.accepted)
      require_invariant(accepted >= neutral_accepted && accepted <= 1 + options_.drafts, structure,
                        "an accepted count is not in [1, 1 + drafts]");
    for (const std::int32_t column : group.column)
      require_invariant(column >= forgotten_column, structure, "a remembered column is not a column");
    require_invariant(group.plan.size() <= seen_.size(), structure, "a plan has more copies than requests");
  }
}

const AlignPlanner::Group& AlignPlanner::group_at(std::int32_t group) const {
  require(group >= 0 && group < groups(), "group", group, "is out of range");
  return groups_[static_cast<std::size_t>(group)];
}

void AlignPlanner::check_request(RequestId request) const {
  require(request.valid() && request.value() < options_.max_requests, "request", request, "is not a request slot");
}

void AlignPlanner::check_requests(std::span<const std::int32_t> request) {
  // A wrapped epoch would take old marks for new ones.
  if (++epoch_ == 0) {
    std::ranges::fill(seen_, 0u);
    for (Group& group : groups_) std::ranges::fill(group.written, 0u);
    epoch_ = 1;
  }
  for (const std::int32_t slot : request) {
    if (slot < 0) continue;
    require(slot < options_.max_requests, "request", slot, "is not a request slot");
    std::uint32_t& seen = seen_[static_cast<std::size_t>(slot)];
    require(seen != epoch_, "request", slot, "is named twice");
    seen = epoch_;
  }
}

void AlignPlanner::check_batch(const AlignBatch& batch) {
  const std::size_t rows = batch.request.size();
  check_requests(batch.request);
  require(batch.computed.size() == rows, "computed", batch.computed.size(), "must have one entry per batch row");
  require(batch.scheduled.size() == rows, "scheduled", batch.scheduled.size(), "must have one entry per batch row");
  require(batch.drafts.empty() || batch.drafts.size() == rows, "drafts", batch.drafts.size(),
          "must have one entry per batch row, or none");
  for (std::size_t row = 0; row < rows; ++row) {
    if (batch.request[row] < 0) continue;
    require(batch.computed[row] >= 0, "computed", batch.computed[row], "must not be negative");
    require(batch.scheduled[row] >= 0, "scheduled", batch.scheduled[row], "must not be negative");
    require(batch.scheduled[row] <= INT32_MAX - batch.computed[row], "scheduled", batch.scheduled[row],
            "makes more tokens than 32 bits count");
    if (batch.drafts.empty()) continue;
    require(batch.drafts[row] >= 0 && batch.drafts[row] <= options_.drafts, "drafts", batch.drafts[row],
            "must be between 0 and the planner's drafts");
    require(batch.drafts[row] <= batch.scheduled[row], "drafts", batch.drafts[row], "must be among the scheduled");
  }
}

void AlignPlanner::check_tables(std::span<const BlockTable> tables, std::size_t rows) const {
  require(tables.size() == groups_.size(), "tables", tables.size(), "must have one entry per group");
  for (const BlockTable& table : tables) {
    require(table.columns >= 0, "columns", table.columns, "must not be negative");
    require(table.row_stride >= table.columns, "row_stride", table.row_stride, "must be at least columns");
    const auto held = static_cast<std::int64_t>(table.ids.size());
    const auto last = static_cast<std::int64_t>(rows) - 1;
    require(last < 0 || held >= last * table.row_stride + table.columns, "ids", held, "has fewer rows than the batch");
  }
}

/// A plan's copies run in no order, so a block may be written once and what is written may be read by no other copy.
void AlignPlanner::check_plan(Group& group) const {
  for (const SlotCopy& copy : group.plan) {
    std::uint32_t& written = group.written[static_cast<std::size_t>(copy.dst_slot)];
    require(written != epoch_, "block id", copy.dst_slot, "is written by two copies of one step");
    written = epoch_;
  }
  const auto is_written = [&](std::int32_t block) {
    return block >= 0 && group.written[static_cast<std::size_t>(block)] == epoch_;
  };
  for (const SlotCopy& copy : group.plan)
    for (const std::int32_t src : {copy.src_slot, copy.recurrent_src_slot})
      require(src == copy.dst_slot || !is_written(src), "block id", src,
              "is the source of one copy and the destination of another");
}

template <class Decide>
AlignStep AlignPlanner::plan_step(std::span<const std::int32_t> request, std::span<const BlockTable> tables,
                                  Decide&& decide) {
  AlignStep step;
  for (Group& group : groups_) group.plan.clear();
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    for (std::size_t row = 0; row < request.size(); ++row) {
      if (request[row] < 0) continue;
      const auto slot = static_cast<std::size_t>(request[row]);
      const PlannedCopy planned = decide(g, row, slot, group.decisions[slot]);
      if (!planned.copy) continue;
      const Row blocks(tables[g], row, options_.groups[g].blocks);
      const ColumnCopy resolved = blocks.copy(planned.src_column, planned.dst_column, planned.bias);
      step.skipped_parts += resolved.skipped_parts;
      if (resolved.skipped_parts < 2) group.plan.push_back(resolved.copy);
    }
    check_plan(group);
    step.copies += static_cast<std::int64_t>(group.plan.size());
  }
  return step;
}

/// The forward of the step wrote the running state and the states after each kept draft; what follows in the window is
/// of drafts that were not kept.
void AlignPlanner::record_forward(std::span<const std::int32_t> request, std::span<const BlockTable> tables) {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    for (std::size_t row = 0; row < request.size(); ++row) {
      if (request[row] < 0) continue;
      const auto slot = static_cast<std::size_t>(request[row]);
      const std::int64_t column = group.column[slot];
      const std::int64_t running = group.decisions[slot].running;
      const Row blocks(tables[g], row, options_.groups[g].blocks);
      group.publication.wrote_conv(blocks.block(column), running);
      for (std::int32_t j = 0; j <= options_.drafts; ++j)
        group.publication.wrote_recurrent(blocks.block(column + j),
                                          j < group.accepted[slot] ? running + j : PublicationCheck::unknown);
    }
  }
}

void AlignPlanner::commit(std::span<const std::int32_t> request, const AlignStep& step) {
  for (Group& group : groups_) {
    for (const SlotCopy& copy : group.plan) group.publication.copied(copy);
    for (std::size_t row = 0; row < request.size(); ++row) {
      if (request[row] < 0) continue;
      const auto slot = static_cast<std::size_t>(request[row]);
      group.column[slot] = group.decisions[slot].column;
      group.accepted[slot] = group.decisions[slot].accepted;
    }
  }
  skipped_parts_ += step.skipped_parts;
}

}  // namespace stateport
