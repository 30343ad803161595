// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/element_type.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport {

/// conv: the last inputs of a convolution. recurrent: the matrix that the scan carries.
enum class StateKind : std::uint8_t { conv, recurrent };

/// The usual memory orders of one conv state, without gaps: sd = [window, dim] (a token's channels are contiguous),
/// ds = [dim, window].
enum class ConvLayout : std::uint8_t { sd, ds };

/// Where element (token, channel) of a conv state lies: `token` * token + `channel` * channel elements past the start
/// of its slot.
struct ConvStrides {
  std::int64_t token = 0;
  std::int64_t channel = 0;

  [[nodiscard]] static constexpr ConvStrides of(ConvLayout layout, std::int64_t window, std::int64_t dim) noexcept {
    return layout == ConvLayout::sd ? ConvStrides{dim, 1} : ConvStrides{1, window};
  }
  friend constexpr bool operator==(const ConvStrides&, const ConvStrides&) noexcept = default;
};

/// Shape of a conv state; window = kernel - 1 + number of drafts. window 0: the model has none.
struct ConvShape {
  std::int64_t window = 0;
  std::int64_t dim = 0;
  ElementType type = ElementType::bf16;
  ConvLayout layout = ConvLayout::sd;
};

/// One state tensor: the conv or the recurrent buffer of one layer, as it is for ONE slot.
struct StateTensorSpec {
  std::int32_t layer = 0;  ///< index among the model's state layers
  std::int32_t group = 0;  ///< layers that share a block table share a group
  StateKind kind = StateKind::recurrent;
  ElementType type = ElementType::fp32;
  /// conv: [window, dim, 1], whatever the memory order. recurrent: up to three extents, missing ones are 1.
  std::array<std::int64_t, 3> shape = {1, 1, 1};
  /// conv only, in elements. {0, 0} stands for sd; others are an engine's own, with gaps if it has any.
  ConvStrides strides = {};

  [[nodiscard]] static constexpr StateTensorSpec conv(std::int32_t layer, const ConvShape& conv) noexcept {
    return {.layer = layer,
            .kind = StateKind::conv,
            .type = conv.type,
            .shape = {conv.window, conv.dim, 1},
            .strides = ConvStrides::of(conv.layout, conv.window, conv.dim)};
  }

  [[nodiscard]] constexpr std::int64_t window() const noexcept { return shape[0]; }
  [[nodiscard]] constexpr std::int64_t dim() const noexcept { return shape[1]; }
  [[nodiscard]] constexpr std::int64_t element_count() const noexcept { return shape[0] * shape[1] * shape[2]; }
  /// The strides of a conv tensor, {0, 0} replaced by the strides that it stands for.
  [[nodiscard]] constexpr ConvStrides conv_strides() const noexcept {
    return strides == ConvStrides{} ? ConvStrides::of(ConvLayout::sd, window(), dim()) : strides;
  }
  /// Whether the tensor is a conv tensor in this memory order.
  [[nodiscard]] constexpr bool is(ConvLayout layout) const noexcept {
    return kind == StateKind::conv && conv_strides() == ConvStrides::of(layout, window(), dim());
  }
  /// How the blocks of a recurrent tensor lie, if its type has blocks. Its rows run along the last extent that is not
  /// 1.
  [[nodiscard]] constexpr BlockLayout block_layout() const noexcept {
    const std::size_t last = shape[2] != 1 ? 2 : shape[1] != 1 ? 1 : 0;
    return {.rows = element_count() / shape[last], .row_elements = shape[last]};
  }
  /// Bytes of one slot without padding and gaps, scales of blocks included. Slots of an engine's tensor may lie farther
  /// apart (slot stride).
  [[nodiscard]] constexpr std::size_t natural_bytes() const noexcept {
    if (in_blocks(type)) return block_layout().bytes();
    return static_cast<std::size_t>(element_count()) * element_bytes(type);
  }
  /// Bytes from the first to the last element of one slot, gaps between them included.
  [[nodiscard]] constexpr std::size_t extent_bytes() const noexcept {
    if (kind == StateKind::recurrent) return natural_bytes();
    const std::int64_t last = (window() - 1) * conv_strides().token + (dim() - 1) * conv_strides().channel;
    return static_cast<std::size_t>(last + 1) * element_bytes(type);
  }
  /// Whether no gap lies between the elements of a slot.
  [[nodiscard]] constexpr bool dense() const noexcept { return extent_bytes() == natural_bytes(); }

  friend constexpr bool operator==(const StateTensorSpec&, const StateTensorSpec&) noexcept = default;
};

/// Shape of a recurrent state. An extent 0: the model has none.
struct RecurrentShape {
  std::array<std::int64_t, 3> shape = {0, 0, 0};
  ElementType type = ElementType::fp32;
};

/// The tensors of one state of a model, in layer order, conv before recurrent. Immutable.
class StateSpec {
 public:
  /// Throws InvalidArgument: no tensor, an extent < 1, a negative layer or group, layer 2^31 - 1, more than 2^40 bytes,
  /// strides of a recurrent tensor, a conv tensor in blocks, strides < 1, strides that give two elements of a conv
  /// state the same place. Strides {0, 0} of a conv tensor become those of sd.
  explicit StateSpec(std::vector<StateTensorSpec> tensors);

  /// `layers` equal layers in group 0, each with the conv and the recurrent tensor that is not empty.
  [[nodiscard]] static StateSpec uniform(std::int32_t layers, const ConvShape& conv, const RecurrentShape& recurrent);
  /// Bytes that only the engine understands, such as an image of its own: one tensor, whole and unconverted in copies
  /// and tiers. Throws InvalidArgument for 0 bytes, a number that is no multiple of 4, and more than 2^40.
  [[nodiscard]] static StateSpec opaque(std::int64_t bytes);

  [[nodiscard]] std::span<const StateTensorSpec> tensors() const noexcept { return tensors_; }
  /// Natural bytes of one state: the sum over all tensors, without gaps.
  [[nodiscard]] std::size_t slot_bytes() const noexcept { return slot_bytes_; }
  /// Identifies kinds, types, strides and shapes; equal specs have equal fingerprints on every machine.
  [[nodiscard]] std::uint64_t fingerprint() const noexcept { return fingerprint_; }

  friend bool operator==(const StateSpec& a, const StateSpec& b) noexcept { return a.tensors_ == b.tensors_; }

 private:
  std::vector<StateTensorSpec> tensors_;
  std::size_t slot_bytes_ = 0;
  std::uint64_t fingerprint_ = 0;
};

/// The spec of checkpoints of `live` states whose recurrent tensors are kept as `type`: fp32, fp16, bf16 or
/// int8_block32. Conv tensors stay as they are. The fingerprint differs with the type. Throws InvalidArgument for
/// another type, and for a live recurrent tensor that is none of fp32, fp16 and bf16.
[[nodiscard]] StateSpec quantised(const StateSpec& live, ElementType type);

}  // namespace stateport
