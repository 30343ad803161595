// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <stateport/core/model/element_type.hpp>

namespace stateport {

/// conv: the last inputs of a convolution. recurrent: the matrix that the scan carries.
enum class StateKind : std::uint8_t { conv, recurrent };

/// Memory order of one conv state: sd = [window, dim] (a token's channels are contiguous), ds = [dim, window].
enum class ConvLayout : std::uint8_t { sd, ds };

/// One state tensor: the conv or the recurrent buffer of one layer, as it is for ONE slot.
struct StateTensorSpec {
  std::int32_t layer = 0;  ///< index among the model's state layers
  std::int32_t group = 0;  ///< layers that share a block table share a group
  StateKind kind = StateKind::recurrent;
  ElementType type = ElementType::fp32;
  ConvLayout conv_layout = ConvLayout::sd;  ///< conv only
  /// conv: [window, dim, 1], in this order for either layout. recurrent: up to three extents, missing ones are 1.
  std::array<std::int64_t, 3> shape = {1, 1, 1};

  [[nodiscard]] constexpr std::int64_t window() const noexcept { return shape[0]; }
  [[nodiscard]] constexpr std::int64_t dim() const noexcept { return shape[1]; }
  [[nodiscard]] constexpr std::int64_t element_count() const noexcept { return shape[0] * shape[1] * shape[2]; }
  /// Bytes of one slot without padding. Slots of an engine's tensor may lie farther apart (slot stride).
  [[nodiscard]] constexpr std::size_t natural_bytes() const noexcept {
    return static_cast<std::size_t>(element_count()) * element_bytes(type);
  }

  friend constexpr bool operator==(const StateTensorSpec&, const StateTensorSpec&) noexcept = default;
};

/// Shape of a conv state; window = kernel - 1 + number of drafts. window 0: the model has none.
struct ConvShape {
  std::int64_t window = 0;
  std::int64_t dim = 0;
  ElementType type = ElementType::bf16;
  ConvLayout layout = ConvLayout::sd;
};

/// Shape of a recurrent state. An extent 0: the model has none.
struct RecurrentShape {
  std::array<std::int64_t, 3> shape = {0, 0, 0};
  ElementType type = ElementType::fp32;
};

/// What one state of a model consists of: its tensors, in layer order, conv before recurrent. Immutable.
class StateSpec {
 public:
  /// Throws InvalidArgument: no tensor, an extent < 1, a negative layer or group, more than 2^40 bytes.
  explicit StateSpec(std::vector<StateTensorSpec> tensors);

  /// `layers` equal layers in group 0, each with the conv and the recurrent tensor that is not empty.
  [[nodiscard]] static StateSpec uniform(std::int32_t layers, const ConvShape& conv, const RecurrentShape& recurrent);

  [[nodiscard]] std::span<const StateTensorSpec> tensors() const noexcept { return tensors_; }
  /// Natural bytes of one state: the sum over all tensors.
  [[nodiscard]] std::size_t slot_bytes() const noexcept { return slot_bytes_; }
  /// Identifies kinds, types, layouts and shapes; equal specs have equal fingerprints on every machine.
  [[nodiscard]] std::uint64_t fingerprint() const noexcept { return fingerprint_; }

  friend bool operator==(const StateSpec& a, const StateSpec& b) noexcept { return a.tensors_ == b.tensors_; }

 private:
  std::vector<StateTensorSpec> tensors_;
  std::size_t slot_bytes_ = 0;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace stateport
