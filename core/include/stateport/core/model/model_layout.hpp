// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/state_spec.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport {

/// Part of a model's state: the part of the layers [layer_begin, layer_end) that rank `head_group` of a tensor-parallel
/// group of `head_groups` ranks holds. All zero: the whole.
struct ModelShard {
  std::int32_t layer_begin = 0;
  std::int32_t layer_end = 0;
  std::int32_t head_group = 0;
  std::int32_t head_groups = 0;
  friend constexpr bool operator==(const ModelShard&, const ModelShard&) noexcept = default;
};

/// A run of the extent along which a tensor is split: `extent` elements in `parts` equal parts, which are heads, or
/// groups of heads. Ranks take whole parts. Where there are fewer parts than ranks, neighbouring ranks hold the same
/// part, unless the band is not replicable.
struct SplitBand {
  std::int64_t extent = 0;
  std::int32_t parts = 1;
  bool replicable = true;
  friend constexpr bool operator==(const SplitBand&, const SplitBand&) noexcept = default;
};

/// How one tensor of the whole model is split over the ranks of a tensor-parallel group: along extent `axis` of its
/// shape (of a conv tensor 1, the channels), each band by itself. Every rank holds its share of the first band, behind
/// it that of the second, and so on.
struct TensorSplit {
  std::int32_t axis = 0;
  std::vector<SplitBand> bands;
  friend bool operator==(const TensorSplit&, const TensorSplit&) noexcept = default;
};

/// The share of a band that a shard holds: elements [begin, end) of the band. The shard has them from element `local`
/// of its own extent on.
struct BandShare {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t local = 0;
  friend constexpr bool operator==(const BandShare&, const BandShare&) noexcept = default;
};

/// The state of a whole model, or of one group of its layers, and how tensor-parallel ranks and pipeline stages share
/// it. Maps the bytes of a shard to shards of other sizes. Immutable: any number of threads may use it.
class ModelLayout {
 public:
  /// `whole`: the tensors before they are split, in the order in which every rank has them; layers ascending.
  /// `splits`: one for each tensor. Throws InvalidArgument: another number of splits, layers not ascending, a conv
  /// tensor that is not split along its channels, an axis that is none, no band, an extent < 1, parts < 1 or that do
  /// not divide the extent, bands that do not add up to the extent of the tensor.
  ModelLayout(StateSpec whole, std::vector<TensorSplit> splits);
  /// The same split for all conv tensors and for all recurrent ones.
  ModelLayout(StateSpec whole, const TensorSplit& conv, const TensorSplit& recurrent);

  [[nodiscard]] const StateSpec& whole() const noexcept { return whole_; }
  [[nodiscard]] std::span<const TensorSplit> splits() const noexcept { return splits_; }
  /// 1 + the last layer.
  [[nodiscard]] std::int32_t layers() const noexcept { return whole_.tensors().back().layer + 1; }
  /// Identifies kinds, shapes, layers and splits of the whole model: equal for every rank, element type and memory
  /// order, and on every machine.
  [[nodiscard]] std::uint64_t fingerprint() const noexcept { return fingerprint_; }

  /// The shard with numbers: the whole becomes {0, layers(), 0, 1}. Throws InvalidArgument for layers that the model
  /// does not have, a head group that is not one of head_groups, parts that cannot be shared by that number of ranks,
  /// and a shard without tensors.
  [[nodiscard]] ModelShard resolve(const ModelShard& shard) const;
  /// The tensors of `whole()` that a shard has: [first, end). O(tensors). Throws as resolve.
  struct TensorRange {
    std::size_t first = 0;
    std::size_t end = 0;
  };
  [[nodiscard]] TensorRange tensors_of(const ModelShard& shard) const;
  /// The shard's part of band `band` of tensor `tensor`, which it has. `shard` has been resolved.
  [[nodiscard]] BandShare share(const ModelShard& shard, std::size_t tensor, std::size_t band) const noexcept;
  /// The spec of a rank's state: the tensors of the shard without gaps, with the element types, conv layouts (sd where
  /// it is neither sd nor ds) and layer numbers of whole(). Throws as resolve.
  [[nodiscard]] StateSpec spec_of(const ModelShard& shard) const;

 private:
  StateSpec whole_;
  std::vector<TensorSplit> splits_;
  std::uint64_t fingerprint_ = 0;
};

}  // namespace stateport
