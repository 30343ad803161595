// SPDX-License-Identifier: Apache-2.0
#include "delta_net_layer.hpp"

namespace stateport::engine {
namespace {

void to_unit_length(std::span<float> x) {
  float sum = 1e-6f;
  for (const float value : x) sum += value * value;
  const float scale = 1.0f / std::sqrt(sum);
  for (float& value : x) value *= scale;
}

}  // namespace

DeltaNetLayer::DeltaNetLayer(WeightSource& source) : in_(source), conv_(source), out_(source) {
  for (float& decay : decay_) decay = 0.05f + 0.04f * (1.0f + source.next());  // slow: a wrong state stays visible
}

Hidden DeltaNetLayer::operator()(const Hidden& x, std::span<float> conv, std::span<float> recurrent) const {
  const auto projected = in_(x);
  auto mixed = conv_(std::span(projected).first<conv_dim>(), conv);
  const auto gate = std::span(projected).subspan<conv_dim, values>();
  const auto correction = std::span(projected).subspan<conv_dim + values, heads>();
  const auto decay = std::span(projected).last<heads>();

  std::array<float, values> y = {};
  for (std::size_t h = 0; h < heads; ++h) {
    const auto query = std::span(mixed).subspan(h * key_dim, key_dim);
    const auto key = std::span(mixed).subspan(keys + h * key_dim, key_dim);
    const auto value = std::span(mixed).subspan(2 * keys + h * value_dim, value_dim);
    const auto state = recurrent.subspan(h * key_dim * value_dim, key_dim * value_dim);
    to_unit_length(query);
    to_unit_length(key);
    const float keep = std::exp(-softplus(decay[h]) * decay_[h]);
    const float strength = sigmoid(correction[h]);
    std::array<float, value_dim> change = {};
    for (std::size_t k = 0; k < key_dim; ++k)
      for (std::size_t v = 0; v < value_dim; ++v) change[v] += key[k] * (state[k * value_dim + v] *= keep);
    for (std::size_t v = 0; v < value_dim; ++v) change[v] = strength * (value[v] - change[v]);
    for (std::size_t k = 0; k < key_dim; ++k)
      for (std::size_t v = 0; v < value_dim; ++v)
        y[h * value_dim + v] += query[k] * (state[k * value_dim + v] += key[k] * change[v]);
  }
  normalize(y);
  for (std::size_t i = 0; i < values; ++i) y[i] *= silu(gate[i]);
  return out_(y);
}

}  // namespace stateport::engine
