// SPDX-License-Identifier: Apache-2.0
#include "report/fleet_report.hpp"

#include "../fleet_world.hpp"

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
  FleetReport report{.workload = "<made up>", .model = "a model", .question = question, .answers = {}};
  report.answers = ask_fleet(made_up(WorkloadKind::agent, 120), question, [] { return true; });
  return report;
}

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

}  // namespace

TEST_CASE("a fleet report says the same in text, JSON and HTML") {
  FleetQuestion question = small_fleet(4, Route::prefix);
  question.remote_bytes = 64 * gib;
  const FleetReport report = report_of(question);
  const auto json = nlohmann::json::parse(to_json(report));
  const std::string text = to_text(report);
  const std::string page = to_html(report);
  CHECK(json["nodes"] == 4);
  CHECK(json["sample_nodes"] == 0);
  CHECK(json["remote_bytes"] == 64 * gib);
  for (const char* route : {"round-robin", "prefix"}) {
    CHECK(json["routes"][route]["requests"] == 120);
    for (const FleetFigure& figure : report.answers.front().figures) CHECK(json["routes"][route].contains(figure.name));
    const std::string rate =
        fmt::format("{:.2f}", 100 * json["routes"][route]["token_hit_rate"]["value"].get<double>());
    CHECK(text.find(rate) != std::string::npos);
    CHECK(page.find("<td>" + rate + "</td>") != std::string::npos);
    CHECK(text.find(route) != std::string::npos);
  }
  CHECK(text.find("±") == std::string::npos);
  CHECK(count(page, "<svg") == 3);
  for (const char* id : {"run", "hits", "first_token", "links", "figures"})
    CHECK(count(page, fmt::format("<table id=\"{}\">", id)) == 1);
  CHECK(page.find("&lt;made up&gt;") != std::string::npos);
  CHECK(page.find("<made up>") == std::string::npos);
  CHECK(page.find("http") == std::string::npos);
}

TEST_CASE("a report of samples tells their errors, and one without a remote store draws no links") {
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
  CHECK(count(to_html(report), "<svg") == 2);
}

TEST_CASE("every figure of a fleet has its row in the text") {
  const FleetReport report = report_of(small_fleet(2, Route::prefix));
  const std::string text = to_text(report);
  const auto rows = static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
  constexpr std::size_t settings = 5;
  constexpr std::size_t around = 4;  // blank lines, the routes, the time
  CHECK(rows == settings + around + report.answers.front().figures.size());
}
