// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/state_spec.hpp>

#include <stateport/core/model/error.hpp>

#include "model/field_hash.hpp"

namespace stateport {
namespace {

constexpr std::int64_t tensor_extent_max = std::int64_t{1} << 40;
constexpr std::size_t slot_bytes_max = std::size_t{1} << 40;

void validate_strides(const StateTensorSpec& tensor) {
  if (tensor.kind == StateKind::recurrent) {
    require(tensor.strides == ConvStrides{}, "strides", tensor.strides.token, "are of conv tensors alone");
    return;
  }
  const auto [token, channel] = tensor.conv_strides();
  require(token >= 1 && token <= tensor_extent_max / tensor.window(), "strides.token", token,
          "must be at least 1, and span at most 2^40 elements");
  require(channel >= 1 && channel <= tensor_extent_max / tensor.dim(), "strides.channel", channel,
          "must be at least 1, and span at most 2^40 elements");
  const bool tokens_apart = tensor.window() == 1 || token > (tensor.dim() - 1) * channel;
  const bool channels_apart = tensor.dim() == 1 || channel > (tensor.window() - 1) * token;
  require(tokens_apart || channels_apart, "strides.token", token, "puts two elements of a conv state at one place");
}

void validate(const StateTensorSpec& tensor) {
  require(tensor.layer >= 0 && tensor.layer < INT32_MAX, "layer", tensor.layer, "must lie in [0, 2^31 - 1)");
  require(tensor.group >= 0, "group", tensor.group, "must not be negative");
  require(element_bytes(tensor.type) > 0, "type", static_cast<int>(tensor.type), "is not an element type");
  require(tensor.kind == StateKind::recurrent || !in_blocks(tensor.type), "type", name(tensor.type),
          "is of recurrent tensors alone");
  std::int64_t elements = 1;
  for (const std::int64_t extent : tensor.shape) {
    require(extent >= 1 && extent <= tensor_extent_max / elements, "shape", extent,
            "extents must be >= 1 and their product at most 2^40");
    elements *= extent;
  }
  require(tensor.kind == StateKind::recurrent || tensor.shape[2] == 1, "shape", tensor.shape[2],
          "a conv tensor has two extents");
  validate_strides(tensor);
}

/// 0 and 1 are ConvLayout's numbers; no other strides share them.
std::int64_t layout_number(const StateTensorSpec& tensor) {
  if (tensor.kind == StateKind::recurrent || tensor.is(ConvLayout::sd)) return 0;
  return tensor.is(ConvLayout::ds) ? 1 : 2;
}

std::uint64_t fingerprint_of(std::span<const StateTensorSpec> tensors) {
  detail::FieldHash hash(tensors.size());
  for (const StateTensorSpec& tensor : tensors) {
    hash.mix(tensor.layer);
    hash.mix(tensor.group);
    hash.mix(static_cast<int>(tensor.kind));
    hash.mix(static_cast<int>(tensor.type));
    hash.mix(layout_number(tensor));
    if (layout_number(tensor) == 2) {
      hash.mix(tensor.strides.token);
      hash.mix(tensor.strides.channel);
    }
    for (const std::int64_t extent : tensor.shape) hash.mix(extent);
  }
  return hash.value();
}

}  // namespace

StateSpec::StateSpec(std::vector<StateTensorSpec> tensors) : tensors_(std::move(tensors)) {
  require(!tensors_.empty(), "tensors", tensors_.size(), "a state has at least one tensor");
  for (StateTensorSpec& tensor : tensors_) {
    validate(tensor);
    if (tensor.kind == StateKind::conv) tensor.strides = tensor.conv_strides();
    slot_bytes_ += tensor.natural_bytes();
    require(slot_bytes_ <= slot_bytes_max, "slot_bytes", slot_bytes_, "must be at most 2^40");
  }
  fingerprint_ = fingerprint_of(tensors_);
}

StateSpec StateSpec::opaque(std::int64_t bytes) {
  constexpr std::int64_t element = 4;
  require(bytes > 0 && bytes % element == 0, "bytes", bytes, "must be a multiple of 4, and not 0");
  return uniform(1, {}, {.shape = {bytes / element, 1, 1}, .type = ElementType::fp32});
}

StateSpec StateSpec::uniform(std::int32_t layers, const ConvShape& conv, const RecurrentShape& recurrent) {
  require(layers >= 1, "layers", layers, "must be >= 1");
  std::vector<StateTensorSpec> tensors;
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    if (conv.window != 0) tensors.push_back(StateTensorSpec::conv(layer, conv));
    if (recurrent.shape[0] != 0)
      tensors.push_back(
          {.layer = layer, .kind = StateKind::recurrent, .type = recurrent.type, .shape = recurrent.shape});
  }
  return StateSpec(std::move(tensors));
}

StateSpec quantised(const StateSpec& live, ElementType type) {
  require(convertible(type) || in_blocks(type), "type", name(type), "must be fp32, fp16, bf16 or int8_block32");
  std::vector<StateTensorSpec> tensors(live.tensors().begin(), live.tensors().end());
  for (StateTensorSpec& tensor : tensors) {
    if (tensor.kind == StateKind::conv) continue;
    require(convertible(tensor.type), "live", name(tensor.type), "a recurrent tensor must be fp32, fp16 or bf16");
    tensor.type = type;
  }
  return StateSpec(std::move(tensors));
}

}  // namespace stateport
