// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace stateport::engine {

/// Numbers in [-1, 1) that depend on the seed alone; with `noise` > 0 each is moved by up to so much. So a noisy model
/// is near the one with the same seed.
class WeightSource {
 public:
  explicit WeightSource(std::uint64_t seed, float noise = 0.0f)
      : exact_(seed), disturbed_(seed ^ 0x6e6f697365ull), noise_(noise) {}

  [[nodiscard]] float next() {
    const float value = unit(exact_);
    return noise_ > 0.0f ? value + noise_ * unit(disturbed_) : value;
  }

 private:
  /// splitmix64, its upper 24 bits.
  static float unit(std::uint64_t& state) {
    std::uint64_t z = (state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    z ^= z >> 31;
    return static_cast<float>(z >> 40) / 8388608.0f - 1.0f;
  }

  std::uint64_t exact_;
  std::uint64_t disturbed_;
  float noise_;
};

/// A dense layer [Rows, Columns] without bias. Sums run in order of columns: the same numbers on every call.
template <std::size_t Rows, std::size_t Columns>
class Matrix {
 public:
  explicit Matrix(WeightSource& source, float gain = 1.0f) : weights_(Rows * Columns) {
    const float scale = gain * std::sqrt(3.0f / static_cast<float>(Columns));
    for (std::size_t r = 0; r < Rows; ++r)
      for (std::size_t c = 0; c < Columns; ++c) weights_[c * Rows + r] = scale * source.next();
  }

  [[nodiscard]] std::array<float, Rows> operator()(std::span<const float, Columns> x) const {
    std::array<float, Rows> y = {};
    for (std::size_t c = 0; c < Columns; ++c)
      for (std::size_t r = 0; r < Rows; ++r) y[r] += weights_[c * Rows + r] * x[c];
    return y;
  }
  [[nodiscard]] std::array<float, Columns> row(std::size_t r) const {
    std::array<float, Columns> row;
    for (std::size_t c = 0; c < Columns; ++c) row[c] = weights_[c * Rows + r];
    return row;
  }

 private:
  std::vector<float> weights_;  ///< [Columns, Rows]: the sums of all rows run side by side
};

[[nodiscard]] inline float sigmoid(float x) {
  return 1.0f / (1.0f + std::exp(-x));
}
[[nodiscard]] inline float silu(float x) {
  return x * sigmoid(x);
}
[[nodiscard]] inline float softplus(float x) {
  return std::log1p(std::exp(x));
}

/// Scales to a root mean square of 1.
inline void normalize(std::span<float> x) {
  float sum = 0.0f;
  for (const float value : x) sum += value * value;
  const float scale = 1.0f / std::sqrt(sum / static_cast<float>(x.size()) + 1e-5f);
  for (float& value : x) value *= scale;
}

}  // namespace stateport::engine
