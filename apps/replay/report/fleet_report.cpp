// SPDX-License-Identifier: Apache-2.0
#include "report/fleet_report.hpp"

#include "report/figures.hpp"
#include "report/report.hpp"

#include <fmt/format.h>

#include <iterator>
#include <utility>
#include <vector>

namespace stateport::replay {
namespace {

constexpr double per_cent = 100;
constexpr double giga = 1e-9;
constexpr FleetRow rows[] = {
    {"token_hit_rate", "token hit %", per_cent},
    {"device_token_hit_rate", "  on the device", per_cent},
    {"awaited_token_rate", "    after a wait", per_cent},
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
                     question.write_back ? "checkpoints that nodes evict" : "every checkpoint",
                     speeds.remote_bytes_per_s * giga, speeds.remote_latency_s * 1e6);
}

std::string describe_sample(const FleetQuestion& question) {
  return fmt::format("{} of {} nodes, {} times; bytes are of a node, ± is the standard error", question.sample_nodes,
                     question.nodes, question.samples);
}

std::string cell(const FleetFigure& figure, const FleetRow& row, bool sampled) {
  std::string text = fmt::format("{:.{}f}", figure.value * row.scale, row.decimals);
  if (sampled) text += fmt::format(" ± {:.{}f}", figure.error * row.scale, row.decimals);
  return text;
}

/// Labels and values.
std::vector<std::pair<std::string, std::string>> settings_of(const FleetReport& report) {
  const FleetQuestion& question = report.question;
  std::vector<std::pair<std::string, std::string>> settings = {
      {"workload", fmt::format("{}, {:g} times", report.run.workload, question.load)},
      {"nodes", describe_nodes(report)},
      {"model", report.run.model},
      {"remote", describe_remote(question)}};
  if (question.schedule.concurrency > 1)
    settings.emplace_back("schedule", fmt::format("{}, on each node, passes of {} tokens", describe(question.schedule),
                                                  question.schedule.step_tokens_max));
  if (question.is_sampled()) settings.emplace_back("sampled", describe_sample(question));
  if (question.mean_life_s > 0)
    settings.emplace_back("failures", fmt::format("every {:g} s, for {:g} s", question.mean_life_s, question.down_s));
  return settings;
}

}  // namespace

std::span<const FleetRow> fleet_rows() noexcept {
  return rows;
}

std::string to_text(const FleetReport& report) {
  std::string text = "fleet\n";
  for (const auto& [label, value] : settings_of(report))
    fmt::format_to(std::back_inserter(text), "  {:<14}{}\n", label, value);
  fmt::format_to(std::back_inserter(text), "\n{:<30}", "route");
  for (const FleetAnswer& answer : report.answers)
    fmt::format_to(std::back_inserter(text), "{:>20}", name(answer.route));
  text += '\n';
  for (const FleetRow& row : rows) {
    fmt::format_to(std::back_inserter(text), "{:<30}", row.label);
    for (const FleetAnswer& answer : report.answers)
      fmt::format_to(std::back_inserter(text), "{:>20}",
                     cell(figure(answer.figures, row.name), row, report.question.is_sampled()));
    text += '\n';
  }
  fmt::format_to(std::back_inserter(text), "\n{:.1f} s\n", report.wall_s);
  return text;
}

}  // namespace stateport::replay
