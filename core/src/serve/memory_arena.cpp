// SPDX-License-Identifier: Apache-2.0
#include "serve/memory_arena.hpp"

#include <stateport/core/align/align_rules.hpp>
#include <stateport/core/model/error.hpp>

#include "serve/arena_sizes.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace stateport::detail {
namespace {

/// A lack that does not come again is forgotten after this number of decisions: its request may have ended.
constexpr std::int32_t lack_decisions_max = 16;
/// A pass may leave two checkpoints of a prompt: at the branch point and at its end.
constexpr std::int32_t numbers_at_once = 2;
/// The largest need of the last 16 to 32 passes that took numbers counts, or of as many passes in all as follow.
constexpr std::int32_t passes_with_need = 16;
constexpr std::int32_t passes_without_need = 1024;
/// Room that is made for passes ahead, as a part of the memory.
constexpr std::int64_t expected_part = 8;
/// After this number of refused maps no more are asked for until memory was given back, or for as many decisions as
/// follow: one extent may be at fault, but not two, and what else the system needs may end.
constexpr std::int32_t refusals_max = 2;
constexpr std::int32_t decisions_until_retry = 1024;

std::size_t index_of(MemoryPart part) noexcept {
  return static_cast<std::size_t>(part);
}

}  // namespace

MemoryArena::MemoryArena(const RequestCacheOptions& options, ElasticIndex& index, TenantMarks* marks)
    : index_(index),
      marks_(marks),
      bytes_(slot_layout(options).arena.bytes),
      headroom_bytes_(arena_headroom_bytes(options)) {
  const ArenaOptions& arena = slot_layout(options).arena;
  const ArenaExtents least = arena_least_extents(options);
  parts_ = {make_part(MemoryPart::kv, arena.kv, kv_blocks(options), least.kv),
            make_part(MemoryPart::states, arena.states, checkpoint_slots(options), least.states)};
  const std::size_t extents = parts_[0].extents.size() + parts_[1].extents.size();
  for (std::vector<MemoryMove>* const moves : {&moves_, &late_moves_, &taken_moves_}) moves->reserve(extents);
  outstanding_.reserve(2 * extents);  // at least as many are settled as are not when the settled ones are removed
  closing_.reserve(extents);
  movable_.reserve(std::max(parts_[0].extents.size(), parts_[1].extents.size()));
  chosen_.reserve(movable_.capacity());
  kv_copies_.reserve(static_cast<std::size_t>(parts_[0].numbers));
  moved_to_.reserve(kv_copies_.capacity());
  const ArenaExtents mapped = arena_extents_at_start(options);
  map_at_start(parts_[0], static_cast<std::int32_t>(mapped.kv));
  map_at_start(parts_[1], static_cast<std::int32_t>(mapped.states));
}

MemoryArena::Part MemoryArena::make_part(MemoryPart name, const ExtentShape& shape, std::int32_t numbers,
                                         std::int64_t least) {
  Part part{.name = name, .shape = shape, .numbers = numbers, .least = static_cast<std::int32_t>(least)};
  part.extents.resize(static_cast<std::size_t>(ceil_div(numbers, std::int64_t{shape.count})), Extent::mapped);
  part.in_state[0] = static_cast<std::int32_t>(part.extents.size());
  const auto numbers_in = [&](std::int64_t bytes) {
    return static_cast<std::int32_t>(std::clamp<std::int64_t>(bytes / part.bytes_of(1), 1, std::max(numbers, 1)));
  };
  part.low = std::min(numbers_at_once, numbers);
  part.need_max = numbers_in(bytes_ / expected_part);
  return part;
}

/// Extents with numbers in use, or that are never handed out, are mapped first, then those with the lowest numbers.
void MemoryArena::map_at_start(Part& part, std::int32_t extents) {
  const auto end = static_cast<std::int32_t>(part.extents.size());
  std::int32_t kept = 0;
  for (std::int32_t e = 0; e < end; ++e) kept += !is_empty(part, e);
  for (std::int32_t e = 0; e < end; ++e) {
    if (!is_empty(part, e) || kept++ < extents) continue;
    enter(part, e, Extent::unmapped);
    closing_.push_back(part.numbers_of(e));
  }
  index_.close(part.name, closing_);
  closing_.clear();
}

void MemoryArena::enter(Part& part, std::int32_t extent, Extent state) noexcept {
  Extent& now = part.extents[static_cast<std::size_t>(extent)];
  --part.in_state[static_cast<std::size_t>(now)];
  ++part.in_state[static_cast<std::size_t>(state)];
  now = state;
}

bool MemoryArena::can_map() const noexcept {
  return refusals_ < refusals_max;
}

std::int64_t MemoryArena::unassigned_bytes() const noexcept {
  std::int64_t bytes = bytes_;
  for (const Part& part : parts_)
    bytes -= (static_cast<std::int64_t>(part.extents.size()) - part.count(Extent::unmapped)) * part.shape.bytes;
  return bytes;
}

/// Bytes that no content has, wherever they are.
std::int64_t MemoryArena::free_bytes() const noexcept {
  std::int64_t bytes = unassigned_bytes();
  for (const Part& part : parts_)
    bytes += part.bytes_of(index_.free_numbers(part.name)) +
             std::int64_t{part.count(Extent::unmapping) + part.count(Extent::mapping)} * part.shape.bytes;
  return bytes;
}

void MemoryArena::note_lack(MemoryPart name, std::int32_t numbers) noexcept {
  Part& part = parts_[index_of(name)];
  part.lack = std::max(part.lack, numbers);
  part.lack_age = 0;
}

void MemoryArena::note_need(MemoryPart name, std::int32_t numbers) noexcept {
  Part& part = parts_[index_of(name)];
  if (part.need_age >= passes_without_need) {
    part.need_before = std::exchange(part.need, 0);
    part.need_age = 0;
  }
  part.need_age += numbers > 0 ? passes_without_need / passes_with_need : 1;
  part.need = std::max(part.need, numbers);
}

void MemoryArena::expect_kv(std::int64_t blocks) noexcept {
  Part& kv = parts_[index_of(MemoryPart::kv)];
  const std::int64_t most = std::min<std::int64_t>(bytes_ / expected_part / kv.bytes_of(1), kv.numbers);
  kv.expected = static_cast<std::int32_t>(std::min(blocks, most));
}

/// If a request has no room, the numbers that are free in that part are no help: they were not enough. Extents are
/// given as a whole.
void MemoryArena::make_room(std::optional<MemoryPart> without_room) {
  const auto is_there = [&] {
    std::int64_t wanted = headroom_bytes_;
    if (!without_room) {
      const auto& [kv, states] = parts_;
      wanted = std::max(wanted, kv.bytes_of(kv.kept()) + states.bytes_of(states.kept()));
    } else {
      const Part& part = parts_[index_of(*without_room)];
      const Part& other = parts_[1 - index_of(*without_room)];
      const std::int64_t of_part = part.bytes_of(std::int64_t{index_.free_numbers(part.name)} + part.lack);
      wanted = std::max(wanted, of_part + part.shape.bytes + other.bytes_of(other.low) + other.shape.bytes);
    }
    return free_bytes() >= wanted;
  };
  while (!is_there() && (index_.evict_least() || (without_room && index_.evict_held_state()))) {
  }
}

/// How many more extents the part should have.
std::int32_t MemoryArena::missing_extents(const Part& part) const noexcept {
  const std::int64_t coming = std::int64_t{part.count(Extent::mapping)} * part.shape.count;
  const std::int64_t free = index_.free_numbers(part.name) + coming;
  const std::int64_t numbers = std::max<std::int64_t>(part.lack, part.kept() - free);
  const std::int64_t extents = ceil_div(numbers, std::int64_t{part.shape.count});
  return static_cast<std::int32_t>(std::min<std::int64_t>(extents, part.count(Extent::unmapped)));
}

/// How many extents the part can give away, and have `kept` numbers free afterwards; none while it gets some.
std::int32_t MemoryArena::spare_extents(const Part& part, std::int32_t kept) const noexcept {
  if (part.lack > 0 || part.count(Extent::mapping) > 0) return 0;
  const std::int32_t free = index_.free_numbers(part.name) - kept;
  return std::clamp(free / part.shape.count, 0, std::max(part.count(Extent::mapped) - part.least, 0));
}

/// KV is the last to move: nothing may evict KV that this call has moved, because tiers would store it from a place
/// that it is copied to after their transfers.
void MemoryArena::balance(std::optional<MemoryPart> without_room) {
  for (Part& part : parts_) {
    const bool is_met = !without_room && index_.free_numbers(part.name) >= std::max(part.kept(), part.lack);
    const bool had_room = without_room && (part.lack_age > 0 || part.name != *without_room);  // in the end
    if (is_met || had_room) part.lack = 0;
  }
  if (!can_map() && ++decisions_since_refusal_ >= decisions_until_retry) refusals_ = 0;
  make_room(without_room);
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    Part& part = parts_[i];
    Part& other = parts_[1 - i];
    if (without_room && part.name != *without_room) continue;
    const std::int32_t missing = missing_extents(part);
    age_lack(part);
    if (missing == 0) continue;
    map(part, missing, moves_);
    const std::int64_t bytes = std::int64_t{missing_extents(part)} * part.shape.bytes;
    const std::int64_t coming = std::int64_t{other.count(Extent::unmapping)} * other.shape.bytes +
                                (can_map() ? std::max<std::int64_t>(unassigned_bytes(), 0) : 0);
    if (bytes <= coming) continue;
    if (without_room)
      give_to_request(other, bytes - coming);
    else
      give(other, bytes - coming, other.kept());
  }
}

/// Free numbers may lie in extents that hold content of running requests, too: then more is evicted.
void MemoryArena::give_to_request(Part& from, std::int64_t bytes) {
  while (!give(from, bytes, 0) && from.count(Extent::mapped) > from.least &&
         (index_.evict_least() || index_.evict_held_state())) {
  }
}

void MemoryArena::age_lack(Part& part) noexcept {
  if (++part.lack_age > lack_decisions_max) part.lack = 0;
}

/// Goes round the extents, so that one that the system has refused is the last to be tried again.
void MemoryArena::map(Part& part, std::int32_t extents, std::vector<MemoryMove>& moves) {
  for (std::size_t i = 0; i < part.extents.size() && extents > 0; ++i) {
    if (!can_map() || unassigned_bytes() < part.shape.bytes) return;
    const std::int32_t e = std::exchange(part.next_to_map, part.after(part.next_to_map));
    if (part.extents[static_cast<std::size_t>(e)] != Extent::unmapped) continue;
    if (part.is_short(e) && part.count(Extent::unmapped) + part.count(Extent::unmapping) > 1) continue;
    enter(part, e, Extent::mapping);
    decide(MemoryMove::Kind::map, part, e, moves);
    part.lack = std::max(part.lack - part.shape.count, 0);
    --extents;
  }
}

/// Takes extents of at least these bytes from a part, as far as it can spare them: those with the least content. The
/// search for empty ones goes round. False: it takes none.
bool MemoryArena::give(Part& from, std::int64_t bytes, std::int32_t kept) {
  const auto wanted = std::min<std::int64_t>(ceil_div(bytes, from.shape.bytes), spare_extents(from, kept));
  chosen_.clear();
  if (wanted > 0 && from.is_short(from.last()) && from.extents.back() == Extent::mapped && is_empty(from, from.last()))
    choose(from, from.last());
  for (std::size_t i = 0; i < from.extents.size() && std::ssize(chosen_) < wanted; ++i) {
    const std::int32_t e = std::exchange(from.next_to_give, from.after(from.next_to_give));
    if (from.extents[static_cast<std::size_t>(e)] == Extent::mapped && is_empty(from, e)) choose(from, e);
  }
  if (std::ssize(chosen_) < wanted) {
    movable_.resize(from.extents.size());
    index_.count_movable(from.name, from.shape.count, movable_);
  }
  while (std::ssize(chosen_) < wanted) {
    const std::optional<std::int32_t> extent = emptiest(from);
    if (!extent) break;
    choose(from, *extent);
  }
  if (chosen_.empty()) return false;
  // All are closed before content moves, so that none moves from one of them to another.
  index_.close(from.name, closing_);
  closing_.clear();
  index_.vacate(from.name, kv_copies_);
  for (const std::int32_t e : chosen_) {
    require_invariant(is_empty(from, e), "MemoryArena", "an extent keeps content");
    decide(MemoryMove::Kind::unmap, from, e, moves_);
  }
  return true;
}

std::span<const std::int32_t> MemoryArena::moved_to() {
  moved_to_.assign(static_cast<std::size_t>(parts_[0].numbers), -1);
  for (const SlotCopy& copy : kv_copies_) moved_to_[static_cast<std::size_t>(copy.src_slot)] = copy.dst_slot;
  return moved_to_;
}

void MemoryArena::choose(Part& from, std::int32_t extent) {
  closing_.push_back(from.numbers_of(extent));
  enter(from, extent, Extent::unmapping);
  chosen_.push_back(extent);
}

bool MemoryArena::is_empty(const Part& part, std::int32_t extent) const {
  for (std::int32_t i = 0; i < part.size(extent); ++i)
    if (!index_.is_free(part.name, part.first(extent) + i)) return false;
  return true;
}

/// The mapped extent with the least content among those of which no request holds a number. None: there is none.
std::optional<std::int32_t> MemoryArena::emptiest(const Part& part) const {
  std::optional<std::int32_t> best;
  for (std::int32_t e = 0; std::cmp_less(e, part.extents.size()); ++e) {
    const std::int32_t content = movable_[static_cast<std::size_t>(e)];
    if (part.extents[static_cast<std::size_t>(e)] != Extent::mapped ||
        (best && content >= movable_[static_cast<std::size_t>(*best)]))
      continue;
    std::int32_t used = 0;
    for (std::int32_t i = 0; i < part.size(e); ++i) used += !index_.is_free(part.name, part.first(e) + i);
    if (used == content) best = e;
  }
  return best;
}

void MemoryArena::decide(MemoryMove::Kind kind, const Part& part, std::int32_t extent, std::vector<MemoryMove>& moves) {
  moves.push_back({.id = ++last_move_, .kind = kind, .part = part.name, .extent = extent});
  if (outstanding_.size() == outstanding_.capacity())
    std::erase_if(outstanding_, [](const Decided& decided) { return decided.is_settled; });
  outstanding_.push_back({.move = moves.back()});
  ++under_way_;
}

/// An engine may still look at the plan that an answer has carried.
MemoryPlan MemoryArena::take() {
  if (!is_taken_) {
    begin_call();
    is_taken_ = true;
    return {.kv_copies = kv_copies_, .moves = moves_};
  }
  taken_moves_.clear();
  std::swap(taken_moves_, late_moves_);
  return {.kv_copies = {}, .moves = taken_moves_};
}

void MemoryArena::settle(std::uint64_t id, bool done) {
  const auto at =
      std::ranges::lower_bound(outstanding_, id, {}, [](const Decided& decided) { return decided.move.id; });
  require(at != outstanding_.end() && at->move.id == id && !at->is_settled, "move", id, "is not under way");
  const MemoryMove move = at->move;
  at->is_settled = true;
  if (--under_way_ == 0) outstanding_.clear();
  Part& part = parts_[static_cast<std::size_t>(move.part)];
  const bool unmaps = move.kind == MemoryMove::Kind::unmap;
  refused_ += !done;
  if (unmaps || done) refusals_ = 0;
  if (unmaps == done) {
    enter(part, move.extent, Extent::unmapped);
    if (unmaps) return map_what_came();
    ++refusals_;
    decisions_since_refusal_ = 0;
    return;
  }
  enter(part, move.extent, Extent::mapped);
  index_.open(part.name, part.first(move.extent), part.size(move.extent));
  if (!unmaps && marks_ != nullptr) marks_->memory_came(move.part, part.first(move.extent), part.size(move.extent));
}

/// Memory came back. What is decided now is of the next answer, or of take(): the engine may look at the last one.
void MemoryArena::map_what_came() {
  for (Part& part : parts_) map(part, missing_extents(part), late_moves_);
}

bool MemoryArena::is_mapped(MemoryPart name, std::int32_t extent) const {
  require(name == MemoryPart::kv || name == MemoryPart::states, "part", static_cast<int>(name), "is not a part");
  const Part& part = parts_[static_cast<std::size_t>(name)];
  require(extent >= 0 && std::cmp_less(extent, part.extents.size()), "extent", extent, "is out of range");
  return part.extents[static_cast<std::size_t>(extent)] == Extent::mapped;
}

ArenaUsage MemoryArena::usage() const noexcept {
  const auto bytes = [](const Part& part) {
    return (static_cast<std::int64_t>(part.extents.size()) - part.count(Extent::unmapped)) * part.shape.bytes;
  };
  return {.kv_bytes = bytes(parts_[0]),
          .state_bytes = bytes(parts_[1]),
          .moves = static_cast<std::int64_t>(last_move_),
          .refused_moves = refused_};
}

void MemoryArena::check() const {
  constexpr const char* structure = "MemoryArena";
  require_invariant(unassigned_bytes() >= 0, structure, "more memory is mapped than the arena has");
  std::size_t moving = 0;
  for (const Part& part : parts_) {
    std::array<std::int32_t, 4> in_state = {};
    for (std::int32_t e = 0; std::cmp_less(e, part.extents.size()); ++e) {
      const Extent state = part.extents[static_cast<std::size_t>(e)];
      ++in_state[static_cast<std::size_t>(state)];
      require_invariant(state == Extent::mapped || is_empty(part, e), structure, "content lies where no memory is");
    }
    require_invariant(in_state == part.in_state, structure, "extents are counted wrong");
    require_invariant(part.count(Extent::mapped) >= part.least, structure, "a part has less than it needs");
    moving += static_cast<std::size_t>(part.count(Extent::unmapping) + part.count(Extent::mapping));
  }
  require_invariant(moving == under_way_, structure, "a move is lost");
}

}  // namespace stateport::detail
