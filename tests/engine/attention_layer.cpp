// SPDX-License-Identifier: Apache-2.0
#include "attention_layer.hpp"

#include <array>
#include <cmath>
#include <limits>

namespace stateport::engine {

Hidden AttentionLayer::operator()(const Hidden& x, KvStore& kv, std::span<const KvIndex> row) const {
  const auto projected = in_(x);
  using enum KvStore::Part;
  kv.write(row.back(), index_, key, std::span(projected).subspan<heads * head_dim, head_dim>());
  kv.write(row.back(), index_, value, std::span(projected).last<head_dim>());

  // The largest score is subtracted as it was found, so that the sums run once, in order of positions.
  std::array<float, heads* head_dim> y = {};
  for (std::size_t h = 0; h < heads; ++h) {
    const auto query = std::span(projected).subspan(h * head_dim, head_dim);
    const auto out = std::span(y).subspan(h * head_dim, head_dim);
    float largest = -std::numeric_limits<float>::infinity();
    float sum = 0.0f;
    for (const KvIndex position : row) {
      const KvStore::Numbers keys = kv.read(position, index_, key);
      float score = 0.0f;
      for (std::size_t i = 0; i < head_dim; ++i) score += query[i] * keys[i];
      score *= 0.35355339f;  // 1 / sqrt(head_dim)
      if (score > largest) {
        const float shrink = std::exp(largest - score);
        sum *= shrink;
        for (float& number : out) number *= shrink;
        largest = score;
      }
      const float weight = std::exp(score - largest);
      const KvStore::Numbers values = kv.read(position, index_, value);
      sum += weight;
      for (std::size_t i = 0; i < head_dim; ++i) out[i] += weight * values[i];
    }
    for (float& number : out) number /= sum;
  }
  return out_(y);
}

}  // namespace stateport::engine
