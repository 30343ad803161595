// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/tree/prefix_types.hpp>

#include "model_shape.hpp"
#include "weights.hpp"

#include <cstddef>
#include <limits>
#include <span>
#include <vector>

namespace stateport::engine {

/// The engine's KV: a key and a value per index and attention layer. What was never written is NaN.
class KvStore {
 public:
  static constexpr std::size_t head_dim = 8;

  KvStore(std::size_t indices, std::size_t layers)
      : layers_(layers), values_(indices * layers * 2 * head_dim, std::numeric_limits<float>::quiet_NaN()) {}

  [[nodiscard]] std::span<float, head_dim> key(KvIndex index, std::size_t layer) { return at(index, layer, 0); }
  [[nodiscard]] std::span<float, head_dim> value(KvIndex index, std::size_t layer) { return at(index, layer, 1); }

 private:
  [[nodiscard]] std::span<float, head_dim> at(KvIndex index, std::size_t layer, std::size_t part) {
    const std::size_t first = ((static_cast<std::size_t>(index) * layers_ + layer) * 2 + part) * head_dim;
    return std::span(values_).subspan(first).first<head_dim>();
  }

  std::size_t layers_;
  std::vector<float> values_;  ///< [indices, layers, 2, head_dim]
};

/// Causal attention over paged KV; two query heads share one key head. Positions come from the recurrent layers.
class AttentionLayer {
 public:
  static constexpr std::size_t heads = 2, head_dim = KvStore::head_dim;

  AttentionLayer(WeightSource& source, std::size_t index) : in_(source), out_(source), index_(index) {}
  /// `row` names the KV of every token up to this one, whose KV is written.
  [[nodiscard]] Hidden operator()(const Hidden& x, KvStore& kv, std::span<const KvIndex> row) const;

 private:
  Matrix<(heads + 2) * head_dim, hidden_size> in_;  ///< queries, key, value
  Matrix<hidden_size, heads * head_dim> out_;
  std::size_t index_;  ///< among the attention layers
};

}  // namespace stateport::engine
