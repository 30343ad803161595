// SPDX-License-Identifier: Apache-2.0
#include "pool_blocks.hpp"

#include <stateport/core/model/error.hpp>

#include "containers/assert.hpp"

#include <algorithm>
#include <bit>

namespace stateport::detail {
namespace {

/// Bytes between the start of a block and the first address in it that is aligned.
std::size_t alignment_gap(const std::byte* memory, std::size_t alignment) noexcept {
  return (alignment - reinterpret_cast<std::uintptr_t>(memory) % alignment) % alignment;
}

}  // namespace

PoolBlocks::PoolBlocks() {
  lanes_.reserve(static_cast<std::size_t>(max_lanes));
}

std::int32_t PoolBlocks::add_lane() noexcept {
  STATEPORT_ASSERT(lane_count() < max_lanes);
  lanes_.emplace_back();
  return lane_count() - 1;
}

std::size_t PoolBlocks::AddressHash::operator()(const std::byte* memory) const noexcept {
  constexpr std::uint64_t golden_ratio = 0x9E3779B97F4A7C15;  // Fibonacci hashing: the high bits are the mixed ones
  const std::uint64_t mixed = reinterpret_cast<std::uintptr_t>(memory) / granule_bytes * golden_ratio;
  return static_cast<std::size_t>(mixed ^ (mixed >> 32U));
}

// Bins 1 to 7 hold one size each; from 8 granules on, a power of two is cut into 8 equal ranges.
std::int32_t PoolBlocks::bin_of(std::size_t bytes) noexcept {
  const std::size_t granules = bytes / granule_bytes;
  if (granules < 8) return static_cast<std::int32_t>(granules);
  const int log = static_cast<int>(std::bit_width(granules)) - 1;
  const auto eighth = static_cast<std::int32_t>((granules >> (log - 3)) & 7U);
  return std::min((log - 2) * 8 + eighth, bin_count - 1);
}

/// The first bin >= `bin` that has a block, or bin_count.
std::int32_t PoolBlocks::next_filled(const Lane& lane, std::int32_t bin) noexcept {
  while (bin < bin_count) {
    const std::uint64_t rest = lane.filled[static_cast<std::size_t>(bin / 64)] >> (bin % 64);
    if (rest != 0) return bin + std::countr_zero(rest);
    bin = (bin / 64 + 1) * 64;
  }
  return bin_count;
}

void PoolBlocks::reserve() {
  // A take splits off a gap and a rest; a slab is one block.
  while (spare_count_ < 3) {
    blocks_.emplace_back();
    drop_block(BlockId{static_cast<std::int32_t>(blocks_.size()) - 1});
  }
}

void PoolBlocks::add_slab(Slab slab, std::int32_t lane) noexcept {
  reserved_bytes_ += slab.bytes;
  link(new_block({.memory = slab.memory, .bytes = slab.bytes, .lane = lane, .state = State::free}));
}

std::byte* PoolBlocks::take(std::size_t bytes, std::size_t alignment, std::int32_t lane) {
  BlockId id = find(bytes, alignment, lane);
  if (!id.valid()) return nullptr;
  const std::size_t gap = alignment_gap(at(id).memory, alignment);
  // The one step that can throw comes first. The id is written again below, when the gap moved it.
  const auto entry = used_.insert({at(id).memory + gap, id}).first;
  unlink(id);
  if (gap > 0) {
    const BlockId low = id;
    id = split(low, gap);
    link(low);
    entry.value() = id;
  }
  if (at(id).bytes > bytes) link(split(id, bytes));
  at(id).state = State::used;
  at(id).lane = -1;
  used_bytes_ += bytes;
  return at(id).memory;
}

bool PoolBlocks::give(std::byte* memory, std::int32_t lane) noexcept {
  const auto entry = used_.find(memory);
  if (entry == used_.end()) return false;
  const BlockId id = entry->second;
  used_.erase(entry);
  used_bytes_ -= at(id).bytes;
  at(id).state = State::free;
  at(id).lane = lane;
  join_and_link(id);
  return true;
}

void PoolBlocks::absorb(std::int32_t from, std::int32_t into) noexcept {
  if (from == into) return;
  Lane& lane = lane_at(from);
  for (std::int32_t bin = next_filled(lane, 0); bin < bin_count; bin = next_filled(lane, bin)) {
    const BlockId id = lane.heads[static_cast<std::size_t>(bin)];
    unlink(id);
    at(id).lane = into;
    join_and_link(id);
  }
}

std::optional<PoolBlocks::Slab> PoolBlocks::remove_free_slab(std::int32_t lane) noexcept {
  const Lane& bins = lane_at(lane);
  for (std::int32_t bin = next_filled(bins, 0); bin < bin_count; bin = next_filled(bins, bin + 1)) {
    for (BlockId id = bins.heads[static_cast<std::size_t>(bin)]; id.valid(); id = at(id).next) {
      if (at(id).lower.valid() || at(id).upper.valid()) continue;
      const Slab slab{at(id).memory, at(id).bytes};
      unlink(id);
      drop_block(id);
      reserved_bytes_ -= slab.bytes;
      return slab;
    }
  }
  return std::nullopt;
}

bool PoolBlocks::has_free(std::int32_t lane) const noexcept {
  return next_filled(lane_at(lane), 0) < bin_count;
}

PoolBlocks::BlockId PoolBlocks::find(std::size_t bytes, std::size_t alignment, std::int32_t lane) const noexcept {
  const Lane& bins = lane_at(lane);
  // Beyond this bin every block holds the bytes wherever its aligned address lies.
  const std::int32_t last_searched = bin_of(bytes + std::max(alignment, granule_bytes) - granule_bytes);
  for (std::int32_t bin = next_filled(bins, bin_of(bytes)); bin < bin_count; bin = next_filled(bins, bin + 1)) {
    const BlockId head = bins.heads[static_cast<std::size_t>(bin)];
    if (bin > last_searched) return head;
    if (const BlockId found = smallest_fit(head, bytes, alignment); found.valid()) return found;
  }
  return {};
}

PoolBlocks::BlockId PoolBlocks::smallest_fit(BlockId head, std::size_t bytes, std::size_t alignment) const noexcept {
  BlockId best;
  for (BlockId id = head; id.valid(); id = at(id).next) {
    const Block& block = at(id);
    if (block.bytes < bytes || block.bytes - bytes < alignment_gap(block.memory, alignment)) continue;
    if (!best.valid() || block.bytes < at(best).bytes) best = id;
  }
  return best;
}

void PoolBlocks::link(BlockId id) noexcept {
  Block& block = at(id);
  const std::int32_t bin = bin_of(block.bytes);
  Lane& lane = lane_at(block.lane);
  BlockId& head = lane.heads[static_cast<std::size_t>(bin)];
  block.previous = {};
  block.next = head;
  if (head.valid()) at(head).previous = id;
  head = id;
  lane.filled[static_cast<std::size_t>(bin / 64)] |= std::uint64_t{1} << (bin % 64);
}

void PoolBlocks::unlink(BlockId id) noexcept {
  const Block& block = at(id);
  if (block.next.valid()) at(block.next).previous = block.previous;
  if (block.previous.valid()) {
    at(block.previous).next = block.next;
    return;
  }
  const std::int32_t bin = bin_of(block.bytes);
  Lane& lane = lane_at(block.lane);
  lane.heads[static_cast<std::size_t>(bin)] = block.next;
  if (!block.next.valid()) lane.filled[static_cast<std::size_t>(bin / 64)] &= ~(std::uint64_t{1} << (bin % 64));
}

PoolBlocks::BlockId PoolBlocks::new_block(const Block& block) noexcept {
  STATEPORT_ASSERT(spare_.valid());
  const BlockId id = spare_;
  spare_ = at(id).next;
  --spare_count_;
  at(id) = block;
  return id;
}

void PoolBlocks::drop_block(BlockId id) noexcept {
  at(id) = {};
  at(id).next = spare_;
  spare_ = id;
  ++spare_count_;
}

PoolBlocks::BlockId PoolBlocks::split(BlockId id, std::size_t bytes) noexcept {
  Block rest = at(id);
  rest.memory += bytes;
  rest.bytes -= bytes;
  rest.lower = id;
  const BlockId upper = new_block(rest);
  if (rest.upper.valid()) at(rest.upper).lower = upper;
  at(id).bytes = bytes;
  at(id).upper = upper;
  return upper;
}

void PoolBlocks::join_and_link(BlockId id) noexcept {
  const auto joins = [&](BlockId neighbour) {
    return neighbour.valid() && at(neighbour).state == State::free && at(neighbour).lane == at(id).lane;
  };
  if (const BlockId lower = at(id).lower; joins(lower)) {
    unlink(lower);
    at(lower).bytes += at(id).bytes;
    at(lower).upper = at(id).upper;
    if (at(id).upper.valid()) at(at(id).upper).lower = lower;
    drop_block(id);
    id = lower;
  }
  if (const BlockId upper = at(id).upper; joins(upper)) {
    unlink(upper);
    at(id).bytes += at(upper).bytes;
    at(id).upper = at(upper).upper;
    if (at(upper).upper.valid()) at(at(upper).upper).lower = id;
    drop_block(upper);
  }
  link(id);
}

namespace {
void check(bool ok, std::string_view what) {
  require_invariant(ok, "PoolBlocks", what);
}
}  // namespace

void PoolBlocks::check_invariants() const {
  std::size_t seen_blocks = 0;
  std::size_t seen_bytes = 0;
  std::size_t seen_used = 0;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    const BlockId id{static_cast<std::int32_t>(i)};
    if (at(id).state != State::spare && !at(id).lower.valid()) check_slab(id, seen_blocks, seen_bytes, seen_used);
  }
  std::size_t seen_free = 0;
  check_bins(seen_free);
  std::size_t seen_spare = 0;
  for (BlockId id = spare_; id.valid() && seen_spare <= blocks_.size(); id = at(id).next) {
    check(at(id).state == State::spare, "the list of spare blocks names another block");
    ++seen_spare;
  }
  check(seen_spare == static_cast<std::size_t>(spare_count_), "the count of spare blocks is wrong");
  check(seen_blocks + seen_spare == blocks_.size(), "a block is in no slab");
  check(seen_free + used_.size() == seen_blocks, "a free block is in no bin");
  check(seen_bytes == reserved_bytes_, "reserved_bytes is wrong");
  check(seen_used == used_bytes_, "used_bytes is wrong");
}

void PoolBlocks::check_slab(BlockId lowest, std::size_t& seen_blocks, std::size_t& seen_bytes,
                            std::size_t& seen_used) const {
  BlockId below;
  for (BlockId id = lowest; id.valid(); below = id, id = at(id).upper) {
    const Block& block = at(id);
    check(++seen_blocks <= blocks_.size(), "the blocks of a slab form a ring");
    check(block.state != State::spare, "a spare block lies in a slab");
    check(block.bytes > 0 && block.bytes % granule_bytes == 0, "a block is not whole granules");
    check(block.lower == below, "the neighbours of a slab disagree");
    seen_bytes += block.bytes;
    if (below.valid()) {
      const Block& lower = at(below);
      check(lower.memory + lower.bytes == block.memory, "the blocks of a slab leave a gap");
      check(lower.state != State::free || block.state != State::free || lower.lane != block.lane,
            "two free neighbours of one lane are not joined");
    }
    if (block.state != State::used) continue;
    seen_used += block.bytes;
    const auto entry = used_.find(block.memory);
    check(entry != used_.end() && entry->second == id, "a used block cannot be found by its address");
  }
}

void PoolBlocks::check_bins(std::size_t& seen_free) const {
  for (std::int32_t number = 0; number < lane_count(); ++number) {
    const Lane& lane = lane_at(number);
    for (std::int32_t bin = 0; bin < bin_count; ++bin) {
      const BlockId head = lane.heads[static_cast<std::size_t>(bin)];
      const bool filled = ((lane.filled[static_cast<std::size_t>(bin / 64)] >> (bin % 64)) & 1U) != 0;
      check(filled == head.valid(), "the map of filled bins is wrong");
      BlockId previous;
      for (BlockId id = head; id.valid(); previous = id, id = at(id).next) {
        check(++seen_free <= blocks_.size(), "the list of a bin is a ring");
        check(at(id).state == State::free && at(id).lane == number, "a bin holds a block that is not its lane's");
        check(bin_of(at(id).bytes) == bin, "a block lies in another bin than its size says");
        check(at(id).previous == previous, "the list of a bin disagrees with itself");
      }
    }
  }
}

}  // namespace stateport::detail
