// SPDX-License-Identifier: Apache-2.0
#include "remote/valkey/valkey_manifest.hpp"

#include "random.hpp"

#include <doctest/doctest.h>

#include <optional>
#include <string>

namespace stateport::tiers {
namespace {

using namespace test;

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t most_bytes = ValkeyManifest::pieces_max * ValkeyManifest::piece_bytes_max;

TEST_CASE("a manifest comes back from its bytes") {
  for_each_seed(1000, [](Random& random, std::uint64_t) {
    const ValkeyManifest manifest{.object_bytes = static_cast<std::uint64_t>(random.between(1, 1 << 30)),
                                  .piece_bytes = static_cast<std::uint64_t>(random.between(1 << 14, 64 << 20)),
                                  .number = {random.bits(), random.bits()}};
    const std::string bytes = encode_manifest(manifest, "key");
    CHECK(bytes.size() == ValkeyManifest::encoded_bytes);
    CHECK(parse_manifest(bytes, "key") == manifest);
    CHECK(parse_manifest(bytes, "kez") == std::nullopt);
    std::uint64_t sum = 0;
    for (std::uint64_t piece = 0; piece < manifest.pieces(); ++piece) sum += manifest.bytes_of(piece);
    CHECK(sum == manifest.object_bytes);
  });
}

TEST_CASE("a manifest with any other bit, and any other length, is none") {
  const std::string bytes = encode_manifest({.object_bytes = 5 * mib + 1, .piece_bytes = mib, .number = {1, 2}}, "key");
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    std::string other = bytes;
    other[bit / 8] = static_cast<char>(other[bit / 8] ^ 1 << bit % 8);
    CHECK(parse_manifest(other, "key") == std::nullopt);
  }
  for (std::size_t length = 0; length < bytes.size(); ++length)
    CHECK(parse_manifest(bytes.substr(0, length), "key") == std::nullopt);
  CHECK(parse_manifest(bytes + '\0', "key") == std::nullopt);
}

TEST_CASE("a manifest of what no put writes is none, though its checksum fits") {
  const auto is_one = [](std::uint64_t object_bytes, std::uint64_t piece_bytes) {
    const ValkeyManifest manifest{.object_bytes = object_bytes, .piece_bytes = piece_bytes};
    return parse_manifest(encode_manifest(manifest, "key"), "key").has_value();
  };
  CHECK(is_one(1, 1));
  CHECK(is_one(most_bytes, 64 * mib));
  CHECK(is_one(65536, 1));
  CHECK_FALSE(is_one(0, 1));
  CHECK_FALSE(is_one(1, 0));
  CHECK_FALSE(is_one(0, 0));
  CHECK_FALSE(is_one(1, 64 * mib + 1));
  CHECK_FALSE(is_one(65537, 1));
  CHECK_FALSE(is_one(most_bytes + 1, 64 * mib));
  CHECK_FALSE(is_one(~std::uint64_t{0}, ~std::uint64_t{0}));
  CHECK_FALSE(is_one(~std::uint64_t{0}, 1));
}

TEST_CASE("the layout of a manifest is the one that is documented") {
  const std::string bytes =
      encode_manifest({.object_bytes = 0x0102030405060708, .piece_bytes = 0x11, .number = {0x21, 0x31}}, "key");
  CHECK(bytes.substr(0, 8) == "SPOBJECT");
  CHECK(bytes.substr(8, 8) == "\x08\x07\x06\x05\x04\x03\x02\x01");
  CHECK(bytes[16] == 0x11);
  CHECK(bytes[24] == 0x21);
  CHECK(bytes[32] == 0x31);
}

TEST_CASE("pieces are named by the number of their put") {
  const ValkeyManifest manifest{.object_bytes = 3, .piece_bytes = 2, .number = {0xABC, 1}};
  CHECK(manifest.pieces() == 2);
  CHECK(manifest.bytes_of(0) == 2);
  CHECK(manifest.bytes_of(1) == 1);
  CHECK(manifest.name_of("x", 1) == "x:p:0000000000000abc0000000000000001:1");
}

}  // namespace
}  // namespace stateport::tiers
