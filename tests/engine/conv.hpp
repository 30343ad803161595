// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "weights.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <vector>

namespace stateport::engine {

inline constexpr std::size_t conv_width = 4;
inline constexpr std::size_t conv_history = conv_width - 1;  ///< inputs that a conv state holds, oldest first

/// A causal convolution of every channel over the last four inputs, then silu.
template <std::size_t Dim>
class CausalConv {
 public:
  explicit CausalConv(WeightSource& source) : weights_(conv_width * Dim) {
    for (float& weight : weights_) weight = source.next();
  }

  /// `history` [3, Dim] loses its oldest input and gains x.
  [[nodiscard]] std::array<float, Dim> operator()(std::span<const float, Dim> x, std::span<float> history) const {
    std::array<float, Dim> y;
    for (std::size_t c = 0; c < Dim; ++c) {
      float sum = weights_[conv_history * Dim + c] * x[c];
      for (std::size_t t = 0; t < conv_history; ++t) sum += weights_[t * Dim + c] * history[t * Dim + c];
      y[c] = silu(sum);
    }
    std::copy(history.begin() + Dim, history.end(), history.begin());
    std::copy(x.begin(), x.end(), history.end() - Dim);
    return y;
  }

 private:
  std::vector<float> weights_;  ///< [4, Dim]
};

}  // namespace stateport::engine
