// SPDX-License-Identifier: Apache-2.0
#include "workload/token_stream.hpp"

#include "random.hpp"

#include <doctest/doctest.h>

#include <map>
#include <vector>

using namespace stateport::replay;
using stateport::test::for_each_seed;
using stateport::test::Random;

namespace {

std::vector<BlockIdentity> blocks_of(const TokenStream& stream) {
  return {stream.full_blocks().begin(), stream.full_blocks().end()};
}

/// A token of the slow model: which text, and where in it.
struct Letter {
  std::uint64_t content;
  std::int64_t offset;
  friend auto operator<=>(const Letter&, const Letter&) = default;
};

/// A stream and its tokens spelled out.
struct Spelled {
  explicit Spelled(std::int64_t block_size) : stream(block_size) {}
  void append(std::uint64_t content, std::int64_t tokens) {
    stream.append(content, tokens);
    for (std::int64_t i = 0; i < tokens; ++i) text.push_back({content, i});
  }
  TokenStream stream;
  std::vector<Letter> text;
};

}  // namespace

TEST_CASE("a block gets its identity when its last token is there") {
  TokenStream stream(4);
  stream.append(1, 3);
  CHECK(stream.full_blocks().empty());
  stream.append(2, 1);
  CHECK(stream.full_blocks().size() == 1);
  stream.append(3, 9);
  CHECK(stream.tokens() == 13);
  CHECK(stream.full_blocks().size() == 3);
}

TEST_CASE("rewinding and appending the same text gives the same identities") {
  TokenStream stream(4);
  stream.append(1, 6);
  const auto mark = stream.mark();
  stream.append(2, 11);
  const auto before = blocks_of(stream);
  stream.rewind(mark);
  CHECK(stream.tokens() == 6);
  stream.append(2, 11);
  CHECK(blocks_of(stream) == before);
  stream.rewind(mark);
  stream.append(3, 11);
  CHECK(blocks_of(stream)[0] == before[0]);
  CHECK(blocks_of(stream)[1] != before[1]);
}

TEST_CASE("identities are equal exactly where the spelled-out prefixes are equal") {
  for_each_seed(200, [](Random& random, std::uint64_t) {
    const std::int64_t block_size = random.between(1, 7);
    std::map<std::vector<Letter>, BlockIdentity> identity_of;
    std::map<BlockIdentity, std::vector<Letter>> prefix_of;
    for (int streams = 0; streams < 12; ++streams) {
      Spelled spelled(block_size);
      for (int pieces = 0; pieces < 5; ++pieces)
        spelled.append(static_cast<std::uint64_t>(random.between(1, 2)), random.between(1, 3) * 3);
      const auto blocks = spelled.stream.full_blocks();
      REQUIRE(blocks.size() == spelled.text.size() / static_cast<std::size_t>(block_size));
      for (std::size_t i = 0; i < blocks.size(); ++i) {
        const auto end = spelled.text.begin() + static_cast<std::ptrdiff_t>(i + 1) * block_size;
        const std::vector<Letter> prefix(spelled.text.begin(), end);
        CHECK(prefix_of.try_emplace(blocks[i], prefix).first->second == prefix);
        CHECK(identity_of.try_emplace(prefix, blocks[i]).first->second == blocks[i]);
      }
    }
  });
}
