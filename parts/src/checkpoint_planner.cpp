// SPDX-License-Identifier: Apache-2.0
#include <stateport/parts/checkpoint_planner.hpp>

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <limits>
#include <utility>

namespace stateport {
namespace {

constexpr auto per_row = static_cast<std::size_t>(max_checkpoints_per_chunk);

void check(const PrefillChunk& chunk, std::int32_t max_rows) {
  require(chunk.row >= 0 && chunk.row < max_rows, "row", chunk.row, "is not a row of the prefill batch");
  require(chunk.live_slot.valid(), "live_slot", chunk.live_slot, "must not be negative");
  require(chunk.finished_tokens >= 0, "finished_tokens", chunk.finished_tokens, "must not be negative");
  require(chunk.chunk_tokens >= 0 && chunk.chunk_tokens <= std::numeric_limits<std::int32_t>::max(), "chunk_tokens",
          chunk.chunk_tokens, "must be a 32-bit count");
  require(chunk.prompt_tokens >= 0 && chunk.finished_tokens <= chunk.prompt_tokens &&
              chunk.chunk_tokens <= chunk.prompt_tokens - chunk.finished_tokens,
          "prompt_tokens", chunk.prompt_tokens, "ends before the chunk does");
  require(chunk.skip_tokens >= 0 && chunk.skip_tokens <= chunk.chunk_tokens, "skip_tokens", chunk.skip_tokens,
          "is not inside the chunk");
  require(chunk.matched_blocks >= 0, "matched_blocks", chunk.matched_blocks, "must not be negative");
  require(chunk.required_blocks >= 0, "required_blocks", chunk.required_blocks, "must not be negative");
}

}  // namespace

CheckpointPlanner::CheckpointPlanner(SlotAllocator& states, const CheckpointPlannerOptions& options)
    : states_(states), options_(options) {
  require(options.block_size_tokens >= 1, "block_size_tokens", options.block_size_tokens, "must be at least 1");
  require(options.alignment_tokens >= 1, "alignment_tokens", options.alignment_tokens, "must be at least 1");
  require(options.max_rows >= 1, "max_rows", options.max_rows, "must be at least 1");
  const auto rows = static_cast<std::size_t>(options.max_rows);
  const std::size_t most = rows * (per_row + 1);
  rows_.resize(rows);
  offsets_.resize(rows * per_row, 0);
  counts_.resize(rows, 0);
  checkpoints_.reserve(most);
  blocks_.reserve(most);
  slots_.reserve(most);
  scratch_copies_.reserve(most);
  live_copies_.reserve(rows);
  stamps_.resize(static_cast<std::size_t>(states.blocks().block_count()), 0);
}

StateTag CheckpointPlanner::tag_at(const PrefillChunk& chunk, std::size_t block_index) const {
  require(block_index < chunk.blocks.size(), "blocks", chunk.blocks.size(), "does not reach the checkpoint's block");
  require(block_index < chunk.prefixes.size(), "prefixes", chunk.prefixes.size(),
          "does not reach the checkpoint's block");
  const BlockId block = chunk.blocks[block_index];
  require(block.valid() && block.index() < stamps_.size(), "blocks", block, "is out of range");
  return {.token_count = static_cast<std::int64_t>(block_index + 1) * options_.block_size_tokens,
          .prefix = chunk.prefixes[block_index],
          .layout_fingerprint = options_.layout_fingerprint};
}

CheckpointPlanner::Row CheckpointPlanner::planned_row(const PrefillChunk& chunk) const {
  const std::int64_t block_size = options_.block_size_tokens;
  const std::int64_t start = chunk.finished_tokens + chunk.skip_tokens;
  const std::int64_t length = chunk.chunk_tokens - chunk.skip_tokens;
  std::array<std::int64_t, per_row> candidates = {chunk.matched_blocks * block_size,
                                                  chunk.prompt_tokens / block_size * block_size,
                                                  (std::int64_t{chunk.required_blocks} - 1) * block_size};
  std::ranges::sort(candidates);
  Row row{.live_slot = chunk.live_slot};
  std::int64_t previous = -1;
  for (const std::int64_t at : candidates) {
    const std::int64_t offset = at - start;
    if (at == previous || offset <= 0 || offset >= length || offset % options_.alignment_tokens != 0) continue;
    previous = at;
    const auto block_index = static_cast<std::size_t>(at / block_size - 1);
    const auto i = static_cast<std::size_t>(row.planned.count);
    row.tags[i] = tag_at(chunk, block_index);
    row.planned.blocks[i] = chunk.blocks[block_index];
    row.planned.offsets[i] = static_cast<std::int32_t>(offset);
    ++row.planned.count;
  }
  const bool last_chunk = chunk.finished_tokens + chunk.chunk_tokens == chunk.prompt_tokens;
  if (last_chunk && chunk.prompt_tokens > 0 && chunk.prompt_tokens % block_size == 0) {
    const auto block_index = static_cast<std::size_t>(chunk.prompt_tokens / block_size - 1);
    row.end_tag = tag_at(chunk, block_index);
    row.planned.end_block = chunk.blocks[block_index];
  }
  return row;
}

PlannedCheckpoints CheckpointPlanner::plan(const PrefillChunk& chunk) {
  require_state(!pending_, "plan", "the last commit must be published or abandoned first");
  check(chunk, options_.max_rows);
  const Row row = planned_row(chunk);
  const auto index = static_cast<std::size_t>(chunk.row);
  intermediates_ += row.planned.count - rows_[index].planned.count;
  ends_ += row.planned.end_block.valid() - rows_[index].planned.end_block.valid();
  rows_[index] = row;
  counts_[index] = row.planned.count;
  std::ranges::copy(row.planned.offsets, offsets_.begin() + static_cast<std::ptrdiff_t>(index * per_row));
  return row.planned;
}

bool CheckpointPlanner::has_any() const noexcept {
  return intermediates_ > 0 || ends_ > 0;
}

CheckpointArrays CheckpointPlanner::device_arrays(std::int32_t prefill_rows) const {
  require(prefill_rows >= 0 && prefill_rows <= options_.max_rows, "prefill_rows", prefill_rows,
          "must be between 0 and max_rows");
  if (intermediates_ == 0) return {};
  const auto rows = static_cast<std::size_t>(prefill_rows);
  return {.offsets = std::span(offsets_).first(rows * per_row), .counts = std::span(counts_).first(rows)};
}

CheckpointCommit CheckpointPlanner::commit() {
  require_state(!pending_, "commit", "the last commit must be published or abandoned first");
  collect();
  const std::size_t wanted = checkpoints_.size();
  slots_.resize(blocks_.size());
  const SlotDemand demand = states_.try_allocate(blocks_, slots_);
  if (!demand.met()) {
    keep_what_fits(demand.available);
    slots_.resize(blocks_.size());
    states_.allocate(blocks_, slots_);
  }
  for (std::size_t i = 0; i < checkpoints_.size(); ++i) checkpoints_[i].slot = slots_[i];
  build_copies();
  pending_ = true;
  const auto dropped = static_cast<std::int32_t>(wanted - blocks_.size());
  dropped_ += dropped;
  forget_plan();
  return {.from_scratch = scratch_copies_, .from_live = live_copies_, .dropped = dropped};
}

/// Lists the planned checkpoints: intermediate states in the packing order of the scan kernels, then ends, by row.
void CheckpointPlanner::collect() {
  checkpoints_.clear();
  blocks_.clear();
  std::int32_t packed = 0;
  for (const Row& row : rows_)
    for (std::size_t i = 0; std::cmp_less(i, row.planned.count); ++i)
      add(row.planned.blocks[i], row.tags[i], packed++, false);
  for (const Row& row : rows_)
    if (row.planned.end_block.valid()) add(row.planned.end_block, row.end_tag, row.live_slot.value(), true);
}

void CheckpointPlanner::add(BlockId block, const StateTag& tag, std::int32_t source, bool from_live) {
  const BlockHash hash = states_.blocks().hash(block);
  if (hash <= 0) return;
  checkpoints_.push_back({block, hash, tag, source, from_live, SlotId{}});
  blocks_.push_back(block);
}

/// In order: blocks that have a slot, further mentions of a kept block, and the first `available` new blocks.
void CheckpointPlanner::keep_what_fits(std::int64_t available) {
  next_stamp();
  std::size_t kept = 0;
  for (const Checkpoint& checkpoint : checkpoints_) {
    const bool known = states_.has_state(checkpoint.block) || stamps_[checkpoint.block.index()] == stamp_;
    if (!known && available-- <= 0) continue;
    static_cast<void>(stamp(checkpoint.block));
    checkpoints_[kept++] = checkpoint;
  }
  checkpoints_.resize(kept);
  blocks_.clear();
  for (const Checkpoint& checkpoint : checkpoints_) blocks_.push_back(checkpoint.block);
}

/// One writer per slot, the last one. A slot that holds another state is hidden first: its bytes are about to change.
void CheckpointPlanner::build_copies() {
  next_stamp();
  scratch_copies_.clear();
  live_copies_.clear();
  for (std::size_t i = checkpoints_.size(); i-- > 0;) {
    Checkpoint& checkpoint = checkpoints_[i];
    if (!stamp(checkpoint.block)) {
      checkpoint.slot = SlotId{};
      continue;
    }
    if (states_.tag(checkpoint.block) != checkpoint.tag) states_.withdraw(checkpoint.block);
    (checkpoint.from_live ? live_copies_ : scratch_copies_)
        .push_back(SlotCopy::whole(checkpoint.source, checkpoint.slot.value()));
  }
  std::ranges::reverse(scratch_copies_);
  std::ranges::reverse(live_copies_);
}

void CheckpointPlanner::publish() {
  require_state(pending_, "publish", "there is no pending commit");
  for (const Checkpoint& checkpoint : checkpoints_) {
    // A block may have lost its slot since the commit; its state is gone then.
    if (!checkpoint.slot.valid() || states_.slot_of(checkpoint.block) != checkpoint.slot) continue;
    states_.set_tag(checkpoint.block, checkpoint.tag);
    states_.register_hashes({&checkpoint.block, 1}, {&checkpoint.hash, 1});
  }
  pending_ = false;
}

void CheckpointPlanner::abandon() {
  require_state(pending_, "abandon", "there is no pending commit");
  for (const Checkpoint& checkpoint : checkpoints_) {
    if (!checkpoint.slot.valid() || states_.slot_of(checkpoint.block) != checkpoint.slot) continue;
    if (states_.tag(checkpoint.block).token_count < 0) states_.invalidate(checkpoint.block);
  }
  pending_ = false;
}

void CheckpointPlanner::clear() {
  require_state(!pending_, "clear", "the last commit must be published or abandoned first");
  forget_plan();
}

void CheckpointPlanner::forget_plan() noexcept {
  if (intermediates_ > 0 || ends_ > 0) {
    std::ranges::fill(rows_, Row{});
    std::ranges::fill(counts_, 0);
    std::ranges::fill(offsets_, 0);
  }
  intermediates_ = 0;
  ends_ = 0;
}

/// True the first time that a block is seen since next_stamp().
bool CheckpointPlanner::stamp(BlockId block) {
  if (stamps_[block.index()] == stamp_) return false;
  stamps_[block.index()] = stamp_;
  return true;
}

void CheckpointPlanner::next_stamp() {
  if (++stamp_ != 0) return;
  std::ranges::fill(stamps_, 0);
  stamp_ = 1;
}

void CheckpointPlanner::check_invariants() const {
  constexpr const char* structure = "CheckpointPlanner";
  std::int64_t intermediates = 0;
  std::int64_t ends = 0;
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    const PlannedCheckpoints& planned = rows_[row].planned;
    intermediates += planned.count;
    ends += planned.end_block.valid();
    require_invariant(counts_[row] == planned.count, structure, "a count differs from the plan");
    for (std::size_t i = 0; i < per_row; ++i)
      require_invariant(offsets_[row * per_row + i] == planned.offsets[i], structure,
                        "an offset differs from the plan");
  }
  require_invariant(intermediates == intermediates_ && ends == ends_, structure, "the number of checkpoints is wrong");
  require_invariant(!pending_ || !has_any(), structure, "a plan is kept beside its commit");
}

}  // namespace stateport
