// SPDX-License-Identifier: Apache-2.0
#include "report/fleet_report.hpp"

#include "../fleet_world.hpp"
#include "report/json.hpp"

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <string>

using namespace stateport::replay;
using namespace stateport::replay::test;

namespace {

FleetReport report_of(FleetQuestion question) {
  question.routes = {Route::round_robin, Route::prefix};
  FleetReport report{
      .run = {.command = "fleet", .workload = "made up", .model = "a model"}, .question = question, .answers = {}};
  report.answers = ask_fleet(made_up(WorkloadKind::agent, 120), question, [] { return true; });
  return report;
}

}  // namespace

TEST_CASE("a fleet report says the same in text and JSON") {
  FleetQuestion question = small_fleet(4, Route::prefix);
  question.remote_bytes = 64 * gib;
  const FleetReport report = report_of(question);
  const auto json = nlohmann::json::parse(to_json(report));
  const std::string text = to_text(report);
  CHECK(json["nodes"] == 4);
  CHECK(json["sample_nodes"] == 0);
  CHECK(json["remote_bytes"] == 64 * gib);
  for (const char* route : {"round-robin", "prefix"}) {
    CHECK(json["routes"][route]["requests"] == 120);
    for (const FleetFigure& figure : report.answers.front().figures) CHECK(json["routes"][route].contains(figure.name));
    const std::string rate =
        fmt::format("{:.2f}", 100 * json["routes"][route]["token_hit_rate"]["value"].get<double>());
    CHECK(text.find(rate) != std::string::npos);
    CHECK(text.find(route) != std::string::npos);
    const auto& answer = json["routes"][route];
    CHECK(answer["first_token_quantiles_s"]["50"] == answer["first_token_p50_s"]["value"]);
    CHECK(answer["uncached_first_token_quantiles_s"]["99"] == answer["uncached_first_token_p99_s"]["value"]);
    CHECK(answer["link_bytes_quantiles"]["100"] == answer["link_bytes_max"]["value"]);
  }
  CHECK(text.find("±") == std::string::npos);
}

TEST_CASE("a report of samples has their errors") {
  FleetQuestion question = small_fleet(4, Route::prefix);
  question.sample_nodes = 2;
  question.samples = 3;
  const FleetReport report = report_of(question);
  const auto json = nlohmann::json::parse(to_json(report));
  CHECK(json["sample_nodes"] == 2);
  CHECK(json["samples"] == 3);
  CHECK(json["routes"]["prefix"]["token_hit_rate"]["standard_error"].get<double>() > 0);
  CHECK(to_text(report).find("±") != std::string::npos);
  CHECK(to_text(report).find("2 of 4 nodes, 3 times") != std::string::npos);
}

TEST_CASE("every figure of a fleet has its row in the text") {
  const FleetReport report = report_of(small_fleet(2, Route::prefix));
  const std::string text = to_text(report);
  const auto rows = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  constexpr std::size_t settings = 5;
  constexpr std::size_t around = 4;  // blank lines, the routes, the time
  CHECK(rows == settings + around + report.answers.front().figures.size());
  const auto json = nlohmann::json::parse(to_json(report))["figures"];
  REQUIRE(json.size() == report.answers.front().figures.size());
  for (const auto& row : json) {
    const FleetFigure& found = figure(report.answers.front().figures, row["name"].get<std::string>().c_str());
    const std::string value =
        fmt::format("{:.{}f}", found.value * row["scale"].get<double>(), row["decimals"].get<int>());
    CHECK(text.find(fmt::format("\n{:<30}{:>20}", row["label"].get<std::string>(), value)) != std::string::npos);
  }
}
