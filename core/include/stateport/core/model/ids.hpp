// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace stateport {

/// A 32-bit index that cannot be mixed up with an index of another kind. Negative means "none": kernels and index
/// maps skip it, bookkeeping calls refuse it.
template <class Tag>
class Id {
 public:
  using Value = std::int32_t;

  constexpr Id() noexcept = default;
  constexpr explicit Id(Value value) noexcept : value_(value) {}

  [[nodiscard]] constexpr Value value() const noexcept { return value_; }
  [[nodiscard]] constexpr bool valid() const noexcept { return value_ >= 0; }
  /// The id as an array index. Precondition: valid().
  [[nodiscard]] constexpr std::size_t index() const noexcept { return static_cast<std::size_t>(value_); }

  friend constexpr auto operator<=>(Id, Id) noexcept = default;

 private:
  Value value_ = -1;
};

using Token = std::int32_t;    ///< a token id; any value
using KvIndex = std::int32_t;  ///< where the KV of one token lives; >= 0

using BlockId = Id<struct BlockIdTag>;            ///< one KV block
using SlotId = Id<struct SlotIdTag>;              ///< room for one state
using RequestIndex = Id<struct RequestIndexTag>;  ///< an engine's index of a running request

/// Names a request from its start to its end. The number of a request that has ended is refused, also when another
/// request has its row. Negative means "none".
class RequestId {
 public:
  using Value = std::int64_t;

  constexpr RequestId() noexcept = default;
  constexpr explicit RequestId(Value value) noexcept : value_(value) {}

  [[nodiscard]] constexpr Value value() const noexcept { return value_; }
  [[nodiscard]] constexpr bool valid() const noexcept { return value_ >= 0; }
  /// The row: the low 32 bits of the number. It is below the most requests that run at a time, and no two running
  /// requests have the same, so that engines can use it as an array index. Precondition: valid().
  [[nodiscard]] constexpr std::size_t index() const noexcept { return static_cast<std::uint32_t>(value_); }
  /// The number of the next request in the same row. It comes again after 2^31 requests. Precondition: valid().
  [[nodiscard]] constexpr RequestId next() const noexcept {
    constexpr std::uint64_t generation = std::uint64_t{1} << 32;
    constexpr std::uint64_t positive = ~(std::uint64_t{1} << 63);
    return RequestId{static_cast<Value>((static_cast<std::uint64_t>(value_) + generation) & positive)};
  }

  friend constexpr auto operator<=>(RequestId, RequestId) noexcept = default;

 private:
  Value value_ = -1;
};

/// The numbers [first, first + count) of blocks, pages or slots.
struct NumberRange {
  std::int32_t first = 0;
  std::int32_t count = 0;
};

}  // namespace stateport

template <class Tag>
struct std::hash<stateport::Id<Tag>> {
  std::size_t operator()(stateport::Id<Tag> id) const noexcept { return static_cast<std::uint32_t>(id.value()); }
};

template <>
struct std::hash<stateport::RequestId> {
  std::size_t operator()(stateport::RequestId id) const noexcept { return std::hash<std::int64_t>()(id.value()); }
};
