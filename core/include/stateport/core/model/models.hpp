// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/core/model/model_layout.hpp>
#include <stateport/core/model/state_spec.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

/// The state shapes of public hybrid models (tensor parallel size 1).
namespace stateport::models {

struct ModelInfo {
  /// Lower case, for example "qwen3-next-80b-a3b". Of a config: its model type, for example "qwen3_5_moe_text".
  std::string_view name;
  std::string_view kind;  ///< mamba1, mamba2, gdn, kda, linear_attn or short_conv
  std::int32_t layers = 0;
  std::int32_t state_layers = 0;
  ConvShape conv;
  RecurrentShape recurrent;
  /// KV bytes of one token over all attention layers (bf16); none: public configs do not determine it.
  std::optional<std::size_t> kv_bytes_per_token;
  /// How far the row was checked against public configs.
  std::string_view status;
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
/// granitemoehybrid, jamba, kimi_linear, lara_mini, lfm2, lfm2_moe, lfm3, nemotron_h, olmo_hybrid, qwen3_5,
/// qwen3_5_moe, qwen3_next, and models with images or sound whose text_config or llm_config has one of these types, as
/// kimi_k3 has. Members that transformers 5.24 derives may be absent or null: kinds of layers, head sizes, numbers of
/// KV heads. States in the model's own type have that of `dtype` (`torch_dtype`), bf16 without one. The recurrent
/// states of GDN but for qwen3_next, of KDA and of linear attention are fp32, and so are those of nemotron_h, unless
/// the config names their type. KV is unknown for models with sliding windows or an index of keys. Layers that only
/// propose drafts do not count.
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
