// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/cache_options.hpp>
#include <stateport/core/serve/request_cache.hpp>

#include "serve/elastic_index.hpp"
#include "serve/tenant_marks.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace stateport::detail {

/// Moves the memory of an arena between KV and states:
///
///     mapped ── unmap ──► unmapping ── settle ──► unmapped ── map ──► mapping ── settle ──► mapped
///                            └─ refused ─► mapped    ▲                   │
///                                                    └──────── refused ──┘
///
/// An extent counts against the arena's bytes but where it is unmapped. The headroom is memory that no content has: the
/// arena evicts until there is that much, and gives a part that is short the extents that the other part can spare. So
/// the eviction policy alone decides what is evicted, and memory follows.
///
/// A part is short if fewer numbers are free than one of the last passes took, or than two; KV also if fewer are free
/// than the prompts of the last pass have yet to take. It gets extents until as many are free. A part that had to evict
/// its own content at once gets as much as was missing. Memory that comes back is mapped to a part that is short when
/// its unmap is settled.
class MemoryArena final : public CacheArena {
 public:
  /// Closes the numbers of all extents that are not mapped at the start. `marks` may be null: tenants share memory as
  /// it is. Both must outlive this.
  MemoryArena(const RequestCacheOptions& options, ElasticIndex& index, TenantMarks* marks);

  /// A call begins: forgets the plan, if it was taken.
  void begin_call() noexcept {
    if (std::exchange(is_taken_, false)) {
      moves_.clear();
      kv_copies_.clear();
    }
    moves_.insert(moves_.end(), late_moves_.begin(), late_moves_.end());
    late_moves_.clear();
  }
  /// A request found so few free numbers that this many more were needed: content of the part was evicted for it, or
  /// the request has no room.
  void note_lack(MemoryPart part, std::int32_t numbers) noexcept;
  /// Requests took as many numbers for one pass.
  void note_need(MemoryPart part, std::int32_t numbers) noexcept;
  /// The prompts of the last pass have yet to take this many blocks of KV. Room is made for them, in at most an eighth
  /// of the memory.
  void expect_kv(std::int64_t blocks) noexcept;
  /// Evicts until the headroom is there, or requests hold all content.
  void make_room(std::optional<MemoryPart> without_room = std::nullopt);
  /// The same, and decides moves. `without_room`: a request found no room there. Then checkpoints of running requests
  /// are evicted, too, if nothing else is left, and only that part gets memory; KV does not move for other KV. O(1)
  /// without a move; a move looks at the numbers of one part.
  void balance(std::optional<MemoryPart> without_room = std::nullopt);
  [[nodiscard]] CopyPlan kv_copies() const noexcept { return kv_copies_; }
  /// By KV block: where its content is copied to by the plan; -1: nowhere.
  [[nodiscard]] std::span<const std::int32_t> moved_to();

  [[nodiscard]] MemoryPlan take() override;

  void settle(std::uint64_t move, bool done) override;
  [[nodiscard]] bool is_mapped(MemoryPart part, std::int32_t extent) const override;
  [[nodiscard]] ArenaUsage usage() const noexcept override;
  /// Throws std::logic_error naming the first broken invariant. O(numbers).
  void check() const;

 private:
  enum class Extent : std::uint8_t { mapped, unmapping, unmapped, mapping };
  struct Part {
    MemoryPart name = MemoryPart::kv;
    ExtentShape shape;
    std::int32_t numbers = 0;
    std::vector<Extent> extents;
    std::array<std::int32_t, 4> in_state = {};  ///< extents, by Extent
    std::int32_t least = 0;                     ///< extents that stay mapped
    std::int32_t low = 0;                       ///< numbers; fewer free ones are always too few
    std::int32_t next_to_map = 0;               ///< the extent that is looked at next
    std::int32_t next_to_give = 0;              ///< the same
    std::int32_t expected = 0;                  ///< numbers; see expect_kv()
    std::int32_t need = 0;                      ///< numbers that one of the last passes took, at most
    std::int32_t need_before = 0;               ///< the same, of the passes before those
    std::int32_t need_age = 0;                  ///< since `need` began
    std::int32_t need_max = 0;                  ///< more numbers are not kept free
    std::int32_t lack = 0;                      ///< numbers that the part is to get beside
    std::int32_t lack_age = 0;                  ///< decisions since it was noted

    [[nodiscard]] std::int32_t count(Extent state) const noexcept { return in_state[static_cast<std::size_t>(state)]; }
    [[nodiscard]] std::int32_t first(std::int32_t extent) const noexcept { return extent * shape.count; }
    [[nodiscard]] std::int32_t size(std::int32_t extent) const noexcept {
      return first(extent) + shape.count <= numbers ? shape.count : numbers - first(extent);
    }
    /// The last extent may have fewer numbers than its memory holds. It is the last to be mapped, and the first to go
    /// if it is empty.
    [[nodiscard]] std::int32_t last() const noexcept { return static_cast<std::int32_t>(extents.size()) - 1; }
    [[nodiscard]] bool is_short(std::int32_t extent) const noexcept { return size(extent) < shape.count; }
    [[nodiscard]] NumberRange numbers_of(std::int32_t extent) const noexcept { return {first(extent), size(extent)}; }
    [[nodiscard]] std::int32_t after(std::int32_t extent) const noexcept {
      return std::cmp_less(extent + 1, extents.size()) ? extent + 1 : 0;
    }
    [[nodiscard]] std::int64_t bytes_of(std::int64_t many) const noexcept { return many * shape.bytes / shape.count; }
    /// Fewer free numbers are too few.
    [[nodiscard]] std::int32_t kept() const noexcept {
      return std::max({low, expected, std::min(std::max(need, need_before), need_max)});
    }
  };

  struct Decided {
    MemoryMove move;
    bool is_settled = false;
  };

  [[nodiscard]] Part make_part(MemoryPart name, const ExtentShape& shape, std::int32_t numbers, std::int64_t least);
  void map_at_start(Part& part, std::int32_t extents);
  void enter(Part& part, std::int32_t extent, Extent state) noexcept;
  [[nodiscard]] bool can_map() const noexcept;
  [[nodiscard]] std::int64_t unassigned_bytes() const noexcept;
  [[nodiscard]] std::int64_t free_bytes() const noexcept;
  [[nodiscard]] std::int32_t missing_extents(const Part& part) const noexcept;
  [[nodiscard]] std::int32_t spare_extents(const Part& part, std::int32_t kept) const noexcept;
  [[nodiscard]] bool is_empty(const Part& part, std::int32_t extent) const;
  void map(Part& part, std::int32_t extents, std::vector<MemoryMove>& moves);
  void map_what_came();
  void give_to_request(Part& from, std::int64_t bytes);
  bool give(Part& from, std::int64_t bytes, std::int32_t kept);
  void choose(Part& from, std::int32_t extent);
  [[nodiscard]] std::optional<std::int32_t> emptiest(const Part& part) const;
  void decide(MemoryMove::Kind kind, const Part& part, std::int32_t extent, std::vector<MemoryMove>& moves);
  void age_lack(Part& part) noexcept;

  ElasticIndex& index_;
  TenantMarks* marks_;
  std::int64_t bytes_;
  std::int64_t headroom_bytes_;
  std::array<Part, memory_part_count> parts_;
  std::vector<MemoryMove> moves_;        ///< of this answer
  std::vector<MemoryMove> late_moves_;   ///< decided by settle(), of no answer yet
  std::vector<MemoryMove> taken_moves_;  ///< late ones that take() answered beside an answer
  std::vector<Decided> outstanding_;     ///< ascending by id; settled ones are removed when there is no room
  std::size_t under_way_ = 0;            ///< of these, not settled
  std::vector<NumberRange> closing_;     ///< scratch
  std::vector<SlotCopy> kv_copies_;      ///< of this answer
  std::vector<std::int32_t> moved_to_;   ///< scratch of moved_to()
  std::vector<std::int32_t> movable_;    ///< contents, by extent
  std::vector<std::int32_t> chosen_;     ///< extents
  std::uint64_t last_move_ = 0;
  std::int64_t refused_ = 0;
  std::int32_t refusals_ = 0;  ///< of maps, since one was done or memory was given back
  std::int32_t decisions_since_refusal_ = 0;
  bool is_taken_ = false;  ///< the plan was answered
};

}  // namespace stateport::detail
