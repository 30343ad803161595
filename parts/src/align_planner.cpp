// SPDX-License-Identifier: Apache-2.0
#include <stateport/parts/align_planner.hpp>

#include <stateport/core/model/error.hpp>

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

  /// The ids of columns [first, last), as far as the row has them; 0 <= first.
  [[nodiscard]] std::span<const std::int32_t> ids(std::int64_t first, std::int64_t last) const noexcept {
    last = std::min<std::int64_t>(last, columns_);
    return first < last ? std::span(ids_ + first, ids_ + last) : std::span<const std::int32_t>();
  }
  void check(std::int64_t first, std::int64_t last) const {
    for (const std::int32_t block : ids(std::max<std::int64_t>(first, 0), last))
      require(block < blocks_, "block id", block, "is not a block of the group");
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

}  // namespace

AlignPlanner::AlignPlanner(AlignOptions options) : options_(std::move(options)) {
  validate(options_);
  const auto requests = static_cast<std::size_t>(options_.max_requests);
  seen_.resize(requests, 0);
  live_.reserve(requests);
  groups_.reserve(options_.groups.size());
  for (const AlignGroup& group : options_.groups) {
    const auto same_size = [&](const Track& track) { return track.block_size_tokens == group.block_size_tokens; };
    const auto track = static_cast<std::size_t>(std::ranges::find_if(tracks_, same_size) - tracks_.begin());
    if (track == tracks_.size())
      tracks_.push_back({.block_size_tokens = group.block_size_tokens,
                         .column = std::vector<std::int32_t>(requests, forgotten_column),
                         .accepted = std::vector<std::int32_t>(requests, neutral_accepted),
                         .decisions = std::vector<Decision>(requests)});
    groups_.push_back({.track = track,
                       .plan = {},
                       .written = std::vector<std::uint32_t>(static_cast<std::size_t>(group.blocks), 0),
                       .publication = PublicationCheck(group.blocks)});
    groups_.back().plan.reserve(requests);
  }
}

void AlignPlanner::add_request(RequestIndex request, std::int64_t computed) {
  check_request(request);
  require(computed >= 0 && computed <= INT32_MAX, "computed", computed, "must be a 32-bit count");
  for (Track& track : tracks_) {
    track.column[request.index()] = seed_column(computed, track.block_size_tokens);
    track.accepted[request.index()] = neutral_accepted;
  }
}

void AlignPlanner::forget(std::span<const RequestIndex> finished, std::span<const RequestIndex> preempted,
                          std::span<const RequestIndex> resumed) {
  for (const auto list : {finished, preempted, resumed})
    for (const RequestIndex request : list) check_request(request);
  for (const auto list : {finished, preempted, resumed})
    for (const RequestIndex request : list)
      for (Track& track : tracks_) {
        track.column[request.index()] = forgotten_column;
        track.accepted[request.index()] = neutral_accepted;
      }
}

AlignStep AlignPlanner::pre_step(const AlignBatch& batch, std::span<const BlockTable> tables) {
  check_batch(batch);
  check_tables(tables, batch.request.size());
  if (options_.mode != AlignMode::align) return plan_nothing();
  const BatchCounts counts = batch.counts();
  decide([&](LiveRow live, const Track& track) -> Decision {
    const AlignPreStep step = align_pre_step(live.computed(counts), live.scheduled(counts), track.column[live.slot],
                                             track.accepted[live.slot], track.block_size_tokens);
    return {.column = step.column,
            .accepted = step.accepted,
            .src_column = step.src_column,
            .dst_column = step.column,
            .bias = step.bias,
            .copy = step.copy};
  });
  const AlignStep step = plan_copies(tables, 0);
  commit(step);
  return step;
}

void AlignPlanner::accept(std::span<const std::int32_t> request, std::span<const std::int32_t> sampled) {
  check_requests(request);
  require(sampled.size() == request.size(), "sampled", sampled.size(), "must have one entry per batch row");
  for (const LiveRow live : live_)
    require(sampled[live.row] >= 0 && sampled[live.row] <= 1 + options_.drafts, "sampled", sampled[live.row],
            "must be between 0 and 1 + drafts");
  for (Track& track : tracks_)
    for (const LiveRow live : live_) track.accepted[live.slot] = accepted_after_sampling(sampled[live.row]);
}

AlignStep AlignPlanner::post_step(const AlignBatch& batch, std::span<const BlockTable> tables) {
  check_batch(batch);
  check_tables(tables, batch.request.size());
  const BatchCounts counts = batch.counts();
  if (options_.mode == AlignMode::all)
    for (Track& track : tracks_)
      for (const LiveRow live : live_)
        track.column[live.slot] =
            all_mode_column(live.computed(counts), live.scheduled(counts), options_.drafts, track.block_size_tokens);
  return plan_post_step(tables, [&](LiveRow live, std::int32_t) {
    return std::int64_t{live.computed(counts)} + live.scheduled(counts) - live.drafts(counts);
  });
}

AlignStep AlignPlanner::post_step_advanced(std::span<const std::int32_t> request,
                                           std::span<const std::int32_t> new_computed,
                                           std::span<const BlockTable> tables) {
  check_requests(request);
  require(new_computed.size() == request.size(), "new_computed", new_computed.size(),
          "must have one entry per batch row");
  for (const LiveRow live : live_)
    require(new_computed[live.row] >= 0, "new_computed", new_computed[live.row], "must not be negative");
  check_tables(tables, request.size());
  return plan_post_step(
      tables, [&](LiveRow live, std::int32_t accepted) { return std::int64_t{new_computed[live.row]} - accepted + 1; });
}

template <class RunningOf>
AlignStep AlignPlanner::plan_post_step(std::span<const BlockTable> tables, const RunningOf& running_of) {
  if (options_.mode != AlignMode::align) return plan_nothing();
  decide([&](LiveRow live, const Track& track) -> Decision {
    const std::int32_t column = track.column[live.slot];
    const std::int32_t accepted = track.accepted[live.slot];
    const std::int64_t running = running_of(live, accepted);
    const AlignPostStep step = align_post_step_running(running, accepted, column, track.block_size_tokens);
    return {.column = column,
            .accepted = step.accepted,
            .src_column = step.src_column,
            .dst_column = step.dst_column,
            .bias = step.bias,
            .copy = step.moves_bytes,
            .running = running};
  });
  const AlignStep step = plan_copies(tables, 1 + options_.drafts);
  record_forward(tables);
  commit(step);
  return step;
}

CopyPlan AlignPlanner::plan(std::int32_t group) const {
  return group_at(group).plan;
}
std::span<const std::int32_t> AlignPlanner::columns(std::int32_t group) const {
  return track_of(group_at(group)).column;
}
std::span<const std::int32_t> AlignPlanner::accepted(std::int32_t group) const {
  return track_of(group_at(group)).accepted;
}
PublicationCheck& AlignPlanner::publication(std::int32_t group) {
  return const_cast<Group&>(group_at(group)).publication;
}

void AlignPlanner::gather_accepted(std::int32_t group, std::span<const std::int32_t> request,
                                   std::span<std::int32_t> out) const {
  const std::span<const std::int32_t> accepted = this->accepted(group);
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
  require(start_column <= INT64_MAX - std::ssize(keep), "start_column", start_column,
          "leaves no number for the columns");
  const AlignGroup& spec = options_.groups[static_cast<std::size_t>(group)];
  fill_retention_mask(spec.retention, spec.block_size_tokens, start_column, boundaries, keep);
}

PrefillCheckpoint AlignPlanner::checkpoint_in(std::int32_t group, PrefillCheckpointQuery chunk) const {
  static_cast<void>(group_at(group));
  require(chunk.hash_block >= 1, "hash_block", chunk.hash_block, "must be at least 1");
  require(chunk.alignment >= 0, "alignment", chunk.alignment, "must not be negative");
  require(chunk.start >= 0 && chunk.start <= chunk.end, "start", chunk.start, "must lie in [0, end]");
  const std::int64_t block = options_.groups[static_cast<std::size_t>(group)].block_size_tokens;
  require(chunk.end / block < INT32_MAX, "end", chunk.end, "has more columns than can be numbered");
  chunk.state_block = block;
  return prefill_checkpoint(chunk);
}

void AlignPlanner::check_invariants() const {
  constexpr const char* structure = "AlignPlanner";
  for (const Track& track : tracks_) {
    for (const std::int32_t accepted : track.accepted)
      require_invariant(accepted >= neutral_accepted && accepted <= 1 + options_.drafts, structure,
                        "an accepted count is not in [1, 1 + drafts]");
    for (const std::int32_t column : track.column)
      require_invariant(column >= forgotten_column, structure, "a remembered column is not a column");
  }
  for (const Group& group : groups_)
    require_invariant(group.plan.size() <= seen_.size(), structure, "a plan has more copies than requests");
}

const AlignPlanner::Group& AlignPlanner::group_at(std::int32_t group) const {
  require(group >= 0 && group < groups(), "group", group, "is out of range");
  return groups_[static_cast<std::size_t>(group)];
}

void AlignPlanner::check_request(RequestIndex request) const {
  require(request.valid() && request.value() < options_.max_requests, "request", request, "is not a request slot");
}

void AlignPlanner::check_requests(std::span<const std::int32_t> request) {
  // A wrapped epoch would take old marks for new ones.
  if (++epoch_ == 0) {
    std::ranges::fill(seen_, 0u);
    for (Group& group : groups_) std::ranges::fill(group.written, 0u);
    epoch_ = 1;
  }
  live_.clear();
  for (std::size_t row = 0; row < request.size(); ++row) {
    const std::int32_t slot = request[row];
    if (slot < 0) continue;
    require(slot < options_.max_requests, "request", slot, "is not a request slot");
    std::uint32_t& seen = seen_[static_cast<std::size_t>(slot)];
    require(seen != epoch_, "request", slot, "is named twice");
    seen = epoch_;
    live_.push_back({row, static_cast<std::uint32_t>(slot)});
  }
}

void AlignPlanner::check_batch(const AlignBatch& batch) {
  const std::size_t rows = batch.request.size();
  const std::size_t requests = seen_.size();
  check_requests(batch.request);
  require(batch.computed.size() == (batch.computed_by_request ? requests : rows), "computed", batch.computed.size(),
          "must have one entry per batch row, or per request slot");
  if (batch.query_start_loc.empty())
    require(batch.scheduled.size() == rows, "scheduled", batch.scheduled.size(), "must have one entry per batch row");
  else
    require(batch.scheduled.empty() && batch.query_start_loc.size() == rows + 1, "query_start_loc",
            batch.query_start_loc.size(), "must have one entry more than the batch rows, in place of scheduled");
  require(batch.drafts.empty() || batch.drafts.size() == (batch.drafts_by_request ? requests : rows), "drafts",
          batch.drafts.size(), "must have one entry per batch row, or per request slot, or none");
  for (const std::int32_t start : batch.query_start_loc)
    require(start >= 0, "query_start_loc", start, "must not be negative");
  const BatchCounts counts = batch.counts();
  for (const LiveRow live : live_) check_counts(counts, live);
}

void AlignPlanner::check_counts(const BatchCounts& counts, LiveRow live) const {
  const std::int32_t computed = live.computed(counts);
  const std::int32_t scheduled = live.scheduled(counts);
  const std::int32_t drafts = live.drafts(counts);
  require(computed >= 0, "computed", computed, "must not be negative");
  require(scheduled >= 0, "scheduled", scheduled, "must not be negative");
  require(scheduled <= INT32_MAX - computed, "scheduled", scheduled, "makes more tokens than 32 bits count");
  require(drafts >= 0 && drafts <= options_.drafts, "drafts", drafts, "must be between 0 and the planner's drafts");
  require(drafts <= scheduled, "drafts", drafts, "must be among the scheduled");
}

void AlignPlanner::check_tables(std::span<const BlockTable> tables, std::size_t rows) const {
  require(tables.size() == groups_.size(), "tables", tables.size(), "must have one entry per group");
  for (const BlockTable& table : tables) {
    require(table.columns >= 0, "columns", table.columns, "must not be negative");
    require(table.row_stride >= table.columns, "row_stride", table.row_stride, "must be at least columns");
    const auto held = static_cast<std::int64_t>(table.ids.size());
    const auto last = static_cast<std::int64_t>(rows) - 1;
    const bool holds_all =
        last < 0 || (held >= table.columns && (last == 0 || table.row_stride <= (held - table.columns) / last));
    require(holds_all, "ids", held, "has fewer rows than the batch");
  }
}

AlignStep AlignPlanner::plan_nothing() {
  for (Group& group : groups_) group.plan.clear();
  return {};
}

template <class Rule>
void AlignPlanner::decide(const Rule& rule) {
  for (Track& track : tracks_)
    for (std::size_t i = 0; i < live_.size(); ++i) track.decisions[i] = rule(live_[i], track);
}

AlignStep AlignPlanner::plan_copies(std::span<const BlockTable> tables, std::int32_t window_columns) {
  AlignStep step = plan_nothing();
  const std::span<const LiveRow> live = live_;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    const BlockTable table = tables[g];
    const std::int32_t blocks_of_group = options_.groups[g].blocks;
    const std::span<const Decision> decisions = track_of(group).decisions;
    for (std::size_t i = 0; i < live.size(); ++i) {
      const Decision& decision = decisions[i];
      require(decision.column != forgotten_column, "request", live[i].slot, "has no remembered column");
      if (!decision.copy && window_columns == 0) continue;
      const Row blocks(table, live[i].row, blocks_of_group);
      blocks.check(decision.column, std::int64_t{decision.column} + window_columns);
      if (!decision.copy) continue;
      const ColumnCopy resolved = blocks.copy(decision.src_column, decision.dst_column, decision.bias);
      step.skipped_parts += resolved.skipped_parts;
      if (resolved.skipped_parts < 2) group.plan.push_back(resolved.copy);
    }
    check_plan(group);
    step.copies += static_cast<std::int64_t>(group.plan.size());
  }
  return step;
}

/// A plan's copies run in no order, so a block may be written once, and no other copy may read a block that one writes.
void AlignPlanner::check_plan(Group& group) const {
  const std::uint32_t epoch = epoch_;
  const std::span<std::uint32_t> written = group.written;
  for (const SlotCopy& copy : group.plan) {
    std::uint32_t& mark = written[static_cast<std::size_t>(copy.dst_slot)];
    require(mark != epoch, "block id", copy.dst_slot, "is written by two copies of one step");
    mark = epoch;
  }
  for (const SlotCopy& copy : group.plan) {
    const auto check_source = [&](std::int32_t src) {
      require(src < 0 || src == copy.dst_slot || written[static_cast<std::size_t>(src)] != epoch, "block id", src,
              "is the source of one copy and the destination of another");
    };
    check_source(copy.src_slot);
    check_source(copy.recurrent_src_slot);
  }
}

/// The forward of the step wrote the running state and the states after each kept draft; the columns behind them are of
/// drafts that were not kept.
void AlignPlanner::record_forward(std::span<const BlockTable> tables) {
  const std::span<const LiveRow> live = live_;
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    const BlockTable table = tables[g];
    const Track& track = track_of(group);
    for (std::size_t i = 0; i < live.size(); ++i) {
      const Decision& decision = track.decisions[i];
      const std::int64_t column = decision.column;
      const std::int64_t first = std::max<std::int64_t>(column, 0);
      const Row blocks(table, live[i].row, options_.groups[g].blocks);
      const std::span<const std::int32_t> window = blocks.ids(first, column + 1 + options_.drafts);
      group.publication.wrote_window(window, first - column, decision.running,
                                     forward_kept(track.accepted[live[i].slot], options_.drafts));
    }
  }
}

void AlignPlanner::commit(const AlignStep& step) {
  for (Group& group : groups_)
    for (const SlotCopy& copy : group.plan) group.publication.copied(copy);
  for (Track& track : tracks_)
    for (std::size_t i = 0; i < live_.size(); ++i) {
      track.column[live_[i].slot] = track.decisions[i].column;
      track.accepted[live_[i].slot] = track.decisions[i].accepted;
    }
  skipped_parts_ += step.skipped_parts;
}

}  // namespace stateport
