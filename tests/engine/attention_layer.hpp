// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/tree/prefix_types.hpp>

#include "kv_store.hpp"
#include "model_shape.hpp"
#include "weights.hpp"

#include <cstddef>
#include <span>

namespace stateport::engine {

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
