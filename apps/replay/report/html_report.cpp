// SPDX-License-Identifier: Apache-2.0
#include "report/html_report.hpp"

#include "report/figures.hpp"
#include "report/page.hpp"
#include "report/svg_plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>
#include <utility>
#include <vector>

namespace stateport::replay {
namespace {

constexpr double gib_bytes = 1024.0 * 1024.0 * 1024.0;

double share_of(std::int64_t part, std::int64_t whole) {
  return whole == 0 ? 0 : 100 * static_cast<double>(part) / static_cast<double>(whole);
}
std::string two_decimals(double value) {
  return fmt::format("{:.2f}", value);
}

std::string age(double seconds) {
  constexpr double minute = 60;
  constexpr double hour = 3600;
  constexpr double day = 86400;
  if (seconds < 2 * minute) return fmt::format("{:.0f} s", seconds);
  if (seconds < 2 * hour) return fmt::format("{:.0f} min", seconds / minute);
  if (seconds < 2 * day) return fmt::format("{:.0f} h", seconds / hour);
  return fmt::format("{:.0f} d", seconds / day);
}
std::string short_bytes(std::int64_t bytes) {
  const double in_gib = static_cast<double>(bytes) / gib_bytes;
  return in_gib < 1 ? human_bytes(static_cast<double>(bytes)) : fmt::format("{:.4g} GiB", in_gib);
}

void add_run(Page& page, const Report& report) {
  const RunDescription& run = report.run;
  const ReplayCounts& replay = report.replay;
  Table table{.id = "run", .head = {}, .rows = {}};
  const auto row = [&](const char* label, std::string value) { table.rows.push_back({label, std::move(value)}); };
  row("workload", run.workload);
  row("requests", fmt::format("{}{}", replay.requests, replay.interrupted ? " (interrupted)" : ""));
  row("input tokens", fmt::format("{}", replay.input_tokens));
  row("cache", run.cache);
  row("memory", human_bytes(static_cast<double>(run.budget_bytes)));
  if (run.host_bytes > 0) row("host memory below", human_bytes(static_cast<double>(run.host_bytes)));
  if (run.disk_bytes > 0) row("files below", human_bytes(static_cast<double>(run.disk_bytes)));
  row("model", fmt::format("{}, {} a state", run.model, human_bytes(static_cast<double>(run.full_state_bytes))));
  if (run.checkpoint_type != "model")
    row("checkpoints", fmt::format("recurrent states as {}, {} each", run.checkpoint_type,
                                   human_bytes(static_cast<double>(run.checkpoint_bytes))));
  row("hit tokens", fmt::format("{}", replay.hit_tokens));
  row("token hit %", two_decimals(100 * replay.token_hit_rate()));
  row("request hit %", two_decimals(100 * replay.request_hit_rate()));
  row("evicted states", fmt::format("{}", report.cache.state_evictions));
  row("verified states", fmt::format("{}, {} wrong", report.mover.verified, report.mover.mismatches));
  page.table(table);
}

void add_capacities(Page& page, const Report& report) {
  page.section(
      "Hit rate over memory",
      report.run.has_tiers()
          ? "Share of the prompt tokens that were continued from a cached state, for every policy that has "
            "tiers, with those of this run. The ceiling is a cache that keeps everything, with a state after "
            "every block."
          : "Share of the prompt tokens that were continued from a cached state, for every policy. The ceiling "
            "is a cache that keeps everything, with a state after every block.");
  Plot plot{
      .title = "Token hit rate over memory", .x_title = "memory for KV and states", .y_title = "% of prompt tokens"};
  plot.level = {"ceiling", 100 * report.token_hit_rate_ceiling()};
  Table table{.id = "capacities", .head = {"memory"}, .rows = {}};
  std::vector<std::int64_t> budgets;
  for (const SweepCell& cell : report.capacities) {
    if (std::ranges::find(budgets, cell.budget_bytes) == budgets.end()) {
      budgets.push_back(cell.budget_bytes);
      plot.places.push_back(short_bytes(cell.budget_bytes));
      table.rows.push_back({plot.places.back()});
    }
    const std::string policy(name(cell.policy));
    auto series = std::ranges::find(plot.series, policy, &Plot::Series::name);
    if (series == plot.series.end()) {
      plot.series.push_back({policy, {}});
      table.head.push_back(policy);
      series = plot.series.end() - 1;
    }
    series->values.push_back(100 * cell.token_hit_rate);
    table.rows.back().push_back(two_decimals(100 * cell.token_hit_rate));
  }
  table.head.emplace_back("ceiling");
  for (auto& row : table.rows) row.push_back(two_decimals(plot.level->value));
  page.plot(plot);
  page.table(table);
}

/// A row for each place: its name, then the values of each series.
Table table_of_plot(const char* id, const char* place, const Plot& plot) {
  Table table{.id = id, .head = {place}, .rows = {}};
  for (const Plot::Series& series : plot.series) table.head.push_back(series.name);
  for (std::size_t at = 0; at < plot.places.size(); ++at) {
    std::vector<std::string>& row = table.rows.emplace_back(1, plot.places[at]);
    for (const Plot::Series& series : plot.series) row.push_back(two_decimals(series.values[at]));
  }
  return table;
}

const char* hits_in(Medium medium) {
  if (medium == Medium::device) return "hit on the device";
  return medium == Medium::host ? "hit on the host" : "hit in files";
}

/// The tokens that hit, of an Interval or a SweepCell, by the slowest medium that something was loaded from.
template <class Counts>
std::int64_t hit_tokens_in(Medium medium, const Counts& counts) {
  if (medium == Medium::host) return counts.host_hit_tokens;
  if (medium == Medium::file) return counts.file_hit_tokens;
  return counts.hit_tokens - counts.host_hit_tokens - counts.file_hit_tokens;
}

/// A series for each medium that there is, without values.
std::vector<Medium> add_media(Plot& plot, const RunDescription& run) {
  std::vector<Medium> media;
  for (const Medium medium : {Medium::device, Medium::host, Medium::file}) {
    if (medium != Medium::device && !run.has_tier(medium)) continue;
    media.push_back(medium);
    plot.series.push_back({run.has_tiers() ? hits_in(medium) : "hit", {}});
  }
  return media;
}

/// What the tiers hold and did.
Table tiers_table(const Report& report) {
  const bool timed = report.run.speeds.tokens_per_s > 0;
  Table table{
      .id = "tiers",
      .head = {"tier", "memory", "token hit %", "loads", "read", "written", "images dropped", "states", "KV blocks"},
      .rows = {}};
  if (timed) table.head.emplace_back("seconds saved");
  for (const Medium medium : {Medium::host, Medium::file}) {
    if (!report.run.has_tier(medium)) continue;
    const TierUsage& tier = report.cache.of(medium);
    table.rows.push_back({name_of_tier(medium), short_bytes(report.run.tier_bytes(medium)),
                          two_decimals(100 * tier_hit_rate(report, tier)), fmt::format("{}", tier.loads),
                          short_bytes(tier.bytes_read), short_bytes(tier.bytes_written),
                          fmt::format("{}", dropped_images(tier)), fmt::format("{}", tier.states),
                          fmt::format("{}", tier.kv_blocks)});
    if (timed) table.rows.back().push_back(two_decimals(tier.saved_s));
  }
  return table;
}

void add_tiers(Page& page, const Report& report) {
  page.section(
      "Tiers below the device",
      "Hits by the slowest tier that a request loaded something from. The table is of this run; the plot is of "
      "its policy with other memories of the device, and the same tiers.");
  page.table(tiers_table(report));
  Plot plot{.kind = Plot::Kind::columns,
            .title = "Token hit rate by tier over memory of the device",
            .x_title = "memory for KV and states on the device",
            .y_title = "% of prompt tokens"};
  const std::vector<Medium> media = add_media(plot, report.run);
  for (const SweepCell& cell : report.capacities) {
    if (cell.policy != report.run.policy) continue;
    plot.places.push_back(short_bytes(cell.budget_bytes));
    for (std::size_t i = 0; i < media.size(); ++i)
      plot.series[i].values.push_back(share_of(hit_tokens_in(media[i], cell), report.replay.input_tokens));
  }
  if (plot.places.empty()) return;
  page.plot(plot);
  page.table(table_of_plot("tier_capacities", "memory", plot));
}

/// Intervals by their beginning: minutes:seconds, or of a long workload hours:minutes.
bool in_hours(const Report& report) {
  constexpr double long_s = 2 * 3600;
  return !report.timeline.empty() && report.timeline.back().end_s > long_s;
}
const char* time_title(const Report& report) {
  return in_hours(report) ? "time since the first request (hours:minutes)"
                          : "time since the first request (minutes:seconds)";
}
std::vector<std::string> interval_names(const Report& report) {
  const double unit_s = in_hours(report) ? 60 : 1;
  std::vector<std::string> names;
  for (const Interval& interval : report.timeline) {
    const auto units = static_cast<std::int64_t>(std::llround(interval.begin_s / unit_s));
    names.push_back(fmt::format("{}:{:02}", units / 60, units % 60));
  }
  return names;
}

void add_losses(Page& page, const Report& report) {
  page.section("Hits and lost hits over time",
               "Every prompt token was a hit, or was computed again for one of these reasons. Shares of the tokens of "
               "an interval. All intervals have equally many requests; the time is that of the first.");
  Plot plot{.kind = Plot::Kind::columns,
            .title = "Share of prompt tokens by what became of them",
            .x_title = time_title(report),
            .y_title = "% of prompt tokens",
            .places = interval_names(report)};
  const std::vector<Medium> media = add_media(plot, report.run);
  for (std::size_t i = 0; i < media.size(); ++i)
    for (const Interval& interval : report.timeline)
      plot.series[i].values.push_back(share_of(hit_tokens_in(media[i], interval), interval.input_tokens));
  for (std::size_t reason = 0; reason < lost_hit_count; ++reason) {
    if (report.replay.stats.lost[reason].tokens == 0) continue;
    plot.series.push_back({std::string(name(static_cast<LostHit>(reason))), {}});
    for (const Interval& interval : report.timeline)
      plot.series.back().values.push_back(share_of(interval.lost_tokens[reason], interval.input_tokens));
  }
  page.plot(plot);
  Table table = table_of_plot("losses", "time", plot);
  table.head.insert(table.head.begin() + 1, {"requests", "prompt tokens"});
  for (std::size_t i = 0; i < table.rows.size(); ++i)
    table.rows[i].insert(table.rows[i].begin() + 1, {fmt::format("{}", report.timeline[i].requests),
                                                     fmt::format("{}", report.timeline[i].input_tokens)});
  page.table(table);
}

void add_ages(Page& page, const Report& report) {
  page.section("Age of states at reuse and at eviction",
               "Time since a state was made or last continued from, when a request continued from it and when it was "
               "evicted. Shares of all reuses, and of all evictions.");
  const AgeHistogram& reuses = report.replay.stats.reuse_ages;
  const AgeHistogram& evictions = report.replay.stats.eviction_ages;
  Plot plot{.kind = Plot::Kind::beside,
            .title = "Ages of states at reuse and at eviction",
            .x_title = "age below",
            .y_title = "% of states",
            .series = {{"reuse", {}}, {"eviction", {}}}};
  Table table{.id = "ages", .head = {"age below", "reuses", "%", "evictions", "%"}, .rows = {}};
  for (int bucket = 0; bucket < ages_shown(report.replay.stats); ++bucket) {
    const bool last = bucket + 1 == AgeHistogram::buckets;
    plot.places.push_back(last ? "longer" : age(AgeHistogram::upper_s(bucket)));
    std::vector<std::string>& row = table.rows.emplace_back(1, plot.places.back());
    std::size_t series = 0;
    for (const AgeHistogram* ages : {&reuses, &evictions}) {
      const double share = share_of(ages->count(bucket), ages->total());
      plot.series[series++].values.push_back(share);
      row.push_back(fmt::format("{}", ages->count(bucket)));
      row.push_back(two_decimals(share));
    }
  }
  page.plot(plot);
  page.table(table);
}

void add_memory(Page& page, const Report& report) {
  page.section("Memory by kind over time",
               "What KV blocks and states take at the end of each interval, at the model's full state size.");
  Plot plot{.kind = Plot::Kind::columns,
            .title = "Memory of KV and states",
            .x_title = time_title(report),
            .y_title = "GiB",
            .places = interval_names(report),
            .series = {{"KV", {}}, {"states", {}}}};
  for (const Interval& interval : report.timeline) {
    plot.series[0].values.push_back(static_cast<double>(interval.kv_bytes) / gib_bytes);
    plot.series[1].values.push_back(static_cast<double>(interval.state_bytes) / gib_bytes);
  }
  plot.level = {"budget", static_cast<double>(report.run.budget_bytes) / gib_bytes};
  page.plot(plot);
  page.table(table_of_plot("memory", "time", plot));
}

void add_copies(Page& page, const Report& report) {
  const bool measured = report.mover.copy_seconds > 0;
  page.section("Copy bandwidth",
               measured ? "Needed: bytes that restores and checkpoints read and write at the model's full state size, "
                          "per second of the workload. Measured: speed of the copies that were really made, while "
                          "they ran, at the size that states have in this run."
                        : "Needed: bytes that restores and checkpoints read and write at the model's full state size, "
                          "per second of the workload. No state was moved in this run, so no speed was measured.");
  Plot plot{.title = "Copy bandwidth",
            .x_title = time_title(report),
            .y_title = "GB/s (read + written)",
            .places = interval_names(report),
            .series = {{"needed", {}}}};
  if (measured) plot.series.push_back({"measured", {}});
  for (const Interval& interval : report.timeline) {
    plot.series[0].values.push_back(needed_gb_per_s(interval, report.run.copy_bytes()));
    if (measured) plot.series[1].values.push_back(copied_gb_per_s(interval, report.mover.copy_bytes));
  }
  page.plot(plot);
  Table table = table_of_plot("copies", "time", plot);
  table.head.insert(table.head.begin() + 1, "states copied");
  for (std::size_t i = 0; i < table.rows.size(); ++i)
    table.rows[i].insert(table.rows[i].begin() + 1, fmt::format("{}", report.timeline[i].states_copied));
  page.table(table);
}

}  // namespace

std::string to_html(const Report& report) {
  Page page;
  page.begin(report.run.workload, "What the cache was worth");
  add_run(page, report);
  if (!report.capacities.empty()) add_capacities(page, report);
  if (report.run.has_tiers()) add_tiers(page, report);
  add_losses(page, report);
  add_ages(page, report);
  add_memory(page, report);
  add_copies(page, report);
  return page.end();
}

}  // namespace stateport::replay
