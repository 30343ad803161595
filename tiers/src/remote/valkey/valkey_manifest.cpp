// SPDX-License-Identifier: Apache-2.0
#include "remote/valkey/valkey_manifest.hpp"

#include <stateport/tiers/checksum.hpp>

#include <fmt/format.h>

namespace stateport::tiers {
namespace {

constexpr std::string_view magic = "SPOBJECT";
constexpr std::size_t checked_bytes = 40;

void append_word(std::string& bytes, std::uint64_t word) {
  for (int shift = 0; shift < 64; shift += 8) bytes.push_back(static_cast<char>(word >> shift & 0xFF));
}

std::uint64_t read_word(std::string_view bytes, std::size_t at) noexcept {
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < 8; ++i)
    word |= std::uint64_t{static_cast<unsigned char>(bytes[at + i])} << 8 * static_cast<unsigned>(i);
  return word;
}

/// The right checksum of a manifest.
std::string checksum_of(std::string_view fields, std::string_view key) {
  const std::string checked = std::string(fields) + std::string(key);
  const Checksum sum = checksum(std::as_bytes(std::span(checked)));
  std::string bytes;
  for (const std::uint64_t word : sum.words) append_word(bytes, word);
  return bytes;
}

}  // namespace

std::string ValkeyManifest::name_of(std::string_view prefix, std::uint64_t piece) const {
  return fmt::format("{}:p:{:016x}{:016x}:{}", prefix, number[0], number[1], piece);
}

std::string encode_manifest(const ValkeyManifest& manifest, std::string_view key) {
  std::string bytes(magic);
  append_word(bytes, manifest.object_bytes);
  append_word(bytes, manifest.piece_bytes);
  for (const std::uint64_t word : manifest.number) append_word(bytes, word);
  return bytes + checksum_of(bytes, key);
}

std::optional<ValkeyManifest> parse_manifest(std::string_view bytes, std::string_view key) {
  if (bytes.size() != ValkeyManifest::encoded_bytes || !bytes.starts_with(magic)) return std::nullopt;
  if (bytes.substr(checked_bytes) != checksum_of(bytes.substr(0, checked_bytes), key)) return std::nullopt;
  const ValkeyManifest manifest{.object_bytes = read_word(bytes, 8),
                                .piece_bytes = read_word(bytes, 16),
                                .number = {read_word(bytes, 24), read_word(bytes, 32)}};
  if (manifest.object_bytes == 0 || manifest.piece_bytes == 0) return std::nullopt;
  if (manifest.piece_bytes > ValkeyManifest::piece_bytes_max) return std::nullopt;
  if (manifest.pieces() > ValkeyManifest::pieces_max) return std::nullopt;
  return manifest;
}

}  // namespace stateport::tiers
