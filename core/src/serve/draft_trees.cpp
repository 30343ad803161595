// SPDX-License-Identifier: Apache-2.0
#include "serve/draft_trees.hpp"

#include <stateport/core/model/error.hpp>

#include <utility>

namespace stateport::detail {
namespace {

/// The step before `step` on its path.
std::int32_t parent_of(std::span<const std::int32_t> parents, std::int32_t step) {
  return parents[static_cast<std::size_t>(step) - 1];
}

/// The number of drafts on the path to `step`.
std::int32_t depth_of(std::span<const std::int32_t> parents, std::int32_t step) {
  std::int32_t depth = 0;
  for (; step > 0; step = parent_of(parents, step)) ++depth;
  return depth;
}

}  // namespace

DraftTrees::DraftTrees(const RequestCacheOptions& options) : options_(options) {
  moves_.reserve(static_cast<std::size_t>(options.max_requests) * static_cast<std::size_t>(options.drafts));
}

void DraftTrees::check_parents(std::span<const PassRow> rows, std::span<const std::int32_t> parents) const {
  if (parents.empty()) return;
  require(!in_columns(options_), "parents", parents.size(), "are given, and drafts are chains in columns");
  std::size_t first = 0;
  for (const PassRow& row : rows) {
    const auto drafts = static_cast<std::size_t>(row.drafts);
    require(drafts <= parents.size() - first, "parents", parents.size(), "must be one for each draft");
    for (std::size_t i = 0; i < drafts; ++i) {
      const std::int32_t parent = parents[first + i];
      require(parent >= 0 && std::cmp_less_equal(parent, i), "parents", parent, "is not an earlier step of the row");
    }
    first += drafts;
  }
  require(first == parents.size(), "parents", parents.size(), "must be one for each draft");
}

void DraftTrees::check_steps(const Pass& pass, std::span<const std::int32_t> counts,
                             std::span<const std::int32_t> steps) const {
  require(steps.empty() == pass.parents.empty(), "steps", steps.size(), "must be given where the plan has parents");
  if (steps.empty()) return;
  require(steps.size() == pass.rows.size(), "steps", steps.size(), "must be one for each row of the plan");
  std::size_t first = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const auto drafts = static_cast<std::size_t>(pass.rows[i].drafts);
    const auto parents = std::span(pass.parents).subspan(first, drafts);
    first += drafts;
    if (counts[i] == 0 || drafts == 0) continue;
    require(steps[i] >= 0 && std::cmp_less_equal(steps[i], drafts), "steps", steps[i], "is no step of the row");
    require(depth_of(parents, steps[i]) + 1 == counts[i], "steps", steps[i],
            "has another number of drafts on its path than the row keeps");
  }
}

/// A token of the path lies where its step put it, at or behind the place where it belongs.
void DraftTrees::keep(Pass& pass, std::span<const std::int32_t> counts, std::span<const std::int32_t> steps) {
  moves_.clear();
  if (steps.empty()) return;
  const auto width = static_cast<std::size_t>(options_.drafts) + 1;
  pass.paths.assign(pass.rows.size() * width, 0);
  std::size_t first = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const RowPlan& row = pass.rows[i];
    const auto parents = std::span(pass.parents).subspan(first, static_cast<std::size_t>(row.drafts));
    first += static_cast<std::size_t>(row.drafts);
    if (!pass.runs(i) || row.drafts == 0) continue;
    const auto path = std::span(pass.paths).subspan(i * width, width);
    std::int32_t step = steps[i];
    for (std::int32_t depth = counts[i] - 1; depth > 0; step = parent_of(parents, step))
      path[static_cast<std::size_t>(depth--)] = step;
    for (std::int32_t depth = 1; depth < counts[i]; ++depth)
      if (const std::int32_t at = path[static_cast<std::size_t>(depth)]; at != depth)
        moves_.push_back({.src = row.kv.at(row.start + at), .dst = row.kv.at(row.start + depth)});
  }
}

}  // namespace stateport::detail
