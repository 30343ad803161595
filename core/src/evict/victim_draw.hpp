// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/error.hpp>

#include "containers/assert.hpp"
#include "containers/prefetch.hpp"
#include "containers/table.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

namespace stateport {

/// Memory that is going to be read, and may be fetched.
enum class VictimFetch : std::uint8_t {
  key,     ///< whether it is eligible, and its key
  removal  ///< for removing it
};

/// Finds the next victim for policies whose keys change with time, so that no heap can hold their order: compares the
/// few candidates whose turn it is and the best of earlier draws, and answers the smallest (key, index) of them. Every
/// candidate has its turn once in candidates / draws calls. A candidate that was kept from an earlier draw has the key
/// of then until it comes up; if that has grown, the next one comes up. With at most `draws` candidates all are
/// compared. The same calls give the same answers.
///
/// Rules for the owner as for VictimHeap, but no key is ever told: push() when an index becomes eligible (twice is
/// harmless). One that became ineligible is dropped when it is drawn and comes back with the push() of its unlock.
///
/// push, erase: O(1). draw: O(draws), amortised over locks. No allocation for indices that reserve() made room for.
template <class Key>
class VictimDraw {
 public:
  /// How many candidates a draw keeps, its victim among them.
  static constexpr std::size_t kept_max = 12;

  struct FetchNothing {
    void operator()(std::uint32_t, VictimFetch) const noexcept {}
  };
  template <class Fetch>
  static constexpr bool fetches = !std::is_same_v<std::remove_cvref_t<Fetch>, FetchNothing>;

  /// draws >= 1.
  explicit VictimDraw(std::int32_t draws, std::size_t capacity = 0) : draws_(static_cast<std::size_t>(draws)) {
    STATEPORT_ASSERT(draws >= 1);
    reserve(capacity);
  }

  /// Room for indices 0 … capacity - 1.
  void reserve(std::size_t capacity) {
    if (capacity > places_.size()) places_.resize(capacity, absent);
    candidates_.reserve(capacity);
    if (capacity > draws_) drawn_.reserve(draws_);
  }

  [[nodiscard]] std::size_t size() const noexcept { return candidates_.size() - hidden_; }
  [[nodiscard]] bool contains(std::uint32_t index) const noexcept {
    return index < places_.size() && places_[index] < absent;
  }

  /// A hint that the index will soon be pushed or erased.
  void prefetch(std::uint32_t index) const noexcept { detail::prefetch(places_.data() + index); }

  /// Adds a candidate; without effect if it is already there.
  void push(std::uint32_t index) {
    if (contains(index)) return;
    if (index >= places_.size()) places_.resize(std::size_t{index} + 1, absent);
    candidates_.push_back(index);
    places_[index] = static_cast<std::uint32_t>(candidates_.size() - 1);
  }

  /// Without effect if absent.
  void erase(std::uint32_t index) noexcept {
    if (!contains(index)) return;
    if (peeking_) return hide(index);
    const std::uint32_t last = candidates_.back();
    candidates_[places_[index]] = last;
    places_[last] = places_[index];
    candidates_.pop_back();
    places_[index] = absent;
  }

  void clear() noexcept {
    for (const std::uint32_t index : candidates_) places_[index] = absent;
    candidates_.clear();
    kept_count_ = 0;
    turn_ = 0;
  }

  /// An eligible candidate, which stays; none if there is none. `eligible(index)` and `key_of(index)` give the state of
  /// affairs now. `fetch(index, what)` is a hint without effect on answers. It is told of the candidates of the next
  /// draw, too: those are fetched while the victim of this one is removed.
  template <class Eligible, class KeyOf, class Fetch = FetchNothing>
  [[nodiscard]] std::optional<std::uint32_t> draw(Eligible&& eligible, KeyOf&& key_of, Fetch&& fetch = {}) {
    if (!draw_indices(eligible)) return least_of_all(eligible, key_of);
    if (fetches<Fetch> && size() >= cached_candidates) look_ahead(fetch);
    drop_if([&](std::uint32_t index) { return !contains(index) || !eligible(index); });
    // The last victim left a place free: so the smallest of those drawn now is kept, whatever the others' keys were.
    STATEPORT_ASSERT(kept_count_ < kept_max);
    for (const std::uint32_t index : drawn_) {
      const Ranked ranked{key_of(index), index};
      if (kept_count_ < kept_max || ranked < kept_.back()) keep(ranked);
    }
    const std::uint32_t victim = take_first(key_of);
    fetch(victim, VictimFetch::removal);
    if (kept_count_ > 0) fetch(kept_.front().index, VictimFetch::removal);  // often the next one
    return victim;
  }

  /// Writes the victims of the next draws, each without those before it, and answers how many there are, at most
  /// out.size(). Later draws answer as they would have answered without this call.
  template <class Eligible, class KeyOf>
  [[nodiscard]] std::size_t peek(std::span<std::uint32_t> out, Eligible&& eligible, KeyOf&& key_of) {
    const std::size_t turn = turn_;
    const auto kept = kept_;
    const std::size_t kept_count = kept_count_;
    peeking_ = true;
    std::size_t found = 0;
    for (; found < out.size(); ++found) {
      const auto victim = draw(eligible, key_of);
      if (!victim) break;
      out[found] = *victim;
      erase(*victim);
    }
    peeking_ = false;
    while (hidden_ > 0) show_last_hidden();
    turn_ = turn;
    kept_ = kept;
    kept_count_ = kept_count;
    return found;
  }

  [[nodiscard]] std::size_t bytes() const noexcept {
    return (places_.capacity() + candidates_.capacity() + drawn_.capacity()) * sizeof(std::uint32_t);
  }

  /// Throws std::logic_error unless every candidate is at its place. O(n).
  void check_invariants() const {
    std::size_t present = 0;
    for (const std::uint32_t place : places_) present += place < absent;
    require_invariant(hidden_ == 0 && !peeking_, "VictimDraw", "a candidate is still hidden");
    require_invariant(present == size(), "VictimDraw", "places and candidates differ in number");
    for (std::size_t place = 0; place < size(); ++place)
      require_invariant(places_[candidates_[place]] == place, "VictimDraw", "a candidate is not at its place");
    require_invariant(kept_count_ < kept_max, "VictimDraw", "the last victim left no place free");
    require_invariant(std::is_sorted(kept_.begin(), kept_.begin() + kept_count_), "VictimDraw",
                      "the kept candidates are in no order");
  }

 private:
  /// So few are in the cache anyway.
  static constexpr std::size_t cached_candidates = 4096;
  /// Places are below. That of a hidden candidate is this plus the place that it left.
  static constexpr std::uint32_t absent = std::uint32_t{1} << 31;
  struct Ranked {
    Key key;
    std::uint32_t index;
    friend bool operator<(const Ranked& a, const Ranked& b) noexcept {
      if (a.key < b.key) return true;
      return !(b.key < a.key) && a.index < b.index;
    }
  };

  /// Takes a candidate out while peek() runs: it changes places with the last one that is not hidden.
  void hide(std::uint32_t index) noexcept {
    const std::uint32_t place = places_[index];
    const auto last_place = static_cast<std::uint32_t>(size() - 1);
    candidates_[place] = candidates_[last_place];
    places_[candidates_[place]] = place;
    candidates_[last_place] = index;
    places_[index] = absent + place;
    ++hidden_;
  }
  /// Undoes the last hide().
  void show_last_hidden() noexcept {
    const auto last_place = static_cast<std::uint32_t>(size());
    const std::uint32_t index = candidates_[last_place];
    const std::uint32_t place = places_[index] - absent;
    --hidden_;
    candidates_[last_place] = candidates_[place];
    places_[candidates_[last_place]] = last_place;
    candidates_[place] = index;
    places_[index] = place;
  }

  /// Fetches the candidates of the next draw, while this one compares those that the one before has fetched.
  template <class Fetch>
  void look_ahead(Fetch& fetch) const noexcept {
    std::size_t place = turn_;
    for (std::size_t i = 0; i < draws_; ++i, ++place) {
      if (place >= size()) place = 0;
      fetch(candidates_[place], VictimFetch::key);
    }
  }

  /// The best of the kept candidates, by its key now. It is not kept any longer.
  template <class KeyOf>
  [[nodiscard]] std::uint32_t take_first(KeyOf& key_of) noexcept {
    for (;;) {
      const std::uint32_t first = kept_.front().index;
      const Ranked now{key_of(first), first};
      drop_if([&](std::uint32_t index) { return index == first; });
      if (kept_count_ == 0 || !(kept_.front() < now)) return first;
      keep(now);
    }
  }

  /// False if there are no more candidates than would be drawn.
  template <class Eligible>
  [[nodiscard]] bool draw_indices(Eligible& eligible) {
    drawn_.clear();
    while (size() > draws_) {
      if (turn_ >= size()) turn_ = 0;
      const std::uint32_t index = candidates_[turn_];
      if (!eligible(index)) {  // the last candidate takes its place and its turn
        erase(index);
        continue;
      }
      ++turn_;
      drawn_.push_back(index);
      if (drawn_.size() == draws_) return true;
    }
    return false;
  }

  /// Of the kept candidates.
  template <class Unwanted>
  void drop_if(Unwanted&& unwanted) noexcept {
    const auto end = kept_.begin() + static_cast<std::ptrdiff_t>(kept_count_);
    const auto left = std::remove_if(kept_.begin(), end, [&](const Ranked& kept) { return unwanted(kept.index); });
    kept_count_ = static_cast<std::size_t>(left - kept_.begin());
  }

  /// Precondition: it is among the best.
  void keep(const Ranked& ranked) noexcept {
    drop_if([&](std::uint32_t index) { return index == ranked.index; });  // it had another key
    std::size_t at = std::min(kept_count_++, kept_max - 1);
    for (; at > 0 && ranked < kept_[at - 1]; --at) kept_[at] = kept_[at - 1];
    kept_[at] = ranked;
    kept_count_ = std::min(kept_count_, kept_max);
  }

  template <class Eligible, class KeyOf>
  [[nodiscard]] std::optional<std::uint32_t> least_of_all(Eligible& eligible, KeyOf& key_of) {
    std::optional<Ranked> least;
    for (std::size_t place = size(); place-- > 0;) {
      const std::uint32_t index = candidates_[place];
      if (!eligible(index)) {  // the last candidate, looked at already, takes its place
        erase(index);
        continue;
      }
      const Ranked ranked{key_of(index), index};
      if (!least || ranked < *least) least = ranked;
    }
    return least ? std::optional(least->index) : std::nullopt;
  }

  std::size_t draws_;
  Table<std::uint32_t> places_;          ///< by index: in candidates_
  Table<std::uint32_t> candidates_;      ///< in no order
  std::vector<std::uint32_t> drawn_;     ///< scratch
  std::array<Ranked, kept_max> kept_{};  ///< in order of the keys that they had
  std::size_t kept_count_ = 0;
  std::size_t turn_ = 0;    ///< place of the next candidate to be drawn, or the end
  std::size_t hidden_ = 0;  ///< candidates at the end of candidates_ that peek() took out
  bool peeking_ = false;
};

}  // namespace stateport
