// SPDX-License-Identifier: Apache-2.0
#include <stateport/parts/cbor_block_hash.hpp>

#include <stateport/core/model/error.hpp>

#include "heap_counter.hpp"
#include "hex.hpp"

#include <doctest/doctest.h>

#include <vector>

using namespace stateport;
using Tokens64 = std::vector<std::int64_t>;

TEST_CASE("sha256_cbor chains from the text seed and appends the group") {
  CborBlockHasher hasher;
  const BlockDigest root = hasher.root("0");
  CHECK(test::hex(root.bytes) == "4e1195df020de59e0d65a33a4279f1183e7ae4e5d980e309f8b55adff2e61c3e");
  const BlockDigest first = hasher.hash_block(root, Tokens64{1, 2, 3, 4});
  CHECK(test::hex(first.bytes) == "c9d58ba695280d69b243e1e0df813136ca9196b286fb1a021e0b2e028ef071cb");
  const auto key = CborBlockHasher::with_group(first, 0x01020304);
  CHECK(test::hex(key) == test::hex(first.bytes) + "01020304");
}

TEST_CASE("sha256_cbor writes the shortest integers and nested extra keys") {
  CborBlockHasher hasher;
  const std::vector<CborValue> nested = {{std::vector<CborValue>{{std::string("b")}}}};
  std::vector<CborValue> extras = {{std::string("a")}, {std::int64_t{-1}}, {std::int64_t{-25}}, {}};
  extras.push_back({std::vector<CborValue>{{std::int64_t{1}}, nested[0]}});
  const Tokens64 tokens = {0, 23, 24, 255, 256, 65535, 65536, (1ll << 32) - 1, 1ll << 32};
  CHECK(test::hex(hasher.hash_block({}, tokens, extras).bytes) ==
        "e9baf65702dd9a09c715a58fef5b8eaa057fe4acae7da3d8445d327b9522bd21");
}

TEST_CASE("sha256_cbor refuses bad input and allocates nothing when warm") {
  CborBlockHasher hasher;
  CHECK_THROWS_AS(static_cast<void>(hasher.hash_block({}, Tokens64{1, -1})), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(CborBlockHasher::with_group({}, -1)), InvalidArgument);
  const Tokens64 tokens(64, 151643);
  const BlockDigest first = hasher.hash_block({}, tokens);
  const std::uint64_t before = test::heap_allocations();
  CHECK(hasher.hash_block({}, tokens) == first);
  CHECK(test::heap_allocations() == before);
}
