// SPDX-License-Identifier: Apache-2.0
// Inputs and outputs of a request cache, between C and C++.
#include "request_cache.hpp"

#include "align_options.hpp"
#include "arguments.hpp"
#include "copies.hpp"
#include "eviction.hpp"
#include "memory_moves.hpp"
#include "prefix_tree.hpp"
#include "transfers.hpp"

#include <algorithm>
#include <iterator>
#include <type_traits>
#include <utility>

namespace stateport::c {
namespace {

static_assert(STATEPORT_INDEX_HASH == static_cast<int>(CacheIndex::hash) &&
              STATEPORT_INDEX_TREE == static_cast<int>(CacheIndex::tree));
static_assert(STATEPORT_HASH_SHA256 == static_cast<int>(BlockHashKind::sha256) &&
              STATEPORT_HASH_XXH3_128 == static_cast<int>(BlockHashKind::xxh3_128));
static_assert(STATEPORT_EVENT_STORED == static_cast<int>(CacheEvent::Kind::stored) &&
              STATEPORT_EVENT_REMOVED == static_cast<int>(CacheEvent::Kind::removed) &&
              STATEPORT_EVENT_CLEARED == static_cast<int>(CacheEvent::Kind::cleared));
static_assert(lost_hit_count < STATEPORT_LOST_REASONS_MAX && STATEPORT_LOST_TIER_FAILED == lost_hit_count);

std::int32_t to_c(const std::optional<LostHit>& lost) noexcept {
  return lost ? static_cast<std::int32_t>(*lost) + 1 : STATEPORT_LOST_NOTHING;
}

std::int32_t slot_at(std::span<const std::int32_t> slots, std::int64_t column) noexcept {
  return column >= 0 && std::cmp_less(column, slots.size()) ? slots[static_cast<std::size_t>(column)] : STATEPORT_NONE;
}

}  // namespace

namespace {

SlotLayout read_slot_layout(const stateport_slot_layout* layout) {
  const auto given = read_struct<stateport_slot_layout>(layout, "slots");
  return {.layout_fingerprint = given.layout_fingerprint,
          .checkpoints = given.checkpoints,
          .separate_checkpoints = given.separate_checkpoints != 0,
          .scan_alignment_tokens = given.scan_alignment_tokens,
          .placement = enumerator(given.placement, CheckpointPlacement::every, "placement"),
          .tail_tokens = given.tail_tokens,
          .breakpoint_saves = given.breakpoint_saves,
          .spare_checkpoint_tokens = given.spare_checkpoint_tokens,
          .decode_checkpoint_tokens = given.decode_checkpoint_tokens,
          .budget_bytes = given.budget_bytes,
          .arena = read_arena(given.arena)};
}

ColumnLayout read_column_layout(const stateport_column_layout* layout) {
  const auto given = read_struct<stateport_column_layout>(layout, "columns");
  ColumnLayout wanted{.mode = align_mode_from_c(given.mode, "mode")};
  wanted.tail_tokens = given.tail_tokens;
  for (const stateport_state_group& group : read_structs(given.groups, given.group_count, "groups"))
    wanted.groups.push_back({.block_size_tokens = group.block_size_tokens,
                             .blocks = group.blocks,
                             .conv_window = group.conv_window,
                             .layout_fingerprint = group.layout_fingerprint});
  return wanted;
}

ShareRunning read_share_running(const stateport_share_running* share) {
  const auto given = read_optional_struct(share, "share_running");
  ShareRunning wanted{.least_tokens = given.least_tokens};
  if (given.longest_commits != 0) wanted.longest_commits = given.longest_commits;
  return wanted;
}

PrefixOptions read_prefix_options(const stateport_prefix_options* options) {
  const auto given = read_optional_struct(options, "prefixes");
  return {.pins = given.pins,
          .pinned_bytes = given.pinned_bytes,
          .prefetches = given.prefetches,
          .prefetched_bytes = given.prefetched_bytes};
}

SessionOptions read_session_options(const stateport_session_options* options) {
  const auto given = read_optional_struct(options, "sessions");
  return {.remembered = given.remembered, .idle_s = given.idle_s, .most_bytes = given.most_bytes};
}

}  // namespace

RequestCacheOptions read_cache_options(const stateport_request_cache_options* options) {
  const auto given = read_struct<stateport_request_cache_options>(options, "options");
  RequestCacheOptions wanted{.index = enumerator(given.index, CacheIndex::tree, "index"),
                             .max_requests = given.max_requests,
                             .max_request_tokens = given.max_request_tokens,
                             .drafts = given.drafts,
                             .kv_tokens = given.kv_tokens,
                             .unchecked_layout = given.unchecked_layout != 0,
                             .hash = enumerator(given.hash, BlockHashKind::xxh3_128, "hash"),
                             .hash_seed = given.hash_seed,
                             .epoch = given.epoch,
                             .overlap = given.overlap != 0,
                             .events = given.events != 0,
                             .scrub = given.scrub != 0,
                             .integrity = given.integrity != 0,
                             .tenant_quotas = given.tenant_quotas,
                             .share_running = read_share_running(given.share_running),
                             .prefixes = read_prefix_options(given.prefixes),
                             .sessions = read_session_options(given.sessions),
                             .tiers = read_tier_options(given.tiers)};
  require((given.slots == nullptr) != (given.columns == nullptr), "slots", given.slots == nullptr ? "null" : "given",
          "must be given if and only if columns is null");
  if (given.slots != nullptr)
    wanted.layout = read_slot_layout(given.slots);
  else
    wanted.layout = read_column_layout(given.columns);
  if (given.block_size_tokens != 0) wanted.block_size_tokens = given.block_size_tokens;
  if (given.cost_linear != 0 || given.cost_quadratic != 0) wanted.cost = {given.cost_linear, given.cost_quadratic};
  if (given.position_tokens != 0) wanted.position_tokens = given.position_tokens;
  bool has_costs = false;
  if (given.eviction != nullptr) {
    const auto costs = read_struct<stateport_eviction_options>(given.eviction, "eviction");
    has_costs = costs.state_bytes > 0 && costs.kv_bytes_per_token > 0;
  }
  const std::int64_t budget_bytes = slot_layout(wanted).budget_bytes;
  require(budget_bytes == 0 || has_costs, "budget_bytes", budget_bytes,
          "needs state_bytes and kv_bytes_per_token of eviction");
  const bool keeps_kv = read_optional_struct(given.tiers, "tiers").leading_blocks != nullptr;
  const bool has_image_sizes = wanted.tiers.state_image_bytes != 0 && (keeps_kv || wanted.tiers.kv_image_bytes != 0);
  require(!wanted.tiers.enabled() || has_costs || has_image_sizes, "tiers.state_image_bytes",
          wanted.tiers.state_image_bytes,
          "must be given with kv_image_bytes, or eviction must name state_bytes and kv_bytes_per_token");
  if (given.eviction == nullptr) return wanted;
  const NamedEviction eviction = read_eviction(given.eviction, "eviction");
  wanted.eviction = eviction.order;
  wanted.eviction_options = eviction.options;
  wanted.memory = eviction.memory;
  return wanted;
}

stateport_started_request to_c(const StartedRequest& started) noexcept {
  const TierLoad load = started.load.value_or(TierLoad{.medium = Medium::device});
  const PrefixWait wait = started.waits_for.value_or(PrefixWait{});
  return {.request = started.request.value(),
          .lost = to_c(started.lost),
          .reused_tokens = started.reused_tokens,
          .lost_tokens = started.lost_tokens,
          .load_tokens = load.tokens,
          .load_bytes = load.bytes,
          .load_medium = static_cast<std::int32_t>(load.medium),
          .waits_for_request = wait.request.value(),
          .waits_for_tokens = wait.tokens,
          .breakpoints = started.breakpoints.data(),
          .breakpoint_count = started.breakpoints.size()};
}

stateport_cache_event to_c(const CacheEvent& event) noexcept {
  return {.sequence = event.sequence,
          .kind = static_cast<std::int32_t>(event.kind),
          .content = static_cast<std::int32_t>(event.content),
          .medium = static_cast<std::int32_t>(event.medium),
          .group = event.group,
          .prefix = {event.prefix.words[0], event.prefix.words[1]},
          .parent = {event.parent.words[0], event.parent.words[1]},
          .tokens = event.tokens};
}

stateport_cache_stats to_c(const CacheStats& stats, const CacheUsage& usage) noexcept {
  constexpr double median = 0.5;
  constexpr double most = 0.9;
  stateport_cache_stats reported = {.requests = stats.requests,
                                    .requests_hit = stats.requests_hit,
                                    .prompt_tokens = stats.prompt_tokens,
                                    .hit_tokens = stats.hit_tokens,
                                    .hit_flops = stats.hit_flops,
                                    .evicted_states = usage.evicted_states,
                                    .reuse_age_p50_s = stats.reuse_ages.quantile(median),
                                    .reuse_age_p90_s = stats.reuse_ages.quantile(most),
                                    .eviction_age_p50_s = stats.eviction_ages.quantile(median),
                                    .eviction_age_p90_s = stats.eviction_ages.quantile(most),
                                    .evicted_kv_tokens = usage.evicted_kv_tokens,
                                    .kv_tokens = usage.kv_tokens,
                                    .states = usage.states,
                                    .breakpoints_kept = stats.breakpoints_kept,
                                    .breakpoints_refused = stats.breakpoints_refused,
                                    .awaited_tokens = stats.awaited_tokens,
                                    .forks = stats.forks};
  for (std::size_t reason = 0; reason < stats.lost.size(); ++reason) {
    reported.lost_requests[reason + 1] = stats.lost[reason].requests;
    reported.lost_tokens[reason + 1] = stats.lost[reason].tokens;
    reported.lost_flops[reason + 1] = stats.lost[reason].flops;
  }
  std::ranges::copy(stats.loaded_tokens, reported.loaded_tokens);
  const auto copy = [](const auto& histogram, auto& counts) {
    static_assert(std::extent_v<std::remove_reference_t<decltype(counts)>> ==
                  std::remove_cvref_t<decltype(histogram)>::buckets);
    for (std::size_t bucket = 0; bucket < std::size(counts); ++bucket)
      counts[bucket] = histogram.count(static_cast<int>(bucket));
  };
  copy(stats.reuse_ages, reported.reuse_ages);
  copy(stats.eviction_ages, reported.eviction_ages);
  copy(stats.hit_depths, reported.hit_depths);
  copy(stats.loss_depths, reported.loss_depths);
  return reported;
}

void GroupPlanArrays::reserve(std::size_t rows, std::size_t cleared, std::size_t saves) {
  saves_.reserve(saves);
  clear_.reserve(cleared);
  copies_.reserve(rows);
  slots_.reserve(rows);
  for (auto* const column :
       {&slot_count_, &read_column_, &read_bias_, &write_column_, &read_slot_, &read_recurrent_slot_, &write_slot_})
    column->reserve(rows);
}

void GroupPlanArrays::clear() noexcept {
  clear_.clear();
  copies_.clear();
  slots_.clear();
  slot_count_.clear();
  read_column_.clear();
  read_bias_.clear();
  write_column_.clear();
  read_slot_.clear();
  read_recurrent_slot_.clear();
  write_slot_.clear();
  saves_.clear();
}

void GroupPlanArrays::add(std::int32_t row, const RowState& state) {
  slots_.push_back(state.slots.data());
  slot_count_.push_back(static_cast<std::int32_t>(state.slots.size()));
  read_column_.push_back(state.read_column);
  read_bias_.push_back(state.read_bias);
  write_column_.push_back(state.write_column);
  read_slot_.push_back(slot_at(state.slots, state.read_column));
  read_recurrent_slot_.push_back(
      state.read_column < 0 ? STATEPORT_NONE : slot_at(state.slots, std::int64_t{state.read_column} + state.read_bias));
  write_slot_.push_back(slot_at(state.slots, state.write_column));
  for (const StateSave& save : state.saves)
    saves_.push_back({row, save.offset, save.slot.value(), save.in_scratch ? 1 : 0});
}

void GroupPlanArrays::add_nothing() {
  add(0, {.write_column = STATEPORT_NONE});
}

void GroupPlanArrays::set(const GroupPlan& plan) {
  for (const SlotId slot : plan.clear) clear_.push_back(slot.value());
  to_c(plan.copies, copies_);
}

stateport_group_plan GroupPlanArrays::view() const noexcept {
  return {.clear = clear_.data(),
          .clear_count = clear_.size(),
          .copies = copies_.data(),
          .copy_count = copies_.size(),
          .slots = slots_.data(),
          .slot_count = slot_count_.data(),
          .read_column = read_column_.data(),
          .read_bias = read_bias_.data(),
          .write_column = write_column_.data(),
          .read_slot = read_slot_.data(),
          .read_recurrent_slot = read_recurrent_slot_.data(),
          .write_slot = write_slot_.data(),
          .saves = saves_.data(),
          .save_count = saves_.size()};
}

PassPlanArrays::PassPlanArrays(const RequestCacheOptions& options) : memory_(options), groups_(group_count(options)) {
  const auto rows = static_cast<std::size_t>(options.max_requests);
  room_.reserve(rows);
  start_.reserve(rows);
  kv_.reserve(rows);
  kv_count_.reserve(rows);
  fork_copies_.reserve(rows);
  for (std::size_t group = 0; group < groups_.size(); ++group)
    groups_[group].reserve(rows, rows + (options.scrub ? static_cast<std::size_t>(state_slots(options, group)) : 0),
                           saves_max(options));
  if (!options.scrub) return;
  scrub_kv_.reserve(static_cast<std::size_t>(kv_blocks(options)));
  scrub_scratch_.reserve(static_cast<std::size_t>(scratch_slots(options)));
  scrub_draft_rows_.reserve(rows);
}

void PassPlanArrays::set(const PassPlan& plan, const stateport_transfer* transfers) {
  answer_ = {.pass = plan.pass,
             .transfers = transfers,
             .transfer_count = plan.transfers.size(),
             .ready = plan.ready ? 1 : 0,
             .rows_without_room = plan.rows_without_room,
             .rows = plan.rows.size()};
  room_.clear();
  start_.clear();
  kv_.clear();
  kv_count_.clear();
  for (GroupPlanArrays& group : groups_) group.clear();
  for (const RowPlan& row : plan.rows) add(row);
  for (std::size_t group = 0; group < std::min(groups_.size(), plan.groups.size()); ++group)
    groups_[group].set(plan.groups[group]);
  scrub_kv_.assign(plan.scrub.kv_blocks.begin(), plan.scrub.kv_blocks.end());
  scrub_scratch_.clear();
  for (const SlotId slot : plan.scrub.scratch) scrub_scratch_.push_back(slot.value());
  scrub_draft_rows_.assign(plan.scrub.draft_rows.begin(), plan.scrub.draft_rows.end());
  to_c(plan.fork_copies, fork_copies_);
  memory_.set(plan.memory);
}

void PassPlanArrays::add(const RowPlan& row) {
  const auto index = static_cast<std::int32_t>(room_.size());
  room_.push_back(row.room ? 1 : 0);
  start_.push_back(row.start);
  kv_.push_back(row.kv.ids.data());
  kv_count_.push_back(static_cast<std::int64_t>(row.kv.ids.size()));
  if (row.room) answer_.kv_tokens_per_id = row.kv.tokens_per_id;
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    if (group < row.states.size())
      groups_[group].add(index, row.states[group]);
    else
      groups_[group].add_nothing();
  }
}

stateport_pass_plan PassPlanArrays::view() const noexcept {
  stateport_pass_plan reported = answer_;
  reported.room = room_.data();
  reported.start = start_.data();
  reported.kv = kv_.data();
  reported.kv_count = kv_count_.data();
  reported.scrub_kv = scrub_kv_.data();
  reported.scrub_kv_count = scrub_kv_.size();
  reported.scrub_scratch = scrub_scratch_.data();
  reported.scrub_scratch_count = scrub_scratch_.size();
  reported.scrub_draft_rows = scrub_draft_rows_.data();
  reported.scrub_draft_rows_count = scrub_draft_rows_.size();
  reported.fork_copies = fork_copies_.data();
  reported.fork_copy_count = fork_copies_.size();
  memory_.point(reported);
  return reported;
}

void GroupCommitArrays::reserve(std::size_t rows, std::size_t saves) {
  from_scratch_.reserve(saves);
  steps_.reserve(rows);
  copies_.reserve(rows);
}

void GroupCommitArrays::set(const GroupCommit& commit) {
  steps_.clear();
  for (const StepCommit& step : commit.steps)
    steps_.push_back({step.row, step.live_step, step.live_slot.value(), step.kept_step, step.kept_slot.value()});
  to_c(commit.from_scratch, from_scratch_);
  to_c(commit.copies, copies_);
}

stateport_group_commit GroupCommitArrays::view() const noexcept {
  return {.steps = steps_.data(),
          .step_count = steps_.size(),
          .from_scratch = from_scratch_.data(),
          .from_scratch_count = from_scratch_.size(),
          .copies = copies_.data(),
          .copy_count = copies_.size()};
}

}  // namespace stateport::c
