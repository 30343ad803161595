// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/hash/block_hasher.hpp>

#include <stateport/core/model/error.hpp>

#include "heap_counter.hpp"
#include "hex.hpp"
#include "random.hpp"

#include <doctest/doctest.h>

#include <array>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

using namespace stateport;

namespace {
constexpr BlockHashKind kinds[] = {BlockHashKind::sha256, BlockHashKind::xxh3_128};
using Tokens32 = std::vector<std::int32_t>;
}  // namespace

TEST_CASE("the sha256 encoding of a block is fixed: framed tokens, then framed extra keys") {
  BlockHasher hasher({.block_size_tokens = 4});
  const BlockDigest first = hasher.hash_block({}, Tokens32{1, 2, 3, 4});
  CHECK(test::hex(first.bytes) == "17d80587c0ea5fca5a3477d4884ea82537ef572cedfad6ee779bea0f5a435684");
  CHECK(first.key() == 5359260194214107161);
  const ExtraKey adapter{.kind = ExtraKey::Kind::adapter, .id = "lora-7", .first_token = 1};
  const BlockDigest second = hasher.hash_block(first, Tokens32{5, 6, 7, -1}, {&adapter, 1});
  CHECK(test::hex(second.bytes) == "010bde644c288bb4eabb10fe23e58db1064c5e39bb390f7950d7abde54579cd9");
  CHECK(second.prefix().words[0] == 0xb48b284c64de0b01u);
}

TEST_CASE("the xxh3 hash of a block is the 128 bits of the same message, low word first") {
  BlockHasher hasher({.kind = BlockHashKind::xxh3_128, .block_size_tokens = 4});
  const BlockDigest first = hasher.hash_block({}, Tokens32{1, 2, 3, 4});
  CHECK(test::hex(first.bytes) == "550b97e41a962eb9478a40464d5170bf00000000000000000000000000000000");
}

TEST_CASE("a seed comes before the sha256 message, and no two seeds give a block the same hash") {
  constexpr std::uint64_t seed = 0x0123456789abcdefu;
  BlockHasher hasher({.block_size_tokens = 4, .seed = seed});
  const BlockDigest first = hasher.hash_block({}, Tokens32{1, 2, 3, 4});
  CHECK(test::hex(first.bytes) == "f271787d5103fe082bcf652eecb4baf8cf370299384be262e5d54e46b3d0d5f6");
  for (const BlockHashKind kind : kinds) {
    std::set<std::array<std::uint64_t, 2>> prefixes;
    std::set<BlockHash> keys;
    for (const std::uint64_t value :
         {std::uint64_t{0}, std::uint64_t{1}, std::uint64_t{1} << 63, seed, ~std::uint64_t{0}}) {
      BlockHasher seeded({.kind = kind, .block_size_tokens = 4, .seed = value});
      const BlockDigest digest = seeded.hash_block({}, Tokens32{1, 2, 3, 4});
      CHECK(prefixes.insert(digest.prefix().words).second);
      CHECK(keys.insert(digest.key()).second);
    }
  }
}

TEST_CASE("a prompt's hashes are those of its full blocks, and a salt changes all of them") {
  for (const BlockHashKind kind : kinds) {
    BlockHasher hasher({.kind = kind, .block_size_tokens = 3});
    const Tokens32 tokens = {1, 2, 3, 4, 5, 6, 7, 8};
    const std::vector<ExtraKey> keys = {{.id = "tenant"},
                                        {.kind = ExtraKey::Kind::media, .id = "image", .first_token = 4}};
    PromptHashes plain;
    PromptHashes keyed;
    hasher.hash_prompt(tokens, {}, plain);
    hasher.hash_prompt(tokens, keys, keyed);
    REQUIRE(plain.keys.size() == 2);
    REQUIRE(plain.prefixes.size() == 2);
    const BlockDigest first = hasher.hash_block({}, Tokens32{1, 2, 3});
    CHECK(plain.keys[0] == first.key());
    CHECK(plain.prefixes[1] == hasher.hash_block(first, Tokens32{4, 5, 6}).prefix());
    const ExtraKey salt{.id = "tenant"};
    const ExtraKey image{.kind = ExtraKey::Kind::media, .id = "image", .first_token = 1};
    const BlockDigest salted = hasher.hash_block({}, Tokens32{1, 2, 3}, {&salt, 1});
    CHECK(keyed.prefixes[0] == salted.prefix());
    CHECK(keyed.prefixes[1] == hasher.hash_block(salted, Tokens32{4, 5, 6}, {&image, 1}).prefix());
    CHECK(keyed.keys[0] != plain.keys[0]);
  }
}

TEST_CASE("no two of these inputs share a hash") {
  for (const BlockHashKind kind : kinds) {
    BlockHasher hasher({.kind = kind, .block_size_tokens = 2});
    std::set<BlockHash> seen;
    int inputs = 0;
    const auto add = [&](const BlockDigest& parent, const Tokens32& tokens, const std::vector<ExtraKey>& keys) {
      ++inputs;
      const BlockDigest digest = hasher.hash_block(parent, tokens, keys);
      CHECK(digest.key() > 0);
      seen.insert(digest.key());
      return digest;
    };
    using Kind = ExtraKey::Kind;
    const BlockDigest one = add({}, {1, 2}, {});
    add({}, {2, 1}, {});
    add(one, {1, 2}, {});
    add({}, {1, 2}, {{.id = ""}});
    add({}, {1, 2}, {{.id = "ab"}});
    add({}, {1, 2}, {{.id = "a"}, {.id = "b"}});
    add({}, {1, 2}, {{.id = "b"}, {.id = "a"}});
    add({}, {1, 2}, {{.id = "ab"}, {.id = ""}});
    add({}, {1, 2}, {{.kind = Kind::adapter, .id = "ab"}});
    add({}, {1, 2}, {{.kind = Kind::media, .id = "ab"}});
    add({}, {1, 2}, {{.kind = Kind::media, .id = "ab", .first_token = 1}});
    CHECK(seen.size() == static_cast<std::size_t>(inputs));
  }
}

TEST_CASE("keys of one kind at one token enter as one key, in their order") {
  for (const BlockHashKind kind : kinds) {
    BlockHasher hasher({.kind = kind, .block_size_tokens = 2});
    const auto hash = [&](const std::vector<ExtraKey>& keys) { return hasher.hash_block({}, Tokens32{1, 2}, keys); };
    const auto media = [](const NameKey& id, std::int64_t at) {
      return ExtraKey{.kind = ExtraKey::Kind::media, .id = id, .first_token = at};
    };
    const NameKey both = NameKey::both("image", "sound");
    CHECK(hash({media("image", 1), media("sound", 1)}) == hash({media(both, 1)}));
    CHECK(hash({media("image", 1), media("sound", 1), media("text", 1)}) ==
          hash({media(NameKey::both(both, "text"), 1)}));
    CHECK(hash({media("image", 1), media("sound", 1)}) != hash({media("sound", 1), media("image", 1)}));
    CHECK(hash({media("image", 0), media("sound", 1)}) != hash({media("image", 1), media("sound", 1)}));
    CHECK(hash({media("image", 1), media("sound", 1)}) != hash({media("image", 1)}));
    CHECK(hash({{.id = "image"}, media("sound", 0)}) != hash({media(both, 0)}));
  }
}

TEST_CASE("a change of any token changes its block and every later one, and none before") {
  test::for_each_seed(300, [](test::Random& random, std::uint64_t) {
    BlockHasher hasher({.kind = kinds[random.between(0, 1)], .block_size_tokens = random.between32(1, 5)});
    const auto block_size = static_cast<std::size_t>(hasher.options().block_size_tokens);
    Tokens32 tokens(static_cast<std::size_t>(random.between(1, 40)));
    for (std::int32_t& token : tokens) token = random.between32(-3, 200000);
    PromptHashes before;
    hasher.hash_prompt(tokens, {}, before);
    REQUIRE(before.keys.size() == tokens.size() / block_size);
    const auto at = static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(tokens.size()) - 1));
    tokens[at] += 1;
    PromptHashes after;
    hasher.hash_prompt(tokens, {}, after);
    for (std::size_t block = 0; block < before.keys.size(); ++block)
      REQUIRE((before.prefixes[block] == after.prefixes[block]) == (block < at / block_size));
  });
}

TEST_CASE("an extra key enters the block where its scope begins, and through the chain every later one") {
  constexpr std::int64_t block_size = 3;
  const Tokens32 tokens(4 * block_size, 7);
  for (const BlockHashKind kind : kinds) {
    BlockHasher hasher({.kind = kind, .block_size_tokens = block_size});
    PromptHashes plain;
    hasher.hash_prompt(tokens, {}, plain);
    for (std::int64_t first = 0; first < std::ssize(tokens); ++first) {
      CAPTURE(first);
      const ExtraKey key{.id = "picture", .first_token = first};
      PromptHashes hashes;
      hasher.hash_prompt(tokens, {&key, 1}, hashes);
      for (std::size_t block = 0; block < hashes.prefixes.size(); ++block)
        CHECK((hashes.prefixes[block] == plain.prefixes[block]) ==
              (static_cast<std::int64_t>(block) < first / block_size));
    }
  }
}

TEST_CASE("block hasher refuses bad input") {
  CHECK_THROWS_AS(BlockHasher({.block_size_tokens = 0}), InvalidArgument);
  BlockHasher hasher({.block_size_tokens = 2});
  CHECK_THROWS_AS(static_cast<void>(hasher.hash_block({}, Tokens32{1})), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(hasher.hash_block({}, Tokens32{1, 2, 3})), InvalidArgument);
  const ExtraKey outside{.id = "x", .first_token = 2};
  CHECK_THROWS_AS(static_cast<void>(hasher.hash_block({}, Tokens32{1, 2}, {&outside, 1})), InvalidArgument);
  PromptHashes hashes;
  const std::vector<ExtraKey> unordered = {{.id = "x", .first_token = 2}, {.id = "y", .first_token = 1}};
  CHECK_THROWS_AS(hasher.hash_prompt(Tokens32{1, 2, 3, 4}, unordered, hashes), InvalidArgument);
  const std::vector<ExtraKey> negative = {{.id = "x", .first_token = -1}};
  CHECK_THROWS_AS(hasher.hash_prompt(Tokens32{1, 2, 3, 4}, negative, hashes), InvalidArgument);
}

TEST_CASE("a warm block hasher allocates nothing") {
  for (const BlockHashKind kind : kinds) {
    BlockHasher hasher({.kind = kind, .block_size_tokens = 16});
    const Tokens32 tokens(1600, 7);
    const ExtraKey salt{.id = "tenant"};
    PromptHashes hashes;
    hasher.hash_prompt(tokens, {&salt, 1}, hashes);
    const std::uint64_t before = test::heap_allocations();
    hasher.hash_prompt(tokens, {&salt, 1}, hashes);
    CHECK(test::heap_allocations() == before);
    CHECK(hashes.keys.size() == 100);
  }
}

TEST_CASE("a failed allocation while hashing leaves a hasher that works") {
  BlockHasher hasher({.block_size_tokens = 4});
  const std::string long_id(4000, 'x');
  const ExtraKey key{.id = long_id};
  PromptHashes hashes;
  const auto failures = test::fail_each_allocation(
      [&](std::uint64_t) {
        hasher.hash_prompt(Tokens32{1, 2, 3, 4}, {&key, 1}, hashes);
      },
      [&](std::uint64_t) { REQUIRE(hashes.keys.size() == hashes.prefixes.size()); });
  CHECK(failures > 0);
  CHECK(hasher.hash_block({}, Tokens32{1, 2, 3, 4}).key() == 5359260194214107161);
}
