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
  std::string_view name;  ///< lower case, for example "qwen3-next-80b-a3b"
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
