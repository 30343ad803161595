// SPDX-License-Identifier: Apache-2.0
#include "model.hpp"

#include "numbers.hpp"

#include <algorithm>
#include <array>
#include <limits>

namespace stateport::engine {
namespace {

struct LayerShape {
  std::size_t conv_dim;
  std::array<std::size_t, 3> recurrent;
};

/// By state layer: Mamba-2 and delta net in turn.
constexpr LayerShape shape_of(std::size_t layer) {
  if (layer % 2 == 0) return {Mamba2Layer::conv_dim, Mamba2Layer::recurrent_shape};
  return {DeltaNetLayer::conv_dim, DeltaNetLayer::recurrent_shape};
}

}  // namespace

Model::Layer Model::make_layer(std::size_t index, WeightSource& source) {
  Mixer mixer = index % 3 == 0   ? Mixer(std::in_place_type<Mamba2Layer>, source)
                : index % 3 == 1 ? Mixer(std::in_place_type<DeltaNetLayer>, source)
                                 : Mixer(std::in_place_type<AttentionLayer>, source, index / 3);
  Matrix<2 * mlp_size, hidden_size> in(source);
  return {std::move(mixer), std::move(in), Matrix<hidden_size, mlp_size>(source)};
}

Model::Model(const ModelOptions& options)
    : type_(options.type), source_(options.seed, options.noise), embedding_(source_), head_(source_, 2.0f) {
  for (std::size_t i = 0; i < state_layers + attention_layers; ++i) layers_.push_back(make_layer(i, source_));
}

ModelState Model::empty_state() {
  ModelState state;
  for (std::size_t i = 0; i < state_layers; ++i) {
    const LayerShape shape = shape_of(i);
    state.layers.push_back({std::vector<float>(conv_history * shape.conv_dim),
                            std::vector<float>(shape.recurrent[0] * shape.recurrent[1] * shape.recurrent[2])});
  }
  return state;
}

StateSpec Model::state_spec(const StateLayout& layout, std::span<const std::size_t> layers) {
  std::vector<StateTensorSpec> tensors;
  for (const std::size_t layer : layers) {
    const LayerShape shape = shape_of(layer);
    const auto index = static_cast<std::int32_t>(layer);
    tensors.push_back(StateTensorSpec::conv(index, {.window = layout.conv_window,
                                                    .dim = static_cast<std::int64_t>(shape.conv_dim),
                                                    .type = layout.type,
                                                    .layout = layout.conv_layout}));
    StateTensorSpec recurrent{.layer = index, .kind = StateKind::recurrent, .type = layout.type};
    std::ranges::transform(shape.recurrent, recurrent.shape.begin(),
                           [](std::size_t extent) { return static_cast<std::int64_t>(extent); });
    tensors.push_back(recurrent);
  }
  return StateSpec(std::move(tensors));
}

Hidden Model::feed(Token token, ModelState& state, KvStore& kv, std::span<const KvIndex> row) const {
  Hidden x = embedding_.row(static_cast<std::size_t>(token));
  std::size_t state_layer = 0;
  for (const Layer& layer : layers_) {
    const auto normal = [&x] {
      Hidden copy = x;
      normalize(copy);
      return copy;
    };
    Hidden change;
    if (const auto* attention = std::get_if<AttentionLayer>(&layer.mixer)) {
      change = (*attention)(normal(), kv, row);
    } else {
      ModelState::Layer& held = state.layers[state_layer++];
      const auto* mamba = std::get_if<Mamba2Layer>(&layer.mixer);
      change = mamba != nullptr ? (*mamba)(normal(), held.conv, held.recurrent)
                                : std::get<DeltaNetLayer>(layer.mixer)(normal(), held.conv, held.recurrent);
      round_numbers(type_, held.conv);
      round_numbers(type_, held.recurrent);
    }
    for (std::size_t i = 0; i < hidden_size; ++i) x[i] += change[i];
    const auto up = layer.mlp_in(normal());
    std::array<float, mlp_size> gated;
    for (std::size_t i = 0; i < mlp_size; ++i) gated[i] = up[i] * silu(up[mlp_size + i]);
    change = layer.mlp_out(gated);
    for (std::size_t i = 0; i < hidden_size; ++i) x[i] += change[i];
  }
  normalize(x);
  return x;
}

Token Model::sample(const Hidden& hidden, std::size_t rank) const {
  auto logits = head_(hidden);
  for (; rank > 0; --rank) *std::ranges::max_element(logits) = std::numeric_limits<float>::lowest();
  return static_cast<Token>(std::ranges::max_element(logits) - logits.begin());
}

}  // namespace stateport::engine
