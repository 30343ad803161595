// SPDX-License-Identifier: Apache-2.0
#include <stateport/core/model/models.hpp>

#include <stateport/core/model/error.hpp>

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <utility>
#include <vector>

namespace stateport::models {
namespace {

constexpr ElementType fp32 = ElementType::fp32;
constexpr ElementType bf16 = ElementType::bf16;
constexpr std::optional<std::size_t> unknown;

// Mamba-2: conv dim = heads*head_dim + 2*groups*d_state, recurrent [heads, head_dim, d_state].
// Gated delta net: conv dim = 2*k_heads*dk + v_heads*dv, recurrent [v_heads, dv, dk]. KDA: conv 3*H*D, [H, D, D].
// Mamba-1: conv dim d_inner, recurrent [d_inner, d_state]. Short convolution: conv only. Conv states are bf16.
// clang-format off
constexpr auto catalogue = std::to_array<ModelInfo>({
    {"nemotron-h-8b-base", "mamba2", 52, 24, {3, 10240}, {{128, 64, 128}, fp32}, 16384,
     "verified (config copy; M counted in pattern)"},
    {"nemotron-nano-9b-v2", "mamba2", 56, 27, {3, 12288}, {{128, 80, 128}, fp32}, 16384, "verified"},
    {"nemotron-3-nano-30b-a3b", "mamba2", 52, 23, {3, 6144}, {{64, 64, 128}, fp32}, 6144,
     "verified (mamba_ssm_cache_dtype float32 in config)"},
    {"nemotron-3.5-lightning-30b-a3b", "mamba2", 52, 23, {3, 6144}, {{64, 64, 128}, fp32}, 6144,
     "verified (config copy of the NVFP4 checkpoint)"},
    {"nemotron-3-super-120b-a12b", "mamba2", 88, 40, {3, 10240}, {{128, 64, 128}, fp32}, 8192,
     "verified; 163.12 MiB/req with 1 draft in #49436"},
    {"nemotron-3-ultra-550b", "mamba2", 108, 48, {3, 18432}, {{256, 64, 128}, fp32}, 12288, "verified (config copy)"},
    {"nemotron-h-56b", "mamba2", 118, 54, {3, 20480}, {{256, 64, 256}, fp32}, 40960,
     "verified (config copy; M counted in pattern)"},
    {"nemotron-h-47b", "mamba2", 98, 44, {3, 20480}, {{256, 64, 256}, fp32}, unknown,
     "UNVERIFIED (memory of the paper)"},
    {"qwen3-next-80b-a3b", "gdn", 48, 36, {3, 8192}, {{32, 128, 128}, bf16}, 24576,
     "verified (block 560 with 3 drafts follows exactly)"},
    {"qwen3.5-0.8b", "gdn", 24, 18, {3, 6144}, {{16, 128, 128}, fp32}, 12288,
     "verified (dimensions in a public copy of its config)"},
    {"qwen3.5-2b", "gdn", 24, 18, {3, 6144}, {{16, 128, 128}, fp32}, 12288,
     "verified (dimensions in a public copy of its config)"},
    {"qwen3.5-4b", "gdn", 32, 24, {3, 8192}, {{32, 128, 128}, fp32}, 32768,
     "verified (dimensions in a public copy of its config)"},
    {"qwen3.5-9b", "gdn", 32, 24, {3, 8192}, {{32, 128, 128}, fp32}, 32768,
     "verified (49.88 MiB/req with 2 drafts, #49436)"},
    {"qwen3.5-27b", "gdn", 64, 48, {3, 10240}, {{48, 128, 128}, fp32}, 65536, "verified (config copy)"},
    {"qwen3.6-27b", "gdn", 64, 48, {3, 10240}, {{48, 128, 128}, fp32}, 65536,
     "verified (config copy of the NVFP4 checkpoint)"},
    {"qwen3.8-27b", "gdn", 64, 48, {3, 10240}, {{48, 128, 128}, fp32}, 65536,
     "verified (published as identical to qwen3.5-27b)"},
    {"qwen3.5-35b-a3b", "gdn", 40, 30, {3, 8192}, {{32, 128, 128}, fp32}, 20480,
     "verified (config copy; block-1088 arithmetic)"},
    {"qwen3.6-35b-a3b", "gdn", 40, 30, {3, 8192}, {{32, 128, 128}, fp32}, 20480,
     "verified (config copy of the NVFP4 checkpoint)"},
    {"qwen3.5-122b-a10b", "gdn", 48, 36, {3, 12288}, {{64, 128, 128}, fp32}, 24576, "verified (config copy)"},
    {"qwen3.5-397b-a17b", "gdn", 60, 45, {3, 12288}, {{64, 128, 128}, fp32}, 30720, "verified (config copy)"},
    {"qwen3.8-2.4t-a95b", "gdn", 92, 69, {3, 20480}, {{128, 128, 128}, fp32}, 94208,
     "dimensions verified (public copy of its config); fp32 as its family"},
    {"olmo-hybrid-7b", "gdn", 32, 24, {3, 11520}, {{30, 192, 96}, fp32}, 122880,
     "UNVERIFIED: defaults of transformers 5.24; fp32 assumed"},
    {"qwen3.8-flash-next", "gdn", 48, 36, {3, 10240}, {{48, 128, 128}, fp32}, unknown,
     "dimensions verified (public copy of its config); states of n-grams UNVERIFIED: transformers 5.24, in one layer, "
     "with hidden size 2560; KV is 24576 bytes a token and the keys of its indexer",
     {{LayerStates::convolutions(0, 1, 1, {9, 10240}),
       LayerStates::convolutions(0, 1, 1, {2, 8, ElementType::int8})}}},
    {"lara-4-mini", "gdn", 34, 14, {3, 4096}, {{16, 128, 128}, fp32}, 14336,
     "UNVERIFIED: defaults of transformers 5.24; fp32 assumed", {{LayerStates::kv_windows(14, 13, 4, 512, 128)}}},
    {"jamba-v0.1", "mamba1", 32, 28, {3, 8192}, {{8192, 16, 1}, bf16}, 16384, "verified"},
    {"jamba2-mini", "mamba1", 32, 28, {3, 8192}, {{8192, 16, 1}, bf16}, 16384,
     "UNVERIFIED: shapes of jamba-v0.1 assumed"},
    {"granite-4.0-h-tiny", "mamba2", 40, 36, {3, 3328}, {{48, 64, 128}, bf16}, unknown, "verified"},
    {"granite-4.0-h-350m", "mamba2", 32, 28, {3, 1792}, {{48, 32, 128}, bf16}, 4096, "verified (config copy)"},
    {"granite-4.0-h-small", "mamba2", 40, 36, {3, 8448}, {{128, 64, 128}, bf16}, 16384,
     "UNVERIFIED heads from a third-party memory-fit test"},
    {"falcon-h1-7b", "mamba2", 44, 44, {3, 3584}, {{24, 128, 256}, bf16}, 45056, "verified"},
    {"falcon-h1r-7b", "mamba2", 44, 44, {3, 3584}, {{24, 128, 256}, bf16}, 45056,
     "verified (a public copy says: as falcon-h1-7b)"},
    {"falcon-h1-34b", "mamba2", 72, 72, {3, 4608}, {{32, 128, 256}, bf16}, 147456,
     "UNVERIFIED: one group assumed; conv has 5120 channels with two"},
    {"falcon-h1-3b", "mamba2", 32, 32, {3, 4608}, {{32, 128, 256}, bf16}, 32768,
     "UNVERIFIED: table of transformers; one group assumed"},
    {"falcon-h1-1.5b", "mamba2", 24, 24, {3, 3584}, {{48, 64, 256}, bf16}, 24576,
     "verified (dimensions in public tests)"},
    {"falcon-h1-1.5b-deep", "mamba2", 66, 66, {3, 2048}, {{24, 64, 256}, bf16}, 67584,
     "UNVERIFIED: table of transformers; one group assumed"},
    {"falcon-h1-0.5b", "mamba2", 36, 36, {3, 1792}, {{24, 64, 128}, bf16}, 18432, "verified"},
    {"falcon-h1-tiny-90m", "mamba2", 24, 24, {3, 896}, {{24, 32, 64}, bf16}, 12288,
     "verified (dimensions in a converter's check)"},
    {"bamba-9b", "mamba2", 32, 29, {3, 8448}, {{128, 64, 128}, bf16}, unknown,
     "layer map + d_state verified; heads/groups UNVERIFIED"},
    {"zamba2-7b", "mamba2", 81, 81, {3, 7424}, {{112, 64, 64}, bf16}, unknown,
     "heads inferred from hidden 3584 x expand 2 / 64"},
    {"minimax-text-01", "linear_attn", 80, 70, {0, 0}, {{64, 128, 128}, fp32}, unknown,
     "UNVERIFIED (removed from vLLM v0.23)"},
    {"ring-2.5-1t", "linear_attn", 80, 70, {0, 0}, {{64, 128, 128}, fp32}, 11520,
     "UNVERIFIED: sglang-jax#887; fp32 assumed"},
    {"ling-2.5-1t", "linear_attn", 80, 70, {0, 0}, {{64, 128, 128}, fp32}, 11520,
     "UNVERIFIED: sglang-jax#887; fp32 assumed"},
    {"ring-mini-linear-2.0", "linear_attn", 20, 16, {0, 0}, {{16, 128, 128}, fp32}, 8192,
     "dimensions verified (config copy in a public test); fp32 assumed"},
    {"kimi-linear-48b-a3b", "kda", 27, 20, {3, 12288}, {{32, 128, 128}, fp32}, 8064, "verified"},
    {"kimi-k3", "kda", 93, 69, {3, 36864}, {{96, 128, 128}, fp32}, 27648, "verified (config copy)"},
    {"ling-3.0-flash", "kda", 42, 35, {3, 12288}, {{32, 128, 128}, fp32}, 8064,
     "verified (defaults of transformers 5.24; 35 KDA and 7 MLA layers in a public port)"},
    {"glm-5.3-flash", "kda", 45, 34, {3, 24576}, {{64, 128, 128}, fp32}, unknown,
     "defaults of transformers 5.24; KV is 11264 bytes a token and the keys of its indexer"},
    {"lfm2-1.2b", "short_conv", 16, 10, {2, 2048}, {}, unknown, "verified"},
    {"lfm2-2.6b", "short_conv", 30, 22, {2, 2048}, {}, 16384,
     "UNVERIFIED: 22 conv layers and 8 others by osaurus#2291; 2048 channels in a public test"},
    {"lfm2.5-2.6b", "short_conv", 30, 22, {2, 2048}, {}, 16384, "UNVERIFIED: as lfm2-2.6b"},
    {"lfm2.5-350m", "short_conv", 16, 10, {2, 1024}, {}, 12288, "verified (dimensions in a public test)"},
    {"lfm2.5-230m", "short_conv", 14, 8, {2, 1024}, {}, 12288, "UNVERIFIED: 8 conv layers and 6 others by mobius#462"},
    {"lfm2-8b-a1b", "short_conv", 24, 18, {2, 2048}, {}, 12288, "verified"},
    {"lfm2.5-8b-a1b", "short_conv", 24, 18, {2, 2048}, {}, 12288, "verified (layer list in public tests)"},
    {"lfm3-1.7b", "short_conv", 24, 13, {6, 2048}, {}, 12288, "defaults of transformers 5.24",
     {{LayerStates::kv_windows(13, 5, 4, 256, 128)}}},
    {"inkling", "short_conv", 66, 66, {}, {}, 45056,
     "UNVERIFIED: defaults of transformers 5.24, where convolutions are fp32",
     {{LayerStates::convolutions(0, 66, 2, {3, 6144, fp32}),
       LayerStates::convolutions(0, 55, 2, {3, 2048, fp32}, 16),
       LayerStates::convolutions(55, 11, 2, {3, 1024, fp32}, 8),
       LayerStates::kv_windows(0, 55, 16, 512, 128)}}},
    {"inkling2-small", "short_conv", 48, 48, {}, {}, 32768,
     "UNVERIFIED: defaults of transformers 5.24, where convolutions are fp32",
     {{LayerStates::convolutions(0, 48, 2, {3, 4608, fp32}),
       LayerStates::convolutions(0, 40, 2, {3, 1024, fp32}, 8),
       LayerStates::convolutions(40, 8, 2, {3, 1024, fp32}, 8),
       LayerStates::kv_windows(0, 40, 8, 1024, 128)}}},
    {"inkling2-mini", "short_conv", 48, 48, {}, {}, 32768,
     "UNVERIFIED: defaults of transformers 5.24, where convolutions are fp32; 12 of 24 layers run three times",
     {{LayerStates::convolutions(0, 48, 2, {3, 2304, fp32}),
       LayerStates::convolutions(0, 40, 2, {3, 1024, fp32}, 8),
       LayerStates::convolutions(40, 8, 2, {3, 1024, fp32}, 8),
       LayerStates::kv_windows(0, 40, 8, 1024, 128)}}},
    {"zaya1-8b", "cca", 40, 40, {}, {}, 40960,
     "defaults of transformers 5.24; how tensor-parallel ranks share its states is UNVERIFIED",
     {{LayerStates::convolutions(0, 40, 1, {2, 1280}),
       LayerStates::of(0, 40, 1, {.type = bf16, .shape = {128, 1, 1}})}}},
});
// clang-format on

bool equal_without_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

/// `heads` heads of the recurrent state, in channels of the conv state.
SplitBand heads_of(const ModelInfo& model, std::int64_t channels) {
  return {.extent = channels, .parts = static_cast<std::int32_t>(model.recurrent.shape[0])};
}

/// The bands of the conv state, in memory order; see the formulas of the catalogue.
std::vector<SplitBand> conv_bands(const ModelInfo& model) {
  const auto [heads, head_dim, state_dim] = model.recurrent.shape;
  const std::int64_t rest = model.conv.dim - heads * head_dim;
  const auto groups = static_cast<std::int32_t>(state_dim > 0 ? rest / (2 * state_dim) : 0);
  const SplitBand per_group{.extent = rest / 2, .parts = groups};
  const SplitBand per_head = heads_of(model, heads * head_dim);
  if (model.kind == "mamba2") return {per_head, per_group, per_group};                // x, B, C
  if (model.kind == "gdn") return {per_group, per_group, per_head};                   // q, k, v
  if (model.kind == "kda") return std::vector(3, heads_of(model, heads * head_dim));  // q, k, v
  return {{.extent = model.conv.dim, .parts = static_cast<std::int32_t>(model.conv.dim)}};
}

/// A tensor of a model, and how ranks share it.
struct SharedTensor {
  StateTensorSpec tensor;
  TensorSplit split;
};

/// In the order of layers, conv before recurrent.
std::vector<SharedTensor> tensors_of(const ModelInfo& model, const SpecOptions& options) {
  require(options.drafts >= 0, "drafts", options.drafts, "must not be negative");
  std::vector<SharedTensor> tensors;
  const auto add = [&](StateTensorSpec tensor, TensorSplit split) {
    if (tensor.kind == StateKind::conv) {
      const bool integers = tensor.type == ElementType::int8;  // whose bytes stay together
      tensor.shape[0] += options.drafts;
      tensor.strides = ConvStrides::of(integers ? ConvLayout::sd : options.conv_layout, tensor.window(), tensor.dim());
    }
    tensors.push_back({tensor, std::move(split)});
  };
  RecurrentShape recurrent = model.recurrent;
  if (options.recurrent_type) recurrent.type = *options.recurrent_type;
  const TensorSplit of_conv{.axis = 1, .bands = conv_bands(model)};
  const TensorSplit of_recurrent{.axis = 0, .bands = {heads_of(model, recurrent.shape[0])}};
  for (std::int32_t layer = 0; layer < model.state_layers; ++layer) {
    if (model.conv.window != 0) add(StateTensorSpec::conv(layer, model.conv), of_conv);
    if (recurrent.shape[0] != 0) add({.layer = layer, .type = recurrent.type, .shape = recurrent.shape}, of_recurrent);
  }
  for (const LayerStates& states : model.more)
    for (std::int32_t i = 0; i < states.layers * states.per_layer; ++i) {
      StateTensorSpec tensor = states.tensor;
      tensor.layer = states.first_layer + i / states.per_layer;
      const std::int32_t axis = tensor.kind == StateKind::conv ? 1 : 0;
      add(tensor,
          {.axis = axis, .bands = {{.extent = tensor.shape[static_cast<std::size_t>(axis)], .parts = states.parts}}});
    }
  std::ranges::stable_sort(
      tensors, {}, [](const SharedTensor& shared) { return std::pair(shared.tensor.layer, shared.tensor.kind); });
  return tensors;
}

StateSpec spec_of(const std::vector<SharedTensor>& tensors) {
  std::vector<StateTensorSpec> specs;
  for (const SharedTensor& shared : tensors) specs.push_back(shared.tensor);
  return StateSpec(std::move(specs));
}

}  // namespace

std::span<const ModelInfo> all() noexcept {
  return catalogue;
}

const ModelInfo& info(std::string_view name) {
  const auto row =
      std::ranges::find_if(catalogue, [&](const ModelInfo& m) { return equal_without_case(m.name, name); });
  if (row != catalogue.end()) return *row;
  std::string rule = "not in the catalogue; known:";
  for (const ModelInfo& model : catalogue) rule.append(" ").append(model.name);
  throw InvalidArgument("model", name, rule);
}

StateSpec spec(const ModelInfo& model, const SpecOptions& options) {
  return spec_of(tensors_of(model, options));
}

StateSpec find(std::string_view name, const SpecOptions& options) {
  return spec(info(name), options);
}

ModelLayout layout(const ModelInfo& model, const SpecOptions& options) {
  const std::vector<SharedTensor> tensors = tensors_of(model, options);
  std::vector<TensorSplit> splits;
  for (const SharedTensor& shared : tensors) splits.push_back(shared.split);
  return {spec_of(tensors), std::move(splits)};
}

ModelLayout layout(std::string_view name, const SpecOptions& options) {
  return layout(info(name), options);
}

}  // namespace stateport::models
