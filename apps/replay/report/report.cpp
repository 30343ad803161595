// SPDX-License-Identifier: Apache-2.0
#include "report/report.hpp"

#include "report/figures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <vector>

namespace stateport::replay {
namespace {

/// Collects lines of a label and a value.
class Lines {
 public:
  template <class... Args>
  void add(const char* label, fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), "  {:<14}", label);
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
    text_ += '\n';
  }
  void heading(const std::string& text) { text_ += text + '\n'; }
  [[nodiscard]] std::string take() { return std::move(text_); }

 private:
  std::string text_;
};

void add_tenants(Lines& lines, const Report& report) {
  if (report.run.tenants.flood == 0) return;
  for (const Tenant tenant : tenants) {
    const TenantCounts& counts = report.replay.of(tenant);
    const auto bytes = static_cast<double>(report.cache.tenant_bytes[static_cast<std::size_t>(tenant)]);
    lines.add(name(tenant).data(), "{} requests, {:.2f} % of {} tokens hit, {} at the end", counts.requests,
              100 * counts.token_hit_rate(), counts.input_tokens, human_bytes(bytes));
  }
}

std::string describe_cache(const Report& report) {
  const RunDescription& run = report.run;
  const char* const unlimited = run.unlimited ? " (unlimited)" : "";
  const char* const counters = run.asynchronous ? "asynchronous" : "synchronous";
  if (report.passes && run.checkpoint.starts_with("boundaries"))
    return fmt::format("{}, {} blocks{}, {}, {} drafts, {:.2f} kept, counters {}", run.cache, run.slots, unlimited,
                       describe(run.schedule), run.drafts, run.accept, counters);
  if (report.passes)
    return fmt::format("{}, {} blocks, {} slots{}, {}, counters {}, hash {}", run.cache, run.blocks, run.slots,
                       unlimited, describe(run.schedule), counters, run.hash);
  if (run.memory.bytes > 0)
    return fmt::format("{}, {} for KV and states, checkpoint {}", run.cache,
                       human_bytes(static_cast<double>(run.memory.bytes)), run.checkpoint);
  return fmt::format("{}, {} blocks, {} slots{}, checkpoint {}, hash {}", run.cache, run.blocks, run.slots, unlimited,
                     run.checkpoint, run.hash);
}

void add_run(Lines& lines, const Report& report) {
  const RunDescription& run = report.run;
  lines.heading("run");
  lines.add("workload", "{}, blocks of {} tokens{}", run.workload, run.block_size_tokens,
            run.bad_lines == 0 ? "" : fmt::format(", {} malformed entries skipped", run.bad_lines));
  if (run.recorded)
    lines.add("recorded", "by {}, version {}; {:.4g} % of conversations; {} cancelled requests never ran",
              run.recorded->engine.empty() ? "?" : run.recorded->engine,
              run.recorded->version.empty() ? "?" : run.recorded->version, 100 * run.recorded->sample, run.never_ran);
  lines.add("cache", "{}", describe_cache(report));
  lines.add("model", "{}, state of {} ({})", run.model, human_bytes(static_cast<double>(run.full_state_bytes)),
            run.full_state);
  if (run.checkpoint_type != "model")
    lines.add("checkpoints", "recurrent states as {}, {} each", run.checkpoint_type,
              human_bytes(static_cast<double>(run.checkpoint_bytes)));
}

void add_memory(Lines& lines, const RunDescription& run, const MoverCounts& mover) {
  if (run.memory_state.empty()) {
    lines.add("in memory", "nothing: bookkeeping alone, no state is made, moved or verified");
    return;
  }
  lines.add("device", "{}", run.device);
  const std::string size = human_bytes(static_cast<double>(mover.state_bytes));
  const std::string total = human_bytes(static_cast<double>(run.memory_bytes));
  if (mover.state_bytes == run.full_state_bytes)
    lines.add("in memory", "states at full size, {} in all", total);
  else
    lines.add("in memory", "states shrunk to {} ({}), {} in all", size, run.memory_state, total);
}

void add_ages(Lines& lines, const char* label, const AgeHistogram& ages) {
  if (ages.total() == 0) return;
  lines.add(label, "{} states, half below {} s, nine in ten below {} s", ages.total(), ages.quantile(0.5),
            ages.quantile(0.9));
}

void add_losses(Lines& lines, const CacheStats& stats) {
  bool first = true;
  for (int reason = 0; reason < lost_hit_count; ++reason) {
    const auto lost = static_cast<LostHit>(reason);
    const Loss& loss = stats.of(lost);
    if (loss.tokens == 0) continue;
    lines.add(first ? "lost tokens" : "", "{:<14} {:>6.2f} %, {} requests", name(lost),
              100 * static_cast<double>(loss.tokens) / static_cast<double>(stats.prompt_tokens), loss.requests);
    first = false;
  }
  add_ages(lines, "reuse age", stats.reuse_ages);
  add_ages(lines, "eviction age", stats.eviction_ages);
}

void add_prefills(Lines& lines, const Derived& derived) {
  lines.add("computed", "{:.2f} % of prompt tokens; {:.2f} % are reused after a wait", 100 * derived.computed_share,
            100 * derived.awaited_share);
  lines.add("first token", "after {:.0f} computed prompt tokens (p50), {:.0f} (p99)", derived.first_token_p50,
            derived.first_token_p99);
}

void add_hits(Lines& lines, const Report& report, const Derived& derived) {
  const ReplayCounts& replay = report.replay;
  lines.heading(replay.interrupted ? "hits (interrupted: of the requests so far)" : "hits");
  lines.add("requests", "{}, {} input tokens", replay.requests, replay.input_tokens);
  lines.add("hit rate", "{:.2f} % of tokens, {:.2f} % of requests", 100 * replay.token_hit_rate(),
            100 * replay.request_hit_rate());
  if (replay.recorded.requests > 0) lines.add("", "{}", describe(replay.recorded));
  std::string lost;
  for (int reason = 0; reason < lost_hit_count; ++reason) {
    const std::int64_t count = replay.lost_hits[static_cast<std::size_t>(reason)];
    if (count > 0) lost += fmt::format("{}{} {}", lost.empty() ? "" : ", ", name(static_cast<LostHit>(reason)), count);
  }
  lines.add("lost hits", "{}", lost.empty() ? "none" : lost);
  add_tenants(lines, report);
  if (report.passes) {
    add_prefills(lines, derived);
    lines.add("evictions", "{} states; {} resident at the end", report.cache.state_evictions,
              report.cache.resident_states);
    return;
  }
  lines.add("evictions", "{} states, {} blocks; {} checkpoints dropped", report.cache.state_evictions,
            report.cache.block_evictions, report.cache.dropped_checkpoints);
  if (report.cache.victims > 0) lines.add("victims", "{} chosen", report.cache.victims);
  lines.add("resident", "{} states, {} blocks at the end", report.cache.resident_states, report.cache.resident_blocks);
  for (const Medium medium : {Medium::host, Medium::file}) {
    if (!report.run.has_tier(medium)) continue;
    const TierUsage& tier = report.cache.of(medium);
    const std::string saved =
        report.run.memory.speeds.tokens_per_s > 0 ? fmt::format(", which saved {:.1f} s", tier.saved_s) : std::string();
    lines.add(medium == Medium::host ? "host" : "files",
              "{:.2f} % of tokens, {} loads{}; {} read, {} written; {} states and {} blocks at the end; {} states "
              "evicted, {} not worth it, {} images refused",
              100 * tier_hit_rate(report, tier), tier.loads, saved, human_bytes(static_cast<double>(tier.bytes_read)),
              human_bytes(static_cast<double>(tier.bytes_written)), tier.states, tier.kv_blocks, tier.evicted_states,
              tier.dropped_states, tier.refused_images);
  }
  add_losses(lines, replay.stats);
  if (report.cache.uncached_blocks > 0)
    lines.add("not cached", "{} blocks of prompts longer than the block pool", report.cache.uncached_blocks);
}

void add_align(Lines& lines, const Report& report) {
  const PassCounts& passes = *report.passes;
  const MoverCounts& mover = report.mover;
  lines.add("steps", "{}, {} of {} drafts kept", passes.steps, passes.drafts_accepted, passes.drafts_proposed);
  lines.add("moved", "{} copies between slots, {} parts skipped", passes.copies, passes.skipped_parts);
  lines.add("published", "{} states; {} refused, which found no room", mover.commits, passes.refused);
  if (report.run.memory_state.empty()) return;
  lines.add("verified", "{} states, {} of them continued from; {} wrong", mover.verified, mover.restores,
            mover.mismatches);
}

void add_states(Lines& lines, const Report& report, const Derived& derived) {
  const MoverCounts& mover = report.mover;
  lines.heading("states");
  if (report.passes) {
    add_align(lines, report);
  } else {
    lines.add("moved", "{} restored, {} published", mover.restores, mover.commits);
    lines.add("verified", "{} restored states, {} wrong", mover.verified, mover.mismatches);
  }
  if (mover.transfers > 0)
    lines.add("transfers", "{} of states between the device and the tiers, {:.2f} s", mover.transfers,
              mover.transfer_seconds);
  if (!report.replay.first_mismatch.empty()) lines.add("WRONG", "{}", report.replay.first_mismatch);
  lines.add("bytes", "{} at the model's full size, {} really moved (read + written)", human_bytes(derived.bytes_copied),
            human_bytes(derived.bytes_moved));
  if (mover.copy_seconds <= 0 || report.passes) return;  // most align steps copy nothing, and take their time too
  if (mover.copy_share_of_memcpy > 0)
    lines.add("copy speed", "{:.2f} GB/s, {:.2f} of memcpy of the same sizes", derived.copy_gb_per_s,
              mover.copy_share_of_memcpy);
  else
    lines.add("copy speed", "{:.2f} GB/s", derived.copy_gb_per_s);
  constexpr std::size_t launch_bound_bytes = std::size_t{1} << 20;
  if (mover.state_bytes < launch_bound_bytes)
    lines.add("", "(states this small measure the launch, not the copy: give more memory or fewer slots)");
}

void add_times(Lines& lines, const Report& report, const Derived& derived) {
  const ReplayCounts& replay = report.replay;
  const MoverCounts& mover = report.mover;
  lines.heading("time");
  if (report.passes)
    lines.add("planning", "{:.0f} ns per step (p50), {:.0f} (p99), on the host", derived.planning_p50,
              derived.planning_p99);
  else
    lines.add("bookkeeping", "{:.0f} ns per request (p50), {:.0f} (p99), {:.1f} per block (p50), hashing included",
              derived.bookkeeping_p50, derived.bookkeeping_p99, derived.bookkeeping_per_block);
  if (!report.passes) lines.add("hashing", "{:.1f} ns per block (p50)", derived.hashing_per_block);
  lines.add("in all", "{:.2f} s: copies {:.2f}, stand-in forward {:.2f}, verification {:.2f}", replay.wall_seconds,
            mover.copy_seconds, mover.forward_seconds, mover.verify_seconds);
}

double share_of_input(const Report& report, std::int64_t tokens) {
  const std::int64_t input = report.replay.input_tokens;
  return input == 0 ? 0 : static_cast<double>(tokens) / static_cast<double>(input);
}

}  // namespace

std::string describe(const ScheduleOptions& schedule) {
  std::string text = fmt::format("{} requests at a time", schedule.concurrency);
  if (schedule.running_max > 0) text += fmt::format(", {} of them running", schedule.running_max);
  if (schedule.refresh) text += ", looked up again when they run";
  if (const ShareRunning& share = schedule.share_running; share.least_tokens > 0)
    text += fmt::format(", waiting for {} tokens of another", share.least_tokens);
  return text;
}

double tier_hit_rate(const Report& report, const TierUsage& tier) noexcept {
  return share_of_input(report, tier.hit_tokens);
}

Derived::Derived(const Report& report) {
  const MoverCounts& mover = report.mover;
  states_copied = static_cast<double>(report.passes ? report.passes->copies : mover.restores + mover.commits);
  bytes_copied = states_copied * static_cast<double>(report.run.copy_bytes());
  bytes_moved = states_copied * static_cast<double>(mover.copy_bytes);
  copy_gb_per_s = mover.copy_seconds > 0 ? bytes_moved / mover.copy_seconds / 1e9 : 0;
  const ReplayCounts& alone = report.bookkeeping;
  const std::vector<double> bookkeeping(alone.bookkeeping_ns.begin(), alone.bookkeeping_ns.end());
  bookkeeping_p50 = quantile(bookkeeping, 0.5);
  bookkeeping_p99 = quantile(bookkeeping, 0.99);
  bookkeeping_per_block = quantile(alone.bookkeeping_ns_per_block, 0.5);
  hashing_per_block = quantile(alone.hashing_ns_per_block, 0.5);
  bookkeeping_per_block_beside_copies = quantile(report.replay.bookkeeping_ns_per_block, 0.5);
  if (!report.passes) return;
  computed_share = share_of_input(report, report.passes->computed_prompt_tokens);
  awaited_share = share_of_input(report, report.cache.awaited_tokens);
  first_token_p50 = quantile(report.passes->first_token_after_tokens, 0.5);
  first_token_p99 = quantile(report.passes->first_token_after_tokens, 0.99);
  planning_p50 = quantile(report.passes->planning_ns, 0.5);
  planning_p99 = quantile(report.passes->planning_ns, 0.99);
}

double Report::token_hit_rate_ceiling() const noexcept {
  const CacheStats& stats = replay.stats;
  if (stats.prompt_tokens == 0) return 0;
  const std::int64_t computed = stats.of(LostHit::never_stored).tokens + stats.of(LostHit::too_few_tokens).tokens;
  return 1 - static_cast<double>(computed) / static_cast<double>(stats.prompt_tokens);
}

std::string to_text(const Report& report) {
  const Derived derived(report);
  Lines lines;
  add_run(lines, report);
  add_memory(lines, report.run, report.mover);
  add_hits(lines, report, derived);
  add_states(lines, report, derived);
  add_times(lines, report, derived);
  return lines.take();
}

}  // namespace stateport::replay
