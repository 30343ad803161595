// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/serve/cache_epochs.hpp>

#include "hash/namespace_tag.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::detail {

/// A set of ForgetRecords: of every cache and every choice of namespaces the last call. Sets that were merged in any
/// order are equal.
class ForgetRecords {
 public:
  /// Nothing is allocated after construction.
  explicit ForgetRecords(std::size_t records_max) : records_max_(records_max) { records_.reserve(records_max); }

  enum class Added : std::uint8_t { known, added, full };
  /// `known`: this call or a later one is there. `full`: nothing has changed. O(records).
  Added add(const ForgetRecord& record) noexcept;
  [[nodiscard]] bool holds(const ForgetRecord& record) const noexcept;
  void clear() noexcept { records_.clear(); }
  [[nodiscard]] std::span<const ForgetRecord> all() const noexcept { return records_; }

 private:
  std::size_t records_max_;
  std::vector<ForgetRecord> records_;
};

/// The namespaces that a call forgot.
[[nodiscard]] Forgotten namespaces_of(const ForgetRecord& record) noexcept;
/// A hash of the call, that of no other call.
[[nodiscard]] std::array<std::uint64_t, 2> hash_of(const ForgetRecord& record) noexcept;
/// The rule that the record breaks, and null if no cache can have made it.
[[nodiscard]] const char* find_wrong(const ForgetRecord& record) noexcept;

}  // namespace stateport::detail
