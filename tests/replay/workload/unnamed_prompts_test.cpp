// SPDX-License-Identifier: Apache-2.0
#include "workload/unnamed_prompts.hpp"

#include "random.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <set>
#include <vector>

using namespace stateport::replay;
using stateport::test::for_each_seed;
using stateport::test::Random;

namespace {

using Identities = std::vector<BlockIdentity>;

Identities identities_of(UnnamedPrompts& prompts, std::int64_t session, std::int64_t input, std::int64_t output) {
  const auto blocks = prompts.blocks_of({.input_tokens = input, .output_tokens = output, .session = session});
  return {blocks.begin(), blocks.end()};
}

/// Leading blocks that are the same.
std::ptrdiff_t leading_same(const Identities& a, const Identities& b) {
  return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

}  // namespace

TEST_CASE("a prompt of a session begins with the prompt before it and its answer") {
  UnnamedPrompts prompts(4);
  const Identities first = identities_of(prompts, 0, 8, 4);
  const Identities other = identities_of(prompts, 1, 8, 4);
  const Identities alone = identities_of(prompts, -1, 8, 4);
  const Identities second = identities_of(prompts, 0, 17, 2);
  const Identities third = identities_of(prompts, 0, 20, 0);
  CHECK(first.size() == 2);
  CHECK(second.size() == 4);
  CHECK(leading_same(first, second) == 2);
  CHECK(leading_same(second, third) == 4);
  CHECK(leading_same(first, other) == 0);
  CHECK(leading_same(first, alone) == 0);
  CHECK(leading_same(alone, identities_of(prompts, -1, 8, 4)) == 0);
}

TEST_CASE("a prompt as long as the conversation continues it, and a shorter one shares nothing with it") {
  for (const std::int64_t output : {0, 3}) {
    UnnamedPrompts prompts(1);
    const Identities first = identities_of(prompts, 0, 5, output);
    const Identities same = identities_of(prompts, 0, 5 + output, 0);
    CHECK(leading_same(first, same) == 5);
    const Identities cut = identities_of(prompts, 0, 4 + output, 1);
    CHECK(leading_same(same, cut) == 0);
    CHECK(leading_same(cut, identities_of(prompts, 0, 5 + output, 1)) == 4 + output);
  }
}

TEST_CASE("random conversations share as much as the lengths say, and no block stands for two texts") {
  for_each_seed(200, [](Random& random, std::uint64_t) {
    const std::int64_t block_size = random.between(1, 5);
    UnnamedPrompts prompts(block_size);
    struct Last {
      Identities blocks;
      std::int64_t input = 0;
      std::int64_t output = 0;
    };
    std::vector<Last> sessions(3);
    std::set<BlockIdentity> seen;
    for (int step = 0; step < 30; ++step) {
      const std::int64_t session = random.between(-1, 2);
      const std::int64_t input = random.between(1, 60);
      const std::int64_t output = random.between(0, 9);
      const Identities blocks = identities_of(prompts, session, input, output);
      REQUIRE(std::ssize(blocks) == input / block_size);
      std::ptrdiff_t old = 0;
      if (session >= 0) {
        Last& last = sessions[static_cast<std::size_t>(session)];
        if (input >= last.input + last.output) old = leading_same(last.blocks, blocks);
        if (input >= last.input + last.output) CHECK(old == std::ssize(last.blocks));
        last = {blocks, input, output};
      }
      for (auto block = blocks.begin() + old; block != blocks.end(); ++block) CHECK(seen.insert(*block).second);
    }
  });
}
