// SPDX-License-Identifier: Apache-2.0
// Suites that follow one request through its life: its columns, the copies of each step, the states that it publishes.
#include <stateport/core/model/error.hpp>

#include "align/chunk_split.hpp"
#include "align/column_table.hpp"
#include "align_life.hpp"
#include "families.hpp"
#include "limits.hpp"

#include <algorithm>
#include <span>
#include <stdexcept>
#include <vector>

namespace stateport::conformance {
namespace {

/// Grows a row with ids 1, 2, 3, … that are never used again. Returns the number of new ids.
class FreshIds {
 public:
  std::int32_t grow(detail::ColumnTable& row, std::int64_t cover) {
    std::vector<BlockId> fresh(static_cast<std::size_t>(row.fresh_blocks(cover)));
    for (BlockId& id : fresh) id = BlockId{next_++};
    row.grow(cover, fresh);
    return static_cast<std::int32_t>(fresh.size());
  }

 private:
  std::int32_t next_ = 1;
};

void column_table(const Json& rows, Report& report) {
  for (std::size_t i = 0; i < rows.size(); ++i)
    report.run_case("row " + std::to_string(i), [&] {
      detail::ColumnTable row(rows[i].at("block"), rows[i].at("spec"));
      FreshIds ids;
      std::vector<BlockId> released;
      for (const Json& step : rows[i].at("steps")) {
        row.release(step.at("processed"), released);
        expect_equal(ids.grow(row, step.at("cover")), step.at("new"), "new blocks");
        expect_equal(row.columns(), step.at("table"), "columns");
        row.check_invariants();
      }
    });
}

/// Of a life: each looks at every block.
constexpr std::int64_t passes_max = 2000;

/// The chunks of the prompt for these budgets, then the rest of it at once. A row may have `chunks` of its own.
std::vector<LifeStep> prompt_steps(const Json& row, std::span<const std::int64_t> budgets) {
  const std::int64_t prompt = row.at("prompt");
  const bool drops_block = row.at("eagle");
  std::vector<LifeStep> steps;
  std::int64_t start = 0;
  for (std::size_t attempt = 0; start < prompt; ++attempt) {
    const std::int64_t budget = attempt < budgets.size() ? budgets[attempt] : prompt;
    const bool given = row.contains("chunks");
    const std::int64_t tokens =
        given ? row.at("chunks").at(attempt).get<std::int64_t>()
              : detail::split_chunk({start, std::min(prompt - start, budget), prompt, prompt, drops_block},
                                    row.at("block"));
    require_in("chunks", tokens, 0, prompt - start);
    require_in("chunks.size()", std::ssize(steps), 0, passes_max);
    start += tokens;
    if (tokens > 0)
      steps.push_back(
          {.budget = budget, .tokens = static_cast<std::int32_t>(tokens), .foreign_chunk = drops_block || given});
  }
  return steps;
}

LifeStep decode_step(std::int32_t drafts, std::int32_t accepted) {
  const std::int32_t tokens = 1 + drafts;
  return {.budget = tokens, .tokens = tokens, .drafts = drafts, .kept = std::min(accepted, tokens)};
}

AlignLife::Config life_of(CacheIndex index, const Json& row, std::size_t steps) {
  return {.index = index,
          .block = row.at("block"),
          .drafts = row.at("spec"),
          .overlap = row.at("asynchronous"),
          .prompt = row.at("prompt"),
          .steps = steps};
}

/// A prefix tree and block hashes find the same states, and lay them out alike.
void for_each_index(void (*run)(CacheIndex, const Json&), const Json& row) {
  for (const CacheIndex index : {CacheIndex::hash, CacheIndex::tree}) run(index, row);
}

void expect_refused(const AlignLife::Config& config) {
  try {
    const AlignLife life(config);
  } catch (const InvalidArgument& refusal) {
    return expect_equal(refusal.argument(), "block_size_tokens", "refused argument");
  }
  throw std::runtime_error("blocks that are too small for overlap were accepted");
}

/// The recorded engine has as many drafts in every step, RequestCache any number: with overlap it asks for blocks of
/// more than twice as many tokens. Such a life runs without overlap: it computes, copies and publishes the same, in
/// other blocks. True if the blocks are too small.
bool run_without_overlap(AlignLife::Config& config) {
  if (!config.overlap || config.block > 2 * config.drafts) return false;
  expect_refused(config);
  config.overlap = false;
  return true;
}

void e2e_scenario(CacheIndex index, const Json& row) {
  const Json& recorded = row.at("steps");
  const std::vector<std::int64_t> budgets(recorded.size(), row.at("budget"));
  std::vector<LifeStep> steps = prompt_steps(row, budgets);
  while (steps.size() < recorded.size()) steps.push_back(decode_step(row.at("spec"), row.at("accept_per_step")));
  AlignLife::Config config = life_of(index, row, steps.size());
  const bool small_blocks = run_without_overlap(config);
  std::vector<Json> got = AlignLife(config).run(steps);
  for (std::size_t i = 0; i < got.size(); ++i) {
    Json expected = recorded.at(i);
    if (small_blocks) expected.erase("held"), got[i].erase("held");  // overlap holds columns for longer
    // A copy of a state onto itself is in no plan; the rule that finds it is tested by post_decision.
    if (expected.at("post").is_null()) expected["post_bias"] = nullptr;
    expect_equal(got[i], expected, "step " + std::to_string(i));
  }
}

void e2e_scenarios(const Json& rows, Report& report) {
  for (const Json& row : rows)
    report.run_case(row.at("name").get<std::string>() + (row.at("asynchronous") ? " asynchronous" : " synchronous"),
                    row, [](const Json& scenario) { for_each_index(&e2e_scenario, scenario); });
}

void oracle_run(CacheIndex index, const Json& row) {
  std::vector<LifeStep> steps = prompt_steps(row, row.at("budgets").get<std::vector<std::int64_t>>());
  for (const Json& accepted : row.at("accepts")) steps.push_back(decode_step(row.at("spec"), accepted));
  AlignLife::Config config = life_of(index, row, steps.size());
  const bool small_blocks = run_without_overlap(config);
  AlignLife life(config);
  static_cast<void>(life.run(steps));
  if (!small_blocks) return expect_equal(life.registered(), row.at("published"), "published");
  for (const auto& [boundary, number] : row.at("published").items())
    expect_equal(life.published(std::stol(boundary)), true, "published at " + boundary);
}

void oracle_runs(const Json& rows, Report& report) {
  for (std::size_t i = 0; i < rows.size(); ++i)
    report.run_case("run " + std::to_string(i), rows[i], [](const Json& run) { for_each_index(&oracle_run, run); });
}

}  // namespace

void add_align_life_suites(SuiteTable& table) {
  table.emplace("column_table", &column_table);  // the class itself: it has no requests
  // Lives of requests: through make_request_cache().
  table.emplace("e2e_scenarios", &e2e_scenarios);
  table.emplace("oracle_runs", &oracle_runs);
}

}  // namespace stateport::conformance
