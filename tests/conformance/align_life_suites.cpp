// SPDX-License-Identifier: Apache-2.0
// Suites that follow one request through its life: the columns it holds, the copies of each step, what it publishes.
#include <stateport/core/align/align_planner.hpp>
#include <stateport/core/align/chunk_split.hpp>
#include <stateport/core/align/column_table.hpp>

#include "families.hpp"

#include <algorithm>
#include <map>
#include <vector>

namespace stateport::conformance {
namespace {

/// Grows a row with ids 1, 2, 3, … that are never used again. Returns the number of new ids.
class FreshIds {
 public:
  std::int32_t grow(ColumnTable& row, std::int64_t cover) {
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
      ColumnTable row(rows[i].at("block"), rows[i].at("spec"));
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

constexpr std::int32_t block_max = 4096;

/// One request of one group. What each block holds is written as a token count, apart for its two parts.
class Life {
 public:
  Life(std::int32_t block, std::int32_t drafts, bool asynchronous, std::int64_t prompt)
      : planner_({.mode = AlignMode::align,
                  .drafts = drafts,
                  .max_requests = 1,
                  .groups = {{.block_size_tokens = block, .blocks = block_max}}}),
        row_(block, drafts),
        block_(block),
        drafts_(drafts),
        asynchronous_(asynchronous),
        prompt_(prompt) {}

  [[nodiscard]] std::int64_t computed() const { return computed_; }
  [[nodiscard]] const std::map<std::int64_t, std::int32_t>& published() const { return published_; }

  /// Runs one step and returns it in the form of `e2e_scenarios`.
  Json step(std::int64_t scheduled, std::int32_t drafts, std::int32_t kept) {
    Json out = {{"computed", computed_}, {"scheduled", scheduled}, {"draft", drafts}, {"kept", kept}};
    make_room(scheduled);
    out["held"] = Json::array();
    for (const std::int32_t id : row_.columns()) out["held"].push_back(id != null_block ? 1 : 0);
    publish(scheduled);

    const std::array<std::int32_t, 1> request = {0};
    const std::array<std::int32_t, 1> computed = {static_cast<std::int32_t>(computed_)};
    const std::array<std::int32_t, 1> tokens = {static_cast<std::int32_t>(scheduled)};
    const std::array<std::int32_t, 1> draft = {drafts};
    const std::array<std::int32_t, 1> sampled = {kept};
    const AlignBatch batch{request, computed, tokens, draft};

    const AlignPreStep pre =
        align_pre_step(computed_, scheduled, planner_.columns(0)[0], planner_.accepted(0)[0], block_);
    static_cast<void>(planner_.pre_step(batch, tables()));
    run_copies(pre.copy, pre.src_column, pre.column, pre.bias);
    out["pre"] = pre.copy ? Json{pre.src_column + pre.bias, pre.column} : Json();
    out["pre_bias"] = pre.copy ? Json(pre.bias) : Json();

    forward(scheduled, drafts);
    planner_.accept(request, sampled);
    const AlignPostStep post = align_post_step(computed_, scheduled, drafts, kept, planner_.columns(0)[0], block_);
    static_cast<void>(planner_.post_step(batch, tables()));
    run_copies(post.moves_bytes, post.src_column, post.dst_column, post.bias);
    out["post"] = post.moves_bytes ? Json{post.src_column + post.bias, post.dst_column} : Json();
    out["post_bias"] = post.copy ? Json(post.bias) : Json();
    out["accepted_after_post"] = planner_.accepted(0)[0];

    previous_start_ = computed_;
    previous_scheduled_ = scheduled;
    computed_ = post.new_computed;
    if (computed_ >= prompt_) known_ = std::max(known_, computed_ + 1);
    check_published();
    return out;
  }

 private:
  struct Held {
    std::int64_t conv = -1;
    std::int64_t recurrent = -1;
  };

  [[nodiscard]] std::array<BlockTable, 1> tables() const {
    return {BlockTable{row_.columns(), row_.size(), row_.size()}};
  }
  [[nodiscard]] bool late() const { return asynchronous_ && previous_start_ >= 0; }
  [[nodiscard]] std::int64_t believed() const { return late() ? previous_start_ + previous_scheduled_ : computed_; }

  void make_room(std::int64_t scheduled) {
    std::vector<BlockId> released;
    row_.release(late() ? previous_start_ : computed_, released);
    for (const BlockId id : released) freed_.push_back(id.value());
    ids_.grow(row_, believed() + scheduled);
    row_.check_invariants();
    const std::int32_t held_max = (asynchronous_ ? 3 : 2) + drafts_;
    expect_equal(row_.held_blocks() <= held_max, true, "the number of held blocks is bounded");
  }

  /// Registers blocks when they are scheduled, as the recorded engine does; their content follows in the same step.
  void publish(std::int64_t scheduled) {
    known_ = std::max(known_, prompt_);
    const std::int64_t full = floor_div(std::min(believed() + scheduled, known_), block_);
    for (std::int64_t p = 0; p < std::min<std::int64_t>(full, row_.size()); ++p) {
      const std::int32_t id = row_.columns()[static_cast<std::size_t>(p)];
      if (id != null_block) published_.emplace((p + 1) * block_, id);
    }
  }

  void touch(std::int32_t id) const {
    expect_equal(std::ranges::find(freed_, id) == freed_.end(), true, "a freed block is not used");
  }

  [[nodiscard]] std::int32_t block_at(std::int64_t column) const {
    const std::int32_t id = block_of_column(row_.columns().data(), row_.size(), static_cast<std::int32_t>(column));
    touch(id);
    return id;
  }

  /// Carries the planner's plan out and compares it with the decision.
  void run_copies(bool decided, std::int32_t src, std::int32_t dst, std::int32_t bias) {
    const CopyPlan plan = planner_.plan(0);
    expect_equal(plan.size(), decided ? 1u : 0u, "copies in the plan");
    for (const SlotCopy& copy : plan) {
      const SlotCopy expected{block_at(src), block_at(dst), bias, block_at(src + bias)};
      expect_equal(copy == expected, true, "the plan's blocks are those of the columns");
      const Held result{held_[copy.src_slot].conv + bias, held_[copy.recurrent_src_slot].recurrent};
      held_[copy.dst_slot] = result;
    }
  }

  void forward(std::int64_t scheduled, std::int32_t drafts) {
    const std::int32_t column = planner_.columns(0)[0];
    if (computed_ > 0) {
      const std::int32_t bias = accepted_bias(planner_.accepted(0)[0]);
      expect_equal(held_[block_at(column)].conv + bias, computed_, "tokens of the conv state that the forward reads");
      expect_equal(held_[block_at(column + bias)].recurrent, computed_,
                   "tokens of the recurrent state that the forward reads");
    }
    const std::int64_t running = computed_ + scheduled - drafts;
    held_[block_at(column)].conv = running;
    for (std::int32_t j = 0; j <= drafts; ++j) held_[block_at(column + j)].recurrent = running + j;
  }

  void check_published() {
    for (const auto& [boundary, id] : published_) {
      if (boundary > computed_) continue;
      expect_equal(held_[id].conv, boundary, "tokens of a published conv state");
      expect_equal(held_[id].recurrent, boundary, "tokens of a published recurrent state");
      expect_equal(planner_.publication(0).publish(BlockId{id}, boundary), true, "the publication check agrees");
    }
  }

  AlignPlanner planner_;
  ColumnTable row_;
  FreshIds ids_;
  std::int64_t block_;
  std::int32_t drafts_;
  bool asynchronous_;
  std::int64_t prompt_;
  std::int64_t computed_ = 0;
  std::int64_t previous_start_ = -1;
  std::int64_t previous_scheduled_ = 0;
  std::int64_t known_ = 0;
  std::vector<std::int32_t> freed_;
  std::map<std::int32_t, Held> held_;
  std::map<std::int64_t, std::int32_t> published_;
};

std::int64_t chunk(const Life& life, std::int64_t prompt, std::int64_t budget, bool drops_block, std::int64_t block) {
  const std::int64_t tokens = std::min(prompt - life.computed(), budget);
  return split_chunk({life.computed(), tokens, prompt, prompt, drops_block}, block);
}

void e2e_scenarios(const Json& rows, Report& report) {
  for (const Json& row : rows) {
    const bool asynchronous = row.at("asynchronous");
    report.run_case(row.at("name").get<std::string>() + (asynchronous ? " asynchronous" : " synchronous"), [&] {
      const std::int32_t drafts = row.at("spec");
      const std::int64_t prompt = row.at("prompt");
      Life life(row.at("block"), drafts, asynchronous, prompt);
      for (const Json& expected : row.at("steps")) {
        const bool decode = life.computed() >= prompt;
        const std::int64_t scheduled =
            decode ? 1 + drafts : chunk(life, prompt, row.at("budget"), row.at("eagle"), row.at("block"));
        const std::int32_t kept = decode ? std::min(row.at("accept_per_step").get<std::int32_t>(), 1 + drafts) : 1;
        expect_equal(life.step(scheduled, decode ? drafts : 0, kept), expected, "step");
      }
    });
  }
}

void oracle_runs(const Json& rows, Report& report) {
  for (std::size_t i = 0; i < rows.size(); ++i)
    report.run_case("run " + std::to_string(i), [&] {
      const Json& row = rows[i];
      const std::int32_t drafts = row.at("spec");
      const std::int64_t prompt = row.at("prompt");
      Life life(row.at("block"), drafts, row.at("asynchronous"), prompt);
      const auto budgets = row.at("budgets").get<std::vector<std::int64_t>>();
      for (std::size_t attempt = 0; life.computed() < prompt; ++attempt) {
        const std::int64_t budget = attempt < budgets.size() ? budgets[attempt] : prompt;
        const std::int64_t scheduled = chunk(life, prompt, budget, row.at("eagle"), row.at("block"));
        if (scheduled > 0) life.step(scheduled, 0, 1);
      }
      for (const Json& accept : row.at("accepts"))
        life.step(1 + drafts, drafts, std::min(accept.get<std::int32_t>(), 1 + drafts));
      Json published = Json::object();
      for (const auto& [boundary, id] : life.published()) published[std::to_string(boundary)] = id;
      expect_equal(published, row.at("published"), "published");
    });
}

}  // namespace

void add_align_life_suites(SuiteTable& table) {
  table.emplace("column_table", &column_table);
  table.emplace("e2e_scenarios", &e2e_scenarios);
  table.emplace("oracle_runs", &oracle_runs);
}

}  // namespace stateport::conformance
