// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/model_layout.hpp>

#include <stateport/core/model/error.hpp>

#include "model/field_hash.hpp"

#include <algorithm>
#include <utility>

namespace stateport {
namespace {

/// Extents are small enough for any sum and product of them to fit.
constexpr std::int64_t extent_max = std::int64_t{1} << 40;

void validate(const StateTensorSpec& tensor, const TensorSplit& split) {
  require(tensor.kind == StateKind::recurrent || split.axis == 1, "axis", split.axis,
          "a conv tensor is split along extent 1, its channels");
  require(split.axis >= 0 && split.axis < 3, "axis", split.axis, "must be 0, 1 or 2");
  std::int64_t sum = 0;
  for (const SplitBand& band : split.bands) {
    require(band.extent >= 1 && band.extent <= extent_max, "extent", band.extent, "must lie in [1, 2^40]");
    require(band.parts >= 1 && band.extent % band.parts == 0, "parts", band.parts,
            "must divide the extent of the band");
    sum += band.extent;
    require(sum <= extent_max, "extent", band.extent, "bands must add up to the extent of the tensor");
  }
  require(sum == tensor.shape[static_cast<std::size_t>(split.axis)], "bands", sum,
          "must add up to the extent of the tensor");
}

std::uint64_t fingerprint_of(std::span<const StateTensorSpec> tensors, std::span<const TensorSplit> splits) {
  detail::FieldHash hash(tensors.size());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    hash.mix(tensors[i].layer);
    hash.mix(static_cast<int>(tensors[i].kind));
    for (const std::int64_t extent : tensors[i].shape) hash.mix(extent);
    hash.mix(splits[i].axis);
    hash.mix(std::ssize(splits[i].bands));
    for (const SplitBand& band : splits[i].bands) {
      hash.mix(band.extent);
      hash.mix(band.parts);
    }
  }
  return hash.value();
}

std::vector<TensorSplit> by_kind(const StateSpec& whole, const TensorSplit& conv, const TensorSplit& recurrent) {
  std::vector<TensorSplit> splits;
  for (const StateTensorSpec& tensor : whole.tensors())
    splits.push_back(tensor.kind == StateKind::conv ? conv : recurrent);
  return splits;
}

}  // namespace

ModelLayout::ModelLayout(StateSpec whole, std::vector<TensorSplit> splits)
    : whole_(std::move(whole)), splits_(std::move(splits)) {
  const std::span<const StateTensorSpec> tensors = whole_.tensors();
  require(splits_.size() == tensors.size(), "splits", splits_.size(), "there must be one for each tensor");
  const auto descending = std::ranges::adjacent_find(
      tensors, [](const StateTensorSpec& a, const StateTensorSpec& b) { return a.layer > b.layer; });
  require(descending == tensors.end(), "layer", descending == tensors.end() ? 0 : descending->layer,
          "layers must be ascending");
  for (std::size_t i = 0; i < tensors.size(); ++i) validate(tensors[i], splits_[i]);
  fingerprint_ = fingerprint_of(tensors, splits_);
}

ModelLayout::ModelLayout(StateSpec whole, const TensorSplit& conv, const TensorSplit& recurrent)
    : ModelLayout(whole, by_kind(whole, conv, recurrent)) {}

ModelShard ModelLayout::resolve(const ModelShard& shard) const {
  if (shard == ModelShard{}) return {0, layers(), 0, 1};
  require(shard.layer_begin >= 0, "shard.layer_begin", shard.layer_begin, "must not be negative");
  require(shard.layer_end > shard.layer_begin, "shard.layer_end", shard.layer_end, "must lie behind layer_begin");
  require(shard.layer_end <= layers(), "shard.layer_end", shard.layer_end, "must be at most the number of layers");
  require(shard.head_groups >= 1, "shard.head_groups", shard.head_groups, "must be at least 1");
  require(shard.head_group >= 0 && shard.head_group < shard.head_groups, "shard.head_group", shard.head_group,
          "must lie in [0, head_groups)");
  std::size_t tensors = 0;
  for (std::size_t i = 0; i < splits_.size(); ++i) {
    const std::int32_t layer = whole_.tensors()[i].layer;
    if (layer < shard.layer_begin || layer >= shard.layer_end) continue;
    ++tensors;
    for (const SplitBand& band : splits_[i].bands)
      require(band.parts % shard.head_groups == 0 || (band.replicable && shard.head_groups % band.parts == 0),
              "shard.head_groups", shard.head_groups,
              "must divide the parts of every band, or be a multiple of them where a band is replicable");
  }
  require(tensors > 0, "shard.layer_begin", shard.layer_begin, "no layer of the shard has a tensor");
  return shard;
}

ModelLayout::TensorRange ModelLayout::tensors_of(const ModelShard& shard) const {
  const ModelShard numbered = resolve(shard);
  const auto first_of = [&](std::int32_t layer) {
    const auto found = std::ranges::lower_bound(whole_.tensors(), layer, {}, &StateTensorSpec::layer);
    return static_cast<std::size_t>(found - whole_.tensors().begin());
  };
  return {first_of(numbered.layer_begin), first_of(numbered.layer_end)};
}

BandShare ModelLayout::share(const ModelShard& shard, std::size_t tensor, std::size_t band) const noexcept {
  BandShare share;
  for (std::size_t i = 0; i <= band; ++i) {
    const SplitBand& run = splits_[tensor].bands[i];
    share.local += share.end - share.begin;
    // Whole parts, or the one that this rank has in common with its neighbours.
    const std::int64_t part = run.extent / run.parts;
    const std::int64_t first = std::int64_t{run.parts} * shard.head_group / shard.head_groups;
    share.begin = first * part;
    share.end = share.begin + std::max<std::int64_t>(run.parts / shard.head_groups, 1) * part;
  }
  return share;
}

StateSpec ModelLayout::spec_of(const ModelShard& shard) const {
  const ModelShard numbered = resolve(shard);
  const TensorRange range = tensors_of(numbered);
  std::vector<StateTensorSpec> tensors;
  for (std::size_t i = range.first; i < range.end; ++i) {
    StateTensorSpec tensor = whole_.tensors()[i];
    const BandShare last = share(numbered, i, splits_[i].bands.size() - 1);
    const bool is_ds = tensor.is(ConvLayout::ds);
    tensor.shape[static_cast<std::size_t>(splits_[i].axis)] = last.local + last.end - last.begin;
    if (tensor.kind == StateKind::conv)
      tensor.strides = ConvStrides::of(is_ds ? ConvLayout::ds : ConvLayout::sd, tensor.window(), tensor.dim());
    tensors.push_back(tensor);
  }
  return StateSpec(std::move(tensors));
}

}  // namespace stateport
