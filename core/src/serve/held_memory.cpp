// SPDX-License-Identifier: Apache-2.0
#include "serve/held_memory.hpp"

#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/model/error.hpp>

#include "serve/arena_sizes.hpp"
#include "serve/request_options.hpp"

#include <algorithm>
#include <span>

namespace stateport::detail {
namespace {

std::int64_t request_blocks_of(const RequestCacheOptions& options) {
  return ceil_div(options.max_request_tokens, std::int64_t{options.block_size_tokens});
}

/// The number of extents that hold one of these numbers.
std::int64_t extents_of(std::span<const std::int32_t> pins, const ExtentShape& shape) {
  std::int64_t extents = 0, last = -1;
  for (std::size_t i = 0; i < pins.size(); ++i) {
    const auto extent = static_cast<std::int64_t>(i) / shape.count;
    extents += pins[i] > 0 && extent != last;
    if (pins[i] > 0) last = extent;
  }
  return extents;
}

}  // namespace

HeldMemory::HeldMemory(const RequestBook& book)
    : book_(book),
      options_(book.options),
      kv_pins_(static_cast<std::size_t>(kv_blocks(book.options)) + 1),
      states_(book.groups) {
  for (std::size_t g = 0; g < book.groups; ++g)
    state_pins_.emplace_back(static_cast<std::size_t>(checkpoint_slots(options_, g)) + reserved_state_blocks);
}

void HeldMemory::change(RequestId row, std::int32_t by) {
  const auto count = [&](std::int32_t& pins, std::int64_t& total) {
    total += by > 0 ? std::int64_t{pins == 0} : -std::int64_t{pins == 1};
    pins += by;
  };
  const RequestRecord& record = book_.record(row);
  const std::int64_t block = options_.block_size_tokens;
  for (std::int64_t at = 0; at < record.computed; at += block)
    count(kv_pins_[static_cast<std::size_t>(record.kv.at(at) / block)], blocks_);
  for (std::size_t g = 0; g < state_pins_.size(); ++g) {
    const SlotId slot = book_.in_columns ? book_.states.of(row)[g].conv_source() : book_.opened_of(row).hit;
    count(state_pins_[g][slot.index()], states_[g]);
  }
}

void HeldMemory::add(const Load& load) noexcept {
  loads_.blocks += load.blocks;
  loads_.states += load.states;
}

void HeldMemory::remove(const Load& load) noexcept {
  loads_.blocks -= load.blocks;
  loads_.states -= load.states;
}

std::int64_t HeldMemory::states() const noexcept {
  std::int64_t sum = 0;
  for (const std::int64_t states : states_) sum += states;
  return sum;
}

/// `states`: of all groups together.
std::int64_t HeldMemory::bytes_of(std::int64_t blocks, std::int64_t states) const noexcept {
  const auto groups = static_cast<std::int64_t>(states_.size());
  return options_.memory.of(blocks * options_.block_size_tokens, 0) + options_.memory.of(0, states) / groups;
}

bool HeldMemory::fits() const {
  const PrefixOptions& most = options_.prefixes;
  const auto groups = static_cast<std::int64_t>(states_.size());
  if (bytes() > most.pinned_bytes || bytes_of(loads_.blocks, loads_.states * groups) > most.prefetched_bytes)
    return false;
  const std::int64_t room = options_.kv_tokens / options_.block_size_tokens;
  return blocks_ + loads_.blocks + request_blocks_of(options_) <= room && fits_states() && fits_shared();
}

/// In slots one checkpoint is left. In columns a request needs blocks of its own.
bool HeldMemory::fits_states() const {
  if (!book_.in_columns) return states_[0] + loads_.states < book_.slots.checkpoints;
  const ColumnLayout& columns = book_.columns;
  for (std::size_t g = 0; g < states_.size(); ++g) {
    const StateGroup& group = columns.groups[g];
    if (states_[g] + loads_.states + request_state_blocks(options_, group) > group.blocks) return false;
  }
  return true;
}

/// Where KV and states share one memory.
bool HeldMemory::fits_shared() const {
  const std::int64_t blocks = blocks_ + loads_.blocks;
  const std::int64_t states = states_[0] + loads_.states;
  if (const std::int64_t budget = book_.slots.budget_bytes; budget > 0)
    return bytes_of(blocks + request_blocks_of(options_), states + 1) <= budget;
  const ArenaOptions& arena = book_.slots.arena;
  if (arena.bytes == 0) return true;
  // An extent with one number that is held cannot be given away.
  const ArenaExtents least = arena_least_extents(options_);
  const std::int64_t kv_extents = extents_of(kv_pins_, arena.kv) + loads_.blocks;
  const std::int64_t state_extents = extents_of(state_pins_[0], arena.states) + loads_.states;
  return (least.kv + kv_extents) * arena.kv.bytes + (least.states + state_extents) * arena.states.bytes +
             arena_headroom_bytes(options_) <=
         arena.bytes;
}

void HeldMemory::check(const std::vector<RequestId>& rows) const {
  HeldMemory counted(book_);
  for (const RequestId row : rows) counted.add(row);
  const bool same = counted.kv_pins_ == kv_pins_ && counted.state_pins_ == state_pins_ && counted.blocks_ == blocks_ &&
                    counted.states_ == states_;
  require_invariant(same, "HeldMemory", "the memory of pins is not counted as they hold it");
}

void require_prefix_options(const RequestCacheOptions& options) {
  const PrefixOptions& prefixes = options.prefixes;
  constexpr std::int32_t most = 65'536;
  require(prefixes.pins >= 0 && prefixes.pins <= most, "prefixes.pins", prefixes.pins, "must be from 0 to 65536");
  require(prefixes.prefetches >= 0 && prefixes.prefetches <= most, "prefixes.prefetches", prefixes.prefetches,
          "must be from 0 to 65536");
  require(prefixes.pinned_bytes >= 0, "prefixes.pinned_bytes", prefixes.pinned_bytes, "must not be negative");
  require(prefixes.prefetched_bytes >= 0, "prefixes.prefetched_bytes", prefixes.prefetched_bytes,
          "must not be negative");
  const bool keeps = !in_columns(options) || column_layout(options).mode != AlignMode::none;
  require(prefixes.pins == 0 || keeps, "prefixes.pins", prefixes.pins,
          "need states that are found again, which mode none does not keep");
  require(prefixes.prefetches == 0 || options.tiers.enabled(), "prefixes.prefetches", prefixes.prefetches,
          "need tiers to load from");
}

}  // namespace stateport::detail
