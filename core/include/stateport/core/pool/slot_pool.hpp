// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/hash/block_hash.hpp>
#include <stateport/core/model/error.hpp>
#include <stateport/core/model/ids.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace stateport {

/// The content of a slot: the state after exactly `token_count` tokens of the prefix, in one memory layout. A restore
/// compares all three; a slot that was never committed has token_count -1 and matches nothing.
struct StateTag {
  std::int64_t token_count = -1;
  PrefixHash prefix;
  std::uint64_t layout_fingerprint = 0;
  friend constexpr bool operator==(const StateTag&, const StateTag&) noexcept = default;
};

/// How the tag of a slot compares with the wanted one. Anything but match refuses a restore.
enum class TagCheck : std::uint8_t {
  match,        ///< the slot holds exactly the wanted state
  empty,        ///< it was never committed
  token_count,  ///< the state is one after another number of tokens
  prefix,       ///< the state is one after other tokens
  layout        ///< the state has another memory layout
};

/// Compares the content of a slot with the state that a request needs; names the first field that differs. O(1),
/// noexcept.
[[nodiscard]] constexpr TagCheck check_tag(const StateTag& held, const StateTag& wanted) noexcept {
  if (held.token_count < 0) return TagCheck::empty;
  if (held.token_count != wanted.token_count) return TagCheck::token_count;
  if (held.prefix != wanted.prefix) return TagCheck::prefix;
  if (held.layout_fingerprint != wanted.layout_fingerprint) return TagCheck::layout;
  return TagCheck::match;
}

[[nodiscard]] std::string_view name(TagCheck check) noexcept;

/// Bookkeeping of the slots of one StateStore: the owner, the content, the pins and the last use of each slot.
///
///     free ── allocate ──► owned ── lock ──► owned, pinned
///       ▲                    │  ▲              │
///       └────── release ─────┘  └── unlock ────┘
///
/// The owner of a slot is a number of the index (a block id, a node index), or `caller` if the engine has the slot. The
/// recency of a state is the tick of its slot's last use, on the clock of the index. An index by block hash does not
/// set it: there a state is as recent as its block, and the block directory has the tick of the block.
///
/// Every operation is O(1) per slot and allocates nothing after construction. Not thread-safe.
class SlotPool {
 public:
  /// Which free slot is handed out next: stack = the one freed last (as the slot allocator), queue = the one that
  /// has been free longest (as the prefix tree).
  enum class Order : std::uint8_t { stack, queue };

  static constexpr std::int32_t caller = -1;  ///< owner of a slot that an engine holds

  /// All slots are free, in ascending order. Throws InvalidArgument for slots < 0.
  explicit SlotPool(std::int32_t slots, Order order = Order::stack);
  ~SlotPool();
  SlotPool(const SlotPool&) = delete;
  SlotPool& operator=(const SlotPool&) = delete;

  [[nodiscard]] std::int32_t capacity_slots() const noexcept { return capacity_slots_; }
  [[nodiscard]] std::int32_t free_slots() const noexcept { return free_count_; }
  /// Closed slots that are not owned: they do not count as free, though is_free() is true for them.
  [[nodiscard]] std::int32_t closed_slots() const noexcept { return closed_count_; }

  /// Fills `out` and makes `caller` the owner, or changes nothing and returns false. A stack gives the top segment in
  /// stored order: a fresh pool of 4 asked for 2 gives [2, 3]. The tag of a slot handed out is empty.
  [[nodiscard]] bool allocate(std::span<SlotId> out) noexcept;

  /// Gives slots back, in this order. Throws InvalidArgument (nothing released) for a slot that is out of range,
  /// free, pinned or named twice.
  void release(std::span<const SlotId> slots);
  void release(SlotId slot) { release({&slot, 1}); }

  /// No slot of the ranges is handed out until open() names it: neither those that are free, nor those that are owned
  /// once they are released. Throws InvalidArgument, and changes nothing, for a range that is not inside the pool, and
  /// a slot that is closed or named twice. O(free slots), for all ranges together.
  void close(std::span<const NumberRange> ranges);
  /// The slots of the range can be handed out again; free ones come in ascending order. Throws as close() does, for a
  /// slot that is not closed.
  void open(std::int32_t first, std::int32_t count);

  /// All of these throw InvalidArgument for a slot that is out of range or free.
  void set_owner(SlotId slot, std::int32_t owner) {
    require(owner >= caller, "owner", owner, "must be a number of the index, or caller");
    owned(slot).owner = owner;
  }
  [[nodiscard, gnu::always_inline]] std::int32_t owner(SlotId slot) const { return owned(slot).owner; }
  void set_tag(SlotId slot, const StateTag& tag) { owned(slot).tag = tag; }
  [[nodiscard]] const StateTag& tag(SlotId slot) const { return owned(slot).tag; }
  /// The state was used now. A slot that was just handed out has tick 0.
  void touch(SlotId slot, std::uint64_t tick) { owned(slot).used_tick = tick; }
  [[nodiscard]] std::uint64_t last_use_tick(SlotId slot) const { return owned(slot).used_tick; }
  void lock(SlotId slot) { ++owned(slot).locks; }
  /// Also throws for a slot that is not pinned.
  void unlock(SlotId slot);
  [[nodiscard]] std::int32_t lock_count(SlotId slot) const { return owned(slot).locks; }

  /// A hint that the slot will soon be asked for. Any id is allowed.
  void prefetch(SlotId slot) const noexcept;
  /// False for a slot out of range.
  [[nodiscard]] bool is_free(SlotId slot) const noexcept {
    return slot.valid() && slot.value() < capacity_slots_ && slots_[slot.index()].owner == nobody;
  }
  /// The slot is closed; it may be owned. False for a slot out of range.
  [[nodiscard]] bool is_closed(SlotId slot) const noexcept;
  /// The free slots, next one to be handed out last for a stack, first for a queue. For tests and dumps.
  [[nodiscard]] std::vector<SlotId> free_list() const;

  /// Every slot that is not closed is free again, in ascending order; pins and tags are gone.
  void reset() noexcept;
  /// Throws std::logic_error naming the first broken invariant. O(slots).
  void check_invariants() const;

 private:
  static constexpr std::int32_t nobody = -2;
  struct Slot {
    StateTag tag;
    std::uint64_t used_tick = 0;
    std::int32_t owner = nobody;
    std::int32_t locks = 0;
  };
  struct Books;

  [[nodiscard]] std::size_t ring_index(std::int32_t position) const noexcept;
  void require_range(const NumberRange& range, bool closed) const;
  [[nodiscard, gnu::always_inline]] const Slot& owned(SlotId slot) const {
    require(slot.valid() && slot.value() < capacity_slots_, "slot", slot, "is out of range");
    const Slot& entry = slots_[slot.index()];
    require(entry.owner != nobody, "slot", slot, "is free");
    return entry;
  }
  [[nodiscard]] Slot& owned(SlotId slot) { return const_cast<Slot&>(std::as_const(*this).owned(slot)); }

  std::unique_ptr<Books> books_;  ///< the tables
  Slot* slots_ = nullptr;         ///< one in `books_`, by slot
  std::int32_t capacity_slots_;
  std::int32_t first_ = 0;  ///< the free slots stand at positions [first_, first_ + free_count_) of a ring
  std::int32_t free_count_ = 0;
  std::int32_t closed_count_ = 0;
  Order order_;
};

}  // namespace stateport
