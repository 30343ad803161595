// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <doctest/doctest.h>

#include <cstdint>
#include <optional>
#include <vector>

namespace stateport::test {

/// Candidates as plain lists, to hold VictimHeap and VictimQueue against.
struct ScannedVictims {
  explicit ScannedVictims(std::uint32_t count) : key(count, 0), locked(count, false), member(count, false) {}

  [[nodiscard]] bool eligible(std::uint32_t index) const { return member[index] && !locked[index]; }
  /// Smallest key first, then smallest index.
  [[nodiscard]] std::optional<std::uint32_t> next() const {
    std::optional<std::uint32_t> least;
    for (std::uint32_t index = 0; index < key.size(); ++index)
      if (eligible(index) && (!least || key[index] < key[*least])) least = index;
    return least;
  }
  /// The key of a candidate may have become smaller: updates `victims`, or erases the candidate from it.
  template <class Victims>
  void rank_again(Victims& victims, std::uint32_t index) const {
    if (eligible(index))
      victims.update(index, key[index]);
    else
      victims.erase(index);
  }
  template <class Victims>
  void require_same_top(Victims& victims) const {
    const auto top = victims.top([&](std::uint32_t index) { return eligible(index); },
                                 [&](std::uint32_t index) { return key[index]; });
    REQUIRE(top == next());
  }

  std::vector<std::int64_t> key;
  std::vector<bool> locked;
  std::vector<bool> member;
};

}  // namespace stateport::test
