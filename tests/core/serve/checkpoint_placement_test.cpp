// SPDX-License-Identifier: Apache-2.0
#include "serve/checkpoint_placement.hpp"

#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <set>
#include <vector>

using namespace stateport;
using detail::PromptCheckpoints;

namespace {

using Positions = std::vector<std::int64_t>;

Positions saves_of(const PromptCheckpoints& checkpoints, std::int64_t start, std::int64_t end) {
  Positions positions;
  checkpoints.saves(start, end, positions);
  return positions;
}

/// n, or the place before the tail or a name behind that, where that is a whole step beyond the hit.
std::int64_t last_of(const PromptCheckpoints& at) {
  const std::int64_t usable = (at.prompt - 1) / at.block * at.block;
  std::int64_t place = 0;
  for (std::int64_t p = at.block; p <= usable; p += at.block)
    if (p <= at.prompt - at.tail || std::ranges::find(at.asked, p) != at.asked.end()) place = p;
  std::int64_t step = at.block;
  while (step % at.scan_step != 0) step += at.block;
  return at.tail > 0 && place >= at.reused + step ? place : usable;
}

/// j, if it is further behind the hit than a tail and a step.
std::int64_t branch_of(const PromptCheckpoints& at) {
  std::int64_t step = at.block;
  while (step % at.scan_step != 0) step += at.block;
  return at.tail > 0 && at.cached < at.reused + at.tail + step ? 0 : at.cached;
}

/// The last position up to `most` at which a pass can save; `start`: none.
std::int64_t saved_before(const PromptCheckpoints& at, std::int64_t start, std::int64_t most) {
  std::int64_t found = start;
  for (std::int64_t p = at.block; p <= most; p += at.block)
    if (p > start && (p - start) % at.scan_step == 0) found = p;
  return found;
}

/// The rule as CheckpointPlacement and RequestCacheOptions say it, position by position.
Positions model(const PromptCheckpoints& at, std::int64_t start, std::int64_t end) {
  std::set<std::int64_t> wanted;
  const std::int64_t usable = (at.prompt - 1) / at.block * at.block;
  const std::int64_t n = last_of(at);
  const bool in_tail = n < usable && end > n;
  const bool is_asked = std::ranges::find(at.named, end) != at.named.end() || (end == n && n < usable);
  const std::int64_t leaves = branch_of(at);
  const std::int64_t branch = std::min(leaves, usable);
  std::int64_t deepest = 0;  // behind the start, where the scan can stop, before the end
  for (std::int64_t p = at.block; p < end; p += at.block)
    if (p > start && at.scan_step > 0 && (p - start) % at.scan_step == 0) deepest = p;
  for (std::int64_t p = at.block; p < end; p += at.block) {
    const bool beyond = p > at.reused && p <= at.prompt;
    const std::int64_t left = (n - p) / at.block;
    switch (at.placement) {
      case CheckpointPlacement::every:
        if (beyond) wanted.insert(p);
        break;
      case CheckpointPlacement::rungs:
        if (beyond && p == leaves) wanted.insert(p);
        if (beyond && p > at.cached && (left == 1 || left == 2 || left == 4)) wanted.insert(p);
        [[fallthrough]];
      case CheckpointPlacement::branch:
        if (beyond && p == leaves && p <= n) wanted.insert(p);
        [[fallthrough]];
      case CheckpointPlacement::last:
        if (beyond && p == n) wanted.insert(p);
        break;
      case CheckpointPlacement::passes:
        if (at.by_block && (p == leaves || (!in_tail && (p == at.prompt / at.block * at.block ||
                                                         (!is_asked && p == (end - 1) / at.block * at.block)))))
          wanted.insert(p);
        if (!at.by_block && !in_tail && p == deepest && !at.ends_on_checkpoint(start, end)) wanted.insert(p);
        // The end of the cached prefix, if the scan of a pass from the start of the prompt can stop there; else the
        // last position before it at which the scan can stop.
        if (!at.by_block && p > at.reused && p <= branch && p % at.scan_step == 0) {
          bool last = true;
          for (std::int64_t more = p + at.block; more <= branch; more += at.block) last &= more % at.scan_step != 0;
          if (last) wanted.insert(p);
        }
    }
  }
  if (const std::int64_t tail = saved_before(at, start, n); in_tail && tail > start) wanted.insert(tail);
  Positions positions;
  for (const std::int64_t p : wanted)
    if (p > start && (p - start) % at.scan_step == 0) positions.push_back(p);
  return positions;
}

/// Adds the named positions that a pass up to `end` saves besides. Returns the first one that it does not save.
std::int64_t add_named(const PromptCheckpoints& at, std::int64_t start, std::int64_t end, Positions& positions) {
  const std::set<std::int64_t> placed(positions.begin(), positions.end());
  std::set<std::int64_t> all = placed;
  std::int64_t first = end;
  std::int32_t left = at.named_saves;
  for (const std::int64_t p : std::set<std::int64_t>(at.named.begin(), at.named.end())) {
    if (p <= start || p >= end) continue;
    const bool saves = at.scan_step > 0 && (p - start) % at.scan_step == 0;
    const bool is_placed = at.placement != CheckpointPlacement::passes && placed.contains(p);
    if (saves && (is_placed || left-- > 0))
      all.insert(p);
    else
      first = std::min(first, p);
  }
  positions.assign(all.begin(), all.end());
  return first;
}

}  // namespace

TEST_CASE("a pass saves its state at the positions that the placement names, and where the scan can stop") {
  test::for_each_seed(20'000, [](test::Random& random, std::uint64_t) {
    PromptCheckpoints at;
    at.placement = static_cast<CheckpointPlacement>(random.between(0, 4));
    at.by_block = random.chance(50);
    at.block = random.between(1, 5);
    at.scan_step = random.chance(70) ? random.between(1, 6) : 1;
    at.prompt = random.between(1, 60);
    const std::int64_t usable = (at.prompt - 1) / at.block;
    at.reused = random.between(0, usable) * at.block;
    at.cached = random.between(at.reused / at.block, at.prompt / at.block) * at.block;
    Positions named;
    for (std::int64_t count = random.chance(50) ? random.between(1, 8) : 0; count > 0; --count)
      named.push_back(random.between(0, at.prompt / at.block) * at.block);
    std::ranges::sort(named);
    at.named = named;
    Positions asked;  // the others are awaited by other requests
    std::ranges::copy_if(named, std::back_inserter(asked), [&](std::int64_t) { return random.chance(60); });
    at.asked = asked;
    at.named_saves = random.between32(0, 3);
    if (at.placement != CheckpointPlacement::every && random.chance(50)) at.tail = random.between(1, 30);
    const std::int64_t start = random.chance(50) ? at.reused : random.between(at.reused, at.prompt - 1);
    const std::int64_t end = random.between(start + 1, at.prompt);
    CAPTURE(static_cast<int>(at.placement));
    CAPTURE(start);
    CAPTURE(end);
    Positions expected = model(at, start, end);
    const std::int64_t first = add_named(at, start, end, expected);
    const std::int64_t n = last_of(at);
    const bool is_cut = n < usable * at.block && start < n && n < end && saved_before(at, start, n) == start;
    REQUIRE(at.cut(start, end) == (is_cut ? std::min(n, first) : first));
    REQUIRE(saves_of(at, start, end) == expected);
    for (const std::int64_t p : named)
      if (p > start) REQUIRE(at.ends_on_checkpoint(start, p));
  });
}

TEST_CASE("a pass whose scan stops at its end alone saves nothing on its way") {
  for (const auto placement : {CheckpointPlacement::passes, CheckpointPlacement::every}) {
    const PromptCheckpoints at{.placement = placement, .block = 4, .cached = 8, .prompt = 40, .scan_step = 0};
    CHECK(saves_of(at, 0, 40).empty());
    CHECK(at.ends_on_checkpoint(0, 8));
  }
}

TEST_CASE("a prompt that is cached to its end branches off where the same prompt can continue") {
  const PromptCheckpoints at{
      .placement = CheckpointPlacement::passes, .block = 16, .cached = 128, .prompt = 128, .scan_step = 64};
  CHECK(saves_of(at, 0, 128) == Positions{64});
}

TEST_CASE("where a prompt leaves the cached prefix off the grid of the scan, the state before it is saved") {
  const PromptCheckpoints at{
      .placement = CheckpointPlacement::passes, .block = 4, .cached = 12, .prompt = 30, .scan_step = 8};
  CHECK(saves_of(at, 0, 30) == Positions{8, 24});
}
