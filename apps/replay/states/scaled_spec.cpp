// SPDX-License-Identifier: Apache-2.0
#include "states/scaled_spec.hpp"

#include <stateport/core/model/element_type.hpp>
#include <stateport/core/model/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <optional>
#include <vector>

namespace stateport::replay {
namespace {

constexpr std::size_t word_bytes = 16;

/// `extent` times `factor`, rounded down to a multiple of `quantum`, at least one quantum. Divides `factor` by the
/// ratio that it achieved.
std::int64_t shrink(std::int64_t extent, std::int64_t quantum, double& factor) {
  if (factor >= 1) return extent;
  const auto wanted = static_cast<std::int64_t>(static_cast<double>(extent) * factor);
  const std::int64_t scaled = std::max(quantum, wanted / quantum * quantum);
  factor = std::min(1.0, factor * static_cast<double>(extent) / static_cast<double>(scaled));
  return scaled;
}

StateTensorSpec shrink(StateTensorSpec tensor, double factor) {
  const auto quantum = static_cast<std::int64_t>(word_bytes / element_bytes(tensor.type));
  if (tensor.kind == StateKind::conv) {
    const ConvLayout layout = tensor.is(ConvLayout::sd) ? ConvLayout::sd : ConvLayout::ds;
    tensor.shape[1] = shrink(tensor.shape[1], quantum, factor);  // channels: the window keeps its tokens
    tensor.strides = ConvStrides::of(layout, tensor.window(), tensor.dim());
    return tensor;
  }
  tensor.shape[0] = shrink(tensor.shape[0], 1, factor);
  tensor.shape[1] = shrink(tensor.shape[1], 1, factor);
  tensor.shape[2] = shrink(tensor.shape[2], 1, factor);
  // Whatever is left must still be whole words.
  const std::int64_t rows = tensor.shape[0] * tensor.shape[1];
  const std::int64_t step = quantum / std::gcd(rows, quantum);
  tensor.shape[2] = (tensor.shape[2] + step - 1) / step * step;
  return tensor;
}

std::int32_t layer_count(const StateSpec& spec) {
  std::int32_t layers = 0;
  for (const StateTensorSpec& tensor : spec.tensors()) layers = std::max(layers, tensor.layer + 1);
  return layers;
}

/// `kept` layers of the model, one of each of as many runs of layers: layers of one kind may lie side by side.
StateSpec scaled(const StateSpec& full, std::int32_t kept, double factor) {
  const std::int64_t layers = layer_count(full);
  std::vector<StateTensorSpec> tensors;
  for (StateTensorSpec tensor : full.tensors()) {
    const std::int64_t number = tensor.layer * std::int64_t{kept} / layers;
    if ((tensor.layer + 1) * std::int64_t{kept} / layers == number) continue;
    tensor.layer = static_cast<std::int32_t>(number);
    tensors.push_back(shrink(tensor, factor));
  }
  return StateSpec(std::move(tensors));
}

/// The largest spec with this many layers that fits, if one does.
std::optional<StateSpec> fit_layers(const StateSpec& full, std::int32_t layers, std::size_t state_bytes_max) {
  constexpr double steps = 0.9;  // rounding to whole words can miss the mark, so approach it from above
  constexpr double smallest = 1e-9;
  const auto bytes = static_cast<double>(scaled(full, layers, 1).slot_bytes());
  for (double factor = std::min(1.0, static_cast<double>(state_bytes_max) / bytes); factor > smallest;
       factor *= steps) {
    StateSpec spec = scaled(full, layers, factor);
    if (spec.slot_bytes() <= state_bytes_max) return spec;
  }
  return std::nullopt;
}

std::string describe_tensor(const StateTensorSpec& tensor) {
  if (tensor.kind == StateKind::conv)
    return fmt::format(", conv [{}, {}] {}", tensor.window(), tensor.dim(), name(tensor.type));
  return fmt::format(", recurrent [{}, {}, {}] {}", tensor.shape[0], tensor.shape[1], tensor.shape[2],
                     name(tensor.type));
}

}  // namespace

StateSpec scale_to_fit(const StateSpec& full, std::size_t state_bytes_max) {
  constexpr std::int32_t fewest_real_layers = 4;
  const std::int32_t layers = layer_count(full);
  if (full.slot_bytes() <= state_bytes_max) return scaled(full, layers, 1);
  std::int32_t affordable = layers - 1;
  while (affordable > 0 && scaled(full, affordable, 1).slot_bytes() > state_bytes_max) --affordable;
  for (std::int32_t kept = std::max(affordable, std::min(layers, fewest_real_layers)); kept > 0; --kept)
    if (std::optional<StateSpec> spec = fit_layers(full, kept, state_bytes_max)) return *std::move(spec);
  require(false, "state_bytes_max", state_bytes_max,
          fmt::format("at least the smallest form of this model's state, about {} bytes",
                      scaled(full, 1, 1e-9).slot_bytes()));
  return full;
}

std::string describe(const StateSpec& spec) {
  std::string text = fmt::format("{} layers", layer_count(spec));
  for (const StateKind kind : {StateKind::conv, StateKind::recurrent}) {
    const auto first = std::ranges::find(spec.tensors(), kind, &StateTensorSpec::kind);
    if (first != spec.tensors().end()) text += describe_tensor(*first);
  }
  return text;
}

}  // namespace stateport::replay
