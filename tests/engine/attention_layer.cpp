// SPDX-License-Identifier: Apache-2.0
#include "attention_layer.hpp"

#include <algorithm>

namespace stateport::engine {

Hidden AttentionLayer::operator()(const Hidden& x, KvStore& kv, std::span<const KvIndex> row) const {
  const auto projected = in_(x);
  std::ranges::copy(std::span(projected).subspan(heads * head_dim, head_dim), kv.key(row.back(), index_).begin());
  std::ranges::copy(std::span(projected).last<head_dim>(), kv.value(row.back(), index_).begin());

  // The largest score is subtracted as it was found, so that the sums run once, in order of positions.
  std::array<float, heads* head_dim> y = {};
  for (std::size_t h = 0; h < heads; ++h) {
    const auto query = std::span(projected).subspan(h * head_dim, head_dim);
    const auto out = std::span(y).subspan(h * head_dim, head_dim);
    float largest = -std::numeric_limits<float>::infinity();
    float sum = 0.0f;
    for (const KvIndex position : row) {
      const auto key = kv.key(position, index_);
      float score = 0.0f;
      for (std::size_t i = 0; i < head_dim; ++i) score += query[i] * key[i];
      score *= 0.35355339f;  // 1 / sqrt(head_dim)
      if (score > largest) {
        const float shrink = std::exp(largest - score);
        sum *= shrink;
        for (float& value : out) value *= shrink;
        largest = score;
      }
      const float weight = std::exp(score - largest);
      const auto value = kv.value(position, index_);
      sum += weight;
      for (std::size_t i = 0; i < head_dim; ++i) out[i] += weight * value[i];
    }
    for (float& value : out) value /= sum;
  }
  return out_(y);
}

}  // namespace stateport::engine
