// SPDX-License-Identifier: Apache-2.0
#include "report/json.hpp"

#include "report/figures.hpp"

#include <nlohmann/json.hpp>

#include <initializer_list>
#include <span>
#include <string>
#include <vector>

namespace stateport::replay {
namespace {

using Json = nlohmann::ordered_json;

std::string written(const Json& json) {
  return json.dump(2) + "\n";
}

/// An object with a value for each reason of a lost hit.
template <class ValueOf>
Json by_reason(const ValueOf& value_of) {
  Json json;
  for (std::size_t reason = 0; reason < lost_hit_count; ++reason)
    json[std::string(name(static_cast<LostHit>(reason)))] = value_of(reason);
  return json;
}

Json schedule_json(const ScheduleOptions& schedule) {
  return {{"concurrency", schedule.concurrency},
          {"max_running", schedule.running_max},
          {"step_tokens", schedule.step_tokens_max},
          {"refresh", schedule.refresh},
          {"share_running_tokens", schedule.share_running.least_tokens},
          {"share_running_passes", schedule.share_running.longest_commits}};
}

Json align_json(const Report& report, const Derived& derived) {
  const PassCounts& passes = *report.passes;
  Json json = {{"drafts", report.run.drafts},
               {"accept", report.run.accept},
               {"counters", report.run.asynchronous ? "async" : "sync"},
               {"computed_prompt_tokens", passes.computed_prompt_tokens},
               {"computed_share", derived.computed_share},
               {"awaited_tokens", report.cache.awaited_tokens},
               {"first_token_after_tokens_p50", derived.first_token_p50},
               {"first_token_after_tokens_p99", derived.first_token_p99},
               {"steps", passes.steps},
               {"drafts_proposed", passes.drafts_proposed},
               {"drafts_accepted", passes.drafts_accepted},
               {"copies", passes.copies},
               {"skipped_parts", passes.skipped_parts},
               {"published", report.mover.commits},
               {"refused", passes.refused},
               {"planning_ns_p50", derived.planning_p50},
               {"planning_ns_p99", derived.planning_p99}};
  json.update(schedule_json(report.run.schedule));
  return json;
}

Json timeline_json(const Report& report) {
  Json json = Json::array();
  for (const Interval& interval : report.timeline) {
    json.push_back({{"begin_s", interval.begin_s},
                    {"end_s", interval.end_s},
                    {"requests", interval.requests},
                    {"input_tokens", interval.input_tokens},
                    {"hit_tokens", interval.hit_tokens},
                    {"host_hit_tokens", interval.host_hit_tokens},
                    {"file_hit_tokens", interval.file_hit_tokens},
                    {"lost_tokens", by_reason([&](std::size_t reason) { return interval.lost_tokens[reason]; })},
                    {"kv_bytes", interval.kv_bytes},
                    {"state_bytes", interval.state_bytes},
                    {"states_copied", interval.states_copied},
                    {"needed_gb_per_s", needed_gb_per_s(interval, report.run.copy_bytes())},
                    {"copied_gb_per_s", copied_gb_per_s(interval, report.mover.copy_bytes)}});
  }
  return json;
}

Json ages_json(const CacheStats& stats) {
  int shown = AgeHistogram::buckets;  // up to the last one that counted something
  while (shown > 0 && stats.reuse_ages.count(shown - 1) + stats.eviction_ages.count(shown - 1) == 0) --shown;
  Json json = Json::array();
  for (int bucket = 0; bucket < shown; ++bucket)
    json.push_back({{"below_s", AgeHistogram::upper(bucket)},  // null: longer
                    {"reuses", stats.reuse_ages.count(bucket)},
                    {"evictions", stats.eviction_ages.count(bucket)}});
  return json;
}

Json cells_json(std::span<const SweepCell> cells) {
  Json json = Json::array();
  for (const SweepCell& cell : cells)
    json.push_back({{"policy", name(cell.policy)},
                    {"budget_bytes", cell.budget_bytes},
                    {"hit_tokens", cell.hit_tokens},
                    {"host_hit_tokens", cell.host_hit_tokens},
                    {"file_hit_tokens", cell.file_hit_tokens},
                    {"token_hit_rate", cell.token_hit_rate},
                    {"victims", cell.victims},
                    {"metadata_bytes", cell.metadata_bytes},
                    {"memory_moves", cell.memory_moves},
                    {"bookkeeping_ns_p50", cell.bookkeeping_ns_p50},
                    {"bookkeeping_ns_mean", cell.bookkeeping_ns_mean}});
  return json;
}

Json steps_json(std::span<const Sizing::Step> steps) {
  Json json = Json::array();
  for (const Sizing::Step& step : steps)
    json.push_back(
        {{"bytes", step.bytes}, {"token_hit_rate", step.token_hit_rate}, {"tokens_per_gib", step.tokens_per_gib}});
  return json;
}

/// The workload and the model: settings of every command.
Json about_json(const RunDescription& run) {
  Json json = {{"command", run.command},
               {"workload", run.workload},
               {"skipped_lines", run.bad_lines},
               {"model", run.model},
               {"block_size", run.block_size_tokens},
               {"state_bytes", run.full_state_bytes},
               {"checkpoint_dtype", run.checkpoint_type},
               {"checkpoint_bytes", run.checkpoint_bytes}};
  if (run.recorded)
    json.update({{"engine", run.recorded->engine},
                 {"engine_version", run.recorded->version},
                 {"sample", run.recorded->sample},
                 {"never_ran", run.never_ran}});
  return json;
}

/// Of a trace with hits of life; else nothing.
Json recorded_json(const RecordedHits& recorded) {
  if (recorded.requests == 0) return Json::object();
  return {{"recorded_requests", recorded.requests},
          {"recorded_input_tokens", recorded.input_tokens},
          {"recorded_hit_tokens", recorded.recorded_tokens},
          {"replayed_hit_tokens", recorded.replayed_tokens},
          {"hit_tokens_difference", recorded.replayed_tokens - recorded.recorded_tokens}};
}

Json run_json(const RunDescription& run) {
  Json json = about_json(run);
  json.update({{"cache", run.cache},
               {"checkpoint", run.checkpoint},
               {"hash", run.hash},
               {"device", run.device},
               {"blocks", run.blocks},
               {"slots", run.slots},
               {"unlimited", run.unlimited},
               {"budget_bytes", run.memory.bytes},
               {"host_bytes", run.memory.host_bytes},
               {"disk_bytes", run.memory.disk_bytes},
               {"host_bytes_per_s", run.memory.speeds.host_bytes_per_s},
               {"disk_bytes_per_s", run.memory.speeds.file_bytes_per_s},
               {"prefill_tokens_per_s", run.memory.speeds.tokens_per_s}});
  if (run.memory.bytes > 0) json["policy"] = name(run.memory.policy);
  return json;
}

/// The tiers below the budget, from the fastest to the slowest.
Json tiers_json(const Report& report) {
  Json tiers = Json::array();
  for (const Medium medium : {Medium::host, Medium::file}) {
    if (!report.run.has_tier(medium)) continue;
    const TierUsage& tier = report.cache.of(medium);
    tiers.push_back({{"name", medium == Medium::host ? "host" : "file"},
                     {"bytes", report.run.tier_bytes(medium)},
                     {"loads", tier.loads},
                     {"token_hit_rate", tier_hit_rate(report, tier)},
                     {"bytes_read", tier.bytes_read},
                     {"bytes_written", tier.bytes_written},
                     {"dropped", tier.dropped_states + tier.refused_images},
                     {"seconds", report.run.memory.speeds.tokens_per_s > 0 ? Json(tier.saved_s) : Json()},
                     {"states", tier.states},
                     {"blocks", tier.kv_blocks}});
  }
  return tiers;
}

Json tenants_json(const Report& report) {
  Json json = Json::array();
  for (const Tenant tenant : tenants) {
    const TenantCounts& counts = report.replay.of(tenant);
    json.push_back({{"name", name(tenant)},
                    {"floor_bytes", report.run.tenants.floor_of(tenant)},
                    {"most_bytes", report.run.tenants.most_of(tenant)},
                    {"requests", counts.requests},
                    {"input_tokens", counts.input_tokens},
                    {"hit_tokens", counts.hit_tokens},
                    {"token_hit_rate", counts.token_hit_rate()},
                    {"bytes", report.cache.tenant_bytes[static_cast<std::size_t>(tenant)]}});
  }
  return json;
}

/// Quantiles by their per cent.
Json quantiles_json(const std::vector<double>& values, std::initializer_list<int> per_cents) {
  Json json = Json::object();
  for (const int per_cent : per_cents) json[std::to_string(per_cent)] = quantile(values, per_cent / 100.0);
  return json;
}

Json question_json(const FleetReport& report) {
  const FleetQuestion& question = report.question;
  const Budget& node = question.node;
  Json json = about_json(report.run);
  json.update({{"nodes", question.nodes},
               {"policy", name(question.policy)},
               {"budget_bytes", node.bytes},
               {"host_bytes", node.host_bytes},
               {"disk_bytes", node.file_bytes},
               {"remote_bytes", question.remote_bytes},
               {"write_back", question.write_back},
               {"host_bytes_per_s", node.speeds.host_bytes_per_s},
               {"disk_bytes_per_s", node.speeds.file_bytes_per_s},
               {"link_bytes_per_s", node.speeds.remote_bytes_per_s},
               {"link_latency_s", node.speeds.remote_latency_s},
               {"prefill_tokens_per_s", node.speeds.tokens_per_s},
               {"load", question.load},
               {"imbalance_tokens", question.imbalance_tokens},
               {"event_delay_s", question.event_delay_s},
               {"mean_life_s", question.mean_life_s},
               {"down_s", question.down_s},
               {"seed", question.seed},
               {"sample_nodes", question.is_sampled() ? question.sample_nodes : 0},
               {"samples", question.is_sampled() ? question.samples : 1}});
  if (question.schedule.concurrency > 1) json.update(schedule_json(question.schedule));
  return json;
}

/// Means over the samples with their errors, and of the first sample the counts and distributions.
Json answer_json(const FleetAnswer& answer) {
  Json json;
  for (const FleetFigure& figure : answer.figures)
    json[figure.name] = {{"value", figure.value}, {"standard_error", figure.error}};
  const FleetCounts& counts = answer.counts;
  std::vector<double> link_bytes;
  for (const NodeCounts& node : counts.nodes) link_bytes.push_back(static_cast<double>(node.link_bytes));
  json.update({{"requests", counts.requests},
               {"input_tokens", counts.input_tokens},
               {"hit_tokens", counts.all_hit_tokens()},
               {"first_token_quantiles_s", quantiles_json(counts.first_token_s, {10, 25, 50, 75, 90, 95, 99})},
               {"uncached_first_token_quantiles_s",
                quantiles_json(counts.uncached_first_token_s, {10, 25, 50, 75, 90, 95, 99})},
               {"link_bytes_quantiles", quantiles_json(link_bytes, {10, 20, 30, 40, 50, 60, 70, 80, 90, 100})}});
  return json;
}

}  // namespace

std::string to_json(const RunDescription& run, const SweepReport& sweep) {
  Json json = about_json(run);
  json.update({{"interrupted", sweep.interrupted},
               {"requests", sweep.requests},
               {"input_tokens", sweep.input_tokens},
               {"capacities", cells_json(sweep.cells)}});
  return written(json);
}

std::string to_json(const RunDescription& run, const Sizing& sizing) {
  Json json = about_json(run);
  json.update({{"policy", name(sizing.policy)},
               {"budget_bytes", sizing.budget.bytes},
               {"host_bytes", sizing.budget.host_bytes},
               {"disk_bytes", sizing.budget.file_bytes},
               {"block_bytes", sizing.budget.block_bytes()},
               {"requests", sizing.requests},
               {"input_tokens", sizing.input_tokens},
               {"hit_tokens", sizing.hit_tokens},
               {"token_hit_rate", sizing.token_hit_rate},
               {"ceiling", sizing.ceiling},
               {"mean_blocks", sizing.mean_blocks},
               {"mean_states", sizing.mean_states},
               {"steps", steps_json(sizing.steps)},
               {"host_steps", steps_json(sizing.host_steps)}});
  json.update(recorded_json(sizing.recorded));
  return written(json);
}

std::string to_json(const FleetReport& report) {
  Json json = question_json(report);
  for (const FleetRow& row : fleet_rows())
    json["figures"].push_back(
        {{"name", row.name}, {"label", row.label}, {"scale", row.scale}, {"decimals", row.decimals}});
  for (const FleetAnswer& answer : report.answers)
    json["routes"][std::string(name(answer.route))] = answer_json(answer);
  json["wall_s"] = report.wall_s;
  return written(json);
}

std::string to_json(const Report& report) {
  const Derived derived(report);
  const ReplayCounts& replay = report.replay;
  const RunDescription& run = report.run;
  Json json = run_json(run);
  json.update({{"interrupted", replay.interrupted},
               {"requests", replay.requests},
               {"input_tokens", replay.input_tokens},
               {"hit_tokens", replay.hit_tokens},
               {"token_hit_rate", replay.token_hit_rate()},
               {"request_hit_rate", replay.request_hit_rate()},
               {"lost_hits", by_reason([&](std::size_t reason) { return replay.lost_hits[reason]; })},
               {"tiers", tiers_json(report)},
               {"lost_tokens", by_reason([&](std::size_t reason) { return replay.stats.lost[reason].tokens; })},
               {"lost_flops", by_reason([&](std::size_t reason) { return replay.stats.lost[reason].flops; })},
               {"restores", report.mover.restores},
               {"verified", report.mover.verified},
               {"mismatches", report.mover.mismatches},
               {"first_mismatch", replay.first_mismatch},
               {"commits", report.mover.commits},
               {"dropped_checkpoints", report.cache.dropped_checkpoints},
               {"evictions", report.cache.state_evictions},
               {"victims", report.cache.victims},
               {"metadata_bytes", report.cache.metadata_bytes},
               {"memory_moves", report.cache.memory_moves},
               {"memory_mapped_bytes", report.cache.memory_mapped_bytes},
               {"memory_copied_bytes", report.cache.memory_copied_bytes},
               {"block_evictions", report.cache.block_evictions},
               {"uncached_blocks", report.cache.uncached_blocks},
               {"resident_states", report.cache.resident_states},
               {"resident_blocks", report.cache.resident_blocks},
               {"state_bytes_in_memory", report.mover.state_bytes},
               {"memory_bytes", run.memory_bytes},
               {"bytes_copied", static_cast<std::int64_t>(derived.bytes_copied)},
               {"bytes_moved", static_cast<std::int64_t>(derived.bytes_moved)},
               {"copy_gb_per_s", derived.copy_gb_per_s},
               {"copy_share_of_memcpy", report.mover.copy_share_of_memcpy},
               {"bookkeeping_ns_p50", derived.bookkeeping_p50},
               {"bookkeeping_ns_p99", derived.bookkeeping_p99},
               {"bookkeeping_ns_per_block_p50", derived.bookkeeping_per_block},
               {"hashing_ns_per_block_p50", derived.hashing_per_block},
               {"bookkeeping_ns_per_block_beside_copies_p50", derived.bookkeeping_per_block_beside_copies},
               {"copy_s", report.mover.copy_seconds},
               {"forward_s", report.mover.forward_seconds},
               {"verify_s", report.mover.verify_seconds},
               {"wall_s", replay.wall_seconds},
               {"ages", ages_json(replay.stats)}});
  json.update(recorded_json(replay.recorded));
  if (report.passes) json.update(align_json(report, derived));
  if (!report.timeline.empty()) {
    json["token_hit_rate_ceiling"] = report.token_hit_rate_ceiling();
    json["timeline"] = timeline_json(report);
  }
  if (run.tenants.flood > 0) json["tenants"] = tenants_json(report);
  if (!report.capacities.empty()) json["capacities"] = cells_json(report.capacities);
  return written(json);
}

}  // namespace stateport::replay
