// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/align/publication_check.hpp>

#include <stateport/core/model/error.hpp>

#include <doctest/doctest.h>

#include <array>
#include <cstdint>

using namespace stateport;

TEST_CASE("a block whose parts stand for different tokens is never published") {
  PublicationCheck check(9);
  check.wrote_conv(BlockId{1}, 4);
  CHECK_FALSE(check.publish(BlockId{1}, 4));
  check.wrote_recurrent(BlockId{1}, 8);
  CHECK_FALSE(check.publish(BlockId{1}, 4));
  CHECK_FALSE(check.publish(BlockId{1}, 8));
  CHECK(check.tokens(BlockId{1}) == PublicationCheck::unknown);
  check.wrote(BlockId{1}, 8);
  CHECK(check.tokens(BlockId{1}) == 8);
  CHECK_FALSE(check.publish(BlockId{1}, 4));
  CHECK(check.publish(BlockId{1}, 8));
  check.forget(BlockId{1});
  CHECK_FALSE(check.publish(BlockId{1}, 8));
  CHECK(check.published() == 1);
  CHECK(check.refused() == 5);
}

TEST_CASE("a forward leaves the states of the drafts that it kept") {
  PublicationCheck check(9);
  const std::array<std::int32_t, 3> window = {1, 2, 3};
  check.wrote_window(window, 0, 5, 2);  // of two drafts one was kept
  CHECK(check.conv_tokens(BlockId{1}) == 5);
  CHECK(check.recurrent_tokens(BlockId{1}) == 5);
  CHECK(check.recurrent_tokens(BlockId{2}) == 6);
  CHECK(check.recurrent_tokens(BlockId{3}) == PublicationCheck::unknown);
  CHECK(check.conv_tokens(BlockId{2}) == PublicationCheck::unknown);
}

TEST_CASE("a copy brings each part from its own source") {
  PublicationCheck check(9);
  check.wrote(BlockId{1}, 5);
  check.wrote_recurrent(BlockId{2}, 6);
  check.copied({.src_slot = 1, .dst_slot = 4, .conv_shift = 1, .recurrent_src_slot = 2});
  CHECK(check.publish(BlockId{4}, 6));
  check.copied({.src_slot = 1, .dst_slot = 1, .conv_shift = 1, .recurrent_src_slot = 2});
  CHECK(check.publish(BlockId{1}, 6));
}

TEST_CASE("a null block holds nothing, and blocks that are not there are refused") {
  PublicationCheck check(2);
  check.wrote(BlockId{0}, 4);
  CHECK(check.tokens(BlockId{0}) == PublicationCheck::unknown);
  CHECK_THROWS_AS(static_cast<void>(check.publish(BlockId{0}, 4)), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(check.publish(BlockId{2}, 4)), InvalidArgument);
  CHECK_THROWS_AS(check.wrote(BlockId{2}, 4), InvalidArgument);
  CHECK_THROWS_AS(check.forget(BlockId{2}), InvalidArgument);
  CHECK_THROWS_AS(PublicationCheck{0}, InvalidArgument);
}
