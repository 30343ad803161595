// SPDX-License-Identifier: Apache-2.0
// Suites of the prefix tree: `cases` (operations with one expected result each) and `traces` (recorded random runs).
#include "families.hpp"
#include "request_replay.hpp"
#include "tree_life.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <string>

namespace stateport::conformance {
namespace {

/// Cases in which our rule is deliberately better than the recorded one: the id and the reason.
const std::map<std::string, std::string>& deviations() {
  static const std::map<std::string, std::string> all = {
      {"d_cow_only_match_pinned", "a pool whose slots are all pinned is a miss with a reason, not an assertion"},
  };
  return all;
}

/// The result that we give where an error was recorded.
Json miss_instead_of(const Json& recorded) {
  Json miss = recorded;
  miss.erase("error");
  miss.erase("msg");
  miss.update(Json{{"matched_len", 0},
                   {"indices", Json::array()},
                   {"node", Json::array()},
                   {"node_key_len", 0},
                   {"branching", nullptr},
                   {"node_slot", nullptr}});
  return miss;
}

void run_steps(PrefixReplay& replay, const Json& ops, const Json& results, bool deviates) {
  for (std::size_t step = 0; step < ops.size(); ++step) {
    const Json& recorded = results.at(step);
    const Json expected = deviates && recorded.contains("error") ? miss_instead_of(recorded) : recorded;
    expect_equal(replay.run(ops.at(step)), expected, "step " + std::to_string(step) + " " + ops.at(step).dump());
  }
}

/// Whole requests run over TreeRequests, with tree, locks and pools compared after each operation.
bool has_requests(const Json& ops) {
  return std::ranges::any_of(ops, [](const Json& op) { return op.at("op").get<std::string>().starts_with("req_"); });
}

void prefix_tree_case(const Json& row) {
  const PrefixConfig config(row.at("config"));
  const std::unique_ptr<PrefixReplay> replay =
      has_requests(row.at("ops")) ? std::make_unique<RequestReplay>(config) : std::make_unique<PrefixReplay>(config);
  const Json& results = row.at("expect").at("unified");
  run_steps(*replay, row.at("ops"), results, deviations().contains(row.at("id")));
  // Requests that copy their live state live as those of RequestCache do, and run through it too. Those with an extra
  // buffer hold two slots more from start to end, which RequestCache takes when a pass needs them: other pool pressure,
  // other slots, other positions. They stay on TreeRequests, and so does the older rule of splits, because only the
  // tree's owner can refresh a state.
  if (!has_requests(row.at("ops")) || config.extra_buffer || config.split_refreshes_state) return;
  TreeLife life(config, row.at("ops"));
  for (std::size_t step = 0; step < results.size(); ++step) {
    try {
      life.run(row.at("ops").at(step), results.at(step));
    } catch (const std::exception& error) {
      throw std::runtime_error("life, step " + std::to_string(step) + " " + row.at("ops").at(step).dump() + ": " +
                               error.what());
    }
  }
}

void traces(const Json& rows, Report& report) {
  for (const Json& recorded : rows)
    report.run_case("seed " + recorded.at("seed").dump() + " " + recorded.at("config").dump(), recorded,
                    [](const Json& row) {
                      Json ops = Json::array();
                      Json results = Json::array();
                      // A newer rule: JSON patches by step, and the last step that the recording has in common with it.
                      const Json patches = row.value("patches", Json::object());
                      for (const Json& step : row.at("steps")) {
                        const std::string number = std::to_string(ops.size());
                        ops.push_back(step.at("op"));
                        results.push_back(step.at("res").patch(patches.value(number, Json::array())));
                        if (row.contains("last_step") && row.at("last_step") == ops.size() - 1) break;
                      }
                      PrefixReplay replay{PrefixConfig(row.at("config"))};
                      run_steps(replay, ops, results, false);
                    });
}

}  // namespace

void run_prefix_cases(const Json& rows, Report& report) {
  for (const Json& row : rows) report.run_case(row.at("id"), row, &prefix_tree_case);
}

void add_prefix_suites(SuiteTable& table) {
  table.emplace("traces", &traces);
}

}  // namespace stateport::conformance
