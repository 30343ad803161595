// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/state_spec.hpp>
#include <stateport/core/tree/prefix_types.hpp>

#include "attention_layer.hpp"
#include "delta_net_layer.hpp"
#include "mamba2_layer.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <variant>
#include <vector>

namespace stateport::engine {

/// The state of one sequence on the host, as the layer maths uses it: per recurrent layer the last three inputs of its
/// convolution, oldest first, and its recurrent state. All zero before the first token.
struct ModelState {
  struct Layer {
    std::vector<float> conv;       ///< [3, dim]
    std::vector<float> recurrent;  ///< [shape of the layer]
    friend bool operator==(const Layer&, const Layer&) = default;
  };
  std::vector<Layer> layers;

  /// Bit for bit; NaN is never equal.
  friend bool operator==(const ModelState&, const ModelState&) = default;
};

struct ModelOptions {
  std::uint64_t seed = 1;
  float noise = 0.0f;                    ///< > 0: a draft model, near the model of the same seed
  ElementType type = ElementType::fp32;  ///< that states and KV are kept in
};

/// How states lie in a store.
struct StateLayout {
  std::int64_t conv_window = static_cast<std::int64_t>(conv_history);  ///< inputs kept; more than three for drafts
  ConvLayout conv_layout = ConvLayout::sd;
  ElementType type = ElementType::fp32;
};

/// A hybrid language model: embedding, then Mamba-2, gated delta net and attention in turn, twice, each followed by an
/// MLP, greedy sampling. Plain float32, one token after the other in a fixed order of sums, states rounded to their
/// type after each: a sequence gives the same bits however it is cut into chunks. Thread-safe: it does not change.
class Model {
 public:
  static constexpr std::size_t state_layers = 4;
  static constexpr std::size_t attention_layers = 2;

  explicit Model(const ModelOptions& options = {});

  [[nodiscard]] static ModelState empty_state();
  /// Of these state layers: even ones are Mamba-2, odd ones delta nets.
  [[nodiscard]] static StateSpec state_spec(const StateLayout& layout, std::span<const std::size_t> layers);

  /// Feeds one token. `row` names the KV of every token up to this one. Returns the input of sample().
  [[nodiscard]] Hidden feed(Token token, ModelState& state, KvStore& kv, std::span<const KvIndex> row) const;
  [[nodiscard]] ElementType type() const noexcept { return type_; }
  /// The next token that is more likely than all but `rank` others. On a tie the smaller id is.
  [[nodiscard]] Token sample(const Hidden& hidden, std::size_t rank = 0) const;

 private:
  static constexpr std::size_t mlp_size = 24;
  using Mixer = std::variant<Mamba2Layer, DeltaNetLayer, AttentionLayer>;
  struct Layer {
    Mixer mixer;
    Matrix<2 * mlp_size, hidden_size> mlp_in;
    Matrix<hidden_size, mlp_size> mlp_out;
  };
  [[nodiscard]] static Layer make_layer(std::size_t index, WeightSource& source);

  ElementType type_;
  WeightSource source_;  ///< before the weights that come from it
  Matrix<vocabulary, hidden_size> embedding_;
  std::vector<Layer> layers_;
  Matrix<vocabulary, hidden_size> head_;
};

}  // namespace stateport::engine
