// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "conv.hpp"
#include "model_shape.hpp"
#include "weights.hpp"

#include <array>
#include <cstddef>
#include <span>

namespace stateport::engine {

/// Mamba-2: a selective scan with a scalar decay per head; heads of a group share B and C.
class Mamba2Layer {
 public:
  static constexpr std::size_t heads = 4, head_dim = 4, groups = 2, state_dim = 4;
  static constexpr std::size_t inner = heads * head_dim;
  static constexpr std::size_t conv_dim = inner + 2 * groups * state_dim;  ///< x, B, C
  static constexpr std::array<std::size_t, 3> recurrent_shape = {heads, head_dim, state_dim};

  explicit Mamba2Layer(WeightSource& source);
  /// One token; `conv` [3, conv_dim] and `recurrent` [heads, head_dim, state_dim] become the state after it.
  [[nodiscard]] Hidden operator()(const Hidden& x, std::span<float> conv, std::span<float> recurrent) const;

 private:
  Matrix<inner + conv_dim + heads, hidden_size> in_;  ///< gate, convolved inputs, time steps
  CausalConv<conv_dim> conv_;
  std::array<float, heads> decay_, step_bias_, skip_;
  Matrix<hidden_size, inner> out_;
};

}  // namespace stateport::engine
