// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/state_spec.hpp>

#include <stateport/core/model/error.hpp>

#include <xxhash.h>

namespace stateport {
namespace {

constexpr std::int64_t extent_max = std::int64_t{1} << 40;
constexpr std::size_t slot_bytes_max = std::size_t{1} << 40;

void validate(const StateTensorSpec& tensor) {
  require(tensor.layer >= 0, "layer", tensor.layer, "must not be negative");
  require(tensor.group >= 0, "group", tensor.group, "must not be negative");
  require(element_bytes(tensor.type) > 0, "type", static_cast<int>(tensor.type), "is not an element type");
  std::int64_t elements = 1;
  for (const std::int64_t extent : tensor.shape) {
    require(extent >= 1 && extent <= extent_max / elements, "shape", extent,
            "extents must be >= 1 and their product at most 2^40");
    elements *= extent;
  }
  require(tensor.kind == StateKind::recurrent || tensor.shape[2] == 1, "shape", tensor.shape[2],
          "a conv tensor has two extents");
}

/// Hashes field by field, so that neither padding nor byte order reaches the result.
std::uint64_t fingerprint_of(std::span<const StateTensorSpec> tensors) {
  std::uint64_t hash = tensors.size();
  const auto mix = [&hash](std::int64_t field) {
    unsigned char bytes[8];
    for (unsigned i = 0; i < 8; ++i)
      bytes[i] = static_cast<unsigned char>(static_cast<std::uint64_t>(field) >> (8 * i));
    hash = XXH3_64bits_withSeed(bytes, sizeof bytes, hash);
  };
  for (const StateTensorSpec& tensor : tensors) {
    mix(tensor.layer);
    mix(tensor.group);
    mix(static_cast<int>(tensor.kind));
    mix(static_cast<int>(tensor.type));
    mix(tensor.kind == StateKind::conv ? static_cast<int>(tensor.conv_layout) : 0);
    for (const std::int64_t extent : tensor.shape) mix(extent);
  }
  return hash;
}

}  // namespace

StateSpec::StateSpec(std::vector<StateTensorSpec> tensors) : tensors_(std::move(tensors)) {
  require(!tensors_.empty(), "tensors", tensors_.size(), "a state has at least one tensor");
  for (const StateTensorSpec& tensor : tensors_) {
    validate(tensor);
    slot_bytes_ += tensor.natural_bytes();
    require(slot_bytes_ <= slot_bytes_max, "slot_bytes", slot_bytes_, "must be at most 2^40");
  }
  fingerprint_ = fingerprint_of(tensors_);
}

StateSpec StateSpec::uniform(std::int32_t layers, const ConvShape& conv, const RecurrentShape& recurrent) {
  require(layers >= 1, "layers", layers, "must be >= 1");
  std::vector<StateTensorSpec> tensors;
  for (std::int32_t layer = 0; layer < layers; ++layer) {
    if (conv.window != 0)
      tensors.push_back({.layer = layer,
                         .kind = StateKind::conv,
                         .type = conv.type,
                         .conv_layout = conv.layout,
                         .shape = {conv.window, conv.dim, 1}});
    if (recurrent.shape[0] != 0)
      tensors.push_back(
          {.layer = layer, .kind = StateKind::recurrent, .type = recurrent.type, .shape = recurrent.shape});
  }
  return StateSpec(std::move(tensors));
}

}  // namespace stateport
