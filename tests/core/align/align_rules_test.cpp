// SPDX-License-Identifier: Apache-2.0
// The rules against models that walk token by token.
#include <stateport/core/align/align_rules.hpp>

#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
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

TEST_CASE("tables and resident blocks have the sizes of their mode") {
  CHECK(table_columns(AlignMode::none, 1000, 16, 3) == 4);
  CHECK(table_columns(AlignMode::align, 1000, 16, 3) == 66);
  CHECK(resident_blocks(AlignMode::align, 1000, 16, 3, 1) == 6);
  CHECK(resident_blocks(AlignMode::all, 1000, 16, 3, 1) == 66);
}
