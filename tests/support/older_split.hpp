// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/align/align_rules.hpp>

#include <cstdint>
#include <optional>
#include <vector>

namespace stateport::test {

/// The older chunk split, for contrast only: a chunk may end off the grid after the last usable boundary, and the next
/// chunk may then pass a boundary without stopping there. The state published at that boundary is wrong.
struct OlderSplit {
  std::int64_t block = 1;
  std::int64_t prompt = 0;
  std::int64_t total = 0;
  bool drops_block = false;
  std::optional<std::int64_t> partial_hit_block;  ///< hash block, if hits may end inside a block
  std::optional<std::int64_t> shared_boundary;    ///< tokens that other requests share

  [[nodiscard]] std::int64_t operator()(std::int64_t start, std::int64_t tokens) const {
    if (start >= (prompt > total - 1 ? prompt : total - 1)) return tokens;
    std::int64_t last = floor_to(total, block);
    if (drops_block) last = last > block ? last - block : 0;
    std::int64_t end = start + tokens;
    if (end < last) end = floor_to(end, block);
    std::vector<std::int64_t> stops = {last};
    const std::int64_t next = floor_to(start, block) + block;
    if (start % block != 0 && next <= last) stops.push_back(next);
    if (partial_hit_block) {
      const std::int64_t tail = floor_to(prompt, *partial_hit_block);
      if (last < tail && tail < prompt) stops.push_back(tail);
    }
    if (shared_boundary && start < *shared_boundary && *shared_boundary < end)
      stops.push_back(start + floor_to(*shared_boundary - start, block));
    std::int64_t chosen = end;
    for (const std::int64_t stop : stops)
      if (start < stop && stop < chosen) chosen = stop;
    return chosen > start ? chosen - start : 0;
  }
};

}  // namespace stateport::test
