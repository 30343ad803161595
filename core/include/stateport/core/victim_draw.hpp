// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <stateport/core/assert.hpp>
#include <stateport/core/error.hpp>
#include <stateport/core/eviction_policy.hpp>
#include <stateport/core/table.hpp>

namespace stateport {

/// Finds the next victim for policies whose keys change with time, so that no heap can hold their order: compares a few
/// candidates drawn at random and the best that lost earlier draws, and answers the smallest (key, index) of them. With
/// at most `draws` candidates all are compared. The same calls give the same answers.
///
/// Rules for the owner as for VictimHeap, but no key is ever told: push() when an index becomes eligible (twice is
/// harmless). One that became ineligible is dropped when it is drawn and comes back with the push() of its unlock.
///
/// push, erase: O(1). draw: O(draws), amortised over locks. No allocation after reserve().
class VictimDraw {
 public:
  /// How many of the candidates that lost a draw stand in the next one.
  static constexpr std::size_t leftovers_max = 8;

  /// draws >= 1.
  explicit VictimDraw(std::int32_t draws, std::uint64_t seed = 1, std::size_t capacity = 0)
      : draws_(static_cast<std::size_t>(draws)), random_(seed) {
    STATEPORT_ASSERT(draws >= 1);
    reserve(capacity);
  }

  /// Room for indices 0 … capacity - 1.
  void reserve(std::size_t capacity) {
    entries_.resize(std::max(entries_.size(), capacity));
    candidates_.reserve(capacity);
    drawn_.reserve(std::min(draws_, capacity) + leftovers_max);
  }

  [[nodiscard]] std::size_t size() const noexcept { return candidates_.size(); }
  [[nodiscard]] bool contains(std::uint32_t index) const noexcept { return entries_[index].place != absent; }

  /// Adds a candidate; without effect if it is already there.
  void push(std::uint32_t index) {
    if (contains(index)) return;
    entries_[index].place = static_cast<std::uint32_t>(candidates_.size());
    candidates_.push_back(index);
  }

  /// Without effect if absent.
  void erase(std::uint32_t index) noexcept {
    if (!contains(index)) return;
    const std::uint32_t last = candidates_.back();
    entries_[last].place = entries_[index].place;
    candidates_[entries_[index].place] = last;
    candidates_.pop_back();
    entries_[index].place = absent;
  }

  void clear() noexcept {
    for (const std::uint32_t index : candidates_) entries_[index].place = absent;
    candidates_.clear();
    leftover_count_ = 0;
  }

  /// An eligible candidate, which stays; none if there is none. `eligible(index)` and `key_of(index)` give the state of
  /// affairs now.
  template <class Eligible, class KeyOf>
  [[nodiscard]] std::optional<std::uint32_t> draw(Eligible&& eligible, KeyOf&& key_of) {
    drawn_.clear();
    ++draw_;
    for (std::size_t i = 0; i < leftover_count_; ++i)
      if (contains(leftovers_[i]) && eligible(leftovers_[i])) compare(leftovers_[i], key_of);
    leftover_count_ = 0;
    for (std::size_t drawn = 0; drawn < draws_;) {
      if (size() <= draws_) return least_of_all(eligible, key_of);
      const std::uint32_t index = candidates_[random_place()];
      if (!eligible(index)) {
        erase(index);
        continue;
      }
      compare(index, key_of);
      ++drawn;
    }
    return least_of_drawn();
  }

  [[nodiscard]] std::size_t bytes() const noexcept {
    return entries_.capacity() * sizeof(Entry) + candidates_.capacity() * sizeof(std::uint32_t) +
           drawn_.capacity() * sizeof(Ranked);
  }

  /// Throws std::logic_error unless every candidate is at its place. O(n).
  void check_invariants() const {
    std::size_t present = 0;
    for (const Entry& entry : entries_) present += entry.place != absent;
    require_invariant(present == size(), "VictimDraw", "places and candidates differ in number");
    for (std::size_t place = 0; place < size(); ++place)
      require_invariant(entries_[candidates_[place]].place == place, "VictimDraw", "a candidate is not at its place");
    require_invariant(leftover_count_ <= leftovers_max, "VictimDraw", "too much is left over");
  }

 private:
  static constexpr std::uint32_t absent = UINT32_MAX;
  struct Entry {
    std::uint32_t place = absent;  ///< in candidates_
    std::uint32_t drawn = 0;       ///< number of the last draw
  };
  struct Ranked {
    VictimKey key;
    std::uint32_t index;
    friend bool operator<(const Ranked& a, const Ranked& b) noexcept {
      return a.key == b.key ? a.index < b.index : a.key < b.key;
    }
  };

  [[nodiscard]] std::size_t random_place() noexcept {
    random_ += 0x9E3779B97F4A7C15U;  // SplitMix64
    std::uint64_t bits = (random_ ^ (random_ >> 30)) * 0xBF58476D1CE4E5B9U;
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EBU;
    return static_cast<std::size_t>(((bits >> 32) * size()) >> 32);
  }

  template <class KeyOf>
  void compare(std::uint32_t index, KeyOf& key_of) {
    if (entries_[index].drawn == draw_) return;
    entries_[index].drawn = draw_;
    drawn_.push_back({key_of(index), index});
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

  /// The victim, and the best of the rest in no order: O(drawn).
  [[nodiscard]] std::uint32_t least_of_drawn() {
    const std::size_t kept = std::min(drawn_.size(), leftovers_max + 1);
    const auto end = drawn_.begin() + static_cast<std::ptrdiff_t>(kept);
    std::nth_element(drawn_.begin(), end - 1, drawn_.end());
    const std::uint32_t least = std::min_element(drawn_.begin(), end)->index;
    for (auto best = drawn_.begin(); best != end; ++best)
      if (best->index != least) leftovers_[leftover_count_++] = best->index;
    return least;
  }

  std::size_t draws_;
  std::uint64_t random_;
  Table<Entry> entries_;                   ///< by index
  std::vector<std::uint32_t> candidates_;  ///< in no order
  std::vector<Ranked> drawn_;              ///< scratch
  std::uint32_t draw_ = 0;
  std::array<std::uint32_t, leftovers_max> leftovers_{};
  std::size_t leftover_count_ = 0;
};

}  // namespace stateport
