// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/pool/slot_pool.hpp>

#include <stateport/core/model/error.hpp>

#include "containers/prefetch.hpp"
#include "containers/table.hpp"

#include <algorithm>

namespace stateport {

struct SlotPool::Books {
  explicit Books(std::size_t count) : slots(count), ring(count), closed(count) {}

  Table<Slot> slots;
  std::vector<SlotId> ring;
  Table<std::uint8_t> closed;  ///< by slot
};

SlotPool::SlotPool(std::int32_t slots, Order order) : capacity_slots_(slots), order_(order) {
  require(slots >= 0, "slots", slots, "must not be negative");
  books_ = std::make_unique<Books>(static_cast<std::size_t>(slots));
  slots_ = books_->slots.data();
  reset();
}

SlotPool::~SlotPool() = default;

bool SlotPool::allocate(std::span<SlotId> out) noexcept {
  if (out.size() > static_cast<std::size_t>(free_count_)) return false;
  const auto count = static_cast<std::int32_t>(out.size());
  const std::int32_t from = order_ == Order::stack ? free_count_ - count : 0;
  for (std::int32_t i = 0; i < count; ++i) {
    const SlotId slot = books_->ring[ring_index(from + i)];
    slots_[slot.index()] = {.owner = caller};
    out[static_cast<std::size_t>(i)] = slot;
  }
  if (order_ == Order::queue && count > 0) first_ = static_cast<std::int32_t>(ring_index(count));
  free_count_ -= count;
  return true;
}

void SlotPool::release(std::span<const SlotId> slots) {
  for (const SlotId slot : slots) require(owned(slot).locks == 0, "slot", slot, "is pinned");
  // Slots are marked one by one, so that one that is named twice is found.
  constexpr std::int32_t marked = -1;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    Slot& entry = slots_[slots[i].index()];
    if (entry.locks == marked) {
      for (const SlotId before : slots.first(i)) slots_[before.index()].locks = 0;
      require(false, "slots", slots[i], "is named twice");
    }
    entry.locks = marked;
  }
  for (const SlotId slot : slots) {
    slots_[slot.index()].owner = nobody;
    slots_[slot.index()].locks = 0;
    if (books_->closed[slot.index()] != 0)
      ++closed_count_;
    else
      books_->ring[ring_index(free_count_++)] = slot;
  }
}

bool SlotPool::is_closed(SlotId slot) const noexcept {
  return slot.valid() && slot.value() < capacity_slots_ && books_->closed[slot.index()] != 0;
}

void SlotPool::close(std::span<const NumberRange> ranges) {
  const auto mark = [&](const NumberRange& range, bool closed) {
    std::fill_n(books_->closed.begin() + range.first, range.count, std::uint8_t{closed});
  };
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    try {
      require_range(ranges[i], false);
    } catch (...) {
      for (const NumberRange& marked : ranges.first(i)) mark(marked, false);
      throw;
    }
    mark(ranges[i], true);
  }
  std::int32_t kept = 0;
  for (std::int32_t i = 0; i < free_count_; ++i)
    if (const SlotId slot = books_->ring[ring_index(i)]; books_->closed[slot.index()] == 0)
      books_->ring[ring_index(kept++)] = slot;
  closed_count_ += free_count_ - kept;
  free_count_ = kept;
}

void SlotPool::open(std::int32_t first, std::int32_t count) {
  require_range({first, count}, true);
  for (std::int32_t slot = first; slot < first + count; ++slot) {
    books_->closed[SlotId{slot}.index()] = 0;
    if (slots_[SlotId{slot}.index()].owner != nobody) continue;
    books_->ring[ring_index(free_count_++)] = SlotId{slot};
    --closed_count_;
  }
}

void SlotPool::require_range(const NumberRange& range, bool closed) const {
  const auto [first, count] = range;
  require(first >= 0 && first <= capacity_slots_, "first", first, "must be a slot");
  require(count >= 0 && count <= capacity_slots_ - first, "count", count, "must end inside the pool");
  for (std::int32_t slot = first; slot < first + count; ++slot)
    require((books_->closed[SlotId{slot}.index()] != 0) == closed, "slot", slot,
            closed ? "is not closed" : "is closed");
}

void SlotPool::unlock(SlotId slot) {
  Slot& entry = owned(slot);
  require(entry.locks > 0, "slot", slot, "is not pinned");
  --entry.locks;
}

void SlotPool::prefetch(SlotId slot) const noexcept {
  if (slot.valid() && slot.value() < capacity_slots_) detail::prefetch(&slots_[slot.index()]);
}

std::vector<SlotId> SlotPool::free_list() const {
  std::vector<SlotId> list;
  for (std::int32_t i = 0; i < free_count_; ++i) list.push_back(books_->ring[ring_index(i)]);
  return list;
}

void SlotPool::reset() noexcept {
  first_ = 0;
  free_count_ = 0;
  closed_count_ = 0;
  for (std::int32_t slot = 0; slot < capacity_slots_; ++slot) {
    slots_[static_cast<std::size_t>(slot)] = {};
    if (books_->closed[static_cast<std::size_t>(slot)] != 0)
      ++closed_count_;
    else
      books_->ring[static_cast<std::size_t>(free_count_++)] = SlotId{slot};
  }
}

void SlotPool::check_invariants() const {
  constexpr const char* structure = "SlotPool";
  std::vector<bool> seen(books_->slots.size(), false);
  for (const SlotId slot : free_list()) {
    require_invariant(is_free(slot), structure, "the free list names a slot that has an owner");
    require_invariant(!seen[slot.index()], structure, "the free list names a slot twice");
    seen[slot.index()] = true;
  }
  std::int32_t closed_slots = 0;
  for (std::size_t slot = 0; slot < books_->slots.size(); ++slot) {
    const bool closed = books_->closed[slot] != 0;
    const bool free = slots_[slot].owner == nobody;
    closed_slots += closed && free;
    require_invariant(seen[slot] == (free && !closed), structure, "a free slot is in no list");
    require_invariant(slots_[slot].locks >= 0, structure, "a lock count is negative");
    require_invariant(!seen[slot] || slots_[slot].locks == 0, structure, "a free slot is pinned");
  }
  require_invariant(closed_slots == closed_count_, structure, "the closed slots are counted wrong");
}

std::size_t SlotPool::ring_index(std::int32_t position) const noexcept {
  const std::size_t index = static_cast<std::size_t>(first_) + static_cast<std::size_t>(position);
  return index < books_->ring.size() ? index : index - books_->ring.size();
}

std::string_view name(TagCheck check) noexcept {
  switch (check) {
    case TagCheck::match:
      return "match";
    case TagCheck::empty:
      return "empty slot";
    case TagCheck::token_count:
      return "another token count";
    case TagCheck::prefix:
      return "another prefix";
    case TagCheck::layout:
      return "another layout";
  }
  return "?";
}

}  // namespace stateport
