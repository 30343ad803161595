// SPDX-License-Identifier: Apache-2.0
#include <stateport/parts/megatron_block_hash.hpp>

#include <stateport/core/model/error.hpp>

#include "heap_counter.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace stateport;

TEST_CASE("Megatron hashes cover full blocks only and chain") {
  MegatronBlockHasher hasher(4);
  PromptHashes hashes;
  hasher.hash_prompt(std::vector<std::int64_t>{1, 2, 3}, hashes);
  CHECK(hashes.keys.empty());
  hasher.hash_prompt(std::vector<std::int64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9}, hashes);
  CHECK(hashes.keys == std::vector<BlockHash>{2169646968702219264, 1548982756790257953});
}

TEST_CASE("Megatron hashes of salted requests start from the salt's digest") {
  MegatronBlockHasher hasher(2);
  PromptHashes hashes;
  hasher.hash_prompt(std::vector<std::int64_t>{7, 8}, hashes, hasher.salted_root("image-1"));
  CHECK(hashes.keys == std::vector<BlockHash>{5361682352379678103});
}

TEST_CASE("Megatron hasher refuses bad input and allocates nothing when warm") {
  CHECK_THROWS_AS(MegatronBlockHasher(0), InvalidArgument);
  CHECK_THROWS_AS(MegatronBlockHasher(-3), InvalidArgument);
  MegatronBlockHasher hasher(4);
  CHECK_THROWS_AS(static_cast<void>(hasher.hash_block({}, std::vector<std::int64_t>{1, 2, 3})), InvalidArgument);
  const std::vector<std::int64_t> tokens(400, 5);
  PromptHashes hashes;
  hasher.hash_prompt(tokens, hashes);
  const std::uint64_t before = test::heap_allocations();
  hasher.hash_prompt(tokens, hashes);
  CHECK(test::heap_allocations() == before);
}
