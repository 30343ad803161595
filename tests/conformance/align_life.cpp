// SPDX-License-Identifier: Apache-2.0
#include "align_life.hpp"

#include <stateport/core/align/align_rules.hpp>

#include <algorithm>
#include <array>
#include <numeric>

namespace stateport::conformance {
namespace {

constexpr std::int32_t many_blocks = 4096;  // no block is evicted

RequestCacheOptions options_of(const AlignLife::Config& config) {
  const std::int64_t longest = config.prompt + static_cast<std::int64_t>(config.steps + 2) * (1 + config.drafts);
  return {
      .index = config.index,
      .layout =
          ColumnLayout{.groups = {{.block_size_tokens = config.block, .blocks = many_blocks, .layout_fingerprint = 7}}},
      .max_requests = 1,
      .max_request_tokens = longest,
      .drafts = config.drafts,
      .block_size_tokens = config.block,
      .kv_tokens = ceil_div(longest, config.block) * config.block,
      .overlap = config.overlap,
      .events = true};
}

std::int64_t column_of(std::int32_t block, std::span<const std::int32_t> columns) {
  const auto found = std::ranges::find(columns, block);
  expect_equal(found != columns.end() && block != null_block, true, "a copied block is in the row");
  return found - columns.begin();
}

}  // namespace

AlignLife::AlignLife(const Config& config) : config_(config), cache_(make_request_cache(options_of(config))) {
  std::vector<Token> prompt(static_cast<std::size_t>(config.prompt));
  std::iota(prompt.begin(), prompt.end(), Token{1});
  request_ = cache_->start({.tokens = prompt}).value().request;
}

std::vector<Json> AlignLife::run(std::span<const LifeStep> steps) {
  const std::size_t ahead = config_.overlap ? 2 : 1;
  std::vector<Json> rows;
  std::size_t planned = 0;
  while (rows.size() < steps.size()) {
    while (planned < steps.size() && outstanding_.size() < ahead) plan(steps[planned++]);
    rows.push_back(commit());
  }
  return rows;
}

Json AlignLife::registered() const {
  Json numbers = Json::object();
  for (const auto& [boundary, state] : registered_) {
    numbers[std::to_string(boundary)] = state.number;
    expect_equal(published(boundary) && published_.at(boundary) == state.block, true,
                 "the state at " + std::to_string(boundary) + " is published in its block");
  }
  return numbers;
}

void AlignLife::plan(const LifeStep& step) {
  if (!step.foreign_chunk) expect_equal(cache_->chunk(request_, step.budget).tokens, step.tokens, "chunk");
  const std::int64_t processed = cache_->computed(request_);
  const PassRow row{.request = request_, .tokens = step.tokens, .drafts = step.drafts};
  const PassPlan plan = cache_->plan({&row, 1});
  cache_->check_invariants();
  expect_equal(plan.rows_without_room, 0, "rows without room");
  // Blocks below the committed state left the row; a fresh one that has such a block's id is another one.
  const std::int64_t released = std::min<std::int64_t>(floor_div(processed - 1, config_.block), std::ssize(columns_));
  for (std::int64_t column = 0; column < released; ++column) numbers_.erase(columns_[static_cast<std::size_t>(column)]);
  number_columns(cache_->state(request_).slots);

  Outstanding& pass = outstanding_.emplace_back(Outstanding{.pass = plan.pass, .step = step, .row = {}});
  pass.row["held"] = Json::array();
  for (const std::int32_t block : columns_) pass.row["held"].push_back(block != null_block ? 1 : 0);
  const auto held = std::ranges::count_if(columns_, [](std::int32_t block) { return block != null_block; });
  expect_equal(held <= (config_.overlap ? 3 : 2) + config_.drafts, true, "the number of held blocks is bounded");
  if (plan.ready) enqueue(plan, pass);
}

void AlignLife::number_columns(std::span<const std::int32_t> columns) {
  columns_.assign(columns.begin(), columns.end());
  for (const std::int32_t block : columns_)
    if (block != null_block && numbers_.try_emplace(block, last_number_ + 1).second) ++last_number_;
}

void AlignLife::enqueue(const PassPlan& plan, Outstanding& pass) {
  const RowPlan& row = plan.rows[0];
  pass.row.update({{"computed", row.start}, {"scheduled", row.tokens}, {"draft", row.drafts}});
  register_full(row);
  const auto [columns, bias] = run_copies(plan.groups[0].copies, row.states[0].slots);
  pass.row["pre"] = columns;
  pass.row["pre_bias"] = bias;
  forward(row);
}

/// The blocks that the recorded engine registers for this pass. It knows the tokens up to the end of the prompt, later
/// up to the token that it feeds.
void AlignLife::register_full(const RowPlan& row) {
  const std::int64_t known = std::min(row.start + row.tokens, std::max(config_.prompt, row.start + 1));
  for (std::int64_t column = 0; column < known / config_.block; ++column) {
    const std::int32_t block = columns_[static_cast<std::size_t>(column)];
    if (block == null_block) continue;
    registered_.try_emplace((column + 1) * config_.block, Registered{.block = block, .number = numbers_.at(block)});
  }
}

void AlignLife::forward(const RowPlan& row) {
  const RowState& state = row.states[0];
  expect_equal(state.read_column < 0, row.start == 0, "only the first pass begins with the empty state");
  if (row.start > 0) {
    expect_equal(held_[state.conv_source().value()].conv + state.read_bias, row.start,
                 "tokens of the conv state that the forward reads");
    expect_equal(held_[state.recurrent_source().value()].recurrent, row.start,
                 "tokens of the recurrent state that the forward reads");
  }
  const std::int64_t running = row.start + row.tokens - row.drafts;
  for (std::int32_t draft = 0; draft <= row.drafts; ++draft) {
    expect_equal(state.target(draft).value() != null_block, true, "a state has a block to go to");
    held_[state.target(draft).value()].recurrent = running + draft;
  }
  held_[state.target().value()].conv = running;
}

std::pair<Json, Json> AlignLife::run_copies(CopyPlan copies, std::span<const std::int32_t> columns) {
  expect_equal(copies.size() <= 1, true, "a row copies at most one state");
  if (copies.empty()) return {nullptr, nullptr};
  const SlotCopy& copy = copies[0];
  const std::int64_t source = column_of(copy.recurrent_src_slot, columns);
  expect_equal(column_of(copy.src_slot, columns) + copy.conv_shift, source, "the column of the conv state, and bias");
  held_[copy.dst_slot] = {.conv = held_[copy.src_slot].conv + copy.conv_shift,
                          .recurrent = held_[copy.recurrent_src_slot].recurrent};
  return {Json{source, column_of(copy.dst_slot, columns)}, copy.conv_shift};
}

Json AlignLife::commit() {
  const Outstanding pass = outstanding_.front();
  outstanding_.pop_front();
  const std::int64_t start = cache_->computed(request_);
  const bool samples = start + pass.step.tokens >= config_.prompt;
  const std::array<std::int32_t, 1> counts = {samples ? pass.step.kept : 0};
  const std::vector<Token> sampled(static_cast<std::size_t>(counts[0]), Token{1});
  const PassCommit done = cache_->commit(pass.pass, counts, sampled);
  cache_->check_invariants();
  Json row = pass.row;
  const auto [columns, bias] = run_copies(done.groups[0].copies, cache_->state(request_).slots);
  row.update({{"kept", pass.step.kept}, {"post", columns}, {"post_bias", bias}});
  row["accepted_after_post"] = cache_->state(request_).read_bias + 1;
  take_published();
  if (done.next) enqueue(*done.next, outstanding_.front());
  return row;
}

/// Published states have the token count that they claim, and so do all that were published before.
void AlignLife::take_published() {
  std::array<CacheEvent, 8> events;
  for (std::size_t count = events.size(); count == events.size();) {
    count = cache_->take_events(events);
    for (const CacheEvent& event : std::span(events).first(count)) {
      if (event.content != CacheEvent::Content::state) continue;
      expect_equal(event.kind == CacheEvent::Kind::stored, true, "no state is evicted");
      const auto column = static_cast<std::size_t>(event.tokens / config_.block) - 1;
      published_[event.tokens] = cache_->state(request_).slots[column];
    }
  }
  for (const auto& [boundary, block] : published_) {
    expect_equal(held_[block].conv, boundary, "tokens of a published conv state");
    expect_equal(held_[block].recurrent, boundary, "tokens of a published recurrent state");
  }
}

}  // namespace stateport::conformance
