// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/model_layout.hpp>
#include <stateport/core/model/state_spec.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

/// The state shapes of public hybrid models (tensor parallel size 1).
namespace stateport::models {

/// States of some layers of a model: each of `layers` layers has `per_layer` of them. A public config says how many
/// layers have them; the numbers from first_layer on stand for these layers. A window of keys or values is recurrent:
/// [heads, window - 1, head size]. Integers are int8, a token's bytes along the channels.
struct LayerStates {
  std::int32_t first_layer = 0;
  std::int32_t layers = 0;
  std::int32_t per_layer = 1;
  StateTensorSpec tensor;
  /// Heads that tensor-parallel ranks share, along the channels or the first extent. 1: each rank has the whole tensor.
  std::int32_t parts = 1;

  static constexpr LayerStates of(std::int64_t first_layer, std::int64_t layers, std::int32_t per_layer,
                                  const StateTensorSpec& tensor, std::int64_t parts = 1) {
    return {static_cast<std::int32_t>(first_layer), static_cast<std::int32_t>(layers), per_layer, tensor,
            static_cast<std::int32_t>(parts)};
  }
  static constexpr LayerStates convolutions(std::int64_t first_layer, std::int64_t layers, std::int32_t per_layer,
                                            const ConvShape& shape, std::int64_t parts = 1) {
    return of(first_layer, layers, per_layer, StateTensorSpec::conv(0, shape), parts);
  }
  /// Keys and values of layers that attend to the last `window` tokens, the current one among them.
  static constexpr LayerStates kv_windows(std::int64_t first_layer, std::int64_t layers, std::int64_t heads,
                                          std::int64_t window, std::int64_t head_size,
                                          ElementType type = ElementType::bf16) {
    return of(first_layer, layers, 2, {.type = type, .shape = {heads, window - 1, head_size}}, heads);
  }
};

struct ModelInfo {
  /// Lower case, for example "qwen3-next-80b-a3b". Of a config: its model type, for example "qwen3_5_moe_text".
  std::string_view name;
  std::string_view kind;  ///< mamba1, mamba2, gdn, kda, linear_attn, short_conv or cca
  std::int32_t layers = 0;
  std::int32_t state_layers = 0;  ///< that have more state than a window of KV
  ConvShape conv;                 ///< of each of them, as `recurrent` is. Empty: there is none
  RecurrentShape recurrent;
  /// KV bytes of one token over all layers that attend to all tokens (bf16); none: public configs do not determine it.
  std::optional<std::size_t> kv_bytes_per_token;
  /// How far the row was checked against public configs.
  std::string_view status;
  /// States beside `conv` and `recurrent`: of layers with several states, or with windows of KV. Entries that are not
  /// used have no layers.
  std::array<LayerStates, 4> more = {};
};

/// The choices that an engine has for a given model.
struct SpecOptions {
  std::int32_t drafts = 0;  ///< each draft token adds one conv token
  ConvLayout conv_layout = ConvLayout::sd;
  std::optional<ElementType> recurrent_type;  ///< instead of the catalogue's
};

[[nodiscard]] std::span<const ModelInfo> all() noexcept;

/// Throws InvalidArgument that lists the known names. Names are compared without case.
[[nodiscard]] const ModelInfo& info(std::string_view name);

/// The model of a checkpoint, from the text of its config.json (Hugging Face), as a row of the catalogue: for tensor
/// parallel size 1, with KV in bf16. `name`, `kind` and `status` are views of literals.
///
/// Reads the model types bailing_hybrid (Ling 2.5 to 3.0), bailing_moe_linear, bamba, falcon_h1, glm5_next,
/// granitemoehybrid, inkling, inkling2, inkling2_loop, jamba, kimi_linear, lara_mini, lfm2, lfm2_moe, lfm3, nemotron_h,
/// olmo_hybrid, qwen3_5, qwen3_5_moe, qwen3_next, qwen4_exp, zaya, and models with images or sound whose text_config or
/// llm_config has one of these types, as kimi_k3 has. Members that transformers 5.24 derives may be absent or null:
/// kinds of layers, head sizes, numbers of KV heads. States in the model's own type have that of `dtype`
/// (`torch_dtype`), bf16 without one. The recurrent states of GDN but for qwen3_next, of KDA and of linear attention
/// are fp32, and so are those of nemotron_h, unless the config names their type. The convolutions of Inkling are fp32.
/// Sliding windows are states, in the model's own type. KV is unknown for models with an index of keys, and for windows
/// whose size the config does not say. Layers that only propose drafts do not count; a layer that runs several times
/// counts as often.
///
/// Throws InvalidArgument that names the member and its value: a text that is not JSON, another model type, a member
/// that is absent, has another type or lies outside of its limits (4,096 layers, 2^20 otherwise), layers that
/// contradict one another, a model without recurrent layers, a state of more than 2^40 bytes. O(text + layers).
[[nodiscard]] ModelInfo from_config(std::string_view text);

/// The state spec of one model. Throws InvalidArgument for negative drafts.
[[nodiscard]] StateSpec spec(const ModelInfo& model, const SpecOptions& options = {});
/// The same for a name. Throws as info() and spec().
[[nodiscard]] StateSpec find(std::string_view name, const SpecOptions& options = {});

/// The state spec with its split over tensor-parallel ranks. Heads are split, as are groups (Mamba-2) and key heads
/// (GDN). If there are fewer groups or key heads than ranks, neighbouring ranks hold the same one. Throws as spec().
[[nodiscard]] ModelLayout layout(const ModelInfo& model, const SpecOptions& options = {});
/// The same for a name. Throws as find().
[[nodiscard]] ModelLayout layout(std::string_view name, const SpecOptions& options = {});

}  // namespace stateport::models
