// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "conv.hpp"
#include "model_shape.hpp"
#include "weights.hpp"

#include <array>
#include <cstddef>
#include <span>

namespace stateport::engine {

/// Gated delta net: each head keeps a matrix from keys to values, decays it and corrects its answer for the key.
class DeltaNetLayer {
 public:
  static constexpr std::size_t heads = 2, key_dim = 4, value_dim = 6;
  static constexpr std::size_t keys = heads * key_dim, values = heads * value_dim;
  static constexpr std::size_t conv_dim = 2 * keys + values;  ///< queries, keys, values
  static constexpr std::array<std::size_t, 3> recurrent_shape = {heads, key_dim, value_dim};

  explicit DeltaNetLayer(WeightSource& source);
  /// One token; `conv` [3, conv_dim] and `recurrent` [heads, key_dim, value_dim] become the state after it.
  [[nodiscard]] Hidden operator()(const Hidden& x, std::span<float> conv, std::span<float> recurrent) const;

 private:
  Matrix<conv_dim + values + 2 * heads, hidden_size> in_;  ///< convolved inputs, gate, correction and decay
  CausalConv<conv_dim> conv_;
  std::array<float, heads> decay_;
  Matrix<hidden_size, values> out_;
};

}  // namespace stateport::engine
