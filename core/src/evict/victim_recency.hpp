// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "evict/victim_heap.hpp"
#include "evict/victim_queue.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace stateport {

// Two ways to keep candidates in order of their last use, (tick, index), oldest first. VictimOrder is their only user
// and describes `source`.

/// For candidates whose ticks are a clock that many of them share, and that may be set back. A use costs nothing: it is
/// noticed when the candidate comes up. Needs source.tick(index), which grows unless offer() says otherwise.
class LazyRecency {
 public:
  void reserve(std::size_t capacity) { queue_.reserve(capacity); }
  [[nodiscard]] std::size_t bytes() const noexcept { return queue_.bytes(); }
  template <class Source>
  [[nodiscard]] bool contains(const Source&, std::uint32_t index) const noexcept {
    return queue_.contains(index);
  }
  /// Adds a candidate, or says that its tick may be smaller.
  template <class Source>
  void offer(const Source& source, std::uint32_t index) {
    queue_.update(index, static_cast<std::int64_t>(source.tick(index)));
  }
  template <class Source>
  void offer_newest(const Source& source, std::uint32_t index) {
    offer(source, index);
  }
  /// True if the use needs nothing more.
  template <class Source>
  [[nodiscard]] static constexpr bool used(const Source&, std::uint32_t) noexcept {
    return false;
  }
  template <class Source>
  void erase(const Source&, std::uint32_t index) {
    queue_.erase(index);
  }
  template <class Source>
  [[nodiscard, gnu::always_inline]] std::optional<std::uint32_t> next(const Source& source) {
    return queue_.top([&](std::uint32_t index) { return source.eligible(index); },
                      [&](std::uint32_t index) { return static_cast<std::int64_t>(source.tick(index)); });
  }
  [[nodiscard]] std::optional<std::uint32_t> upcoming(std::size_t ahead) const noexcept {
    return queue_.upcoming(ahead);
  }
  void prefetch(std::uint32_t index) const noexcept { queue_.prefetch(index); }
  void clear() noexcept { queue_.clear(); }
  template <class Source>
  void check_invariants(const Source&) const {
    queue_.check_invariants();
  }

 private:
  VictimQueue queue_;
};

/// For candidates whose ticks are all different, in nodes that have two links to spare: source.node(index) answers a
/// node with the members `older`, `newer` (indices; outside the list `older` is `unlisted` or more) and `tick`. Node 0
/// is no candidate: the list begins and ends there. A use moves a candidate to the end of the list, O(1). A candidate
/// whose place is far from both ends when it is added goes to a heap instead, where a use costs nothing.
class LinkedRecency {
 public:
  static constexpr std::uint32_t none = UINT32_MAX;
  static constexpr std::uint32_t unlisted = std::uint32_t{1} << 31;  ///< indices are below

  void reserve(std::size_t capacity) { late_.reserve(capacity); }
  [[nodiscard]] std::size_t bytes() const noexcept { return late_.bytes(); }

  template <class Source>
  [[nodiscard]] static bool listed(const Source& source, std::uint32_t index) noexcept {
    return source.node(index).older < unlisted;
  }
  template <class Source>
  [[nodiscard]] bool contains(const Source& source, std::uint32_t index) const noexcept {
    return listed(source, index) || late_.contains(index);
  }
  template <class Source>
  void offer(const Source& source, std::uint32_t index) {
    if (listed(source, index)) return;
    if (late_.contains(index) || !list_by_tick(source, index)) late_.update(index, source.node(index).tick);
  }
  template <class Source>
  static void offer_newest(const Source& source, std::uint32_t index) noexcept {
    link_before(source, 0, index);
  }
  /// Precondition: the tick of a listed candidate is the largest of all. True if the candidate is listed.
  template <class Source>
  [[nodiscard]] static bool used(const Source& source, std::uint32_t index) noexcept {
    if (!listed(source, index)) return false;
    unlink(source, index);
    link_before(source, 0, index);
    return true;
  }
  template <class Source>
  void erase(const Source& source, std::uint32_t index) noexcept {
    if (!listed(source, index)) return late_.erase(index);
    unlink(source, index);
    source.node(index).older = source.node(index).newer = none;
  }
  template <class Source>
  [[nodiscard]] std::optional<std::uint32_t> next(const Source& source) {
    std::uint32_t oldest = source.node(0).newer;
    while (oldest != 0 && !source.eligible(oldest)) {
      const std::uint32_t locked = oldest;
      oldest = source.node(locked).newer;
      erase(source, locked);
    }
    if (oldest != 0 && late_.size() == 0) return oldest;
    const auto late = late_.top([&](std::uint32_t index) { return source.eligible(index); },
                                [&](std::uint32_t index) { return source.node(index).tick; });
    if (oldest == 0 || (late && source.node(*late).tick < source.node(oldest).tick)) return late;
    return oldest;
  }
  [[nodiscard]] std::optional<std::uint32_t> upcoming(std::size_t ahead) const noexcept {
    return ahead == 0 ? late_.upcoming() : std::nullopt;
  }
  /// Node 0 must be linked to itself, and no other node be listed.
  void clear() noexcept { late_.clear(); }

  /// Throws std::logic_error unless the links agree and the list is in order. O(n).
  template <class Source>
  void check_invariants(const Source& source) const {
    late_.check_invariants();
    std::uint32_t older = 0;
    for (std::uint32_t at = source.node(0).newer; at != 0; older = at, at = source.node(at).newer) {
      require_invariant(source.node(at).older == older, "LinkedRecency", "the links of the list do not agree");
      require_invariant(!late_.contains(at), "LinkedRecency", "a candidate is in the list and in the heap");
      require_invariant(older == 0 || source.node(older).tick < source.node(at).tick, "LinkedRecency",
                        "the list is out of order");
    }
    require_invariant(source.node(0).older == older, "LinkedRecency", "the list has another end");
  }

 private:
  template <class Source>
  static void link_before(const Source& source, std::uint32_t newer, std::uint32_t index) noexcept {
    auto& node = source.node(index);
    node.newer = newer;
    node.older = source.node(newer).older;
    source.node(node.older).newer = index;
    source.node(newer).older = index;
  }
  template <class Source>
  static void unlink(const Source& source, std::uint32_t index) noexcept {
    const auto& node = source.node(index);
    source.node(node.older).newer = node.newer;
    source.node(node.newer).older = node.older;
  }
  /// False if the candidate's place is far from both ends.
  template <class Source>
  [[nodiscard]] static bool list_by_tick(const Source& source, std::uint32_t index) noexcept {
    // A parent that lost its last child is mostly older than all that is listed. A new candidate is younger.
    constexpr int near = 8;
    const std::uint64_t tick = source.node(index).tick;
    std::uint32_t newer = source.node(0).newer;
    std::uint32_t older = source.node(0).older;
    for (int step = 0; step < near; ++step) {
      const bool last = older == 0 || source.node(older).tick < tick;
      if (last || newer == 0 || tick < source.node(newer).tick) {
        link_before(source, last ? source.node(older).newer : newer, index);
        return true;
      }
      older = source.node(older).older;
      newer = source.node(newer).newer;
    }
    return false;
  }

  VictimHeap<std::uint64_t> late_;
};

}  // namespace stateport
