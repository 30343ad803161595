// SPDX-License-Identifier: Apache-2.0
#include <stateport/parts/align_planner.hpp>

#include <stateport/core/model/error.hpp>
#include <stateport/parts/align_staging.hpp>

#include "heap_counter.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <vector>

using namespace stateport;
using test::Random;
using Int32s = std::vector<std::int32_t>;

namespace {

AlignOptions options_of(Random& random) {
  AlignOptions options{.mode = AlignMode::align,
                       .drafts = random.between32(0, 4),
                       .max_requests = random.between32(1, 12),
                       .groups = {}};
  const std::int64_t groups = random.between(1, 3);
  for (std::int64_t g = 0; g < groups; ++g)
    options.groups.push_back({.block_size_tokens = random.between32(1, 9), .blocks = 400});
  return options;
}

struct Tables {
  std::vector<Int32s> ids;
  std::vector<BlockTable> views;

  /// Every column of every row names a block of its own; some columns are null or negative, some rows padded.
  Tables(Random& random, const AlignOptions& options, std::size_t rows, std::int32_t columns) {
    for (std::size_t g = 0; g < options.groups.size(); ++g) {
      const std::int64_t stride = columns + random.between(0, 3);
      Int32s table(rows * static_cast<std::size_t>(stride), -7);
      for (std::size_t row = 0; row < rows; ++row)
        for (std::int32_t c = 0; c < columns; ++c) {
          std::int32_t& id = table[row * static_cast<std::size_t>(stride) + static_cast<std::size_t>(c)];
          id = 1 + static_cast<std::int32_t>(row) * columns + c;
          if (random.chance(10)) id = random.between32(-1, 0);
        }
      ids.push_back(std::move(table));
      views.push_back({{}, stride, columns});
    }
    for (std::size_t g = 0; g < ids.size(); ++g) views[g].ids = ids[g];
  }
};

struct Batch {
  Int32s request, computed, scheduled, drafts, sampled;

  Batch(Random& random, const AlignOptions& options) {
    for (std::int32_t slot = 0; slot < options.max_requests; ++slot) {
      if (random.chance(20)) continue;
      // Padding may make a batch longer than the number of requests.
      while (random.chance(20)) push(random, options, -1);
      push(random, options, slot);
    }
  }
  void push(Random& random, const AlignOptions& options, std::int32_t slot) {
    request.push_back(slot);
    computed.push_back(random.between32(0, 30));
    const bool decodes = random.chance(70);
    drafts.push_back(decodes ? random.between32(0, options.drafts) : 0);
    scheduled.push_back(drafts.back() + random.between32(1, decodes ? 1 : 20));
    sampled.push_back(random.between32(0, 1 + drafts.back()));
  }
  [[nodiscard]] AlignBatch view() const { return {request, computed, scheduled, drafts}; }
};

/// Plain columns and counts, decided row by row.
struct SlowPlanner {
  std::vector<Int32s> column, accepted;
  std::vector<std::vector<SlotCopy>> plans;
  std::int64_t skipped = 0;

  explicit SlowPlanner(const AlignOptions& options)
      : column(options.groups.size(), Int32s(static_cast<std::size_t>(options.max_requests), forgotten_column)),
        accepted(options.groups.size(), Int32s(static_cast<std::size_t>(options.max_requests), 1)),
        plans(options.groups.size()) {}

  void copy(const BlockTable& table, std::size_t g, std::size_t row, std::int32_t src, std::int32_t dst,
            std::int32_t bias) {
    const auto block = [&](std::int32_t c) {
      if (c < 0 || c >= table.columns) return -1;
      const std::int32_t id = table.ids[row * static_cast<std::size_t>(table.row_stride) + static_cast<std::size_t>(c)];
      return id > 0 ? id : -1;
    };
    const bool conv = block(src) > 0 && block(dst) > 0;
    const bool recurrent = block(src + bias) > 0 && block(dst) > 0;
    skipped += 2 - conv - recurrent;
    if (conv || recurrent)
      plans[g].push_back({conv ? block(src) : -1, block(dst), bias, recurrent ? block(src + bias) : -1});
  }
};

}  // namespace

TEST_CASE("counts by request slot and cumulative starts say the same as counts by row") {
  test::for_each_seed(1000, [](Random& random, std::uint64_t) {
    AlignOptions options = options_of(random);
    if (random.chance(30)) options.mode = random.chance(50) ? AlignMode::all : AlignMode::none;
    AlignPlanner by_row(options), other(options);
    for (int step = 0; step < 4; ++step) {
      const Batch batch(random, options);
      const Tables tables(random, options, batch.request.size(), 12);
      Int32s computed(static_cast<std::size_t>(options.max_requests), -9), drafts = computed, loc = {3};
      for (std::size_t row = 0; row < batch.request.size(); ++row) {
        loc.push_back(loc.back() + batch.scheduled[row]);
        if (batch.request[row] < 0) continue;
        computed[static_cast<std::size_t>(batch.request[row])] = batch.computed[row];
        drafts[static_cast<std::size_t>(batch.request[row])] = batch.drafts[row];
      }
      const AlignBatch arrays{.request = batch.request,
                              .computed = computed,
                              .scheduled = {},
                              .drafts = drafts,
                              .query_start_loc = loc,
                              .computed_by_request = true,
                              .drafts_by_request = true};
      const auto require_same = [&] {
        for (std::int32_t g = 0; g < by_row.groups(); ++g) {
          REQUIRE(std::ranges::equal(by_row.plan(g), other.plan(g)));
          REQUIRE(std::ranges::equal(by_row.columns(g), other.columns(g)));
          REQUIRE(std::ranges::equal(by_row.accepted(g), other.accepted(g)));
        }
        by_row.check_invariants();
        other.check_invariants();
      };
      static_cast<void>(by_row.pre_step(batch.view(), tables.views));
      static_cast<void>(other.pre_step(arrays, tables.views));
      require_same();
      by_row.accept(batch.request, batch.sampled);
      other.accept(batch.request, batch.sampled);
      static_cast<void>(by_row.post_step(batch.view(), tables.views));
      static_cast<void>(other.post_step(arrays, tables.views));
      require_same();
    }
  });
}

TEST_CASE("batches whose arrays do not fit each other are refused") {
  AlignPlanner planner({.drafts = 1, .max_requests = 3, .groups = {{.block_size_tokens = 4, .blocks = 9}}});
  const Int32s request = {2, 0}, two = {1, 1}, three = {1, 1, 1}, falling = {5, 4, 6}, negative = {-1, 1, 2};
  const BlockTable table{two, 1, 1};
  const auto refused = [&](const AlignBatch& batch) {
    CHECK_THROWS_AS(static_cast<void>(planner.pre_step(batch, {&table, 1})), InvalidArgument);
  };
  const AlignBatch good{.request = request, .computed = two, .scheduled = two, .drafts = {}};
  CHECK_NOTHROW(static_cast<void>(planner.pre_step(good, {&table, 1})));
  AlignBatch bad = good;
  bad.computed_by_request = true;
  refused(bad);
  bad = good;
  bad.drafts = two;
  bad.drafts_by_request = true;
  refused(bad);
  bad = good;
  bad.query_start_loc = three;  // and scheduled
  refused(bad);
  for (const Int32s& loc : {two, falling, negative}) {
    bad = good;
    bad.scheduled = {};
    bad.query_start_loc = loc;
    refused(bad);
  }
}

namespace {

std::int32_t scheduled_between(std::int32_t before, std::int32_t after) {
  const std::array<std::int32_t, 2> loc = {before, after};
  return BatchCounts{.query_start_loc = loc.data()}.scheduled_of(0);
}

}  // namespace

TEST_CASE("a difference in query_start_loc that needs more than 32 bits is the nearest number that does not") {
  CHECK(scheduled_between(3, 8) == 5);
  CHECK(scheduled_between(8, 3) == -5);
  CHECK(scheduled_between(INT32_MIN, INT32_MAX) == INT32_MAX);
  CHECK(scheduled_between(INT32_MAX, INT32_MIN) == INT32_MIN);
  CHECK(scheduled_between(-1, INT32_MAX) == INT32_MAX);
  CHECK(scheduled_between(1, INT32_MIN) == INT32_MIN);
  CHECK(scheduled_between(0, INT32_MIN) == INT32_MIN);
}

TEST_CASE("random batches agree with decisions taken row by row") {
  test::for_each_seed(3000, [](Random& random, std::uint64_t) {
    const AlignOptions options = options_of(random);
    AlignPlanner planner(options);
    SlowPlanner slow(options);
    for (int step = 0; step < 6; ++step) {
      const Batch batch(random, options);
      const Tables tables(random, options, batch.request.size(), 12);
      for (auto& plan : slow.plans) plan.clear();
      const auto each_row = [&](auto&& body) {
        for (std::size_t g = 0; g < options.groups.size(); ++g)
          for (std::size_t row = 0; row < batch.request.size(); ++row)
            if (batch.request[row] >= 0) body(g, row, static_cast<std::size_t>(batch.request[row]));
      };
      each_row([&](std::size_t g, std::size_t row, std::size_t slot) {
        const AlignPreStep s = align_pre_step(batch.computed[row], batch.scheduled[row], slow.column[g][slot],
                                              slow.accepted[g][slot], options.groups[g].block_size_tokens);
        if (s.copy) slow.copy(tables.views[g], g, row, s.src_column, s.column, s.bias);
        slow.column[g][slot] = s.column;
        slow.accepted[g][slot] = s.accepted;
      });
      const auto agrees = [&] {
        for (std::int32_t g = 0; g < planner.groups(); ++g) {
          const auto i = static_cast<std::size_t>(g);
          REQUIRE(std::ranges::equal(planner.plan(g), slow.plans[i]));
          REQUIRE(std::ranges::equal(planner.columns(g), slow.column[i]));
          REQUIRE(std::ranges::equal(planner.accepted(g), slow.accepted[i]));
        }
        REQUIRE(planner.skipped_parts() == slow.skipped);
        planner.check_invariants();
      };
      static_cast<void>(planner.pre_step(batch.view(), tables.views));
      agrees();

      planner.accept(batch.request, batch.sampled);
      each_row([&](std::size_t g, std::size_t row, std::size_t slot) {
        slow.accepted[g][slot] = std::max(batch.sampled[row], 1);
      });
      for (auto& plan : slow.plans) plan.clear();
      Int32s advanced(batch.request.size());
      each_row([&](std::size_t g, std::size_t row, std::size_t slot) {
        const AlignPostStep s =
            align_post_step(batch.computed[row], batch.scheduled[row], batch.drafts[row], slow.accepted[g][slot],
                            slow.column[g][slot], options.groups[g].block_size_tokens);
        if (s.moves_bytes) slow.copy(tables.views[g], g, row, s.src_column, s.dst_column, s.bias);
        slow.accepted[g][slot] = s.accepted;
        advanced[row] = static_cast<std::int32_t>(s.new_computed);
      });
      if (random.chance(50))
        static_cast<void>(planner.post_step(batch.view(), tables.views));
      else
        static_cast<void>(planner.post_step_advanced(batch.request, advanced, tables.views));
      agrees();
    }
  });
}

namespace {

/// A planner of two groups with a batch of two rows that every call accepts.
struct Accepted {
  AlignOptions options{
      .mode = AlignMode::align,
      .drafts = 2,
      .max_requests = 4,
      .groups = {{.block_size_tokens = 4, .blocks = 20, .conv_window = 5}, {.block_size_tokens = 8, .blocks = 20}}};
  Int32s request = {1, 3}, computed = {4, 8}, scheduled = {3, 3}, drafts = {2, 2}, sampled = {3, 1};
  Int32s ids = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  std::vector<BlockTable> tables = {{ids, 6, 6}, {ids, 6, 6}};
  AlignPlanner planner{options};

  Accepted() {
    planner.add_request(RequestIndex{1}, 4);
    planner.add_request(RequestIndex{3}, 8);
  }
  [[nodiscard]] AlignBatch batch() const { return {request, computed, scheduled, drafts}; }

  /// Both steps refuse the batch and leave columns and counts as they were.
  void refused() {
    const Int32s columns(planner.columns(0).begin(), planner.columns(0).end());
    const Int32s accepted(planner.accepted(0).begin(), planner.accepted(0).end());
    CHECK_THROWS_AS(static_cast<void>(planner.pre_step(batch(), tables)), InvalidArgument);
    CHECK(std::ranges::equal(planner.columns(0), columns));
    CHECK(std::ranges::equal(planner.accepted(0), accepted));
  }
};

}  // namespace

TEST_CASE("a planner refuses options that cannot work") {
  const auto refused = [](auto&& change) {
    AlignOptions options = Accepted{}.options;
    change(options);
    CHECK_THROWS_AS(AlignPlanner{options}, InvalidArgument);
  };
  refused([](AlignOptions& o) { o.mode = static_cast<AlignMode>(3); });
  refused([](AlignOptions& o) { o.groups.clear(); });
  refused([](AlignOptions& o) { o.max_requests = 0; });
  refused([](AlignOptions& o) { o.drafts = -1; });
  refused([](AlignOptions& o) { o.groups[1].block_size_tokens = 0; });
  refused([](AlignOptions& o) { o.groups[1].blocks = 0; });
  refused([](AlignOptions& o) { o.groups[0].conv_window = -1; });
  refused([](AlignOptions& o) { o.drafts = 5; });  // a bias of 5 would leave nothing of a window of 5
  refused([](AlignOptions& o) { o.groups[0].retention.interval_tokens = -1; });
}

TEST_CASE("a planner refuses every array that does not fit the batch, and changes nothing") {
  const auto refused = [](auto&& change) {
    Accepted a;
    change(a);
    a.refused();
  };
  refused([](Accepted& a) { a.computed.pop_back(); });
  refused([](Accepted& a) { a.scheduled.push_back(1); });
  refused([](Accepted& a) { a.drafts.pop_back(); });
  refused([](Accepted& a) { a.request[0] = 4; });
  refused([](Accepted& a) { a.request[0] = 3; });
  refused([](Accepted& a) { a.computed[0] = -1; });
  refused([](Accepted& a) { a.scheduled[0] = -1; });
  refused([](Accepted& a) { a.scheduled[0] = INT32_MAX - 3; });  // more tokens than 32 bits count
  refused([](Accepted& a) { a.drafts[0] = 3; });
  refused([](Accepted& a) { a.drafts[0] = -1; });
  refused([](Accepted& a) { a.scheduled[0] = 1; });
  refused([](Accepted& a) { a.tables.pop_back(); });
  refused([](Accepted& a) { a.tables.push_back(a.tables[0]); });
  refused([](Accepted& a) { a.tables[1].row_stride = 5; });
  refused([](Accepted& a) { a.tables[1].row_stride = INT64_MAX; });
  refused([](Accepted& a) { a.tables[1].columns = -1; });
  refused([](Accepted& a) { a.tables[0].ids = std::span(a.ids).first(11); });
  refused([](Accepted& a) { a.ids[1] = 20; });               // a block that does not exist
  refused([](Accepted& a) { a.ids[7] = a.ids[1]; });         // row 0 writes the block that row 1 reads
  refused([](Accepted& a) { a.ids[8] = 2, a.ids[1] = 2; });  // two copies into one block
}

TEST_CASE("of several mistakes the one in the first row of the first group is named") {
  Accepted a;
  a.planner.forget(std::vector{RequestIndex{3}}, {}, {});
  Int32s bad = a.ids;
  bad[1] = 99;  // column 1 of row 0: in the window that the forward of request 1 wrote
  const auto named = [&] {
    try {
      static_cast<void>(a.planner.post_step(a.batch(), a.tables));
    } catch (const InvalidArgument& error) {
      return error.argument() + " " + error.value();
    }
    return std::string("nothing");
  };
  a.tables[1].ids = bad;
  CHECK(named() == "request 3");
  a.tables[0].ids = bad;
  CHECK(named() == "block id 99");
}

TEST_CASE("a planner refuses requests, counts and groups out of range") {
  Accepted a;
  CHECK_THROWS_AS(a.planner.add_request(RequestIndex{4}, 0), InvalidArgument);
  CHECK_THROWS_AS(a.planner.add_request(RequestIndex{-1}, 0), InvalidArgument);
  CHECK_THROWS_AS(a.planner.add_request(RequestIndex{0}, -1), InvalidArgument);
  CHECK_THROWS_AS(a.planner.add_request(RequestIndex{0}, std::int64_t{1} << 31), InvalidArgument);
  const std::vector<RequestIndex> bad = {RequestIndex{1}, RequestIndex{4}};
  CHECK_THROWS_AS(a.planner.forget(bad, {}, {}), InvalidArgument);
  CHECK(a.planner.columns(0)[1] == 0);
  CHECK_THROWS_AS(a.planner.accept(a.request, Int32s{1}), InvalidArgument);
  CHECK_THROWS_AS(a.planner.accept(a.request, Int32s{4, 1}), InvalidArgument);
  CHECK_THROWS_AS(a.planner.accept(a.request, Int32s{-1, 1}), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(a.planner.post_step_advanced(a.request, Int32s{1}, a.tables)), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(a.planner.post_step_advanced(a.request, Int32s{1, -1}, a.tables)), InvalidArgument);
  a.planner.forget({}, {}, std::vector{RequestIndex{1}});
  CHECK_THROWS_AS(static_cast<void>(a.planner.post_step(a.batch(), a.tables)), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(a.planner.plan(2)), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(a.planner.plan(-1)), InvalidArgument);
  Int32s out(1);
  CHECK_THROWS_AS(a.planner.gather_accepted(0, a.request, out), InvalidArgument);
  CHECK_THROWS_AS(a.planner.gather_accepted(0, Int32s{4}, out), InvalidArgument);
  CHECK_THROWS_AS(a.planner.fill_retention(0, -1, {}, {}), InvalidArgument);
  std::array<std::uint8_t, 2> keep = {};
  CHECK_THROWS_AS(a.planner.fill_retention(0, INT64_MAX - 1, {}, keep), InvalidArgument);
  a.planner.fill_retention(0, 0, std::array{INT64_MIN, std::int64_t{0}}, keep);
  CHECK_THROWS_AS(static_cast<void>(a.planner.checkpoint_in(0, {.end = INT64_MAX, .alignment = 1})), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(a.planner.checkpoint_in(0, {.hash_block = 0})), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(a.planner.checkpoint_in(0, {.alignment = -1})), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(a.planner.checkpoint_in(0, {.start = 2, .end = 1})), InvalidArgument);
}

TEST_CASE("accepted counts are gathered in batch order and padded with the neutral 1") {
  Accepted a;
  a.planner.accept(a.request, a.sampled);
  Int32s out(4, 99);
  a.planner.gather_accepted(0, Int32s{3, -1, 1}, out);
  CHECK(out == Int32s{1, 1, 3, 1});
}

TEST_CASE("none mode plans nothing and all mode remembers full draft steps") {
  Accepted a;
  AlignOptions options = a.options;
  options.mode = AlignMode::all;
  AlignPlanner all(options);
  CHECK(all.pre_step(a.batch(), a.tables).copies == 0);
  a.scheduled[1] = 2;
  CHECK(all.post_step(a.batch(), a.tables).copies == 0);
  CHECK(all.columns(0)[1] == 1);
  CHECK(all.columns(1)[1] == 0);
  CHECK(all.columns(0)[3] == no_column);
  options.mode = AlignMode::none;
  AlignPlanner none(options);
  CHECK(none.pre_step(a.batch(), a.tables).copies == 0);
  CHECK(none.post_step(a.batch(), a.tables).copies == 0);
}

TEST_CASE("a block is published only with the token count that it holds") {
  AlignPlanner planner({.drafts = 2, .max_requests = 1, .groups = {{.block_size_tokens = 4, .blocks = 9}}});
  planner.add_request(RequestIndex{0}, 0);
  const Int32s request = {0}, ids = {1, 2, 3, 4};
  const std::vector<BlockTable> tables = {{ids, 4, 4}};
  const auto run = [&](std::int32_t computed, std::int32_t scheduled, std::int32_t drafts, std::int32_t kept) {
    const Int32s c = {computed}, s = {scheduled}, d = {drafts}, k = {kept};
    static_cast<void>(planner.pre_step({request, c, s, d}, tables));
    planner.accept(request, k);
    static_cast<void>(planner.post_step({request, c, s, d}, tables));
  };
  PublicationCheck& check = planner.publication(0);
  run(0, 3, 0, 1);
  CHECK_FALSE(check.publish(BlockId{1}, 4));
  CHECK(check.tokens(BlockId{1}) == 3);
  run(3, 3, 2, 2);  // running state@4 in column 1, then state@5: the boundary at 4 goes to column 0
  CHECK(check.publish(BlockId{1}, 4));
  CHECK_FALSE(check.publish(BlockId{2}, 8));
  check.forget(BlockId{1});
  CHECK_FALSE(check.publish(BlockId{1}, 4));
  CHECK(check.published() == 1);
  CHECK(check.refused() == 3);
  check.wrote_conv(BlockId{1}, 4);
  check.wrote_recurrent(BlockId{1}, 8);
  CHECK_FALSE(check.publish(BlockId{1}, 4));
  CHECK_FALSE(check.publish(BlockId{1}, 8));
  CHECK(check.tokens(BlockId{1}) == PublicationCheck::unknown);
  CHECK_THROWS_AS(static_cast<void>(check.publish(BlockId{0}, 4)), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(check.publish(BlockId{9}, 4)), InvalidArgument);
  CHECK_THROWS_AS(check.wrote(BlockId{9}, 4), InvalidArgument);
  CHECK_THROWS_AS(PublicationCheck{0}, InvalidArgument);
}

TEST_CASE("the state of a draft that was not kept is never published") {
  AlignPlanner planner({.drafts = 2, .max_requests = 1, .groups = {{.block_size_tokens = 4, .blocks = 9}}});
  planner.add_request(RequestIndex{0}, 4);
  const Int32s request = {0}, ids = {1, 2, 3, 4}, computed = {4}, scheduled = {3}, drafts = {2};
  const std::vector<BlockTable> tables = {{ids, 4, 4}};
  const auto run = [&](std::int32_t kept) {
    static_cast<void>(planner.pre_step({request, computed, scheduled, drafts}, tables));
    planner.accept(request, Int32s{kept});
    static_cast<void>(planner.post_step({request, computed, scheduled, drafts}, tables));
    planner.check_invariants();
  };
  PublicationCheck& check = planner.publication(0);
  run(1);  // state@5 is in block 2; block 3 has the recurrent state after a draft that was refused
  check.wrote_conv(BlockId{3}, 6);
  CHECK(check.tokens(BlockId{2}) == 5);
  CHECK_FALSE(check.publish(BlockId{3}, 6));
  run(2);
  check.wrote_conv(BlockId{3}, 6);
  CHECK(check.publish(BlockId{3}, 6));
}

TEST_CASE("no copy of a step reads a block that another one writes, in either part") {
  AlignPlanner planner({.drafts = 2, .max_requests = 2, .groups = {{.block_size_tokens = 4, .blocks = 9}}});
  const Int32s request = {0, 1}, computed = {2, 2}, scheduled = {3, 3}, drafts = {2, 2};
  for (const std::int32_t slot : request) planner.add_request(RequestIndex{slot}, 2);
  // Block 3 holds the recurrent state that row 0 keeps, and is where row 1 keeps its own.
  const Int32s ids = {1, 2, 3, 4, 3, 6, 7, 8};
  const std::vector<BlockTable> tables = {{ids, 4, 4}};
  CHECK(planner.pre_step({request, computed, scheduled, drafts}, tables).copies == 2);
  planner.accept(request, Int32s{3, 3});
  const Int32s before(planner.accepted(0).begin(), planner.accepted(0).end());
  CHECK_THROWS_AS(planner.post_step({request, computed, scheduled, drafts}, tables), InvalidArgument);
  CHECK(Int32s(planner.accepted(0).begin(), planner.accepted(0).end()) == before);
  planner.check_invariants();
}

TEST_CASE("a step of 512 requests allocates nothing") {
  constexpr std::int32_t requests = 512;
  AlignPlanner planner(
      {.drafts = 3, .max_requests = requests, .groups = {{.block_size_tokens = 16, .blocks = requests * 8 + 1}}});
  Int32s request(requests), computed(requests), scheduled(requests, 4), drafts(requests, 3), sampled(requests, 4);
  Int32s ids(requests * 8);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int32_t>(i) + 1;
  for (std::int32_t i = 0; i < requests; ++i) {
    request[static_cast<std::size_t>(i)] = i;
    computed[static_cast<std::size_t>(i)] = i % 64;
    planner.add_request(RequestIndex{i}, i % 64);
  }
  const std::vector<BlockTable> tables = {{ids, 8, 8}};
  const std::uint64_t before = test::heap_allocations();
  const AlignStep pre = planner.pre_step({request, computed, scheduled, drafts}, tables);
  planner.accept(request, sampled);
  const AlignStep post = planner.post_step({request, computed, scheduled, drafts}, tables);
  CHECK(test::heap_allocations() == before);
  CHECK(pre.copies > 0);
  CHECK(post.copies > 0);
}

TEST_CASE("staging writes its arguments, row by row, and nothing behind the batch") {
  constexpr std::int32_t untouched = 99;
  Int32s computed(3, untouched), scheduled(3, untouched), drafts(3, untouched), column(3, untouched);
  std::vector<std::uint8_t> prefilling(3, untouched);
  const Int32s columns = {5, forgotten_column, 7};
  const std::vector<StagedRequest> batch = {
      {.request = RequestIndex{2}, .computed = 30, .scheduled = 4, .drafts = 3, .prompt = 30},
      {.request = RequestIndex{0}, .computed = 10, .scheduled = 8, .prompt = 20}};
  stage_batch(batch, columns, {computed, scheduled, drafts, column, prefilling});
  CHECK(computed == Int32s{30, 10, untouched});
  CHECK(scheduled == Int32s{4, 8, untouched});
  CHECK(drafts == Int32s{3, 0, untouched});
  CHECK(column == Int32s{7, 5, untouched});
  CHECK(prefilling == std::vector<std::uint8_t>{0, 1, untouched});
  const std::vector<StagedRequest> last = {{.request = RequestIndex{0}, .computed = 12}};
  stage_batch(last, columns, {.computed = computed});
  CHECK(computed == Int32s{12, 10, untouched});
}

TEST_CASE("staging refuses a batch that does not fit") {
  Int32s computed(1);
  const AlignStaging staging{.computed = computed};
  const Int32s columns = {0, forgotten_column};
  const auto refused = [&](std::vector<StagedRequest> batch) {
    CHECK_THROWS_AS(stage_batch(batch, columns, staging), InvalidArgument);
    CHECK(computed == Int32s{0});
  };
  refused({{.request = RequestIndex{0}}, {.request = RequestIndex{0}}});
  refused({{.request = RequestIndex{2}}});
  refused({{.request = RequestIndex{-1}}});
  refused({{.request = RequestIndex{1}}});
  refused({{.request = RequestIndex{0}, .computed = -1}});
  refused({{.request = RequestIndex{0}, .scheduled = -1}});
  refused({{.request = RequestIndex{0}, .computed = 1, .scheduled = INT32_MAX}});
  refused({{.request = RequestIndex{0}, .drafts = -1}});
  refused({{.request = RequestIndex{0}, .prompt = -1}});
}
