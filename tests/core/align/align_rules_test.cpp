// SPDX-License-Identifier: Apache-2.0
// The rules against models that walk token by token.
#include <stateport/core/align/align_rules.hpp>

#include <stateport/core/align/align_mode.hpp>
#include <stateport/core/align/chunk_split.hpp>
#include <stateport/core/align/prefill_checkpoint.hpp>
#include <stateport/core/align/replay_ring.hpp>
#include <stateport/core/align/retention.hpp>
#include <stateport/core/align/speculative_rules.hpp>
#include <stateport/core/align/state_hit.hpp>

#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <vector>

using namespace stateport;
using test::Random;

static_assert(floor_div(-1, 16) == -1 && floor_div(-16, 16) == -1 && floor_div(15, 16) == 0);
static_assert(ceil_div(-1, 16) == 0 && ceil_div(1, 16) == 1);
static_assert(running_column(0, 0, 16) == -1, "nothing computed and nothing scheduled: no column");
static_assert(seed_column(0, 16) == no_column);

TEST_CASE("division rounds towards minus infinity, also beyond 32 bits") {
  test::for_each_seed(20000, [](Random& random, std::uint64_t) {
    const std::int64_t big = random.chance(50) ? 100 : std::int64_t{1} << random.between(30, 61);
    const std::int64_t a = random.between(-big, big);
    const std::int64_t b = random.between(1, random.chance(50) ? 20 : big);
    const std::int64_t q = floor_div(a, b);
    REQUIRE(q * b <= a);
    REQUIRE(a - q * b < b);
    const std::int64_t up = ceil_div(a, b);
    REQUIRE(up * b >= a);
    REQUIRE(up * b - a < b);
    REQUIRE(floor_to(a, b) == q * b);
  });
}

namespace {

/// The column of token number n (1, 2, …), counted one by one.
std::int32_t column_of_token(std::int64_t n, std::int64_t block) {
  std::int32_t column = -1;
  for (std::int64_t token = 1; token <= n; ++token)
    if ((token - 1) % block == 0) ++column;
  return column;
}

struct RandomStep {
  explicit RandomStep(Random& random)
      : block(random.between(1, 12)),
        computed(random.between(0, 60)),
        drafts(random.between32(0, 5)),
        scheduled(drafts + random.between(random.chance(5) ? 0 : 1, 20)),
        accepted(random.between32(0, 1 + drafts)) {}
  std::int64_t block, computed;
  std::int32_t drafts;
  std::int64_t scheduled;
  std::int32_t accepted;
};

}  // namespace

TEST_CASE("the pre-step moves a state exactly when its column is not the running one") {
  test::for_each_seed(20000, [](Random& random, std::uint64_t) {
    const RandomStep s(random);
    const bool known = random.chance(70);
    const std::int32_t remembered = known ? random.between32(-1, 8) : forgotten_column;
    const std::int32_t src = known ? remembered : column_of_token(s.computed, s.block);
    const std::int32_t column = column_of_token(s.computed + s.scheduled, s.block);
    const AlignPreStep step = align_pre_step(s.computed, s.scheduled, remembered, s.accepted, s.block);
    const bool moves = src != -1 && src != column;
    REQUIRE(step == AlignPreStep{src, column, std::max(s.accepted - 1, 0), moves ? 1 : s.accepted, moves});
  });
}

TEST_CASE("the post-step copies to the last boundary among the kept tokens") {
  test::for_each_seed(20000, [](Random& random, std::uint64_t) {
    const RandomStep s(random);
    const std::int32_t column = random.between32(-1, 8);
    const AlignPostStep step = align_post_step(s.computed, s.scheduled, s.drafts, s.accepted, column, s.block);
    const std::int64_t running = s.computed + s.scheduled - s.drafts;
    std::int64_t boundary = -1;  // of the running state, or of a kept draft after it
    for (std::int64_t n = running; n < running + s.accepted; ++n)
      if (n % s.block == 0) boundary = n;
    REQUIRE(step.copy == (boundary >= 0));
    REQUIRE(step.new_computed == running + s.accepted - 1);
    if (!step.copy) {
      REQUIRE(step.accepted == s.accepted);
      return;
    }
    REQUIRE(step.aligned == boundary);
    REQUIRE(step.bias == boundary - running);
    REQUIRE(step.bias < s.accepted);
    REQUIRE(step.dst_column == column_of_token(boundary, s.block));
    REQUIRE(step.accepted == (step.dst_column == column ? 1 : s.accepted));
    REQUIRE(step.moves_bytes == (step.dst_column != column || step.bias > 0));
    REQUIRE(step == align_post_step_advanced(step.new_computed, s.accepted, column, s.block));
  });
}

TEST_CASE("a copy never touches a column outside the row, a null block or a negative id") {
  test::for_each_seed(20000, [](Random& random, std::uint64_t) {
    std::vector<std::int32_t> row(static_cast<std::size_t>(random.between(0, 6)));
    for (std::int32_t& id : row) id = random.between32(-2, 4);
    const std::int32_t src = random.between32(-3, 8);
    const std::int32_t dst = random.between32(-3, 8);
    const std::int32_t bias = random.between32(0, 4);
    const auto block = [&](std::int32_t c) {
      const bool inside = c >= 0 && c < static_cast<std::int32_t>(row.size());
      return inside && row[static_cast<std::size_t>(c)] > 0 ? row[static_cast<std::size_t>(c)] : -1;
    };
    const ColumnCopy got = resolve_column_copy(row.data(), static_cast<std::int32_t>(row.size()), src, dst, bias);
    const bool conv = block(dst) > 0 && block(src) > 0;
    const bool recurrent = block(dst) > 0 && block(src + bias) > 0;
    REQUIRE(got.skipped_parts == 2 - conv - recurrent);
    REQUIRE((got.copy.src_slot > 0) == conv);
    REQUIRE((got.copy.recurrent_src_slot > 0) == recurrent);
    if (conv) REQUIRE(got.copy == SlotCopy{block(src), block(dst), bias, block(src + bias)});
    if (recurrent) REQUIRE(got.copy.recurrent_src_slot == block(src + bias));
  });
}

TEST_CASE("all mode remembers the column of the last token of a full draft step") {
  test::for_each_seed(5000, [](Random& random, std::uint64_t) {
    const RandomStep s(random);
    const std::int32_t last = std::max(0, column_of_token(s.computed + s.scheduled, s.block));
    REQUIRE(all_mode_column(s.computed, s.scheduled, s.drafts, s.block) == (s.scheduled == 1 + s.drafts ? last : -1));
    REQUIRE(all_mode_fallback_column(s.computed, s.block) == std::max(0, column_of_token(s.computed, s.block)));
    REQUIRE(aligned_window_column(s.computed, s.block) == all_mode_fallback_column(s.computed, s.block));
  });
}

TEST_CASE("every boundary that the chunks of a prompt pass is the end of a chunk") {
  test::for_each_seed(20000, [](Random& random, std::uint64_t) {
    const std::int64_t block = random.between(1, 10);
    const std::int64_t prompt = random.between(1, 60);
    const bool drops_block = random.chance(50);
    // A request that is resumed has sampled tokens before.
    const std::int64_t total = prompt + (random.chance(50) ? 0 : random.between(1, 30));
    const std::int64_t prefill = std::max(prompt, total - 1);
    std::int64_t start = random.chance(50) ? 0 : random.between(0, prefill - 1);
    for (int attempt = 0; start < prefill; ++attempt) {
      const std::int64_t tokens = attempt < 20 ? random.between(0, 15) : total;
      const std::int64_t allowed = std::min(tokens, total - start);
      const std::int64_t run = split_chunk({start, allowed, prompt, total, drops_block}, block);
      REQUIRE(run >= 0);
      REQUIRE(run <= allowed);
      const std::int64_t least = least_chunk({start, allowed, prompt, total, drops_block}, block);
      REQUIRE(split_chunk({start, least, prompt, total, drops_block}, block) > 0);
      REQUIRE(split_chunk({start, least - 1, prompt, total, drops_block}, block) == 0);
      const std::int64_t end = start + run;
      REQUIRE((run == 0 || end >= prefill || end % block == 0));
      if (start % block != 0) REQUIRE(end <= floor_to(start, block) + block);
      // A chunk that ends the prefill may not jump over the deepest boundary that the same tokens hit: all but their
      // last token count, or a draft model drops a block of all of them.
      std::int64_t last = 0;
      for (std::int64_t boundary = 0; boundary <= total; boundary += block)
        if (drops_block ? boundary + block <= total : boundary < total) last = boundary;
      if (start < last) REQUIRE(end <= std::max(last, start));
      start = end;
      REQUIRE(attempt < 100);
    }
  });
}

TEST_CASE("prefill stops where the same prompt can hit") {
  const auto run = [](std::int64_t start, std::int64_t tokens, std::int64_t total, bool drops_block = false) {
    return split_chunk({start, tokens, 32, total, drops_block}, 16);
  };
  CHECK(run(0, 32, 32) ==
        16);  // a prompt that ends on a boundary hits the one before: its last token is computed anyway
  CHECK(run(16, 16, 32) == 16);
  CHECK(run(0, 33, 33) == 32);  // a token more, and it hits that boundary
  CHECK(run(0, 33, 33, true) == 16);
  CHECK(run(0, 32, 32, true) == 16);
}

TEST_CASE("a resumed request stops on the grid until all but its last token are computed") {
  const auto run = [](std::int64_t start, std::int64_t tokens) {
    return split_chunk({start, tokens, 20, 60, false}, 16);
  };
  CHECK(run(16, 20) == 16);  // past the prompt, before the end of what was sampled
  CHECK(run(32, 10) == 0);
  CHECK(run(32, 28) == 16);
  CHECK(run(48, 12) == 12);
  CHECK(run(59, 1) == 1);
}

TEST_CASE("a decode step is never split") {
  CHECK(split_chunk({.start = 40, .tokens = 4, .prompt = 33, .total = 41}, 16) == 4);
  CHECK(split_chunk({.start = 33, .tokens = 4, .prompt = 33, .total = 33}, 16) == 4);
}

TEST_CASE("the position of a checkpoint leaves what a hit of the same tokens drops") {
  CHECK(prefill_checkpoint_position(31, 16, false) == 16);
  CHECK(prefill_checkpoint_position(32, 16, false) == 16);
  CHECK(prefill_checkpoint_position(32, 16, false, true) == 32);
  CHECK(prefill_checkpoint_position(31, 16, true) == 0);
  CHECK(prefill_checkpoint_position(32, 16, true) == 16);
  CHECK(prefill_checkpoint_position(32, 16, true, true) == 16);
  CHECK(prefill_checkpoint_position(33, 16, true) == 16);
  CHECK(prefill_checkpoint_position(3, 16, true) == 0);
}

TEST_CASE("a checkpoint inside a chunk lies on the hash grid and in a column that the chunk passes") {
  test::for_each_seed(20000, [](Random& random, std::uint64_t) {
    PrefillCheckpointQuery chunk{.start = random.between(0, 40),
                                 .hash_block = random.between(1, 6),
                                 .state_block = random.between(1, 10),
                                 .alignment = random.between(0, 4)};
    chunk.end = chunk.start + random.between(0, 40);
    chunk.position = prefill_checkpoint_position(chunk.end, chunk.hash_block, random.chance(50), random.chance(50));
    REQUIRE(chunk.position % chunk.hash_block == 0);
    const PrefillCheckpoint checkpoint = prefill_checkpoint(chunk);
    if (!checkpoint.valid()) {
      REQUIRE(checkpoint == PrefillCheckpoint{});
      return;
    }
    REQUIRE(chunk.start + checkpoint.offset == chunk.position);
    REQUIRE(checkpoint.offset > 0);
    REQUIRE(checkpoint.offset % chunk.alignment == 0);
    REQUIRE(checkpoint.column == column_of_token(chunk.end, chunk.state_block) - 1);
    REQUIRE(checkpoint.column > column_of_token(chunk.start, chunk.state_block));
  });
}

TEST_CASE("the retention mask keeps the interval's columns and the named boundaries") {
  test::for_each_seed(5000, [](Random& random, std::uint64_t) {
    const std::int64_t block = random.between(1, 8);
    const std::int64_t start = random.between(0, 6);
    RetentionPolicy policy;
    if (random.chance(80)) policy.interval_tokens = random.between(0, 40);
    std::vector<std::int64_t> boundaries(static_cast<std::size_t>(random.between(0, 4)));
    for (std::int64_t& boundary : boundaries) boundary = random.between(0, 120);
    std::vector<std::uint8_t> keep(static_cast<std::size_t>(random.between(0, 12)), 7);
    fill_retention_mask(policy, block, start, boundaries, keep);
    const bool all = !policy.interval_tokens || (*policy.interval_tokens > 0 && *policy.interval_tokens < 2 * block);
    for (std::size_t i = 0; i < keep.size(); ++i) {
      const std::int64_t end = (start + static_cast<std::int64_t>(i) + 1) * block;
      bool expected = all;
      if (!all && *policy.interval_tokens > 0) expected = end % (*policy.interval_tokens / block * block) == 0;
      for (const std::int64_t boundary : boundaries) expected |= end <= boundary && boundary < end + block;
      REQUIRE(keep[i] == expected);
    }
  });
}

TEST_CASE("the longest state hit is the last cached column that fits") {
  test::for_each_seed(5000, [](Random& random, std::uint64_t) {
    const std::int64_t block = random.between(1, 6);
    const std::int64_t alignment = random.between(1, 20);
    const std::int64_t max_tokens = random.between(0, 60);
    std::set<std::int32_t> cached;
    for (int i = 0; i < 5; ++i) cached.insert(random.between32(0, 20));
    StateHit expected;
    for (const std::int32_t column : cached) {
      const std::int64_t tokens = (column + 1) * block;
      if (tokens <= max_tokens && tokens % alignment == 0) expected = {tokens, column};
    }
    REQUIRE(longest_state_hit(max_tokens, block, alignment, [&](std::int32_t k) { return cached.contains(k); }) ==
            expected);
  });
}

TEST_CASE("the replay ring counts the steps since the last stored state") {
  test::for_each_seed(2000, [](Random& random, std::uint64_t) {
    const std::int64_t ring = random.between(1, 8);
    const std::int64_t align = random.chance(50) ? 0 : random.between(1, 12);
    std::int64_t base = random.between(0, 20);
    std::int64_t held = 0;  // steps in the ring
    for (std::int64_t n = base; n < 60; ++n) {
      if (align > 0 && n % align == 0 && n > base) base = n, held = 0;
      const ReplayRing got = replay_ring(n + 1, 1, base, ring, align);
      REQUIRE(got.position == held % ring);
      REQUIRE(got.flush == (held % ring == ring - 1 || (align > 0 && (n + 1) % align == 0)));
      ++held;
    }
  });
  CHECK(replay_ring(10, 1, 20, 4, 0).flush);
}

TEST_CASE("the tracked step is the last boundary among the accepted tokens") {
  test::for_each_seed(10000, [](Random& random, std::uint64_t) {
    const std::int32_t draft_tokens = random.between32(1, 8);
    const std::int64_t row = random.between(0, 5);
    const std::int32_t accepted = random.between32(0, draft_tokens);
    std::vector<std::int32_t> index(static_cast<std::size_t>(draft_tokens), -1);
    std::int32_t node = 0;
    for (std::int32_t i = 0; i < accepted; ++i) {
      index[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(row) * draft_tokens + node;
      node = std::min(node + random.between32(1, 2), draft_tokens - 1);
    }
    const std::int64_t seq_len = random.between(0, 40);
    const std::int64_t interval = random.between(1, 9);
    std::int32_t expected = no_step;
    for (std::int32_t i = 1; i <= accepted; ++i)
      if ((seq_len + i) % interval == 0)
        expected = index[static_cast<std::size_t>(i - 1)] - static_cast<std::int32_t>(row) * draft_tokens;
    REQUIRE(tracked_step(index.data(), accepted, row, draft_tokens, seq_len, interval) == expected);
    const std::int32_t last = last_accepted_step(index.data(), accepted, row, draft_tokens);
    REQUIRE(last == (accepted == 0 ? no_step
                                   : index[static_cast<std::size_t>(accepted - 1)] -
                                         static_cast<std::int32_t>(row) * draft_tokens));
  });
  CHECK(last_accepted_step(nullptr, 0, 0, 4) == no_step);
  CHECK(last_accepted_step(nullptr, 5, 0, 4) == no_step);
}

TEST_CASE("the checkpoint depth lies on the grid or at the branching point") {
  test::for_each_seed(10000, [](Random& random, std::uint64_t) {
    ExtendChunk extend{.prefix = random.between(0, 30),
                       .extend = random.between(0, 60),
                       .chunk = random.between(1, 8),
                       .page = random.between(1, 8),
                       .branching = random.between(-1, 90)};
    const std::int64_t grid = std::lcm(extend.chunk, extend.page);
    REQUIRE(checkpoint_grid(extend.page, extend.chunk) == grid);
    const PrefillDepth got = prefill_checkpoint_depth(extend);
    REQUIRE(got.track == (extend.extend >= grid));
    if (!got.track) return;
    REQUIRE(got.depth > extend.prefix);
    REQUIRE(got.depth <= extend.prefix + extend.extend);
    REQUIRE((got.depth == extend.branching || (got.depth - extend.prefix) % grid == 0));
    REQUIRE((got.depth - extend.prefix) % extend.chunk == 0);
    REQUIRE(got.kernel_tokens >= got.depth);
  });
}

TEST_CASE("tables and resident blocks have the sizes of their mode") {
  CHECK(table_columns(AlignMode::none, 1000, 16, 3) == 4);
  CHECK(table_columns(AlignMode::align, 1000, 16, 3) == 66);
  CHECK(resident_blocks(AlignMode::align, 1000, 16, 3, 1) == 6);
  CHECK(resident_blocks(AlignMode::all, 1000, 16, 3, 1) == 66);
}
