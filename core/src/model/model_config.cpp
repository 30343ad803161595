// SPDX-License-Identifier: Apache-2.0
// Models from the config.json of a checkpoint. Names and defaults of its members are those of the configuration classes
// of Hugging Face transformers 5.24. Shapes are those that vLLM and SGLang allocate; see the formulas of the catalogue.
#include <stateport/core/model/error.hpp>
#include <stateport/core/model/models.hpp>

#include "model/config_object.hpp"

#include <algorithm>
#include <array>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace stateport::models {
namespace {

using detail::ConfigObject;
using detail::ConfigValue;

constexpr std::int64_t config_layers_max = 4096;
constexpr std::int64_t config_kernel_max = 64;  // of one of two factors of a window
constexpr std::int64_t kv_element_bytes = 2;    // bf16

/// A config, and the element type of its model.
struct ModelConfig {
  ConfigObject object;
  ElementType type;
};

ElementType type_of(const ConfigObject& config, std::string_view member, ElementType other) {
  if (!config.has(member)) return other;
  const std::string_view name = config.text(member);
  if (name == "float32") return ElementType::fp32;
  if (name == "float16") return ElementType::fp16;
  if (name != "bfloat16") config.refuse(member, "must be float32, float16 or bfloat16");
  return ElementType::bf16;
}

struct LayerCounts {
  std::int64_t layers = 0;
  std::int64_t states = 0;
  std::int64_t attention = 0;  ///< to all tokens
  std::int64_t windows = 0;    ///< attention to the last tokens
  bool kv_is_known = true;     ///< layers that attend to all tokens keep KV of each token, and nothing else
  bool are_mixed = false;      ///< each layer has a state and attends

  /// Counts `times` layers of a kind that transformers names; false for another one.
  bool add(std::string_view kind, std::int64_t times = 1) {
    if (!(are_mixed ? add_mixed(kind, times) : add_plain(kind, times))) return false;
    layers += times;
    return true;
  }

 private:
  bool add_mixed(std::string_view kind, std::int64_t times) {
    if (kind != "hybrid" && kind != "hybrid_sliding") return false;
    states += times;
    (kind == "hybrid" ? attention : windows) += times;
    return true;
  }

  bool add_plain(std::string_view kind, std::int64_t times) {
    const auto is_one_of = [&](std::initializer_list<std::string_view> kinds) {
      return std::ranges::find(kinds, kind) != kinds.end();
    };
    const bool state = is_one_of({"linear_attention", "mamba", "conv", "M"});
    const bool plain = is_one_of({"full_attention", "attention", "*"});
    const bool indexed = is_one_of({"indexed_attention", "deepseek_sparse_attention"});
    const bool window = kind == "sliding_attention";
    if (!state && !plain && !indexed && !window && !is_one_of({"moe", "mlp", "E", "-"})) return false;
    states += state ? times : 0;
    attention += plain || indexed ? times : 0;
    windows += window ? times : 0;
    kv_is_known = kv_is_known && !indexed;
    return true;
  }
};

std::int64_t layer_count(const ConfigObject& config) {
  return config.number("num_hidden_layers", 1, config_layers_max);
}

/// The number of kinds that `member` lists is that of the layers, where the config says it.
LayerCounts checked_layers(const ConfigObject& config, std::string_view member, const LayerCounts& counts) {
  if (counts.layers < 1 || counts.layers > config_layers_max) config.refuse(member, "must have 1 to 4096 layers");
  if (config.has("num_hidden_layers") && layer_count(config) != counts.layers)
    config.refuse("num_hidden_layers", "is not the length of " + std::string(member));
  return counts;
}

/// By the kinds that the config lists, or else by `kind`, which is called with the index of a layer.
template <class KindOf>
LayerCounts count_layers(const ConfigObject& config, const KindOf& kind, LayerCounts counts = {}) {
  const std::string_view member = config.first_of({"layer_types", "layers_block_type"});
  if (!config.has(member)) {
    const std::int64_t layers = layer_count(config);
    for (std::int64_t i = 0; i < layers; ++i) counts.add(kind(i));
    return counts;
  }
  for (const ConfigValue& listed : config.list(member))
    if (listed.kind != ConfigValue::Kind::text || !counts.add(listed.text))
      config.refuse(member, "has an unknown kind of layer behind " + std::to_string(counts.layers) + " others");
  return checked_layers(config, member, counts);
}

/// The same for a config that must list them.
LayerCounts count_listed_layers(const ConfigObject& config) {
  return count_layers(config,
                      [&](std::int64_t) -> std::string_view { config.refuse("layer_types", "must be a list"); });
}

std::string_view state_unless(bool attention, std::string_view kind_of_attention = "full_attention") {
  return attention ? kind_of_attention : "linear_attention";
}

/// The last of every `period` layers attends.
LayerCounts count_periodic_layers(const ConfigObject& config, std::int64_t period,
                                  std::string_view kind_of_attention = "full_attention") {
  return count_layers(config, [&](std::int64_t i) { return state_unless((i + 1) % period == 0, kind_of_attention); });
}

std::int64_t size_of_head(const ConfigObject& config, std::string_view member) {
  if (config.has(member)) return config.number(member);
  const std::int64_t heads = config.number("num_attention_heads");
  if (config.number("hidden_size") % heads != 0) config.refuse("hidden_size", "is no multiple of num_attention_heads");
  return config.number("hidden_size") / heads;
}

struct KvHeads {
  std::int64_t heads, size;
};

KvHeads kv_heads(const ConfigObject& config) {
  return {
      config.has("num_key_value_heads") ? config.number("num_key_value_heads") : config.number("num_attention_heads"),
      size_of_head(config, config.first_of({"head_dim", "attention_head_dim"}))};
}

/// K and V of each layer that attends to all tokens, and of each KV head.
std::optional<std::size_t> kv_of(const LayerCounts& counts, const KvHeads& kv) {
  if (!counts.kv_is_known) return std::nullopt;
  return static_cast<std::size_t>(counts.attention * 2 * kv.heads * kv.size * kv_element_bytes);
}

/// The same for a model whose layers keep no windows.
std::optional<std::size_t> kv_of_heads(const ConfigObject& config, const LayerCounts& counts) {
  const KvHeads kv = kv_heads(config);
  return counts.windows > 0 ? std::nullopt : kv_of(counts, kv);
}

/// The latent vector of each MLA layer, and the part of the key that has a position.
std::optional<std::size_t> kv_of_latents(const ConfigObject& config, const LayerCounts& counts) {
  if (!counts.kv_is_known || counts.windows > 0) return std::nullopt;
  const std::int64_t latent = config.number("kv_lora_rank") + config.number("qk_rope_head_dim", 0);
  return static_cast<std::size_t>(counts.attention * latent * kv_element_bytes);
}

/// A model with these states in each of its recurrent layers.
ModelInfo model_of(std::string_view kind, const LayerCounts& counts, const ConvShape& conv,
                   const RecurrentShape& recurrent, std::optional<std::size_t> kv_bytes_per_token) {
  return {.kind = kind,
          .layers = static_cast<std::int32_t>(counts.layers),
          .state_layers = static_cast<std::int32_t>(counts.states),
          .conv = conv,
          .recurrent = recurrent,
          .kv_bytes_per_token = kv_bytes_per_token};
}

/// The last keys and values of layers that attend to no others. They lie behind the other layers with states, or first
/// among them if these attend, too.
LayerStates read_windows(const ModelConfig& config, const LayerCounts& counts, std::string_view member,
                         const KvHeads& kv) {
  const std::int64_t window = config.object.number(member, 2);
  return LayerStates::kv_windows(counts.are_mixed ? 0 : counts.states, counts.windows, kv.heads, window, kv.size,
                                 config.type);
}

void add_states(ModelInfo& model, const LayerStates& states) {
  *std::ranges::find(model.more, 0, &LayerStates::layers) = states;
}

/// The model with its windows, if the config says their size.
ModelInfo with_windows(ModelInfo model, const ModelConfig& config, const LayerCounts& counts) {
  if (counts.windows == 0 || !config.object.has("sliding_window")) return model;
  const KvHeads kv = kv_heads(config.object);
  add_states(model, read_windows(config, counts, "sliding_window", kv));
  model.kv_bytes_per_token = kv_of(counts, kv);
  return model;
}

/// Whether a list names each layer. It counts them from `first`.
std::vector<bool> named_layers(const ConfigObject& config, std::string_view member, std::int64_t layers,
                               std::uint64_t first) {
  std::vector<bool> named(static_cast<std::size_t>(layers));
  for (const ConfigValue& number : config.list(member)) {
    const bool natural = number.kind == ConfigValue::Kind::natural;
    const std::uint64_t layer = natural ? number.number - first : named.size();
    if (layer >= named.size() || named[layer]) config.refuse(member, "must have numbers of layers, each once");
    named[layer] = true;
  }
  return named;
}

/// Heads and their sizes, of keys and of values.
struct DeltaHeads {
  std::int64_t keys, key, values, value;
};

ModelInfo gated_delta_net(const ModelConfig& config, const LayerCounts& counts, const DeltaHeads& heads,
                          ElementType recurrent) {
  const ModelInfo model =
      model_of("gdn", counts,
               {.window = config.object.number("linear_conv_kernel_dim") - 1,
                .dim = 2 * heads.keys * heads.key + heads.values * heads.value,
                .type = config.type},
               {{heads.values, heads.value, heads.key}, recurrent}, kv_of_heads(config.object, counts));
  return with_windows(model, config, counts);
}

DeltaHeads delta_heads(const ConfigObject& config) {
  return {.keys = config.number("linear_num_key_heads"),
          .key = config.number("linear_key_head_dim"),
          .values = config.number("linear_num_value_heads"),
          .value = config.number("linear_value_head_dim")};
}

ModelInfo read_qwen(const ModelConfig& config, ElementType recurrent) {
  const LayerCounts counts =
      count_periodic_layers(config.object, config.object.number_or("full_attention_interval", 4));
  return gated_delta_net(config, counts, delta_heads(config.object),
                         type_of(config.object, "mamba_ssm_dtype", recurrent));
}

ModelInfo read_qwen3_5(const ModelConfig& config) {
  return read_qwen(config, ElementType::fp32);
}

ModelInfo read_qwen3_next(const ModelConfig& config) {
  return read_qwen(config, config.type);
}

/// Some GDN layers mix in embeddings of n-grams: they keep the inputs of a convolution that is dilated by the length of
/// the n-grams, over all residual streams, and the last tokens, which are int64. The keys of the indexer are unknown.
ModelInfo read_qwen4_exp(const ModelConfig& config) {
  const ConfigObject& object = config.object;
  LayerCounts counts =
      count_periodic_layers(object, object.number_or("full_attention_interval", 4), "indexed_attention");
  counts.kv_is_known = false;  // whatever layer_types calls them, attention layers have an index
  ModelInfo model =
      gated_delta_net(config, counts, delta_heads(object), type_of(object, "mamba_ssm_dtype", ElementType::fp32));
  if (!object.has("ple_layer_ids")) return model;
  const std::vector<bool> named = named_layers(object, "ple_layer_ids", layer_count(object), 1);
  const std::int64_t layers = std::ranges::count(named, true);
  if (layers == 0) return model;
  if (layers > counts.states) object.refuse("ple_layer_ids", "has more layers than there are with linear attention");
  const std::int64_t tokens = object.number("ngram_size", 2, config_kernel_max);
  const std::int64_t window = (object.number("ple_conv_kernel_size", 2, config_kernel_max) - 1) * tokens;
  const std::int64_t channels = object.number("hc_count") * object.number("hidden_size");
  add_states(model, LayerStates::convolutions(0, layers, 1, {window, channels, config.type}));
  add_states(model, LayerStates::convolutions(0, layers, 1, {tokens - 1, sizeof(std::int64_t), ElementType::int8}));
  return model;
}

ModelInfo read_lara_mini(const ModelConfig& config) {
  constexpr auto period = std::to_array<std::string_view>(
      {"linear_attention", "sliding_attention", "linear_attention", "full_attention", "sliding_attention"});
  const LayerCounts counts =
      count_layers(config.object, [&](std::int64_t i) { return period[static_cast<std::size_t>(i) % period.size()]; });
  return gated_delta_net(config, counts, delta_heads(config.object), ElementType::fp32);
}

/// Heads follow from other members where the config does not say them.
ModelInfo read_olmo_hybrid(const ModelConfig& config) {
  const ConfigObject& object = config.object;
  const std::int64_t attention_heads = object.number("num_attention_heads");
  DeltaHeads heads{};
  heads.keys = object.number_or("linear_num_key_heads", attention_heads);
  heads.values = object.number_or("linear_num_value_heads", attention_heads);
  heads.key = object.has("linear_key_head_dim") ? object.number("linear_key_head_dim")
                                                : object.number("hidden_size") * 3 / 4 / heads.keys;
  if (heads.key < 1) object.refuse("hidden_size", "is too small for the heads");
  heads.value = object.number_or("linear_value_head_dim", 2 * heads.key);
  const std::int64_t first = std::min<std::int64_t>(object.number_or("num_hidden_layers", 4), 4);  // that attends
  const LayerCounts counts =
      count_layers(object, [&](std::int64_t i) { return state_unless((i + 1) % 4 == 0 || i + 1 == first); });
  return gated_delta_net(config, counts, heads, ElementType::fp32);
}

ModelInfo delta_attention(const ModelConfig& config, const LayerCounts& counts, std::int64_t kernel, std::int64_t heads,
                          std::int64_t size) {
  return model_of("kda", counts, {.window = kernel - 1, .dim = 3 * heads * size, .type = config.type},
                  {{heads, size, size}, ElementType::fp32}, kv_of_latents(config.object, counts));
}

/// Two forms: linear_attn_config of the model's authors, members of the config itself of transformers.
ModelInfo delta_attention(const ModelConfig& config, const LayerCounts& counts) {
  if (!config.object.has("linear_attn_config"))
    return delta_attention(config, counts, config.object.number("linear_conv_kernel_dim"),
                           config.object.number("linear_num_heads"), config.object.number("linear_head_dim"));
  const ConfigObject linear = config.object.object("linear_attn_config");
  return delta_attention(config, counts, linear.number("short_conv_kernel_size"), linear.number("num_heads"),
                         linear.number("head_dim"));
}

bool lists_kinds(const ConfigObject& config) {
  return config.has(config.first_of({"layer_types", "layers_block_type"}));
}

ModelInfo read_kimi_linear(const ModelConfig& config) {
  const ConfigObject& object = config.object;
  if (lists_kinds(object)) return delta_attention(config, count_listed_layers(object));
  const ConfigObject linear = object.object("linear_attn_config");
  const std::vector<bool> attends = named_layers(linear, "full_attn_layers", layer_count(object), 1);
  std::vector<bool> others = named_layers(linear, "kda_layers", layer_count(object), 1);
  others.flip();
  if (attends != others) linear.refuse("kda_layers", "must name the layers that full_attn_layers does not");
  return delta_attention(
      config, count_layers(object, [&](std::int64_t i) { return state_unless(attends[static_cast<std::size_t>(i)]); }));
}

/// By the kinds that the config lists, or else by a list of the layers that attend.
LayerCounts count_numbered_layers(const ConfigObject& config, std::string_view member) {
  std::vector<bool> attends;
  if (!lists_kinds(config)) attends = named_layers(config, member, layer_count(config), 0);
  return count_layers(config, [&](std::int64_t i) { return state_unless(attends[static_cast<std::size_t>(i)]); });
}

ModelInfo read_glm5_next(const ModelConfig& config) {
  LayerCounts counts = count_periodic_layers(config.object, 4, "indexed_attention");
  counts.kv_is_known = false;  // whatever layer_types calls them, attention layers have an index
  return delta_attention(config, counts);
}

/// Lightning attention. The layers behind the last whole group attend.
ModelInfo read_bailing_linear(const ModelConfig& config, bool has_latents) {
  const ConfigObject& object = config.object;
  const std::int64_t group = object.number("layer_group_size");
  const std::int64_t grouped = object.has("num_hidden_layers") ? layer_count(object) / group * group : 0;
  const LayerCounts counts =
      count_layers(object, [&](std::int64_t i) { return state_unless((i + 1) % group == 0 || i >= grouped); });
  const std::int64_t size = size_of_head(object, "head_dim");
  return model_of("linear_attn", counts, {}, {{object.number("num_attention_heads"), size, size}, ElementType::fp32},
                  has_latents ? kv_of_latents(object, counts) : kv_of_heads(object, counts));
}

ModelInfo read_bailing_moe_linear(const ModelConfig& config) {
  return read_bailing_linear(config, false);
}

/// Two architectures have this type: Ling 2.5 and 2.6 with lightning attention, and Ling 3.0 with KDA.
ModelInfo read_bailing_hybrid(const ModelConfig& config) {
  const ConfigObject& object = config.object;
  const bool is_v2_5 = object.has("architectures") &&
                       std::ranges::any_of(object.list("architectures"),
                                           [](const auto& name) { return name.text.starts_with("BailingMoeV2_5"); });
  if (is_v2_5) return read_bailing_linear(config, true);
  // transformers writes the part of a head that has a position as head_dim, and linear_head_dim beside it.
  const std::string_view size = object.has("linear_head_dim") ? "linear_head_dim" : "head_dim";
  return delta_attention(config, count_periodic_layers(object, object.number("layer_group_size")),
                         object.number("short_conv_kernel_size"), object.number("num_attention_heads"),
                         object.number(size));
}

ModelInfo mamba2(const ModelConfig& config, const LayerCounts& counts, std::int64_t kernel,
                 const RecurrentShape& recurrent, std::int64_t groups) {
  const auto [heads, size, state] = recurrent.shape;
  return model_of("mamba2", counts,
                  {.window = kernel - 1, .dim = heads * size + 2 * groups * state, .type = config.type}, recurrent,
                  kv_of_heads(config.object, counts));
}

ModelInfo read_nemotron_h(const ModelConfig& config) {
  const ConfigObject& object = config.object;
  const std::string_view pattern = "hybrid_override_pattern";
  LayerCounts counts;
  if (lists_kinds(object)) {
    counts = count_listed_layers(object);
  } else {
    for (const char layer : object.text(pattern))
      if (!counts.add({&layer, 1})) object.refuse(pattern, "must have the letters M, E, * and - alone");
    counts = checked_layers(object, pattern, counts);
  }
  return mamba2(config, counts, object.number(object.first_of({"conv_kernel", "mamba_d_conv"})),
                {{object.number("mamba_num_heads"), object.number("mamba_head_dim"), object.number("ssm_state_size")},
                 type_of(object, "mamba_ssm_cache_dtype", ElementType::fp32)},
                object.number(object.first_of({"n_groups", "mamba_n_groups"})));
}

/// The Mamba-2 layers of Bamba, and of models that took their names from it. `inner`: channels of all heads.
ModelInfo bamba_like(const ModelConfig& config, const LayerCounts& counts, std::int64_t inner) {
  const ConfigObject& object = config.object;
  const std::int64_t heads = object.number("mamba_n_heads");
  if (inner % heads != 0) object.refuse("mamba_n_heads", "must divide " + std::to_string(inner) + ", the inner size");
  const std::int64_t size = inner / heads;
  const bool automatic = !object.has("mamba_d_head") || object.says("mamba_d_head", "auto");
  if (!automatic && object.number("mamba_d_head") != size)
    object.refuse("mamba_d_head", "times mamba_n_heads is not " + std::to_string(inner) + ", the inner size");
  return mamba2(config, counts, object.number("mamba_d_conv"),
                {{heads, size, object.number("mamba_d_state")}, config.type}, object.number("mamba_n_groups"));
}

std::int64_t expanded(const ConfigObject& config) {
  const std::int64_t size = config.number("mamba_expand") * config.number("hidden_size");
  if (size > detail::config_number_max) config.refuse("mamba_expand", "times hidden_size is more than 1048576");
  return size;
}

ModelInfo read_granite_hybrid(const ModelConfig& config) {
  return bamba_like(config, count_listed_layers(config.object), expanded(config.object));
}

ModelInfo read_bamba(const ModelConfig& config) {
  return bamba_like(config, count_numbered_layers(config.object, "attn_layer_indices"), expanded(config.object));
}

/// Every layer has both.
ModelInfo read_falcon_h1(const ModelConfig& config) {
  const std::int64_t layers = layer_count(config.object);
  const LayerCounts counts{.layers = layers, .states = layers, .attention = layers};
  const bool stated = config.object.has("mamba_d_ssm");
  return bamba_like(config, counts, stated ? config.object.number("mamba_d_ssm") : expanded(config.object));
}

ModelInfo read_jamba(const ModelConfig& config) {
  const ConfigObject& object = config.object;
  const std::int64_t period = object.number("attn_layer_period");
  const std::int64_t offset = object.number("attn_layer_offset", 0);
  const LayerCounts counts = count_layers(object, [&](std::int64_t i) { return state_unless(i % period == offset); });
  return model_of("mamba1", counts,
                  {.window = object.number("mamba_d_conv") - 1, .dim = expanded(object), .type = config.type},
                  {{expanded(object), object.number("mamba_d_state"), 1}, config.type}, kv_of_heads(object, counts));
}

ModelInfo short_convolution(const ModelConfig& config, const LayerCounts& counts) {
  const ConfigObject& object = config.object;
  const ModelInfo model = model_of("short_conv", counts,
                                   {.window = object.number("conv_L_cache") - 1,
                                    .dim = object.number(object.has("conv_dim") ? "conv_dim" : "hidden_size"),
                                    .type = config.type},
                                   {}, kv_of_heads(object, counts));
  return with_windows(model, config, counts);
}

ModelInfo read_lfm2(const ModelConfig& config) {
  return short_convolution(config, count_numbered_layers(config.object, "full_attn_idxs"));
}

ModelInfo read_lfm3(const ModelConfig& config) {
  return short_convolution(config, count_layers(config.object, [](std::int64_t i) -> std::string_view {
                             if (i % 4 == 2) return "full_attention";
                             return i % 4 == 0 && i > 0 ? "sliding_attention" : "conv";
                           }));
}

/// Four short convolutions of a layer, computed in fp32: of keys, of values, behind attention and behind the MLP.
/// times: that a layer runs, each time with states of its own.
template <class TimesOf>
ModelInfo inkling(const ModelConfig& config, const TimesOf& times) {
  const ConfigObject& object = config.object;
  LayerCounts counts{.are_mixed = true};
  const std::int64_t layers = layer_count(object);
  std::vector<bool> slides(static_cast<std::size_t>(layers));
  for (std::size_t i = 0; i < slides.size(); ++i) slides[i] = (i + 1) % 6 != 0;
  if (lists_kinds(object)) {
    const std::string_view member = object.first_of({"layer_types", "layers_block_type"});
    static_cast<void>(count_layers(
        object, [](std::int64_t) { return std::string_view(); }, counts));
    for (std::size_t i = 0; i < slides.size(); ++i) slides[i] = object.list(member)[i].text == "hybrid_sliding";
  } else if (object.has("local_layer_ids")) {
    slides = named_layers(object, "local_layer_ids", layers, 0);
  }
  for (std::size_t i = 0; i < slides.size(); ++i)
    counts.add(slides[i] ? "hybrid_sliding" : "hybrid", times(static_cast<std::int64_t>(i)));
  if (counts.layers > config_layers_max) object.refuse("num_hidden_layers", "with all passes must be at most 4096");
  const KvHeads kv = kv_heads(object);
  const KvHeads local{object.number("swa_num_key_value_heads"), object.number("swa_head_dim")};
  const std::int64_t window = object.number(object.first_of({"conv_kernel_size", "sconv_kernel_size"}), 2) - 1;
  const auto conv = [&](std::int64_t dim) { return ConvShape{window, dim, ElementType::fp32}; };
  ModelInfo model = model_of("short_conv", counts, {}, {}, kv_of(counts, kv));
  model.more = {LayerStates::convolutions(0, counts.layers, 2, conv(object.number("hidden_size"))),
                LayerStates::convolutions(0, counts.windows, 2, conv(local.heads * local.size), local.heads),
                LayerStates::convolutions(counts.windows, counts.attention, 2, conv(kv.heads * kv.size), kv.heads),
                read_windows(config, counts, object.first_of({"sliding_window_size", "sliding_window"}), local)};
  return model;
}

ModelInfo read_inkling(const ModelConfig& config) {
  return inkling(config, [](std::int64_t) { return 1; });
}

ModelInfo read_inkling_loop(const ModelConfig& config) {
  const bool has_part = config.object.has("loop_config");
  const ConfigObject loop = has_part ? config.object.object("loop_config") : config.object;
  const std::int64_t first = loop.number(has_part ? "core_start" : "loop_layer_index_start");
  const std::int64_t end = loop.number(has_part ? "core_end" : "loop_layer_index_end");
  const std::int64_t passes = loop.number(has_part ? "num_passes" : "loop_num_passes", 1, 64);
  return inkling(config, [=](std::int64_t layer) { return layer >= first && layer < end ? passes : 1; });
}

/// Compressed convolutional attention: a layer keeps the last inputs of two convolutions in a row over queries and
/// keys, and the half of the last token's values that the next token uses.
ModelInfo read_zaya(const ModelConfig& config) {
  const ConfigObject& object = config.object;
  const LayerCounts counts = count_layers(
      object, [](std::int64_t) { return "hybrid"; }, LayerCounts{.are_mixed = true});
  const KvHeads kv = kv_heads(object);
  if (kv.heads * kv.size % 2 != 0) object.refuse("head_dim", "times num_key_value_heads must be even");
  const std::int64_t window =
      object.number("cca_time0", 1, config_kernel_max) + object.number("cca_time1", 1, config_kernel_max) - 2;
  ModelInfo model = model_of("cca", counts, {}, {}, kv_of_heads(object, counts));
  model.more = {
      LayerStates::convolutions(0, window > 0 ? counts.states : 0, 1,
                                {window, (object.number("num_attention_heads") + kv.heads) * kv.size, config.type}),
      LayerStates::of(0, counts.states, 1, {.type = config.type, .shape = {kv.heads * kv.size / 2, 1, 1}})};
  return with_windows(model, config, counts);
}

struct ModelType {
  std::string_view name;
  ModelInfo (*read)(const ModelConfig&);
};

constexpr auto model_types = std::to_array<ModelType>({
    {"bailing_hybrid", read_bailing_hybrid},
    {"bailing_moe_linear", read_bailing_moe_linear},
    {"bamba", read_bamba},
    {"falcon_h1", read_falcon_h1},
    {"glm5_next", read_glm5_next},
    {"glm5_next_text", read_glm5_next},
    {"granitemoehybrid", read_granite_hybrid},
    {"inkling", read_inkling},
    {"inkling2", read_inkling},
    {"inkling2_loop", read_inkling_loop},
    {"inkling2_loop_text", read_inkling_loop},
    {"inkling2_text", read_inkling},
    {"inkling_mm_model", read_inkling},
    {"inkling_text", read_inkling},
    {"jamba", read_jamba},
    {"kimi_k3", read_kimi_linear},
    {"kimi_linear", read_kimi_linear},
    {"lara_mini", read_lara_mini},
    {"lfm2", read_lfm2},
    {"lfm2_moe", read_lfm2},
    {"lfm3", read_lfm3},
    {"nemotron_h", read_nemotron_h},
    {"olmo_hybrid", read_olmo_hybrid},
    {"qwen3_5", read_qwen3_5},
    {"qwen3_5_moe", read_qwen3_5},
    {"qwen3_5_moe_text", read_qwen3_5},
    {"qwen3_5_text", read_qwen3_5},
    {"qwen3_next", read_qwen3_next},
    {"qwen4_exp", read_qwen4_exp},
    {"qwen4_exp_text", read_qwen4_exp},
    {"zaya", read_zaya},
});

const ModelType& model_type_of(const ConfigObject& config) {
  const std::string_view name = config.text("model_type");
  const auto* const type = std::ranges::find(model_types, name, &ModelType::name);
  if (type != model_types.end()) return *type;
  std::string rule = "is none of";
  for (const ModelType& known : model_types) rule.append(" ").append(known.name);
  config.refuse("model_type", rule);
}

}  // namespace

ModelInfo from_config(std::string_view text) {
  const ConfigValue config = detail::parse_config(text);
  const ConfigObject whole(config, "");
  const std::string_view part = whole.first_of({"text_config", "llm_config"});
  const ConfigObject object = whole.has(part) ? whole.object(part) : whole;
  const ModelType& type = model_type_of(object.has("model_type") ? object : whole);
  const auto own_type = [](const ConfigObject& of, ElementType other) {
    return type_of(of, of.first_of({"dtype", "torch_dtype"}), other);
  };
  ModelInfo model = type.read({object, own_type(object, own_type(whole, ElementType::bf16))});
  require(model.state_layers > 0, "model_type", type.name, "has no recurrent layer in this config");
  model.name = type.name;
  model.status = "from its config.json";
  static_cast<void>(layout(model));  // throws here as it would later
  return model;
}

}  // namespace stateport::models
