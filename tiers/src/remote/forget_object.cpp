// SPDX-License-Identifier: Apache-2.0
#include "remote/forget_object.hpp"

#include <stateport/tiers/checksum.hpp>

#include "image/running_checksum.hpp"
#include "serve/forget_records.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstring>

namespace stateport::tiers {
namespace {

static_assert(std::endian::native == std::endian::little, "objects are little endian");

struct Header {
  std::uint64_t magic = 0x7465'6772'6f66'7073;  // "spforget"
  std::uint32_t version = 1;
  std::uint32_t count = 0;
  std::array<std::uint64_t, 2> checksum = {};
};
static_assert(sizeof(Header) == ForgetObject::header_bytes);

struct Row {
  std::uint64_t cache;
  std::uint64_t call;
  std::uint32_t salt;
  std::uint32_t extra_key;
  std::uint64_t by;
};
static_assert(sizeof(Row) == ForgetObject::record_bytes);

Header header_of(std::span<const std::byte> object) noexcept {
  Header header;
  std::memcpy(&header, object.data(), sizeof header);
  return header;
}

Row row_of(std::span<const std::byte> object, std::size_t index) noexcept {
  Row row;
  std::memcpy(&row, object.data() + ForgetObject::header_bytes + index * sizeof row, sizeof row);
  return row;
}

Checksum checksum_of(Header header, std::span<const std::byte> object) noexcept {
  header.checksum = {};
  RunningChecksum sum;
  sum.add(std::as_bytes(std::span(&header, 1)));
  sum.add(object.subspan(ForgetObject::header_bytes));
  return sum.finish();
}

}  // namespace

std::string ForgetObject::name(const ModelId& model, std::size_t copy) {
  return fmt::format("forgotten/v1/{:016x}{:016x}/{}", model.words[0], model.words[1], copy);
}

std::size_t ForgetObject::write(std::span<const ForgetRecord> records, std::span<std::byte> object) noexcept {
  std::byte* at = object.data() + header_bytes;
  for (const ForgetRecord& record : records) {
    const Row row{record.cache, record.call, record.salt, record.extra_key, static_cast<std::uint64_t>(record.by)};
    std::memcpy(at, &row, sizeof row);
    at += sizeof row;
  }
  const std::size_t bytes = header_bytes + records.size() * record_bytes;
  Header header{.count = static_cast<std::uint32_t>(records.size())};
  header.checksum = checksum_of(header, object.first(bytes)).words;
  std::memcpy(object.data(), &header, sizeof header);
  return bytes;
}

std::optional<std::size_t> ForgetObject::check(std::span<const std::byte> object) noexcept {
  if (object.size() < header_bytes || object.size() > bytes_max) return std::nullopt;
  const Header header = header_of(object);
  if (header.magic != Header{}.magic || header.version != Header{}.version) return std::nullopt;
  if (object.size() != header_bytes + header.count * record_bytes) return std::nullopt;
  if (header.checksum != checksum_of(header, object).words) return std::nullopt;
  for (std::size_t i = 0; i < header.count; ++i)
    if (row_of(object, i).by > static_cast<std::uint64_t>(ForgetBy::all) ||
        detail::find_wrong(record(object, i)) != nullptr)
      return std::nullopt;
  return header.count;
}

ForgetRecord ForgetObject::record(std::span<const std::byte> object, std::size_t index) noexcept {
  const Row row = row_of(object, index);
  return {.cache = row.cache,
          .call = row.call,
          .extra_key = row.extra_key,
          .salt = row.salt,
          .by = static_cast<ForgetBy>(row.by)};
}

}  // namespace stateport::tiers
