// SPDX-License-Identifier: Apache-2.0
#include <stateport/parts/cbor_block_hash.hpp>

#include <stateport/core/model/error.hpp>

#include "hash/sha256.hpp"

#include <algorithm>

namespace stateport {
namespace {

using Bytes = std::vector<std::uint8_t>;

/// The major types of RFC 8949, section 3.1, that are used here.
enum class Major : std::uint8_t { unsigned_int = 0, negative_int = 1, bytes = 2, text = 3, array = 4 };
constexpr std::uint8_t cbor_null = 0xf6;

/// A head: the major type in 3 bits, then the argument in the shortest form that holds it.
void append_head(Bytes& out, Major major, std::uint64_t argument) {
  const auto type = static_cast<std::uint8_t>(static_cast<unsigned>(major) << 5);
  int width = 0;
  if (argument < 24) {
    out.push_back(static_cast<std::uint8_t>(type | argument));
  } else if (argument <= UINT8_MAX) {
    out.push_back(type | 24);
    width = 1;
  } else if (argument <= UINT16_MAX) {
    out.push_back(type | 25);
    width = 2;
  } else if (argument <= UINT32_MAX) {
    out.push_back(type | 26);
    width = 4;
  } else {
    out.push_back(type | 27);
    width = 8;
  }
  for (int byte = width - 1; byte >= 0; --byte) out.push_back(static_cast<std::uint8_t>(argument >> (8 * byte)));
}

void append_int(Bytes& out, std::int64_t value) {
  if (value >= 0) return append_head(out, Major::unsigned_int, static_cast<std::uint64_t>(value));
  append_head(out, Major::negative_int, static_cast<std::uint64_t>(-1 - value));
}

void append_text(Bytes& out, std::string_view text) {
  append_head(out, Major::text, text.size());
  out.insert(out.end(), text.begin(), text.end());
}

void append_value(Bytes& out, const CborValue& item) {
  if (const auto* integer = std::get_if<std::int64_t>(&item.value)) return append_int(out, *integer);
  if (const auto* text = std::get_if<std::string>(&item.value)) return append_text(out, *text);
  if (const auto* list = std::get_if<std::vector<CborValue>>(&item.value)) {
    append_head(out, Major::array, list->size());
    for (const CborValue& element : *list) append_value(out, element);
    return;
  }
  out.push_back(cbor_null);
}

}  // namespace

CborBlockHasher::CborBlockHasher() : sha256_(std::make_unique<detail::Sha256>()) {}
CborBlockHasher::~CborBlockHasher() = default;

BlockDigest CborBlockHasher::root(std::string_view seed) {
  message_.clear();
  append_text(message_, seed);
  return (*sha256_)(message_);
}

BlockDigest CborBlockHasher::hash_block(const BlockDigest& parent, std::span<const std::int64_t> tokens,
                                        std::span<const CborValue> extra_keys) {
  for (const std::int64_t token : tokens) require(token >= 0, "tokens", token, "must not be negative");
  message_.clear();
  append_head(message_, Major::array, 3);
  append_head(message_, Major::bytes, parent.bytes.size());
  message_.insert(message_.end(), parent.bytes.begin(), parent.bytes.end());
  append_head(message_, Major::array, tokens.size());
  for (const std::int64_t token : tokens) append_int(message_, token);
  if (extra_keys.empty()) {
    message_.push_back(cbor_null);
  } else {
    append_head(message_, Major::array, extra_keys.size());
    for (const CborValue& key : extra_keys) append_value(message_, key);
  }
  return (*sha256_)(message_);
}

CborBlockHasher::GroupKey CborBlockHasher::with_group(const BlockDigest& digest, std::int32_t group) {
  require(group >= 0, "group", group, "must not be negative");
  GroupKey key{};
  std::ranges::copy(digest.bytes, key.begin());
  for (std::size_t byte = 0; byte < 4; ++byte)
    key[digest.bytes.size() + byte] = static_cast<std::uint8_t>(group >> (8 * (3 - byte)));
  return key;
}

}  // namespace stateport
