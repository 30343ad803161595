// SPDX-License-Identifier: Apache-2.0
#include <stateport/kernels/state_store.hpp>

#include <stateport/core/model/error.hpp>

#include <cstdint>

namespace stateport {
namespace {

constexpr std::size_t tensor_alignment = MemoryResource::default_alignment;
constexpr std::size_t slot_alignment = 16;          // one vector access of the kernels
constexpr std::size_t bytes_max = PTRDIFF_MAX / 2;  // rounding up to an alignment does not overflow

constexpr std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

/// Offsets and strides of an owned store, with base still relative to its start.
struct Arrangement {
  std::vector<StateTensorView> tensors;
  std::vector<std::size_t> offsets;
  std::size_t bytes = 0;
};

Arrangement arrange(const StateSpec& spec, const StoreOptions& options) {
  require(options.slots >= 1, "slots", options.slots, "must be >= 1");
  const auto slots = static_cast<std::size_t>(options.slots);
  const bool layer_major = options.layout == StoreLayout::layer_major;
  Arrangement result;
  std::size_t offset = 0;
  for (const StateTensorSpec& tensor : spec.tensors()) {
    const std::size_t stride = round_up(tensor.extent_bytes(), slot_alignment);
    offset = round_up(offset, layer_major ? tensor_alignment : slot_alignment);
    require(offset <= bytes_max && stride <= (bytes_max - offset) / slots, "slots", options.slots,
            "take more than memory has");
    result.offsets.push_back(offset);
    result.tensors.push_back({.spec = tensor, .slot_stride_bytes = static_cast<std::int64_t>(stride)});
    offset += layer_major ? stride * slots : stride;
  }
  const std::size_t image = round_up(offset, tensor_alignment);
  require(layer_major || image <= bytes_max / slots, "slots", options.slots, "take more than memory has");
  if (!layer_major)
    for (StateTensorView& tensor : result.tensors) tensor.slot_stride_bytes = static_cast<std::int64_t>(image);
  result.bytes = layer_major ? offset : image * slots;
  return result;
}

StateSpec spec_of(std::span<const StateTensorView> tensors) {
  std::vector<StateTensorSpec> specs;
  for (const StateTensorView& tensor : tensors) specs.push_back(tensor.spec);
  return StateSpec(std::move(specs));
}

}  // namespace

StateStore::StateStore(MemoryResource& resource, StateSpec spec, const StoreOptions& options, const Stream& stream)
    : spec_(std::move(spec)), slots_(options.slots) {
  Arrangement arrangement = arrange(spec_, options);
  memory_ = Buffer(resource, arrangement.bytes, tensor_alignment, stream);
  tensors_ = std::move(arrangement.tensors);
  for (std::size_t i = 0; i < tensors_.size(); ++i) tensors_[i].base = memory_.as<std::byte>() + arrangement.offsets[i];
}

StateStore::StateStore(StateSpec spec, std::vector<StateTensorView> tensors, std::int32_t slots)
    : spec_(std::move(spec)), tensors_(std::move(tensors)), slots_(slots) {
  // The spec replaces strides {0, 0}.
  for (std::size_t i = 0; i < tensors_.size(); ++i) tensors_[i].spec = spec_.tensors()[i];
}

StateStore StateStore::view(std::span<const StateTensorView> tensors, std::int32_t slots) {
  require(slots >= 1, "slots", slots, "must be >= 1");
  StateSpec spec = spec_of(tensors);
  for (const StateTensorView& tensor : tensors) {
    require(tensor.base != nullptr, "base", "nullptr", "must point to slot 0");
    require(tensor.slot_stride_bytes >= static_cast<std::int64_t>(tensor.spec.extent_bytes()), "slot_stride_bytes",
            tensor.slot_stride_bytes, "must be at least the bytes of a slot, from its first element to its last");
    require(tensor.slot_stride_bytes <= static_cast<std::int64_t>(bytes_max) / slots, "slot_stride_bytes",
            tensor.slot_stride_bytes, "puts slots where no memory is");
  }
  return {std::move(spec), {tensors.begin(), tensors.end()}, slots};
}

StateStore::StateStore(StateStore&&) noexcept = default;
StateStore& StateStore::operator=(StateStore&&) noexcept = default;
StateStore::~StateStore() = default;

}  // namespace stateport
