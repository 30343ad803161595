// SPDX-License-Identifier: Apache-2.0
// Suites of the per-step decisions of block-table caching: one call of a rule each, and the same rows through
// AlignPlanner where it has the call.
#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/parts/align_planner.hpp>
#include <stateport/parts/align_staging.hpp>

#include "families.hpp"
#include "limits.hpp"

#include <algorithm>
#include <vector>

namespace stateport::conformance {
namespace {

using Int32s = std::vector<std::int32_t>;

Json or_null(bool present, std::int64_t value) {
  return present ? Json(value) : Json();
}

std::string row_name(std::size_t index, const Json& row) {
  return row.contains("name") ? row.at("name").get<std::string>() : "row " + std::to_string(index);
}

template <class Check>
void each_row(const Json& rows, Report& report, Check&& check) {
  for (std::size_t i = 0; i < rows.size(); ++i) report.run_case(row_name(i, rows[i]), [&] { check(rows[i]); });
}

void expect_post(const AlignPostStep& step, const Json& expect) {
  const Json got = {{"running", step.running},
                    {"new_computed", step.new_computed},
                    {"aligned", step.aligned},
                    {"needs_copy", step.copy},
                    {"bias", or_null(step.copy, step.bias)},
                    {"src_col", step.src_column},
                    {"dst_col", or_null(step.copy, step.dst_column)},
                    {"temporal_src_col", or_null(step.copy, step.src_column + step.bias)},
                    {"bytes_copied", step.moves_bytes},
                    {"accepted_after", step.accepted}};
  expect_equal(got, expect, "post step");
}

void post_decision(const Json& rows, Report& report) {
  each_row(rows, report, [](const Json& row) {
    const Json& in = row.at("input");
    expect_post(align_post_step(in.at("computed"), in.at("scheduled"), in.at("draft"), in.at("accepted"),
                                in.at("state_col"), in.at("block")),
                row.at("expect"));
  });
}

void post_decision_precomputed(const Json& rows, Report& report) {
  each_row(rows, report, [](const Json& row) {
    const Json& in = row.at("input");
    expect_post(align_post_step_advanced(in.at("new_computed"), in.at("accepted"), in.at("state_col"), in.at("block")),
                row.at("expect"));
  });
}

void pre_decision(const Json& rows, Report& report) {
  each_row(rows, report, [](const Json& row) {
    const Json& in = row.at("input");
    const std::int32_t remembered =
        in.at("prev_col").is_null() ? forgotten_column : in.at("prev_col").get<std::int32_t>();
    const AlignPreStep step =
        align_pre_step(in.at("computed"), in.at("scheduled"), remembered, in.at("accepted"), in.at("block"));
    const Json got = {{"src_col", step.src_column},
                      {"dst_col", step.column},
                      {"copy", step.copy},
                      {"bias", or_null(step.copy, step.bias)},
                      {"conv_src_col", or_null(step.copy, step.src_column)},
                      {"temporal_src_col", or_null(step.copy, step.src_column + step.bias)},
                      {"accepted_after", step.accepted},
                      {"state_col_after", step.column}};
    expect_equal(got, row.at("expect"), "pre step");
  });
}

/// The rows give the decided columns, so the step is made up such that it decides them.
void precopy_guard(const Json& rows, Report& report) {
  each_row(rows, report, [](const Json& row) {
    const std::int32_t src = row.at("src_col");
    const std::int32_t dst = row.at("dst_col");
    const std::int32_t offset = row.at("src_off");
    const AlignPreStep step = align_pre_step(0, dst + 1, src, offset + 1, 1);
    const bool copies = row.at("slot").get<std::int32_t>() >= 0 && step.copy;
    expect_equal(copies, row.at("copy"), "copy");
    expect_equal(or_null(copies, step.src_column), row.at("conv_src_col"), "conv_src_col");
    expect_equal(or_null(copies, step.src_column + step.bias), row.at("temporal_src_col"), "temporal_src_col");
  });
}

void v2_preprocess_state(const Json& rows, Report& report) {
  each_row(rows, report, [](const Json& row) {
    const Json& in = row.at("input");
    const std::int32_t accepted = in.at("accepted");
    const AlignPreStep step =
        align_pre_step(in.at("computed"), in.at("query_len"), in.at("state_col"), accepted, in.at("block"));
    const Json got = {{"src_col", step.src_column},
                      {"src_off", step.bias},
                      {"state_col", step.column},
                      {"accepted", step.accepted},
                      {"accepted_if_preserve", accepted}};
    expect_equal(got, row.at("expect"), "state");
  });
}

void bounds_guard(const Json& value, Report& report) {
  const auto row = value.at("block_row").get<Int32s>();
  each_row(value.at("cases"), report, [&](const Json& in) {
    const ColumnCopy resolved = resolve_column_copy(row.data(), static_cast<std::int32_t>(row.size()), in.at("src_col"),
                                                    in.at("dst_col"), in.at("bias"));
    const bool reachable = resolved.copy.dst_slot >= 0;
    const bool conv = reachable && resolved.copy.src_slot >= 0;
    const bool recurrent = reachable && resolved.copy.recurrent_src_slot >= 0;
    expect_equal({{"conv", conv}, {"temporal", recurrent}}, in.at("expect"), "parts");
    expect_equal(resolved.skipped_parts, (conv ? 0 : 1) + (recurrent ? 0 : 1), "skipped parts");
  });
}

AlignPlanner planner_for(std::int32_t requests, std::int32_t block, std::int32_t drafts) {
  return AlignPlanner({.mode = AlignMode::align,
                       .drafts = drafts,
                       .max_requests = requests,
                       .groups = {{.block_size_tokens = block, .blocks = 2}}});
}

void scatter_accepted(const Json& value, Report& report) {
  report.run_case("scatter", [&] {
    const auto index = value.at("input").at("idx_mapping").get<Int32s>();
    const auto sampled = value.at("input").at("num_sampled").get<Int32s>();
    const auto before = value.at("input").at("before").get<Int32s>();
    AlignPlanner planner = planner_for(static_cast<std::int32_t>(before.size()), 16, 16);
    Int32s all(before.size());
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int32_t>(i);
    planner.accept(all, before);
    planner.accept(index, sampled);
    expect_equal(Json(planner.accepted(0)), value.at("expect"), "accepted");
  });
}

void add_request(const Json& rows, Report& report) {
  each_row(rows, report, [](const Json& row) {
    AlignPlanner planner = planner_for(1, row.at("mamba_block"), 0);
    planner.add_request(RequestIndex{0}, row.at("computed"));
    const Json got = {{"state_col", planner.columns(0)[0]}, {"accepted", planner.accepted(0)[0]}};
    if (row.contains("expect")) return expect_equal(got, row.at("expect"), "request");
    // The row records the decision for a block size of the whole cache; ours must differ.
    const Json& wrong = row.at("wrong_with_min_group_block_16");
    expect_equal(got.at("state_col") != wrong, true, "differs from the column of another group's block size");
  });
}

void cleanup(const Json& rows, Report& report) {
  each_row(rows, report, [](const Json& row) {
    // Names become request slots in the order in which they appear.
    std::vector<std::string> names;
    const auto slot_of = [&](const std::string& name) {
      const auto found = std::ranges::find(names, name);
      if (found != names.end()) return RequestIndex{static_cast<std::int32_t>(found - names.begin())};
      names.push_back(name);
      return RequestIndex{static_cast<std::int32_t>(names.size()) - 1};
    };
    const auto list = [&](const Json& wanted) {
      std::vector<RequestIndex> slots;
      if (!wanted.is_null())
        for (const Json& name : wanted) slots.push_back(slot_of(name));
      return slots;
    };
    AlignPlanner planner = planner_for(64, 1, 0);
    for (const auto& [name, column] : row.at("table").items())
      planner.add_request(slot_of(name), column.get<std::int64_t>() + 1);
    planner.forget(list(row.at("finished")), list(row.at("preempted")), list(row.at("resumed")));
    Json left = Json::object();
    for (const std::string& name : names) {
      const std::int32_t column = planner.columns(0)[slot_of(name).index()];
      if (column != forgotten_column) left[name] = column;
    }
    expect_equal(left, row.at("expect"), "remembered columns");
  });
}

void staging(const Json& value, Report& report) {
  const auto rows = value.at("num_reqs").get<std::size_t>();
  const auto room = value.at("buffer_slots").get<std::size_t>();
  require_in("num_reqs", static_cast<std::int64_t>(rows), 1, static_cast<std::int64_t>(room));
  constexpr std::int32_t untouched = -77;
  Int32s columns(rows);
  std::vector<StagedRequest> batch(rows);
  for (std::size_t i = 0; i < rows; ++i) {
    const std::string name = value.at("req_order").at(i);
    const std::int32_t computed = value.at("computed").at(i);
    columns[i] = value.at("state_col").at(name);
    batch[i] = {.request = RequestIndex{static_cast<std::int32_t>(i)},
                .computed = computed,
                .scheduled = value.at("scheduled").at(name),
                .drafts = {},
                .prompt = computed + (value.at("prompt_longer_than_computed").at(i).get<bool>() ? 1 : 0)};
    if (value.at("draft").contains(name)) batch[i].drafts = value.at("draft").at(name).get<std::int32_t>();
  }
  Int32s computed(room, untouched), scheduled(room, untouched), drafts(room, untouched), column(room, untouched);
  std::vector<std::uint8_t> prefilling(room, 77);
  const AlignStaging arrays{computed, scheduled, drafts, column, prefilling};
  const auto filled = [rows](const auto& array) { return Json(std::span(array).first(rows)); };

  report.run_case("values and untouched tail", [&] {
    stage_batch(batch, columns, arrays);
    const Json& expect = value.at("expect");
    expect_equal(filled(computed), expect.at("computed"), "computed");
    expect_equal(filled(scheduled), expect.at("scheduled"), "scheduled");
    expect_equal(filled(drafts), expect.at("draft"), "draft");
    expect_equal(filled(column), expect.at("state_col"), "state_col");
    for (std::size_t i = 0; i < rows; ++i)
      expect_equal(prefilling[i] != 0, expect.at("is_prefilling").at(i), "is_prefilling");
    for (std::size_t i = rows; i < room; ++i)
      for (const Int32s* array : {&computed, &scheduled, &drafts, &column})
        expect_equal((*array)[i], untouched, "tail");
  });
  report.run_case("a missing column is an error", [&] {
    columns.front() = forgotten_column;
    bool refused = false;
    try {
      stage_batch(batch, columns, arrays);
    } catch (const InvalidArgument&) {
      refused = true;
    }
    expect_equal(refused, true, "refused");
  });
}

void all_mode_prev_scheduled(const Json& rows, Report& report) {
  each_row(rows, report, [](const Json& row) {
    const std::int32_t column =
        all_mode_column(row.at("computed"), row.at("num_query"), row.at("spec"), row.at("block"));
    expect_equal(column == no_column ? Json("drop") : Json(column), row.at("expect"), "column");
    expect_equal(all_mode_fallback_column(row.at("computed"), row.at("block")), row.at("fallback"), "fallback");
  });
}

void aligned_window(const Json& rows, Report& report) {
  each_row(rows, report, [](const Json& row) {
    const std::int32_t first = aligned_window_column(row.at("seq_len"), row.at("block"));
    expect_equal(first, row.at("first_col"), "first_col");
    Json columns = Json::array();
    for (std::int32_t i = 0; i <= row.at("spec").get<std::int32_t>(); ++i) columns.push_back(first + i);
    expect_equal(columns, row.at("cols"), "cols");
  });
}

void draft_sentinel(const Json& value, Report& report) {
  each_row(value.at("rows"), report, [](const Json& row) {
    expect_equal(decode_draft_count(row.at("decode"), row.at("drafts")), row.at("newest"), "draft count");
  });
}

}  // namespace

void add_align_decision_suites(SuiteTable& table) {
  table.emplace("post_decision", &post_decision);
  table.emplace("post_decision_precomputed", &post_decision_precomputed);
  table.emplace("pre_decision", &pre_decision);
  table.emplace("precopy_guard", &precopy_guard);
  table.emplace("v2_preprocess_state", &v2_preprocess_state);
  table.emplace("bounds_guard", &bounds_guard);
  table.emplace("scatter_accepted", &scatter_accepted);
  table.emplace("add_request", &add_request);
  table.emplace("cleanup", &cleanup);
  table.emplace("staging", &staging);
  table.emplace("all_mode_prev_scheduled", &all_mode_prev_scheduled);
  table.emplace("aligned_window", &aligned_window);
  table.emplace("draft_sentinel", &draft_sentinel);
}

}  // namespace stateport::conformance
