// SPDX-License-Identifier: Apache-2.0
#include "caches/align_replayer.hpp"

#include <stateport/core/align/align_mode.hpp>
#include <stateport/core/align/chunk_split.hpp>
#include <stateport/core/model/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

namespace stateport::replay {
namespace {

using Clock = std::chrono::steady_clock;

std::int64_t computed_tokens(const Request& request) {
  return request.input_tokens + std::max<std::int64_t>(request.output_tokens, 1) - 1;
}

AlignReplayOptions validated(const AlignReplayOptions& options, std::int64_t block_size_tokens) {
  require(options.drafts >= 0, "drafts", options.drafts, "must not be negative");
  require(options.accept >= 0 && options.accept <= 1, "accept", fmt::format("{}", options.accept), "0 to 1");
  require(options.history_tokens >= 1, "history_tokens", options.history_tokens, "at least 1");
  require(block_size_tokens >= 2 * (1 + std::int64_t{options.drafts}), "block_size_tokens", block_size_tokens,
          "at least twice the tokens of a decode step");
  require(block_size_tokens <= options.step_tokens_max, "block_size_tokens", block_size_tokens,
          fmt::format("at most the {} prefill tokens of a step", options.step_tokens_max));
  return options;
}

AlignOptions planner_options(const Workload& workload, const AlignReplayOptions& options) {
  return {.drafts = options.drafts,
          .max_requests = align_requests,
          .groups = {{.block_size_tokens = static_cast<std::int32_t>(workload.block_size_tokens()),
                      .blocks = options.blocks + 1}}};
}

}  // namespace

/// The tokens of the longest request, and the drafts of two steps that asynchronous counters take for kept.
std::int32_t align_columns(const Workload& workload, std::int32_t drafts) {
  std::int64_t tokens = 1;
  for (std::size_t i = 0; i < workload.size(); ++i)
    tokens = std::max(tokens, computed_tokens(workload.request(i)) + 2 * (1 + std::int64_t{drafts}));
  return static_cast<std::int32_t>(table_columns(AlignMode::align, tokens, workload.block_size_tokens(), drafts));
}

std::int64_t align_blocks_max(const Workload& workload, std::int32_t drafts) {
  std::int64_t blocks = align_requests * blocks_held_max(drafts);
  for (std::size_t i = 0; i < workload.size(); ++i)
    blocks += computed_tokens(workload.request(i)) / workload.block_size_tokens();
  return blocks;
}

AlignReplayer::AlignReplayer(const Workload& workload, const AlignReplayOptions& options, AlignMover& mover)
    : workload_(workload),
      options_(validated(options, workload.block_size_tokens())),
      mover_(mover),
      continuations_(find_continuations(workload)),
      cache_({.blocks = options.blocks,
              .block_size_tokens = workload.block_size_tokens(),
              .drafts = options.drafts,
              .requests = align_requests}),
      planner_(planner_options(workload, options)),
      random_(options.seed),
      accept_below_(static_cast<std::uint64_t>(std::ldexp(options.accept, 32))),
      serving_(align_requests),
      columns_(align_columns(workload, options.drafts)) {}

void AlignReplayer::run(const Continue& keep_going) {
  const Clock::time_point begin = Clock::now();
  bool going = workload_.size() > 0;
  while (going) {
    cache_.advance_tick();
    for (std::int32_t i = 0; i < align_requests; ++i)
      if (!serving_[static_cast<std::size_t>(i)].active && next_ < workload_.size()) admit(RequestId{i});
    schedule();
    fill_batch();
    plan();
    for (const StagedRequest& row : rows_) {
      const RequestId request{row.request};
      Serving& serving = serving_[request.index()];
      const std::int64_t before = serving.computed;
      serving.computed += serving.scheduled - serving.drafts + std::max(serving.sampled, 1) - 1;
      serving.previous_start = before;
      serving.previous_scheduled = serving.scheduled;
      publish(request, before);
      if (serving.computed < serving.end) continue;
      finish(request);
      going = keep_going(counts_.requests);
      if (!going) break;
    }
    going = going && (next_ < workload_.size() || std::ranges::any_of(serving_, &Serving::active));
  }
  counts_.wall_seconds += std::chrono::duration<double>(Clock::now() - begin).count();
}

void AlignReplayer::admit(RequestId request) {
  const std::size_t index = next_++;
  const Request& wanted = workload_.request(index);
  Serving& serving = serving_[request.index()];
  serving = {.active = true, .index = index, .prompt = wanted.input_tokens, .end = computed_tokens(wanted)};
  serving.names =
      AlignSequence(workload_.block_size_tokens(), serving.end, workload_.blocks(continuations_[index]), index);
  const AlignHit hit = cache_.begin(request, serving.names.boundaries(), serving.prompt);
  serving.computed = hit.tokens;
  counts_.requests_hit += hit.tokens > 0;
  counts_.input_tokens += serving.prompt;
  counts_.hit_tokens += hit.tokens;
  if (hit.lost) ++counts_.lost_hits[static_cast<std::size_t>(*hit.lost)];
  planner_.add_request(request, hit.tokens);
  mover_.add_request(request, hit.tokens);
  if (hit.tokens == 0) return;
  ending_.clear();
  for (std::int64_t n = options_.history_tokens - 1; n >= 0; --n)
    ending_.push_back(serving.names.prefix(hit.tokens - n));
  check(mover_.check_restored(hit.block, ending_), serving, "restored", hit.block, hit.tokens);
}

/// Decode steps first: they are short, and their requests wait for nothing.
void AlignReplayer::schedule() {
  std::int64_t budget = options_.step_tokens_max;
  for (Serving& serving : serving_) {
    serving.scheduled = 0;
    if (serving.active && serving.computed >= serving.prompt) schedule_decode(serving);
  }
  for (Serving& serving : serving_)
    if (serving.active && serving.computed < serving.prompt) schedule_prefill(serving, budget);
}

void AlignReplayer::schedule_decode(Serving& serving) {
  const std::int64_t left = serving.end - serving.computed;
  serving.drafts = static_cast<std::int32_t>(std::min<std::int64_t>(options_.drafts, left - 1));
  serving.scheduled = 1 + serving.drafts;
  std::int32_t kept = 0;
  while (kept < serving.drafts && (random_() >> 32) < accept_below_) ++kept;
  serving.sampled = 1 + kept;
  align_.drafts_proposed += serving.drafts;
  align_.drafts_accepted += kept;
}

void AlignReplayer::schedule_prefill(Serving& serving, std::int64_t& budget) {
  const std::int64_t wanted = std::min(budget, serving.prompt - serving.computed);
  const ChunkRequest chunk{
      .start = serving.computed, .tokens = wanted, .prompt = serving.prompt, .total = serving.prompt};
  serving.scheduled = static_cast<std::int32_t>(split_chunk(chunk, workload_.block_size_tokens()));
  serving.drafts = 0;
  serving.sampled = serving.computed + serving.scheduled >= serving.prompt ? 1 : 0;
  budget -= serving.scheduled;
}

/// With asynchronous counters the table is made before the last step's count is known: nothing of it is handed back,
/// and all of its drafts are taken for kept.
void AlignReplayer::make_room(RequestId request) {
  const Serving& serving = serving_[request.index()];
  const bool late = options_.asynchronous && serving.previous_start >= 0;
  const std::int64_t processed = late ? serving.previous_start : serving.computed;
  const std::int64_t believed = late ? serving.previous_start + serving.previous_scheduled : serving.computed;
  for (const BlockId block : cache_.make_room(request, processed, believed + serving.scheduled))
    planner_.publication(0).forget(block);
}

void AlignReplayer::fill_batch() {
  rows_.clear();
  for (std::vector<std::int32_t>* array : {&request_, &computed_, &scheduled_, &drafts_, &sampled_, &table_})
    array->clear();
  from_.clear();
  window_.clear();
  for (std::int32_t i = 0; i < align_requests; ++i) {
    const Serving& serving = serving_[static_cast<std::size_t>(i)];
    if (!serving.active || serving.scheduled == 0) continue;
    make_room(RequestId{i});
    rows_.push_back({.request = i,
                     .computed = static_cast<std::int32_t>(serving.computed),
                     .scheduled = serving.scheduled,
                     .drafts = serving.drafts,
                     .prompt = static_cast<std::int32_t>(serving.prompt)});
    request_.push_back(i);
    computed_.push_back(rows_.back().computed);
    scheduled_.push_back(serving.scheduled);
    drafts_.push_back(serving.drafts);
    sampled_.push_back(serving.sampled);
    const std::span<const std::int32_t> columns = cache_.columns(RequestId{i});
    require_invariant(std::ssize(columns) <= columns_, "AlignReplayer", "a row is longer than the block table");
    table_.insert(table_.end(), columns.begin(), columns.end());
    table_.resize(rows_.size() * static_cast<std::size_t>(columns_), null_block);
    name_window(serving);
  }
}

void AlignReplayer::name_window(const Serving& serving) {
  from_.push_back(serving.names.prefix(serving.computed));
  const std::int64_t running = serving.computed + serving.scheduled - serving.drafts;
  const std::int64_t kept = running + std::max(serving.sampled, 1) - 1;
  for (std::int64_t n = running - options_.history_tokens + 1; n <= running + options_.drafts; ++n)
    window_.push_back(n <= kept ? serving.names.prefix(n) : append_block(0, mix(++rejected_)));
}

void AlignReplayer::plan() {
  const AlignBatch batch{request_, computed_, scheduled_, drafts_};
  const BlockTable table{table_, columns_, columns_};
  const Clock::time_point begin = Clock::now();
  AlignStep planned = planner_.pre_step(batch, {&table, 1});
  align_.copies += planned.copies;
  planner_.accept(request_, sampled_);
  planned = planner_.post_step(batch, {&table, 1});
  const Clock::duration time = Clock::now() - begin;
  align_.copies += planned.copies;
  align_.skipped_parts = planner_.skipped_parts();
  align_.planning_ns.push_back(std::chrono::duration<double, std::nano>(time).count());
  ++align_.steps;
  mover_.step({rows_, sampled_, table_, columns_, from_, window_});
  align_.steps_differ += !mover_.remembers(planner_.columns(0), planner_.accepted(0));
}

/// The boundaries in (before, computed]. A column that a chunk jumped over is null.
void AlignReplayer::publish(RequestId request, std::int64_t before) {
  const Serving& serving = serving_[request.index()];
  const std::int64_t block_size = workload_.block_size_tokens();
  for (std::int64_t boundary = floor_to(before, block_size) + block_size; boundary <= serving.computed;
       boundary += block_size) {
    const auto column = static_cast<std::int32_t>(boundary / block_size - 1);
    const BlockId block{cache_.columns(request)[static_cast<std::size_t>(column)]};
    if (block.value() == null_block) continue;
    if (!planner_.publication(0).publish(block, boundary)) {
      ++align_.refused;
      continue;
    }
    ending_.clear();
    for (std::int64_t n = options_.history_tokens - 1; n >= 0; --n)
      ending_.push_back(serving.names.prefix(boundary - n));
    check(mover_.check_published(block, ending_), serving, "published", block, boundary);
    cache_.publish(request, column, ending_.back());
  }
}

void AlignReplayer::finish(RequestId request) {
  Serving& serving = serving_[request.index()];
  cache_.end(request, serving.names.boundaries());
  planner_.forget({&request, 1}, {}, {});
  mover_.forget({&request, 1});
  serving.active = false;
  ++counts_.requests;
}

void AlignReplayer::check(std::uint64_t wrong_words, const Serving& serving, const char* what, BlockId block,
                          std::int64_t tokens) {
  if (wrong_words == 0 || !counts_.first_mismatch.empty()) return;
  counts_.first_mismatch =
      fmt::format("request {}: what was {} in block {} is not the state after {} tokens of it ({} wrong 16-byte words)",
                  serving.index, what, block.value(), tokens, wrong_words);
}

void AlignReplayer::check_invariants() const {
  cache_.check_invariants();
  planner_.check_invariants();
}

}  // namespace stateport::replay
