// SPDX-License-Identifier: Apache-2.0
#include "report/html_report.hpp"

#include <stateport/core/model/models.hpp>

#include "../sizes.hpp"
#include "report/json.hpp"
#include "report/svg_plot.hpp"
#include "workload/generator.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <array>
#include <cmath>
#include <map>
#include <string>
#include <string_view>
#include <vector>

using namespace stateport;
using namespace stateport::replay;
using stateport::replay::test::gib;

namespace {

/// A page and the JSON of the same run: an agent workload under 4 GiB.
struct Run {
  Report report;
  std::string page;
  nlohmann::json json;
};

/// `below`: its tiers and speeds.
Run make_run(std::int64_t requests, const Budget& below = {}) {
  const Workload workload = generate_workload({.kind = WorkloadKind::agent, .requests = 400});
  const Budget budget{.bytes = 4 * gib,
                      .state_bytes = 77'266'944,
                      .kv_bytes_per_token = 24'576,
                      .block_size_tokens = 512,
                      .host_bytes = below.host_bytes,
                      .file_bytes = below.file_bytes,
                      .speeds = below.speeds};
  const ComputeCost cost = compute_cost("qwen3-next-80b-a3b");
  const auto cache = make_budget_cache(PolicyKind::hix, budget, cost, workload);
  NoPasses states;
  Replayer replayer(workload, *cache, states, cost);
  Timeline timeline(workload, requests, budget, *cache, states);
  replayer.run([&](std::int64_t served) {
    timeline.served(served, replayer.counts());
    return served < requests;
  });
  Run run;
  Report& report = run.report;
  report.run = {.workload = "a <b> & \"c\"",
                .model = "qwen3-next-80b-a3b",
                .cache = "budget, hix",
                .budget_bytes = budget.bytes,
                .host_bytes = budget.host_bytes,
                .disk_bytes = budget.file_bytes,
                .speeds = budget.speeds,
                .full_state_bytes = static_cast<std::size_t>(budget.state_bytes),
                .checkpoint_bytes = static_cast<std::size_t>(budget.state_bytes)};
  report.timeline = timeline.take(replayer.counts());
  report.replay = replayer.counts();
  report.cache = cache->counts();
  report.mover = states.counts();
  const std::array budgets = {2 * gib, 4 * gib};
  report.capacities = sweep(workload, requests, budget, budgets, compared_policies, cost, [] { return true; });
  run.page = to_html(report);
  run.json = nlohmann::json::parse(to_json(report));
  return run;
}

using Cells = std::vector<std::vector<std::string>>;

/// The cells of the table with this id, its head first.
Cells table(const std::string& page, std::string_view id) {
  const auto start = page.find("<table id=\"" + std::string(id) + "\">");
  REQUIRE(start != std::string::npos);
  const auto stop = page.find("</table>", start);
  Cells cells;
  for (auto row = page.find("<tr>", start); row < stop; row = page.find("<tr>", row + 1)) {
    cells.emplace_back();
    const auto row_end = page.find("</tr>", row);
    for (auto at = row + 4; at < row_end;) {
      const auto text = page.find('>', at) + 1;
      const auto text_end = page.find('<', text);
      cells.back().push_back(page.substr(text, text_end - text));
      at = page.find('>', text_end) + 1;
    }
  }
  return cells;
}

std::size_t column(const Cells& cells, const std::string& head) {
  for (std::size_t i = 0; i < cells.front().size(); ++i)
    if (cells.front()[i] == head) return i;
  FAIL("no column " << head);
  return 0;
}

/// The cell is `value` to two decimals.
void check_rounded(const std::string& cell, double value) {
  CAPTURE(cell);
  CAPTURE(value);
  CHECK(std::abs(std::stod(cell) - value) <= 0.005 + 1e-9);
}

double share(const nlohmann::json& part, const nlohmann::json& whole) {
  return 100 * part.get<double>() / whole.get<double>();
}

}  // namespace

TEST_CASE("the page's hit rates over memory are those of the JSON, and one of them is the run's own") {
  const Run run = make_run(400);
  const Cells cells = table(run.page, "capacities");
  REQUIRE(cells.size() == 3);
  const auto& capacities = run.json["capacities"];
  REQUIRE(capacities.size() == 2 * compared_policies.size());
  std::size_t row = 0;
  for (const auto& cell : capacities) {
    row = cell["budget_bytes"] == 2 * gib ? 1 : 2;
    check_rounded(cells[row][column(cells, cell["policy"])], 100 * cell["token_hit_rate"].get<double>());
    if (cell["policy"] != "hix" || row != 2) continue;
    CHECK(cell["hit_tokens"] == run.json["hit_tokens"]);
    CHECK(cell["victims"] == run.json["victims"]);
  }
  check_rounded(cells[1][column(cells, "ceiling")], 100 * run.json["token_hit_rate_ceiling"].get<double>());
}

TEST_CASE("the page's intervals are those of the JSON, and add up to the run") {
  const Run run = make_run(333);
  const auto& timeline = run.json["timeline"];
  const Cells losses = table(run.page, "losses");
  const Cells memory = table(run.page, "memory");
  const Cells copies = table(run.page, "copies");
  REQUIRE(timeline.size() == Timeline::intervals_max);
  REQUIRE(losses.size() == timeline.size() + 1);
  REQUIRE(memory.size() == timeline.size() + 1);
  REQUIRE(copies.size() == timeline.size() + 1);
  std::map<std::string, std::int64_t> sums;
  for (std::size_t i = 0; i < timeline.size(); ++i) {
    const auto& interval = timeline[i];
    const auto& row = losses[i + 1];
    CHECK(row[column(losses, "requests")] == interval["requests"].dump());
    CHECK(row[column(losses, "prompt tokens")] == interval["input_tokens"].dump());
    check_rounded(row[column(losses, "hit")], share(interval["hit_tokens"], interval["input_tokens"]));
    std::int64_t tokens = interval["hit_tokens"];
    for (const auto& [reason, lost] : interval["lost_tokens"].items()) {
      tokens += lost.get<std::int64_t>();
      sums[reason] += lost.get<std::int64_t>();
      if (run.json["lost_tokens"][reason] > 0)
        check_rounded(row[column(losses, reason)], share(lost, interval["input_tokens"]));
    }
    CHECK(tokens == interval["input_tokens"]);
    check_rounded(memory[i + 1][column(memory, "KV")], interval["kv_bytes"].get<double>() / double{gib});
    check_rounded(memory[i + 1][column(memory, "states")], interval["state_bytes"].get<double>() / double{gib});
    CHECK(interval["kv_bytes"].get<std::int64_t>() + interval["state_bytes"].get<std::int64_t>() <= 4 * gib);
    CHECK(copies[i + 1][column(copies, "states copied")] == interval["states_copied"].dump());
    check_rounded(copies[i + 1][column(copies, "needed")], interval["needed_gb_per_s"]);
    for (const char* key : {"requests", "input_tokens", "hit_tokens", "states_copied"})
      sums[key] += interval[key].get<std::int64_t>();
  }
  for (const char* key : {"requests", "input_tokens", "hit_tokens"}) CHECK(run.json[key] == sums[key]);
  for (const auto& [reason, lost] : run.json["lost_tokens"].items()) CHECK(lost == sums[reason]);
  CHECK(run.json["restores"].get<std::int64_t>() + run.json["commits"].get<std::int64_t>() == sums["states_copied"]);
}

TEST_CASE("the page's tiers are those of the JSON, and every hit is in one of them or on the device") {
  const Run run = make_run(333, {.host_bytes = 4 * gib,
                                 .file_bytes = 32 * gib,
                                 .speeds = {.host_bytes_per_s = 2e10, .file_bytes_per_s = 5e9, .tokens_per_s = 1e4}});
  const Cells tiers = table(run.page, "tiers");
  REQUIRE(run.json["tiers"].size() == 2);
  REQUIRE(tiers.size() == 3);
  std::map<std::string, std::int64_t> hits;
  for (std::size_t i = 0; i < 2; ++i) {
    const auto& tier = run.json["tiers"][i];
    const auto& row = tiers[i + 1];
    CHECK(row[column(tiers, "tier")] == tier["name"].get<std::string>());
    CHECK(row[column(tiers, "images dropped")] == tier["dropped"].dump());
    CHECK(row[column(tiers, "states")] == tier["states"].dump());
    CHECK(row[column(tiers, "KV blocks")] == tier["blocks"].dump());
    check_rounded(row[column(tiers, "token hit %")], 100 * tier["token_hit_rate"].get<double>());
    check_rounded(row[column(tiers, "seconds saved")], tier["seconds"]);
    CHECK(tier["token_hit_rate"] > 0);
    CHECK(tier["seconds"] > 0);
  }
  CHECK(tiers[1][column(tiers, "memory")] == "4 GiB");
  CHECK(tiers[2][column(tiers, "memory")] == "32 GiB");

  const Cells losses = table(run.page, "losses");
  const auto& timeline = run.json["timeline"];
  for (std::size_t i = 0; i < timeline.size(); ++i) {
    const auto& interval = timeline[i];
    const auto& row = losses[i + 1];
    const std::int64_t host = interval["host_hit_tokens"];
    const std::int64_t files = interval["file_hit_tokens"];
    const std::int64_t device = interval["hit_tokens"].get<std::int64_t>() - host - files;
    CHECK(device >= 0);
    check_rounded(row[column(losses, "hit on the device")], share(device, interval["input_tokens"]));
    check_rounded(row[column(losses, "hit on the host")], share(host, interval["input_tokens"]));
    check_rounded(row[column(losses, "hit in files")], share(files, interval["input_tokens"]));
    hits["host"] += host;
    hits["file"] += files;
  }
  for (const auto& tier : run.json["tiers"])
    CHECK(share(hits[tier["name"]], run.json["input_tokens"]) ==
          doctest::Approx(100 * tier["token_hit_rate"].get<double>()));

  const Cells capacities = table(run.page, "tier_capacities");
  REQUIRE(capacities.size() == 3);
  std::size_t row = 0;
  for (const auto& cell : run.json["capacities"]) {
    if (cell["policy"] != "hix") continue;
    ++row;
    check_rounded(capacities[row][column(capacities, "hit on the host")],
                  share(cell["host_hit_tokens"], run.json["input_tokens"]));
    if (cell["budget_bytes"] != 4 * gib) continue;
    CHECK(cell["host_hit_tokens"] == hits["host"]);
    CHECK(cell["file_hit_tokens"] == hits["file"]);
  }
  CHECK(row == 2);
}

TEST_CASE("the seconds of a host tier are those of its tokens and bytes at the speeds given") {
  const Run run = make_run(400, {.host_bytes = 8 * gib, .speeds = {.host_bytes_per_s = 2e10, .tokens_per_s = 1e4}});
  const auto& tier = run.json["tiers"][0];
  const double tokens = tier["token_hit_rate"].get<double>() * run.json["input_tokens"].get<double>();
  CHECK(tier["seconds"].get<double>() == doctest::Approx(tokens / 1e4 - tier["bytes_read"].get<double>() / 2e10));
}

TEST_CASE("a page without tiers has none, and without speeds no time") {
  CHECK(make_run(50).page.find("id=\"tiers\"") == std::string::npos);
  const Run run = make_run(50, {.host_bytes = gib});
  CHECK(run.page.find("id=\"tiers\"") != std::string::npos);
  CHECK(run.page.find("seconds saved") == std::string::npos);
  CHECK(run.json["tiers"][0]["seconds"].is_null());
}

TEST_CASE("the page's ages are those of the JSON") {
  const Run run = make_run(400);
  const Cells cells = table(run.page, "ages");
  const auto& ages = run.json["ages"];
  REQUIRE(cells.size() == ages.size() + 1);
  std::int64_t reuses = 0;
  std::int64_t evictions = 0;
  for (std::size_t i = 0; i < ages.size(); ++i) {
    CHECK(cells[i + 1][1] == ages[i]["reuses"].dump());
    CHECK(cells[i + 1][3] == ages[i]["evictions"].dump());
    reuses += ages[i]["reuses"].get<std::int64_t>();
    evictions += ages[i]["evictions"].get<std::int64_t>();
  }
  CHECK(reuses == run.report.replay.requests_hit);
  CHECK(run.json["evictions"] == evictions);
}

TEST_CASE("the page is self-contained: every tag is closed, names are escaped, nothing is fetched or not a number") {
  const std::string page = make_run(400, {.host_bytes = gib}).page;
  CHECK(page.find("a &lt;b&gt; &amp; &quot;c&quot;") != std::string::npos);
  for (const char* word : {"http", "src=", "href=", "@import", "url(", "nan", "inf,", "<script"})
    CHECK_MESSAGE(page.find(word) == std::string::npos, word);
  std::vector<std::string> open;
  for (auto at = page.find('<', page.find("<html")); at != std::string::npos; at = page.find('<', at + 1)) {
    const auto end = page.find('>', at);
    REQUIRE(end != std::string::npos);
    const std::string tag = page.substr(at + 1, page.find_first_of(" >", at) - at - 1);
    if (page[end - 1] == '/' || tag == "meta") continue;
    if (tag.front() != '/') {
      open.push_back(tag);
      continue;
    }
    REQUIRE_FALSE(open.empty());
    CHECK(open.back() == tag.substr(1));
    open.pop_back();
  }
  CHECK(open.empty());
}

TEST_CASE("a page of one request, of none, and a plot without values are drawn") {
  CHECK(make_run(1).report.timeline.size() == 1);
  CHECK(to_html(Report{}).find("</html>") != std::string::npos);
  CHECK(to_svg(Plot{}).find("</svg>") != std::string::npos);
}

TEST_CASE("columns stand on each other, and the axis ends at or above the highest") {
  const std::string svg =
      to_svg({.kind = Plot::Kind::columns, .places = {"a"}, .series = {{"one", {30}}, {"two", {40}}}});
  // The plot's height of 292 stands for 80: 30 is 109.50 high and ends at 308, 40 is 146 and ends where 30 begins.
  CHECK(svg.find("y=\"198.5\" width=\"528.0\" height=\"109.50\"") != std::string::npos);
  CHECK(svg.find("y=\"52.5\" width=\"528.0\" height=\"146.00\"") != std::string::npos);
}
