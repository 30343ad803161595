// SPDX-License-Identifier: Apache-2.0
#include "arena_world.hpp"

#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/model/error.hpp>

#include "serve/arena_sizes.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>

namespace stateport::test {

void draw_arena(Random& random, RequestCacheOptions& options) {
  SlotLayout& layout = slots(options);
  layout.budget_bytes = 0;
  layout.checkpoints = random.between32(1, 30);
  options.kv_tokens += random.between(0, 400);
  ArenaOptions& arena = layout.arena;
  arena.kv.count = random.between32(1, 5);
  arena.kv.bytes =
      arena.kv.count * options.block_size_tokens * options.memory.kv_bytes_per_token + random.between(0, 3);
  arena.states.count = random.between32(1, 3);
  arena.states.bytes = arena.states.count * options.memory.state_bytes + random.between(0, 3);
  arena.state_share = static_cast<double>(random.between(0, 10)) / 10;
  const detail::ArenaExtents least = detail::arena_least_extents(options);
  const std::int64_t headroom = 2 * (arena.kv.bytes + arena.states.bytes);
  const std::int64_t needed = least.kv * arena.kv.bytes + least.states * arena.states.bytes + headroom;
  arena.bytes = needed + needed / 60 + 1 + random.between(0, needed);
}

ArenaWorld::ArenaWorld(const RequestCacheOptions& options, CacheArena& arena, StateWorld& world)
    : options_(slot_layout(options).arena),
      ids_of_block_(options.index == CacheIndex::tree ? options.block_size_tokens : 1),
      separate_(slot_layout(options).separate_checkpoints),
      kv_blocks_(stateport::kv_blocks(options)),
      arena_(arena),
      world_(world) {
  const std::array numbers = {kv_blocks(options), checkpoint_slots(options)};
  for (const MemoryPart part : {MemoryPart::kv, MemoryPart::states}) {
    const std::int64_t extents = ceil_div(numbers[static_cast<std::size_t>(part)], std::int64_t{shape(part).count});
    for (std::int32_t e = 0; e < extents; ++e) mapped(part).push_back(arena_.is_mapped(part, e));
  }
  REQUIRE(bytes() <= options_.bytes);
}

std::int64_t ArenaWorld::bytes() const {
  return std::ranges::count(mapped_[0], true) * options_.kv.bytes +
         std::ranges::count(mapped_[1], true) * options_.states.bytes;
}

void ArenaWorld::begin(const MemoryPlan& plan) {
  validate(plan.kv_copies, kv_blocks_, kv_blocks_, true);
  copies += std::ssize(plan.kv_copies);
  for (const SlotCopy& copy : plan.kv_copies) {
    require_mapped(MemoryPart::kv, copy.src_slot);
    require_mapped(MemoryPart::kv, copy.dst_slot);
    world_.copy_kv(copy);
    if (marked_ != nullptr) marked_->copy_kv(copy);
  }
  for (const MemoryMove& move : plan.moves) {
    under_way_.push_back(move);
    REQUIRE(move.id == static_cast<std::uint64_t>(++moves));
    REQUIRE(mapped(move.part)[static_cast<std::size_t>(move.extent)] == (move.kind == MemoryMove::Kind::unmap));
  }
}

void ArenaWorld::step(Random& random) {
  while (!under_way_.empty() && random.chance(50)) {
    const auto at = under_way_.begin() + random.between(0, std::ssize(under_way_) - 1);
    const MemoryMove move = *at;
    under_way_.erase(at);
    end(move, !random.chance(5));
  }
  if (random.chance(50)) begin(arena_.take());
}

void ArenaWorld::settle_all() {
  while (!under_way_.empty()) {
    const std::vector<MemoryMove> all = std::exchange(under_way_, {});
    for (const MemoryMove& move : all) end(move, true);
    begin(arena_.take());
  }
}

void ArenaWorld::end(const MemoryMove& move, bool done) {
  const ExtentShape& extent = shape(move.part);
  refused += !done;
  if (done) {
    mapped(move.part)[static_cast<std::size_t>(move.extent)] = move.kind == MemoryMove::Kind::map;
    world_.wipe(move.part, move.extent * extent.count, extent.count);
    if (marked_ != nullptr) marked_->wipe(move.part, move.extent * extent.count, extent.count);
  }
  REQUIRE(bytes() <= options_.bytes);
  arena_.settle(move.id, done);
  const ArenaUsage usage = arena_.usage();
  REQUIRE(bytes() <= usage.kv_bytes + usage.state_bytes);
  REQUIRE(usage.kv_bytes + usage.state_bytes <= options_.bytes);
  REQUIRE(usage.refused_moves == refused);
  CHECK_THROWS_AS(arena_.settle(move.id, done), InvalidArgument);
}

void ArenaWorld::require_mapped(MemoryPart part, std::int32_t number) const {
  if (number < 0) return;
  const auto extent = static_cast<std::size_t>(number / shape(part).count);
  REQUIRE(mapped_[static_cast<std::size_t>(part)][extent]);
}

void ArenaWorld::check_slots(CopyPlan copies, bool sources) const {
  for (const SlotCopy& copy : copies) require_mapped(MemoryPart::states, sources ? copy.src_slot : copy.dst_slot);
}

void ArenaWorld::check(const GroupPlan& plan) const {
  check_slots(plan.copies, true);
  if (!separate_) check_slots(plan.copies, false);
}

void ArenaWorld::check(const RowPlan& row) const {
  for (const std::int32_t id : row.kv.ids) require_mapped(MemoryPart::kv, id / ids_of_block_);
  for (const StateSave& save : row.states[0].saves)
    if (!save.in_scratch) require_mapped(MemoryPart::states, save.slot.value());
  if (!separate_) require_mapped(MemoryPart::states, row.states[0].target().value());
}

void ArenaWorld::check(const PassCommit& commit) const {
  check_slots(commit.groups[0].from_scratch, false);
  check_slots(commit.groups[0].copies, false);
  for (const StepCommit& step : commit.groups[0].steps)
    if (step.kept_step >= 0) require_mapped(MemoryPart::states, step.kept_slot.value());
}

void ArenaWorld::check(const Transfer& transfer) const {
  if (transfer.kind != Transfer::Kind::load && transfer.kind != Transfer::Kind::store) return;
  require_mapped(transfer.image.content == CacheContent::state ? MemoryPart::states : MemoryPart::kv, transfer.place);
}

}  // namespace stateport::test
