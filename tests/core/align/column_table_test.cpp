// SPDX-License-Identifier: Apache-2.0
#include "align/column_table.hpp"

#include <stateport/core/model/error.hpp>

#include "random.hpp"

#include <doctest/doctest.h>

#include <set>
#include <vector>

using namespace stateport;
using stateport::detail::ColumnTable;
using Ids = std::vector<std::int32_t>;
using stateport::test::Random;

namespace {

/// The rule as it is written down, on a plain list.
struct SlowRow {
  std::int32_t block, drafts;
  Ids columns;
  bool grown = false;

  static std::int64_t ceil(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

  std::set<std::int32_t> release(std::int64_t processed) {
    std::set<std::int32_t> freed;
    for (std::int64_t column = (processed - 1) / block - 1; processed > 0 && column >= 0; --column) {
      if (column >= static_cast<std::int64_t>(columns.size())) continue;
      std::int32_t& id = columns[static_cast<std::size_t>(column)];
      if (id != 0) freed.insert(id);
      id = 0;
    }
    return freed;
  }

  std::int32_t grow(std::int64_t cover, std::int32_t& next) {
    const std::int64_t need = ceil(cover, block) + drafts;
    const auto length = static_cast<std::int64_t>(columns.size());
    if (need <= length) return 0;
    while (static_cast<std::int64_t>(columns.size()) < need - drafts - 1) columns.push_back(0);
    if (grown)
      for (std::int64_t i = length - drafts; i < length; ++i)
        if (i < need - drafts - 1) {
          columns.push_back(columns[static_cast<std::size_t>(i)]);
          columns[static_cast<std::size_t>(i)] = 0;
        }
    std::int32_t added = 0;
    for (; static_cast<std::int64_t>(columns.size()) < need; ++added) columns.push_back(next++);
    grown = true;
    return added;
  }
};

Ids columns_of(const ColumnTable& row) {
  return {row.columns().begin(), row.columns().end()};
}

}  // namespace

TEST_CASE("random growth and release agree with the written rule on a plain list") {
  test::for_each_seed(5000, [](test::Random& random, std::uint64_t) {
    const std::int32_t block = random.between32(1, 8);
    const std::int32_t drafts = random.between32(0, 5);
    ColumnTable row(block, drafts);
    SlowRow slow{block, drafts, {}};
    std::int32_t next = 1;
    std::int64_t processed = 0;
    if (random.chance(30)) {
      const std::int32_t nulls = random.between32(0, 4);
      row.start_from_hit(nulls, BlockId{next});
      slow.columns.assign(static_cast<std::size_t>(nulls), 0);
      slow.columns.push_back(next++);
      processed = std::int64_t{nulls + 1} * block;
    }
    for (int step = 0; step < 20; ++step) {
      std::vector<BlockId> released;
      row.release(processed, released);
      std::set<std::int32_t> freed;
      for (const BlockId id : released) freed.insert(id.value());
      REQUIRE(freed == slow.release(processed));
      const std::int64_t cover = processed + random.between(0, 20);
      std::int32_t slow_next = next;
      std::vector<BlockId> fresh(static_cast<std::size_t>(row.fresh_blocks(cover)));
      for (BlockId& id : fresh) id = BlockId{next++};
      row.grow(cover, fresh);
      REQUIRE(slow.grow(cover, slow_next) == static_cast<std::int32_t>(fresh.size()));
      REQUIRE(columns_of(row) == slow.columns);
      row.check_invariants();
      processed += random.between(0, cover - processed);
    }
    std::vector<BlockId> released;
    const std::int32_t held = row.held_blocks();
    row.clear(released);
    REQUIRE(static_cast<std::int32_t>(released.size()) == held);
    REQUIRE(row.size() == 0);
  });
}

TEST_CASE("release goes on beyond a column that is null already") {
  ColumnTable row(4, 0);
  const auto grow = [&](std::int64_t cover, std::int32_t first) {
    std::vector<BlockId> fresh;
    for (std::int32_t i = 0; i < row.fresh_blocks(cover); ++i) fresh.emplace_back(first + i);
    row.grow(cover, fresh);
  };
  grow(8, 1);
  grow(20, 2);
  CHECK(columns_of(row) == Ids{0, 1, 0, 0, 2});
  std::vector<BlockId> released;
  row.release(20, released);
  CHECK(columns_of(row) == Ids{0, 0, 0, 0, 2});
  CHECK(released == std::vector{BlockId{1}});
}

TEST_CASE("a column table takes its last two growths back") {
  test::for_each_seed(200, [](Random& random, std::uint64_t) {
    ColumnTable row(random.between32(1, 8), random.between32(0, 3));
    std::int32_t next = 1;
    std::int64_t cover = 0;
    for (int step = 0; step < 20; ++step) {
      std::vector<BlockId> released;
      row.release(cover, released);
      std::vector<Ids> before;
      std::vector<BlockId> given;
      for (std::int64_t grown = cover; before.size() < 2;) {
        before.push_back(columns_of(row));
        grown += random.between(0, 12);
        std::vector<BlockId> fresh;
        while (std::ssize(fresh) < row.fresh_blocks(grown)) fresh.emplace_back(next++);
        given.insert(given.end(), fresh.begin(), fresh.end());
        row.grow(grown, fresh);
        row.check_invariants();
      }
      std::vector<BlockId> back;
      for (; !before.empty(); before.pop_back()) {
        row.undo_grow(back);
        row.check_invariants();
        REQUIRE(columns_of(row) == before.back());
      }
      REQUIRE(std::set(back.begin(), back.end()) == std::set(given.begin(), given.end()));
      REQUIRE(back.size() == given.size());
      row.undo_grow(back);
      REQUIRE(back.size() == given.size());
      cover += random.between(0, 12);
      std::vector<BlockId> fresh;
      while (std::ssize(fresh) < row.fresh_blocks(cover)) fresh.emplace_back(next++);
      row.grow(cover, fresh);
    }
  });
}

TEST_CASE("a column table refuses bad input and stays as it was") {
  CHECK_THROWS_AS(ColumnTable(0, 0), InvalidArgument);
  CHECK_THROWS_AS(ColumnTable(4, -1), InvalidArgument);
  CHECK_THROWS_AS(ColumnTable(4, 0, -1), InvalidArgument);
  ColumnTable row(4, 1);
  std::vector<BlockId> released;
  const std::vector<BlockId> two = {BlockId{1}, BlockId{2}};
  CHECK_THROWS_AS(row.release(-1, released), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(row.fresh_blocks(-1)), InvalidArgument);
  CHECK_THROWS_AS(row.grow(4, {}), InvalidArgument);
  const std::vector<BlockId> null = {BlockId{1}, BlockId{0}};
  CHECK_THROWS_AS(row.grow(4, null), InvalidArgument);
  const std::vector<BlockId> twice = {BlockId{1}, BlockId{1}};
  CHECK_THROWS_AS(row.grow(4, twice), InvalidArgument);
  CHECK_THROWS_AS(row.start_from_hit(-1, BlockId{1}), InvalidArgument);
  CHECK_THROWS_AS(row.start_from_hit(0, BlockId{0}), InvalidArgument);
  CHECK(row.size() == 0);
  row.grow(4, two);
  CHECK_THROWS_AS(row.start_from_hit(0, BlockId{3}), InvalidState);
  CHECK(columns_of(row) == Ids{1, 2});
}
