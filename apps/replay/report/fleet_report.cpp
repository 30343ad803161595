// SPDX-License-Identifier: Apache-2.0
#include "report/fleet_report.hpp"

#include "report/figures.hpp"
#include "report/page.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <iterator>
#include <string_view>
#include <utility>

namespace stateport::replay {
namespace {

using Json = nlohmann::ordered_json;

struct Row {
  const char* name;   ///< of a figure
  const char* label;  ///< in words, with the unit
  double scale = 1;
  int decimals = 2;
};

constexpr double per_cent = 100;
constexpr double giga = 1e-9;
constexpr Row rows[] = {
    {"token_hit_rate", "token hit %", per_cent},
    {"device_token_hit_rate", "  on the device", per_cent},
    {"host_token_hit_rate", "  on the host", per_cent},
    {"file_token_hit_rate", "  in files", per_cent},
    {"remote_token_hit_rate", "  remote", per_cent},
    {"request_hit_rate", "request hit %", per_cent},
    {"first_token_p50_s", "first token, median s", 1, 3},
    {"first_token_p90_s", "  90 %", 1, 3},
    {"first_token_p99_s", "  99 %", 1, 3},
    {"uncached_first_token_p50_s", "without cache, median s", 1, 3},
    {"uncached_first_token_p90_s", "  90 %", 1, 3},
    {"uncached_first_token_p99_s", "  99 %", 1, 3},
    {"saved_per_request_s", "saved, s per request", 1, 3},
    {"waited_per_request_s", "waited, s per request", 1, 4},
    {"link_bytes_mean", "GB over a link, mean", giga, 1},
    {"link_bytes_max", "  most", giga, 1},
    {"link_busy_mean", "link busy %, mean", per_cent, 1},
    {"link_busy_max", "  most", per_cent, 1},
    {"busiest_node_load", "busiest node / mean", 1, 2},
    {"asked_images_per_request", "images asked, a request", 1, 1},
    {"found_images_per_request", "  found", 1, 1},
    {"lost_images_per_request", "  gone when loaded", 1, 3},
    {"failed_load_rate", "loads failed, % of requests", per_cent, 3},
    {"rerouted_rate", "sent again, % of requests", per_cent, 3},
    {"stored_bytes_per_request", "GB newly stored, a request", giga, 3},
};

std::string human(std::int64_t bytes) {
  return human_bytes(static_cast<double>(bytes));
}

std::string describe_nodes(const FleetReport& report) {
  const FleetQuestion& question = report.question;
  const Budget& node = question.node;
  std::string text =
      fmt::format("{} nodes, {} for KV and states each, {}", question.nodes, human(node.bytes), name(question.policy));
  if (node.host_bytes > 0) text += fmt::format(", {} on the host", human(node.host_bytes));
  if (node.file_bytes > 0) text += fmt::format(", {} in files", human(node.file_bytes));
  text += fmt::format(", {:g} tokens/s", node.speeds.tokens_per_s);
  return text;
}

std::string describe_remote(const FleetQuestion& question) {
  if (question.remote_bytes == 0) return "none";
  const TierSpeeds& speeds = question.node.speeds;
  return fmt::format("{}, {}, {:g} GB/s and {:g} us to each node", human(question.remote_bytes),
                     question.write_back ? "what nodes give up" : "every checkpoint", speeds.remote_bytes_per_s * giga,
                     speeds.remote_latency_s * 1e6);
}

std::string describe_sample(const FleetQuestion& question) {
  return fmt::format("{} of {} nodes, {} times; bytes are of a node, ± is the standard error", question.sample_nodes,
                     question.nodes, question.samples);
}

std::string cell(const FleetFigure& figure, const Row& row, bool sampled) {
  std::string text = fmt::format("{:.{}f}", figure.value * row.scale, row.decimals);
  if (sampled) text += fmt::format(" ± {:.{}f}", figure.error * row.scale, row.decimals);
  return text;
}

/// Labels and values.
std::vector<std::pair<std::string, std::string>> settings_of(const FleetReport& report) {
  const FleetQuestion& question = report.question;
  std::vector<std::pair<std::string, std::string>> settings = {
      {"workload", fmt::format("{}, {:g} times", report.workload, question.load)},
      {"nodes", describe_nodes(report)},
      {"model", report.model},
      {"remote", describe_remote(question)}};
  if (question.is_sampled()) settings.emplace_back("sampled", describe_sample(question));
  if (question.mean_life_s > 0)
    settings.emplace_back("failures", fmt::format("every {:g} s, for {:g} s", question.mean_life_s, question.down_s));
  return settings;
}

Table figures_table(const FleetReport& report) {
  Table table{.id = "figures", .head = {"route"}, .rows = {}};
  for (const FleetAnswer& answer : report.answers) table.head.emplace_back(name(answer.route));
  for (const Row& row : rows) {
    std::vector<std::string>& cells = table.rows.emplace_back(1, row.label);
    for (const FleetAnswer& answer : report.answers)
      cells.push_back(cell(figure(answer.figures, row.name), row, report.question.is_sampled()));
  }
  return table;
}

/// A row for each place: its name, then the values of each series.
Table table_of(const char* id, const char* place, const Plot& plot) {
  Table table{.id = id, .head = {place}, .rows = {}};
  for (const Plot::Series& series : plot.series) table.head.push_back(series.name);
  for (std::size_t at = 0; at < plot.places.size(); ++at) {
    std::vector<std::string>& row = table.rows.emplace_back(1, plot.places[at]);
    for (const Plot::Series& series : plot.series) row.push_back(fmt::format("{:.3f}", series.values[at]));
  }
  return table;
}

void add_hits(Page& page, const FleetReport& report) {
  page.section("Hits by tier",
               "Share of the prompt tokens that were not computed: those up to a state that the device had, and what "
               "loading added, by the slowest tier that something was loaded from.");
  Plot plot{.kind = Plot::Kind::columns,
            .title = "Token hit rate by tier and route",
            .x_title = "route",
            .y_title = "% of prompt tokens",
            .series = {{"device", {}}, {"host", {}}, {"files", {}}, {"remote", {}}}};
  constexpr const char* names[] = {"device_token_hit_rate", "host_token_hit_rate", "file_token_hit_rate",
                                   "remote_token_hit_rate"};
  for (const FleetAnswer& answer : report.answers) {
    plot.places.emplace_back(name(answer.route));
    for (std::size_t i = 0; i < std::size(names); ++i)
      plot.series[i].values.push_back(per_cent * figure(answer.figures, names[i]).value);
  }
  page.plot(plot);
  page.table(table_of("hits", "route", plot));
}

void add_times(Page& page, const FleetReport& report) {
  page.section("Time to the first token",
               report.question.is_sampled()
                   ? "From the arrival of a request to the end of its prompt, over the part of the requests that take "
                     "no longer. Of the first sample. Without cache: the same requests on the same nodes."
                   : "From the arrival of a request to the end of its prompt, over the part of the requests that take "
                     "no longer. Without cache: the same requests on the same nodes.");
  constexpr double parts[] = {0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99};
  Plot plot{.title = "Time to the first token", .x_title = "% of requests", .y_title = "s"};
  for (const double part : parts) plot.places.push_back(fmt::format("{:g}", per_cent * part));
  const auto add = [&](const std::string& series, const std::vector<double>& times) {
    plot.series.push_back({series, {}});
    for (const double part : parts) plot.series.back().values.push_back(quantile(times, part));
  };
  for (const FleetAnswer& answer : report.answers) {
    add(std::string(name(answer.route)), answer.counts.first_token_s);
    add(std::string(name(answer.route)) + ", no cache", answer.counts.uncached_first_token_s);
  }
  page.plot(plot);
  page.table(table_of("first_token", "% of requests", plot));
}

void add_links(Page& page, const FleetReport& report) {
  if (report.question.remote_bytes == 0) return;
  page.section("Bytes over links",
               "Over the link of a node, both directions, over the part of the nodes that move no more.");
  constexpr double parts[] = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1};
  Plot plot{.title = "Bytes over the links of nodes", .x_title = "% of nodes", .y_title = "GB"};
  for (const double part : parts) plot.places.push_back(fmt::format("{:g}", per_cent * part));
  for (const FleetAnswer& answer : report.answers) {
    plot.series.push_back({std::string(name(answer.route)), {}});
    std::vector<double> bytes;
    for (const NodeCounts& node : answer.counts.nodes) bytes.push_back(giga * static_cast<double>(node.link_bytes));
    for (const double part : parts) plot.series.back().values.push_back(quantile(bytes, part));
  }
  page.plot(plot);
  page.table(table_of("links", "% of nodes", plot));
}

}  // namespace

std::string to_text(const FleetReport& report) {
  std::string text = "fleet\n";
  for (const auto& [label, value] : settings_of(report))
    fmt::format_to(std::back_inserter(text), "  {:<14}{}\n", label, value);
  fmt::format_to(std::back_inserter(text), "\n{:<30}", "route");
  for (const FleetAnswer& answer : report.answers)
    fmt::format_to(std::back_inserter(text), "{:>20}", name(answer.route));
  text += '\n';
  for (const Row& row : rows) {
    fmt::format_to(std::back_inserter(text), "{:<30}", row.label);
    for (const FleetAnswer& answer : report.answers)
      fmt::format_to(std::back_inserter(text), "{:>20}",
                     cell(figure(answer.figures, row.name), row, report.question.is_sampled()));
    text += '\n';
  }
  fmt::format_to(std::back_inserter(text), "\n{:.1f} s\n", report.wall_s);
  return text;
}

std::string to_json(const FleetReport& report) {
  const FleetQuestion& question = report.question;
  const Budget& node = question.node;
  Json json = {{"workload", report.workload},
               {"model", report.model},
               {"nodes", question.nodes},
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
               {"samples", question.is_sampled() ? question.samples : 1}};
  Json& routes = json["routes"];
  for (const FleetAnswer& answer : report.answers) {
    Json& route = routes[std::string(name(answer.route))];
    for (const FleetFigure& figure : answer.figures)
      route[figure.name] = {{"value", figure.value}, {"standard_error", figure.error}};
    route["requests"] = answer.counts.requests;
    route["input_tokens"] = answer.counts.input_tokens;
    route["hit_tokens"] = answer.counts.all_hit_tokens();
  }
  json["wall_s"] = report.wall_s;
  return json.dump(2) + "\n";
}

std::string to_html(const FleetReport& report) {
  Page page;
  page.begin(report.workload, "What many machines would hit, move and save");
  Table settings{.id = "run", .head = {}, .rows = {}};
  for (const auto& [label, value] : settings_of(report)) settings.rows.push_back({label, value});
  page.table(settings);
  add_hits(page, report);
  add_times(page, report);
  add_links(page, report);
  page.section("All figures", "Of all requests.");
  page.table(figures_table(report));
  return page.end();
}

}  // namespace stateport::replay
