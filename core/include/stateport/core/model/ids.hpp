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

using BlockId = Id<struct BlockIdTag>;      ///< one KV block
using SlotId = Id<struct SlotIdTag>;        ///< room for one state
using RequestId = Id<struct RequestIdTag>;  ///< an engine's index of a running request

}  // namespace stateport

template <class Tag>
struct std::hash<stateport::Id<Tag>> {
  std::size_t operator()(stateport::Id<Tag> id) const noexcept { return static_cast<std::uint32_t>(id.value()); }
};
