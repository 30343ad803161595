// SPDX-License-Identifier: Apache-2.0
#include "state_io.hpp"

#include <stateport/backends/transfer.hpp>

#include "numbers.hpp"

namespace stateport::engine {
namespace {

/// Of input `token`, channel `channel` in the memory order of the tensor.
std::size_t conv_index(const StateTensorSpec& spec, std::size_t token, std::size_t channel) {
  const auto [token_stride, channel_stride] = spec.conv_strides();
  return token * static_cast<std::size_t>(token_stride) + channel * static_cast<std::size_t>(channel_stride);
}

}  // namespace

void StateIo::load(const StateTensorView& tensor, SlotId slot) {
  staging_.resize(static_cast<std::size_t>(tensor.spec.element_count()));
  bytes_.resize(tensor.spec.natural_bytes());
  copy_bytes(stream_, bytes_.data(), tensor.slot_data(slot), bytes_.size());
  stream_.synchronize();
  load_numbers(tensor.spec.type, bytes_.data(), staging_);
}

void StateIo::save(const StateTensorView& tensor, SlotId slot) {
  bytes_.resize(tensor.spec.natural_bytes());
  save_numbers(tensor.spec.type, staging_, bytes_.data());
  copy_bytes(stream_, tensor.slot_data(slot), bytes_.data(), bytes_.size());
  stream_.synchronize();
}

void StateIo::read(SlotId conv_slot, std::int64_t bias, SlotId recurrent_slot, ModelState& state) {
  for (const StateTensorView& tensor : store_->tensors()) {
    ModelState::Layer& layer = state.layers[static_cast<std::size_t>(tensor.spec.layer)];
    load(tensor, tensor.spec.kind == StateKind::conv ? conv_slot : recurrent_slot);
    if (tensor.spec.kind == StateKind::recurrent) {
      layer.recurrent = staging_;
      continue;
    }
    const auto dim = static_cast<std::size_t>(tensor.spec.dim());
    for (std::size_t t = 0; t < conv_history; ++t)
      for (std::size_t c = 0; c < dim; ++c)
        layer.conv[t * dim + c] = staging_[conv_index(tensor.spec, static_cast<std::size_t>(bias) + t, c)];
  }
}

void StateIo::write_step(SlotId conv_slot, SlotId recurrent_slot, std::int64_t step, const ModelState& state) {
  for (const StateTensorView& tensor : store_->tensors()) {
    const ModelState::Layer& layer = state.layers[static_cast<std::size_t>(tensor.spec.layer)];
    if (tensor.spec.kind == StateKind::recurrent) {
      staging_ = layer.recurrent;
      save(tensor, recurrent_slot);
      continue;
    }
    load(tensor, conv_slot);
    const auto dim = static_cast<std::size_t>(tensor.spec.dim());
    for (std::size_t t = 0; t < conv_history; ++t)
      for (std::size_t c = 0; c < dim; ++c)
        staging_[conv_index(tensor.spec, static_cast<std::size_t>(step) + t, c)] = layer.conv[t * dim + c];
    save(tensor, conv_slot);
  }
}

void StateIo::poison(std::byte byte) const {
  for (const StateTensorView& tensor : store_->tensors())
    for (std::int32_t slot = 0; slot < store_->slots(); ++slot)
      fill_bytes(stream_, tensor.slot_data(SlotId{slot}), byte, tensor.spec.natural_bytes());
}

}  // namespace stateport::engine
