// SPDX-License-Identifier: Apache-2.0
#include "mamba2_layer.hpp"

namespace stateport::engine {

Mamba2Layer::Mamba2Layer(WeightSource& source) : in_(source), conv_(source), out_(source) {
  for (std::size_t h = 0; h < heads; ++h) {
    decay_[h] = 0.05f + 0.04f * (1.0f + source.next());  // slow: a wrong state stays visible
    step_bias_[h] = source.next();
    skip_[h] = source.next();
  }
}

Hidden Mamba2Layer::operator()(const Hidden& x, std::span<float> conv, std::span<float> recurrent) const {
  const auto projected = in_(x);
  const auto gate = std::span(projected).first<inner>();
  const auto steps = std::span(projected).last<heads>();
  const auto mixed = conv_(std::span(projected).subspan<inner, conv_dim>(), conv);
  const auto inputs = std::span(mixed).first<inner>();
  const auto b = std::span(mixed).subspan<inner, groups * state_dim>();
  const auto c = std::span(mixed).last<groups * state_dim>();

  std::array<float, inner> y;
  for (std::size_t h = 0; h < heads; ++h) {
    const float step = softplus(steps[h] + step_bias_[h]);
    const float keep = std::exp(-step * decay_[h]);
    const std::size_t group = h / (heads / groups) * state_dim;
    for (std::size_t p = 0; p < head_dim; ++p) {
      const float input = inputs[h * head_dim + p];
      const auto state = recurrent.subspan((h * head_dim + p) * state_dim, state_dim);
      for (std::size_t n = 0; n < state_dim; ++n) state[n] = keep * state[n] + step * input * b[group + n];
      float sum = skip_[h] * input;
      for (std::size_t n = 0; n < state_dim; ++n) sum += state[n] * c[group + n];
      y[h * head_dim + p] = sum;
    }
  }
  normalize(y);
  for (std::size_t i = 0; i < inner; ++i) y[i] *= silu(gate[i]);
  return out_(y);
}

}  // namespace stateport::engine
