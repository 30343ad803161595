// SPDX-License-Identifier: Apache-2.0
// Suites of planning rules: chunk split, checkpoints inside chunks, layouts, retention, hits, memory.
#include <stateport/core/align/align_rules.hpp>
#include <stateport/parts/prefill_checkpoint.hpp>
#include <stateport/parts/retention.hpp>

#include "align/chunk_split.hpp"
#include "align/state_hit.hpp"
#include "families.hpp"
#include "limits.hpp"
#include "older_split.hpp"
#include "replay_ring.hpp"
#include "scan_chunk_layout.hpp"

#include <algorithm>
#include <functional>
#include <vector>

namespace stateport::conformance {
namespace {

template <class Check>
void each_named_row(const Json& rows, Report& report, Check&& check) {
  for (std::size_t i = 0; i < rows.size(); ++i)
    report.run_case(rows[i].contains("name") ? rows[i].at("name").get<std::string>() : "row " + std::to_string(i),
                    rows[i], check);
}

/// The value of a key that may be missing or null.
template <class Value>
std::optional<Value> optional_at(const Json& row, const char* key) {
  if (!row.contains(key) || row.at(key).is_null()) return std::nullopt;
  return row.at(key).get<Value>();
}

test::OlderSplit older_split(const Json& in) {
  const std::int64_t prompt = in.at("prompt");
  test::OlderSplit split{.block = in.at("block"),
                         .prompt = prompt,
                         .total = in.value("total", prompt),
                         .drops_block = in.at("eagle"),
                         .partial_hit_block = {},
                         .shared_boundary = optional_at<std::int64_t>(in, "shared_boundary")};
  if (in.value("partial_hit", false)) split.partial_hit_block = in.at("hash_block").get<std::int64_t>();
  return split;
}

void align_split(const Json& rows, Report& report) {
  each_named_row(rows, report, [](const Json& row) {
    const Json& in = row.at("input");
    expect_equal(older_split(in)(in.at("start"), in.at("num_new")), row.at("expect"), "tokens");
  });
}

using Split = std::function<std::int64_t(std::int64_t start, std::int64_t tokens)>;

/// Ends of the chunks of a prompt, one attempt per budget, then the whole prompt at once as often as needed.
std::vector<std::int64_t> chunk_ends(const Split& split, std::int64_t start, std::int64_t prompt,
                                     const std::vector<std::int64_t>& budgets) {
  std::vector<std::int64_t> ends;
  for (std::size_t attempt = 0; start < prompt; ++attempt) {
    const std::int64_t budget = attempt < budgets.size() ? budgets[attempt] : prompt;
    start += split(start, std::min(prompt - start, budget));
    ends.push_back(start);
    if (attempt > budgets.size() + static_cast<std::size_t>(prompt)) throw std::runtime_error("the prompt never ends");
  }
  return ends;
}

std::vector<std::int64_t> poisoned_boundaries(const std::vector<std::int64_t>& ends, std::int64_t block) {
  std::vector<std::int64_t> poisoned;
  for (std::size_t i = 1; i < ends.size(); ++i) {
    const std::int64_t boundary = ceil_div(ends[i - 1], block) * block;
    if (ends[i - 1] % block != 0 && ends[i] > boundary) poisoned.push_back(boundary);
  }
  return poisoned;
}

void align_split_later_rule(const Json& rows, Report& report) {
  each_named_row(rows, report, [](const Json& row) {
    const Json& in = row.at("input");
    const std::int64_t prompt = in.at("prompt");
    const std::int64_t block = in.at("block");
    const bool drops_block = in.at("eagle");
    const std::int64_t total = in.value("total", prompt);
    const Split later = [=](std::int64_t start, std::int64_t tokens) {
      return detail::split_chunk({start, tokens, prompt, total, drops_block}, block);
    };
    if (in.contains("start")) return expect_equal(later(in.at("start"), in.at("num_new")), row.at("expect"), "tokens");
    const auto budgets = in.value("budgets", std::vector<std::int64_t>{});
    const auto ends = chunk_ends(later, in.value("resume_at", std::int64_t{0}), prompt, budgets);
    expect_equal(ends, row.at("expect_chunk_ends"), "chunk ends");
    expect_equal(poisoned_boundaries(ends, block).empty(), true, "no boundary is passed without a stop");
    if (!row.contains("old_rule_chunk_ends")) return;
    const auto older_ends = chunk_ends(older_split(in), 0, prompt, budgets);
    expect_equal(older_ends, row.at("old_rule_chunk_ends"), "chunk ends of the older rule");
    expect_equal(poisoned_boundaries(older_ends, block), row.at("old_rule_poisoned_boundaries"), "poisoned boundaries");
  });
}

void prefill_checkpoints(const Json& rows, Report& report) {
  each_named_row(rows, report, [](const Json& row) {
    const Json& in = row.at("input");
    if (row.at("kind") == "position") {
      const bool inclusive = row.at("variant").get<std::string>().starts_with("inclusive");
      return expect_equal(
          prefill_checkpoint_position(in.at("num_tokens"), in.at("hash_block"), in.at("drop"), inclusive),
          row.at("expect"), "position");
    }
    const PrefillCheckpoint checkpoint =
        prefill_checkpoint({.start = in.at("query_start"),
                            .end = in.at("query_end"),
                            .position = in.at("position"),
                            .hash_block = in.at("hash_block"),
                            .state_block = in.at("mamba_block"),
                            .alignment = optional_at<std::int64_t>(in, "alignment").value_or(0)});
    expect_equal(checkpoint.valid(), row.at("expect"), "valid");
    expect_equal(checkpoint.column, row.at("checkpoint_col"), "checkpoint_col");
    expect_equal(checkpoint.offset, row.at("offset"), "offset");
  });
}

void scan_chunk_layout(const Json& rows, Report& report) {
  test::ScanChunkLayout layout;
  each_named_row(rows, report, [&](const Json& row) {
    using Int32s = std::vector<std::int32_t>;
    const Json& in = row.at("input");
    layout.build(in.at("chunk"), in.at("computed").get<Int32s>(), in.at("query_lens").get<Int32s>(),
                 optional_at<Int32s>(in, "checkpoint_offsets").value_or(Int32s{}));
    const Json got = {{"cu", layout.cumulative_tokens()},
                      {"seq", layout.sequence()},
                      {"last", layout.last_piece()},
                      {"checkpoint_chunk", layout.checkpoint_piece()}};
    expect_equal(got, row.at("expect"), "layout");
  });
}

void reachable_mask(const Json& rows, Report& report) {
  each_named_row(rows, report, [](const Json& row) {
    const Json& in = row.at("input");
    const RetentionPolicy policy{optional_at<std::int64_t>(in, "retention")};
    const std::int64_t block = in.at("block");
    const std::int64_t start = in.at("start");
    const std::int64_t end = in.at("end");
    require_in("start", start, 0, end);
    std::vector<std::uint8_t> keep(static_cast<std::size_t>(end - start));
    fill_retention_mask(policy, block, start, in.at("boundaries").get<std::vector<std::int64_t>>(), keep);
    Json kept = Json::array();
    for (std::size_t i = 0; i < keep.size(); ++i)
      if (keep[i] != 0) kept.push_back(i);
    if (!row.at("expect_true").is_null()) return expect_equal(kept, row.at("expect_true"), "kept columns");
    expect_equal(policy.keeps_all(block), true, "keeps all");
    expect_equal(kept.size(), keep.size(), "number of kept columns");
  });
}

void replay_rings(const Json& rows, Report& report) {
  each_named_row(rows, report, [](const Json& row) {
    const Json& in = row.at("input");
    const test::ReplayRing ring = test::replay_ring(in.at("seq_len"), in.at("query_len"), in.at("base"), in.at("ring"),
                                                    optional_at<std::int64_t>(in, "align_block").value_or(0));
    expect_equal({{"pos", ring.position}, {"flush", ring.flush ? 1 : 0}}, row.at("expect"), "ring");
  });
}

void longest_hit(const Json& rows, Report& report) {
  each_named_row(rows, report, [](const Json& row) {
    const auto cached = row.at("cached_columns").get<std::vector<std::int32_t>>();
    const detail::StateHit hit =
        detail::longest_state_hit(row.at("max_len"), row.at("block"), row.at("align"),
                                  [&](std::int32_t k) { return std::ranges::find(cached, k) != cached.end(); });
    expect_equal(hit.tokens, row.at("expect_tokens"), "tokens");
    expect_equal(std::max(hit.column, 0), row.at("expect_null_columns"), "null columns");
  });
}

void memory_pages(const Json& rows, Report& report) {
  each_named_row(rows, report, [](const Json& row) {
    const std::string name = row.at("mode");
    const AlignMode mode = name == "none" ? AlignMode::none : name == "align" ? AlignMode::align : AlignMode::all;
    expect_equal(resident_blocks(mode, row.at("max_len"), row.at("block"), row.at("spec"), row.at("ckpt")),
                 row.at("pages"), "pages");
    expect_equal(table_columns(mode, row.at("max_len"), row.at("block"), row.at("spec")), row.at("table_width"),
                 "table width");
  });
}

}  // namespace

void add_align_planning_suites(SuiteTable& table) {
  table.emplace("align_split", &align_split);
  table.emplace("align_split_later_rule", &align_split_later_rule);
  table.emplace("prefill_checkpoint", &prefill_checkpoints);
  table.emplace("scan_chunk_layout", &scan_chunk_layout);
  table.emplace("reachable_mask", &reachable_mask);
  table.emplace("replay_ring", &replay_rings);
  table.emplace("longest_state_hit", &longest_hit);
  table.emplace("memory_pages", &memory_pages);
}

}  // namespace stateport::conformance
