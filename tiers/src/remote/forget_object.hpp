// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/cache_epochs.hpp>
#include <stateport/tiers/image.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

namespace stateport::tiers {

/// A set of ForgetRecords as an object of a store. Little endian:
///
///     | magic | version | count | checksum      | record 0                      | record 1 …
///     | 8     | 4       | 4     | 16 of all else | cache 8 | call 8 | salt 4 | extra_key 4 | by 8
class ForgetObject {
 public:
  static constexpr std::size_t header_bytes = 32;
  static constexpr std::size_t record_bytes = 32;
  static constexpr std::size_t bytes_max = header_bytes + CacheEpochs::records_max * record_bytes;
  /// Objects of one set: one of them is whole while the other is replaced.
  static constexpr std::size_t copies = 2;

  [[nodiscard]] static std::string name(const ModelId& model, std::size_t copy);
  /// Returns the bytes of the object. Precondition: at most records_max records, and room for them.
  static std::size_t write(std::span<const ForgetRecord> records, std::span<std::byte> object) noexcept;
  /// The number of records, and nothing if this is no such object, or damaged.
  [[nodiscard]] static std::optional<std::size_t> check(std::span<const std::byte> object) noexcept;
  /// Of an object that was checked.
  [[nodiscard]] static ForgetRecord record(std::span<const std::byte> object, std::size_t index) noexcept;
};

}  // namespace stateport::tiers
