// SPDX-License-Identifier: Apache-2.0
// Models from the text of a config.json. The files of configs/ have members of public configs that matter here, or,
// where `status` of the row says so, defaults of transformers.
#include <stateport/core/model/error.hpp>
#include <stateport/core/model/models.hpp>

#include "../../support/random.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <set>
#include <string>
#include <vector>

using namespace stateport;
using models::ModelInfo;
using nlohmann::ordered_json;
using test::Random;

namespace {

const std::filesystem::path config_folder = STATEPORT_MODEL_CONFIGS;

std::string config_text(const std::string& name) {
  std::ifstream file(config_folder / (name + ".json"), std::ios::binary);
  REQUIRE(file.good());
  return {std::istreambuf_iterator<char>(file), {}};
}

/// As JSON, without the numbers that it lacks.
ordered_json config_of(const std::string& name) {
  std::string text = config_text(name);
  if (const std::size_t at = text.find("Infinity "); at != std::string::npos) text.replace(at, 8, "0");
  return ordered_json::parse(text);
}

std::set<std::string> config_names() {
  std::set<std::string> names;
  for (const auto& file : std::filesystem::directory_iterator(config_folder)) names.insert(file.path().stem().string());
  return names;
}

void check_equal(const ModelInfo& model, const ModelInfo& row) {
  CHECK(model.kind == row.kind);
  CHECK(model.layers == row.layers);
  CHECK(model.state_layers == row.state_layers);
  CHECK(model.conv.window == row.conv.window);
  CHECK(model.conv.dim == row.conv.dim);
  CHECK(model.conv.type == row.conv.type);
  CHECK(model.recurrent.shape == row.recurrent.shape);
  if (row.recurrent.shape[0] > 0) CHECK(model.recurrent.type == row.recurrent.type);
  CHECK(model.kv_bytes_per_token == row.kv_bytes_per_token);
  CHECK(models::spec(model) == models::spec(row));
  const models::SpecOptions drafts{.drafts = 3, .conv_layout = ConvLayout::ds, .recurrent_type = ElementType::fp16};
  CHECK(models::spec(model, drafts) == models::find(row.name, drafts));
  CHECK(models::layout(model).splits()[0] == models::layout(row.name).splits()[0]);
  CHECK(models::layout(model, drafts).fingerprint() == models::layout(row.name, drafts).fingerprint());
}

/// The text of the refusal; empty: none.
std::string config_refusal(const std::string& text) {
  try {
    static_cast<void>(models::from_config(text));
    return {};
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

}  // namespace

TEST_CASE("a config gives exactly the row of its model") {
  const std::set<std::string> names = config_names();
  for (const std::string& name : names) {
    CAPTURE(name);
    const ModelInfo model = models::from_config(config_text(name));
    check_equal(model, models::info(name));
    const ordered_json config = config_of(name);
    const ordered_json& text = config.contains("text_config") ? config["text_config"] : config;
    CHECK(model.name == text["model_type"].get<std::string>());
    CHECK(model.status == "from its config.json");
  }
  // No config of these is public where the rows come from, or from_config does not read its type.
  const std::set<std::string> without = {
      "bamba-9b",           "falcon-h1-1.5b-deep", "falcon-h1-34b",  "falcon-h1-3b",    "granite-4.0-h-small",
      "granite-4.0-h-tiny", "jamba2-mini",         "lfm2-1.2b",      "lfm2-2.6b",       "lfm2.5-2.6b",
      "lfm2.5-230m",        "ling-2.5-1t",         "nemotron-h-47b", "minimax-text-01", "zamba2-7b"};
  for (const ModelInfo& row : models::all()) {
    CAPTURE(row.name);
    CHECK(names.contains(std::string(row.name)) != without.contains(std::string(row.name)));
  }
  CHECK(names.size() + without.size() == models::all().size());
}

namespace {

/// A config of the folder, changed in a way that leaves its model as it is, but for `differs`.
struct EquivalentConfig {
  const char* name;
  const char* why;
  std::function<void(ordered_json&)> change;
  std::function<void(ModelInfo&)> differs = [](ModelInfo&) {};
};

void kinds_of_lists(ordered_json& config) {
  const ordered_json linear = config["linear_attn_config"];
  std::vector<std::string> kinds(27, "linear_attention");
  for (const std::size_t layer : linear["full_attn_layers"]) kinds[layer - 1] = "full_attention";
  config.erase("linear_attn_config");
  config.update(
      {{"layer_types", kinds}, {"linear_head_dim", 128}, {"linear_num_heads", 32}, {"linear_conv_kernel_dim", 4}});
}

void kinds_of_pattern(ordered_json& config) {
  std::vector<std::string> kinds;
  for (const char letter : config["hybrid_override_pattern"].get<std::string>())
    kinds.emplace_back(letter == 'M' ? "mamba" : letter == '*' ? "attention" : letter == 'E' ? "moe" : "mlp");
  config.erase("hybrid_override_pattern");
  config.erase("num_hidden_layers");
  config["layers_block_type"] = kinds;
}

void numbers_of_kinds(ordered_json& config) {
  std::vector<std::size_t> attention;
  for (std::size_t i = 0; i < config["layer_types"].size(); ++i)
    if (config["layer_types"][i] == "full_attention") attention.push_back(i);
  config["full_attn_idxs"] = attention;
  config["layer_types"] = nullptr;
}

void wrap(ordered_json& config, const char* part) {
  config = ordered_json{{"model_type", "with_images"}, {"dtype", "float16"}, {part, config}};
}

const std::vector<EquivalentConfig> equivalents = {
    {"kimi-linear-48b-a3b", "transformers lists kinds", kinds_of_lists},
    {"nemotron-3-super-120b-a12b", "kinds in words", kinds_of_pattern},
    {"nemotron-h-8b-base", "kinds in words, MLP", kinds_of_pattern},
    {"nemotron-h-8b-base", "names of Mamba",
     [](ordered_json& c) {
       c.update({{"mamba_n_groups", 8}, {"mamba_d_conv", 4}, {"head_dim", 128}});
       for (const char* const name : {"n_groups", "conv_kernel", "attention_head_dim"}) c.erase(name);
     }},
    {"nemotron-h-8b-base", "another type of recurrent states",
     [](ordered_json& c) { c["mamba_ssm_cache_dtype"] = "float16"; },
     [](ModelInfo& m) { m.recurrent.type = ElementType::fp16; }},
    {"qwen3.5-9b", "a type of the text model alone", [](ordered_json& c) { c["text_config"].erase("model_type"); }},
    {"qwen3.5-9b", "its own name in flat form", [](ordered_json& c) { c = ordered_json(c["text_config"]); }},
    {"qwen3.5-9b", "the default of the interval",
     [](ordered_json& c) { c["text_config"].erase("full_attention_interval"); }},
    {"qwen3.5-9b", "an element type of the whole",
     [](ordered_json& c) {
       c["dtype"] = "float32";
       c["text_config"].erase("dtype");
     },
     [](ModelInfo& m) { m.conv.type = ElementType::fp32; }},
    {"qwen3-next-80b-a3b", "the model's own type", [](ordered_json& c) { c["dtype"] = "float16"; },
     [](ModelInfo& m) { m.conv.type = m.recurrent.type = ElementType::fp16; }},
    {"qwen3-next-80b-a3b", "no type", [](ordered_json& c) { c.erase("dtype"); }},
    {"jamba-v0.1", "an old name of the type", [](ordered_json& c) { c["torch_dtype"] = "float16"; },
     [](ModelInfo& m) { m.conv.type = m.recurrent.type = ElementType::fp16; }},
    {"falcon-h1-7b", "a size of heads that follows", [](ordered_json& c) { c["mamba_d_head"] = nullptr; }},
    {"falcon-h1-7b", "an inner size that follows",
     [](ordered_json& c) {
       c["mamba_d_ssm"] = nullptr;
       c["mamba_expand"] = 1;
     }},
    {"falcon-h1-7b", "two groups", [](ordered_json& c) { c["mamba_n_groups"] = 2; },
     [](ModelInfo& m) { m.conv.dim += 512; }},
    {"granite-4.0-h-350m", "kinds by their newer names",
     [](ordered_json& c) {
       for (ordered_json& kind : c["layer_types"]) kind = kind == "mamba" ? "linear_attention" : "full_attention";
     }},
    {"granite-4.0-h-350m", "a KV head for each head", [](ordered_json& c) { c.erase("num_key_value_heads"); },
     [](ModelInfo& m) { m.kv_bytes_per_token = 3 * 4096; }},
    {"granite-4.0-h-350m", "a head size of its own", [](ordered_json& c) { c["head_dim"] = 32; },
     [](ModelInfo& m) { m.kv_bytes_per_token = 2048; }},
    {"granite-4.0-h-350m", "a type with windows", [](ordered_json& c) { c["layer_types"][10] = "sliding_attention"; },
     [](ModelInfo& m) { m.kv_bytes_per_token.reset(); }},
    {"lfm2.5-350m", "numbers of layers that attend", numbers_of_kinds},
    {"lfm2.5-350m", "channels of the model", [](ordered_json& c) { c.erase("conv_dim"); }},
    {"lfm2.5-350m", "other channels", [](ordered_json& c) { c["conv_dim"] = 64; },
     [](ModelInfo& m) { m.conv.dim = 64; }},
    {"lfm2.5-350m", "a model with images", [](ordered_json& c) { wrap(c, "text_config"); }},
    {"nemotron-nano-9b-v2", "a model with sound", [](ordered_json& c) { wrap(c, "llm_config"); }},
    {"glm-5.3-flash", "the form of the authors",
     [](ordered_json& c) {
       c["text_config"].update(
           {{"linear_attn_config", {{"num_heads", 64}, {"head_dim", 128}, {"short_conv_kernel_size", 4}}},
            {"linear_num_heads", 1}});
     }},
    {"glm-5.3-flash", "kinds of layers without an index",
     [](ordered_json& c) {
       std::vector<std::string> kinds;
       for (int i = 0; i < 45; ++i) kinds.emplace_back(i % 4 == 3 ? "full_attention" : "linear_attention");
       c["text_config"]["layer_types"] = kinds;
     }},
    {"ring-mini-linear-2.0", "layers behind the last group attend",
     [](ordered_json& c) { c["num_hidden_layers"] = 22; },
     [](ModelInfo& m) {
       m.layers = 22;
       m.kv_bytes_per_token = 6 * 2048;
     }},
    {"ling-3.0-flash", "as transformers writes it",
     [](ordered_json& c) {
       c.update({{"architectures", {"BailingHybridForCausalLM"}}, {"head_dim", 64}, {"linear_head_dim", 128}});
     }},
    {"olmo-hybrid-7b", "heads that are said",
     [](ordered_json& c) {
       c.update({{"linear_num_key_heads", 15},
                 {"linear_num_value_heads", 45},
                 {"linear_value_head_dim", 64},
                 {"linear_key_head_dim", 32}});
     },
     [](ModelInfo& m) {
       m.conv.dim = 2 * 15 * 32 + 45 * 64;
       m.recurrent.shape = {45, 64, 32};
     }},
    {"olmo-hybrid-7b", "a small one has a layer that attends", [](ordered_json& c) { c["num_hidden_layers"] = 3; },
     [](ModelInfo& m) {
       m.layers = 3;
       m.state_layers = 2;
       m.kv_bytes_per_token = 15360;
     }},
    {"lara-4-mini", "windows whose size is not said", [](ordered_json& c) { c.erase("sliding_window"); },
     [](ModelInfo& m) {
       m.more = {};
       m.kv_bytes_per_token.reset();
     }},
    {"zaya1-8b", "some layers have windows",
     [](ordered_json& c) {
       std::vector<std::string> kinds(40, "hybrid");
       kinds[3] = kinds[7] = "hybrid_sliding";
       c.update({{"layer_types", kinds}, {"sliding_window", 64}});
     },
     [](ModelInfo& m) {
       m.more[2] = {0, 2, 2, {.type = ElementType::bf16, .shape = {2, 63, 128}}, 2};
       m.kv_bytes_per_token = 40960 * 38 / 40;
     }},
    {"zaya1-8b", "no convolution",
     [](ordered_json& c) {
       c.update({{"cca_time0", 1}, {"cca_time1", 1}});
     },
     [](ModelInfo& m) { m.more[0].layers = 0; }},
    {"inkling", "numbers of layers with windows",
     [](ordered_json& c) {
       std::vector<int> local;
       for (int i = 0; i < 66; ++i)
         if ((i + 1) % 6 != 0) local.push_back(i);
       c["text_config"]["local_layer_ids"] = local;
     }},
    {"inkling", "names of a checkpoint",
     [](ordered_json& c) {
       ordered_json& text = c["text_config"];
       text.update({{"sconv_kernel_size", 4}, {"sliding_window", 512}});
       text.erase("conv_kernel_size");
       text.erase("sliding_window_size");
     }},
    {"inkling2-mini", "loops of a checkpoint",
     [](ordered_json& c) {
       c["text_config"]["loop_config"] = {{"core_start", 6}, {"core_end", 18}, {"num_passes", 3}};
       c["text_config"].erase("loop_num_passes");
     }},
    {"qwen3.8-flash-next", "layers without n-grams",
     [](ordered_json& c) { c["text_config"]["ple_layer_ids"] = std::vector<int>(); },
     [](ModelInfo& m) { m.more = {}; }},
    {"qwen3.8-flash-next", "kinds of a checkpoint",
     [](ordered_json& c) {
       for (int i = 0; i < 48; ++i)
         c["text_config"]["layer_types"].push_back(i % 4 == 3 ? "full_attention" : "linear_attention");
     }},
};

}  // namespace

TEST_CASE("a config may say the same in another form") {
  for (const EquivalentConfig& same : equivalents) {
    CAPTURE(same.name);
    CAPTURE(same.why);
    ordered_json config = config_of(same.name);
    same.change(config);
    ModelInfo expected = models::info(same.name);
    same.differs(expected);
    const ModelInfo model = models::from_config(config.dump());
    CHECK(models::spec(model) == models::spec(expected));
    CHECK(model.layers == expected.layers);
    CHECK(model.kv_bytes_per_token == expected.kv_bytes_per_token);
  }
  const ModelInfo bamba = models::from_config(
      R"({"model_type": "bamba", "num_hidden_layers": 32, "attn_layer_indices": [9, 18, 27], "hidden_size": 4096,
          "num_attention_heads": 32, "num_key_value_heads": 8, "mamba_n_heads": 128, "mamba_d_head": "auto",
          "mamba_n_groups": 1, "mamba_d_state": 128, "mamba_d_conv": 4, "mamba_expand": 2})");
  CHECK(models::spec(bamba) == models::find("bamba-9b"));
  CHECK(bamba.kv_bytes_per_token == 12288u);
}

TEST_CASE("windows of KV stay beside the states of n-grams") {
  ordered_json config = config_of("qwen3.8-flash-next");
  ordered_json& text = config["text_config"];
  for (int layer = 0; layer < 48; ++layer)
    text["layer_types"].push_back(layer % 2 == 0 ? "linear_attention" : "sliding_attention");
  text["sliding_window"] = 8;
  const std::size_t both = models::spec(models::from_config(config.dump())).slot_bytes();
  text.erase("ple_layer_ids");
  const std::size_t windows = models::spec(models::from_config(config.dump())).slot_bytes();
  const std::size_t ngrams = 9 * 10240 * 2 + 2 * 8;
  CHECK(both == windows + ngrams);
}

TEST_CASE("a config with Infinity is read, and one with it in a name is left as it is") {
  CHECK(config_text("nemotron-h-56b").find("Infinity") != std::string::npos);
  std::string text = config_text("lfm2.5-350m");
  text.insert(1, R"("-Infinity\"": "Infinity", "a": [-Infinity, Infinity], "Infinity\\": -Infinity,)");
  check_equal(models::from_config(text), models::info("lfm2.5-350m"));
  CHECK(config_refusal(R"({"model_type": "Infinity"})").starts_with("model_type = \"Infinity\" "));
  CHECK(config_refusal("{\"a\": 1Infinity}").starts_with("config = byte "));
}

namespace {

struct BadConfig {
  const char* name;
  std::function<void(ordered_json&)> change;
  std::string_view refusal;  ///< its beginning
};

std::vector<int> numbers(int first, int last) {
  std::vector<int> all;
  for (int i = first; i <= last; ++i) all.push_back(i);
  return all;
}

auto set_member(const char* name, ordered_json value) {
  return [=](ordered_json& config) { config[name] = value; };
}

auto erase_member(const char* name) {
  return [=](ordered_json& config) { config.erase(name); };
}

const std::vector<BadConfig> bad_configs = {
    {"lfm2.5-350m", set_member("model_type", "llama"), "model_type = \"llama\" (is none of bailing_hybrid "},
    {"lfm2.5-350m", set_member("model_type", "qwen5"), "model_type = \"qwen5\" (is none of "},
    {"lfm2.5-350m", set_member("model_type", 7), "model_type = 7 (must be a string)"},
    {"lfm2.5-350m", erase_member("model_type"), "model_type = absent (must be a string)"},
    {"lfm2.5-350m", set_member("text_config", 3), "text_config = 3 (must be an object)"},
    {"lfm2.5-350m", erase_member("conv_L_cache"), "conv_L_cache = absent (must be an integer from 1 to 1048576)"},
    {"lfm2.5-350m", set_member("conv_L_cache", 1), "tensors = 0 "},
    {"lfm2.5-350m", set_member("conv_dim", 0), "conv_dim = 0 (must be an integer from 1 to 1048576)"},
    {"lfm2.5-350m", set_member("conv_dim", -5), "conv_dim = -5 "},
    {"lfm2.5-350m", set_member("conv_dim", 2.0), "conv_dim = 2.0 "},
    {"lfm2.5-350m", set_member("conv_dim", "1024"), "conv_dim = \"1024\" "},
    {"lfm2.5-350m", set_member("conv_dim", true), "conv_dim = true "},
    {"lfm2.5-350m", set_member("conv_dim", 1048577), "conv_dim = 1048577 "},
    {"lfm2.5-350m", set_member("conv_dim", 18446744073709551615u), "conv_dim = 18446744073709551615 "},
    {"lfm2.5-350m", set_member("conv_dim", {1, 2}), "conv_dim = list "},
    {"lfm2.5-350m", set_member("conv_dim", std::string(1000, 'x')),
     "conv_dim = \"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx... (must be"},
    {"lfm2.5-350m", set_member("dtype", "float8"), "dtype = \"float8\" (must be float32, float16 or bfloat16)"},
    {"lfm2.5-350m", set_member("layer_types", "conv"), "layer_types = \"conv\" (must be a list)"},
    {"lfm2.5-350m", set_member("layer_types", {"conv", "what"}),
     "layer_types = list (has an unknown kind of layer behind 1 others)"},
    {"lfm2.5-350m", set_member("layer_types", {"conv", 5}), "layer_types = list "},
    {"lfm2.5-350m", set_member("layer_types", ordered_json::array()),
     "layer_types = list (must have 1 to 4096 layers)"},
    {"lfm2.5-350m", set_member("num_hidden_layers", 17), "num_hidden_layers = 17 (is not the length of layer_types)"},
    {"lfm2.5-350m", erase_member("layer_types"), "full_attn_idxs = absent (must be a list)"},
    {"lfm2.5-350m", set_member("num_attention_heads", 7), "hidden_size = 1024 (is no multiple of num_attention_heads)"},
    {"jamba-v0.1", set_member("num_hidden_layers", 4097),
     "num_hidden_layers = 4097 (must be an integer from 1 to 4096)"},
    {"jamba-v0.1", set_member("num_attention_heads", 3), "hidden_size = 4096 (is no multiple of num_attention_heads)"},
    {"jamba-v0.1", set_member("attn_layer_offset", -1), "attn_layer_offset = -1 (must be an integer from 0 to "},
    {"jamba-v0.1", set_member("attn_layer_period", 0), "attn_layer_period = 0 "},
    {"jamba-v0.1",
     [](ordered_json& c) {
       c.update({{"attn_layer_period", 1}, {"attn_layer_offset", 0}});
     },
     "model_type = jamba (has no recurrent layer in this config)"},
    {"jamba-v0.1", set_member("mamba_expand", 257), "mamba_expand = 257 (times hidden_size is more than 1048576)"},
    {"nemotron-h-8b-base",
     [](ordered_json& c) {
       c.update({{"mamba_num_heads", 1048576}, {"mamba_head_dim", 1048576}});
     },
     "shape = "},
    {"nemotron-h-8b-base", set_member("hybrid_override_pattern", "M-X*"),
     "hybrid_override_pattern = \"M-X*\" (must have"},
    {"nemotron-h-8b-base", set_member("hybrid_override_pattern", "M-M*"),
     "num_hidden_layers = 52 (is not the length of "},
    {"nemotron-h-8b-base", erase_member("n_groups"), "n_groups = absent "},
    {"kimi-linear-48b-a3b", erase_member("linear_attn_config"), "linear_attn_config = absent (must be an object)"},
    {"kimi-linear-48b-a3b", [](ordered_json& c) { c["linear_attn_config"]["num_heads"] = 0; },
     "linear_attn_config.num_heads = 0 "},
    {"kimi-linear-48b-a3b", [](ordered_json& c) { c["linear_attn_config"]["kda_layers"].push_back(28); },
     "linear_attn_config.kda_layers = list (must have numbers of layers, each once)"},
    {"kimi-linear-48b-a3b", [](ordered_json& c) { c["linear_attn_config"]["kda_layers"].push_back(0); },
     "linear_attn_config.kda_layers = list (must have numbers of layers, each once)"},
    {"kimi-linear-48b-a3b", [](ordered_json& c) { c["linear_attn_config"]["kda_layers"].push_back(1); },
     "linear_attn_config.kda_layers = list (must have numbers of layers, each once)"},
    {"kimi-linear-48b-a3b", [](ordered_json& c) { c["linear_attn_config"]["kda_layers"].push_back(4); },
     "linear_attn_config.kda_layers = list (must name the layers that full_attn_layers does not)"},
    {"kimi-linear-48b-a3b", [](ordered_json& c) { c["linear_attn_config"]["full_attn_layers"] = {4}; },
     "linear_attn_config.kda_layers = list (must name the layers that full_attn_layers does not)"},
    {"ling-3.0-flash", erase_member("short_conv_kernel_size"), "short_conv_kernel_size = absent "},
    {"ling-3.0-flash", set_member("architectures", "x"), "architectures = \"x\" (must be a list)"},
    {"falcon-h1-7b", set_member("mamba_n_heads", 25), "mamba_n_heads = 25 (must divide 3072, the inner size)"},
    {"falcon-h1-7b", set_member("mamba_d_head", 64), "mamba_d_head = 64 (times mamba_n_heads is not 3072, "},
    {"olmo-hybrid-7b", set_member("linear_num_key_heads", 4000), "hidden_size = 3840 (is too small for the heads)"},
    {"lara-4-mini", set_member("sliding_window", 1), "sliding_window = 1 (must be an integer from 2 to 1048576)"},
    {"zaya1-8b", set_member("cca_time1", 65), "cca_time1 = 65 (must be an integer from 1 to 64)"},
    {"zaya1-8b", set_member("layer_types", {"hybrid", "full_attention"}), "layer_types = list (has an unknown kind"},
    {"zaya1-8b", set_member("layer_types", {"hybrid"}), "num_hidden_layers = 40 (is not the length of layer_types)"},
    {"zaya1-8b",
     [](ordered_json& c) {
       c.update({{"head_dim", 1}, {"num_key_value_heads", 1}});
     },
     "head_dim = 1 (times num_key_value_heads must be even)"},
    {"qwen3.8-flash-next", [](ordered_json& c) { c["text_config"]["ple_layer_ids"] = {0}; },
     "text_config.ple_layer_ids = list (must have numbers of layers, each once)"},
    {"qwen3.8-flash-next",
     [](ordered_json& c) {
       c["text_config"].update({{"ple_layer_ids", numbers(1, 48)}});
     },
     "text_config.ple_layer_ids = list (has more layers than there are with linear attention)"},
    {"qwen3.8-flash-next", [](ordered_json& c) { c["text_config"].erase("ngram_size"); },
     "text_config.ngram_size = absent "},
    {"inkling", [](ordered_json& c) { c["text_config"]["local_layer_ids"] = {66}; },
     "text_config.local_layer_ids = list (must have numbers of layers, each once)"},
    {"inkling", [](ordered_json& c) { c["text_config"]["layer_types"] = {"hybrid"}; },
     "text_config.num_hidden_layers = 66 (is not the length of layer_types)"},
    {"inkling2-mini", [](ordered_json& c) { c["text_config"]["loop_num_passes"] = 65; },
     "text_config.loop_num_passes = 65 (must be an integer from 1 to 64)"},
    {"inkling2-mini",
     [](ordered_json& c) {
       c["text_config"].update({{"num_hidden_layers", 4096}, {"loop_layer_index_end", 4096}});
     },
     "text_config.num_hidden_layers = 4096 (with all passes must be at most 4096)"},
};

}  // namespace

TEST_CASE("a bad config is refused by member and value") {
  for (const BadConfig& bad : bad_configs) {
    CAPTURE(bad.name);
    ordered_json config = config_of(bad.name);
    bad.change(config);
    const std::string refusal = config_refusal(config.dump());
    CAPTURE(refusal);
    CHECK(refusal.starts_with(bad.refusal));
  }
  CHECK(config_refusal("") == "config = byte 1 (is not JSON there)");
  CHECK(config_refusal(std::string("{}\0", 3)) == "config = byte 3 (is not JSON there)");
  CHECK(config_refusal("{\"a\": nul}") == "config = byte 10 (is not JSON there)");
  CHECK(config_refusal("[]") == "config = list (must be a JSON object)");
  CHECK(config_refusal("{}") == "model_type = absent (must be a string)");
  ordered_json nested = config_of("qwen3.5-9b");
  nested["text_config"]["linear_num_key_heads"] = 0;
  CHECK(config_refusal(nested.dump()).starts_with("text_config.linear_num_key_heads = 0 "));
  const std::string deep = std::string(63, '[');
  CHECK(config_refusal("{\"model_type\": " + deep + std::string(63, ']') + "}") ==
        "model_type = list (must be a string)");
  CHECK(config_refusal("{\"model_type\": [" + deep + std::string(64, ']') + "}") ==
        "config = 65 (must not nest deeper than 64 levels)");
  CHECK(config_refusal("{\"a\": " + std::string(1'000'000, '[')).starts_with("config = 65 "));
  CHECK(config_refusal("{\"model_type\": \"lfm2\", \"model_type\": \"a\\u0007\\u00e9\"}")
            .starts_with("model_type = \"a?\?\?\" (is none of"));
}

namespace {

/// The sizes of one layer's states, and of a token's KV in one attention layer, in a plain form.
struct PlainModel {
  ordered_json config;
  std::int64_t state_bytes = 0;
  std::int64_t kv_bytes = 0;
  std::vector<std::string> kinds;
};

PlainModel random_gdn(Random& random) {
  const std::int64_t k = random.between(1, 64), dk = random.between(1, 256), v = random.between(1, 64),
                     dv = random.between(1, 256), window = random.between(2, 8), kv = random.between(1, 64),
                     size = random.between(1, 512);
  const bool next = random.chance(50);
  PlainModel model{.config = {{"model_type", next ? "qwen3_next" : "qwen3_5_text"},
                              {"num_attention_heads", 64},
                              {"num_key_value_heads", kv},
                              {"head_dim", size},
                              {"linear_num_key_heads", k},
                              {"linear_key_head_dim", dk},
                              {"linear_num_value_heads", v},
                              {"linear_value_head_dim", dv},
                              {"linear_conv_kernel_dim", window}},
                   .kinds = {"linear_attention", "full_attention"}};
  for (std::int64_t head = 0; head < k; ++head) model.state_bytes += 2 * (dk + dk) * (window - 1);
  for (std::int64_t head = 0; head < v; ++head) model.state_bytes += 2 * dv * (window - 1) + dv * dk * (next ? 2 : 4);
  model.kv_bytes = 2 * (size * kv + size * kv);
  return model;
}

PlainModel random_mamba2(Random& random) {
  const std::int64_t heads = random.between(1, 64), size = random.between(1, 128), groups = random.between(1, 8),
                     state = random.between(1, 256), window = random.between(2, 8), kv = random.between(1, 64);
  PlainModel model{.config = {{"model_type", "nemotron_h"},
                              {"hidden_size", 64 * size},
                              {"num_attention_heads", 64},
                              {"num_key_value_heads", kv},
                              {"mamba_num_heads", heads},
                              {"mamba_head_dim", size},
                              {"n_groups", groups},
                              {"ssm_state_size", state},
                              {"conv_kernel", window}},
                   .kinds = {"mamba", "attention", "moe", "mlp"}};
  for (std::int64_t head = 0; head < heads; ++head) model.state_bytes += 2 * size * (window - 1) + 4 * size * state;
  for (std::int64_t group = 0; group < groups; ++group) model.state_bytes += 2 * (state + state) * (window - 1);
  model.kv_bytes = 2 * (size * kv + size * kv);
  return model;
}

PlainModel random_kda(Random& random) {
  const std::int64_t heads = random.between(1, 64), size = random.between(1, 128), window = random.between(2, 8),
                     rank = random.between(1, 1024), rope = random.between(0, 64);
  PlainModel model{.config = {{"model_type", "kimi_linear"},
                              {"kv_lora_rank", rank},
                              {"qk_rope_head_dim", rope},
                              {"linear_num_heads", heads},
                              {"linear_head_dim", size},
                              {"linear_conv_kernel_dim", window}},
                   .kinds = {"linear_attention", "full_attention"}};
  for (std::int64_t head = 0; head < heads; ++head) model.state_bytes += 2 * 3 * size * (window - 1) + 4 * size * size;
  model.kv_bytes = 2 * (rank + rope);
  return model;
}

}  // namespace

TEST_CASE("random configs have the sizes of a sum over heads and layers") {
  test::for_each_seed(2000, [](Random& random, std::uint64_t) {
    constexpr std::array<PlainModel (*)(Random&), 3> makers = {random_gdn, random_mamba2, random_kda};
    PlainModel plain = makers[static_cast<std::size_t>(random.between(0, 2))](random);
    std::int64_t states = 0, attention = 0;
    for (std::int64_t layers = random.between(1, 40); layers > 0; --layers) {
      const std::string kind = plain.kinds[static_cast<std::size_t>(random.between(0, std::ssize(plain.kinds) - 1))];
      plain.config["layer_types"].push_back(kind);
      states += kind == plain.kinds[0] ? 1 : 0;
      attention += kind == plain.kinds[1] ? 1 : 0;
    }
    if (states == 0) {
      CHECK(config_refusal(plain.config.dump()).find("has no recurrent layer") != std::string::npos);
      return;
    }
    const ModelInfo model = models::from_config(plain.config.dump(random.between(0, 3) == 0 ? 2 : -1));
    CHECK(models::spec(model).slot_bytes() == static_cast<std::size_t>(states * plain.state_bytes));
    CHECK(model.kv_bytes_per_token == static_cast<std::size_t>(attention * plain.kv_bytes));
    CHECK(model.layers == std::ssize(plain.config["layer_types"]));
  });
}

TEST_CASE("random configs with windows and loops have the sizes of a sum over layers") {
  test::for_each_seed(500, [](Random& random, std::uint64_t) {
    const std::int64_t layers = random.between(1, 30), hidden = random.between(1, 64), kv = random.between(1, 8),
                       size = 2 * random.between(1, 16), local = random.between(1, 8), window = random.between(2, 9),
                       kernel = random.between(2, 8), first = random.between(1, layers),
                       end = random.between(1, layers + 1), passes = random.between(1, 4);
    const bool zaya = random.chance(50);
    ordered_json config = {{"model_type", zaya ? "zaya" : "inkling2_loop_text"},
                           {"dtype", "bfloat16"},
                           {"hidden_size", hidden},
                           {"num_hidden_layers", layers},
                           {"num_attention_heads", 16},
                           {"num_key_value_heads", kv},
                           {"head_dim", size},
                           {"swa_num_key_value_heads", local},
                           {"swa_head_dim", size},
                           {"sliding_window", window},
                           {"conv_kernel_size", kernel},
                           {"cca_time0", kernel},
                           {"cca_time1", 1},
                           {"loop_layer_index_start", first},
                           {"loop_layer_index_end", end},
                           {"loop_num_passes", passes}};
    std::int64_t state_bytes = 0, kv_bytes = 0, states = 0;
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      const bool slides = random.chance(50);
      config["layer_types"].push_back(slides ? "hybrid_sliding" : "hybrid");
      const std::int64_t times = !zaya && layer >= first && layer < end ? passes : 1;
      const std::int64_t heads = slides && !zaya ? local : kv;
      states += times;
      if (zaya)
        state_bytes += 2 * ((kernel - 1) * (16 + kv) * size + kv * size / 2);
      else
        state_bytes += times * 4 * (kernel - 1) * 2 * (hidden + heads * size);
      (slides ? state_bytes : kv_bytes) += times * 2 * 2 * heads * size * (slides ? window - 1 : 1);
    }
    const ModelInfo model = models::from_config(config.dump());
    CHECK(models::spec(model).slot_bytes() == static_cast<std::size_t>(state_bytes));
    CHECK(model.kv_bytes_per_token == static_cast<std::size_t>(kv_bytes));
    CHECK(model.state_layers == states);
    const auto twice = models::spec(model, {.drafts = 1}).slot_bytes() - models::spec(model).slot_bytes();
    const std::int64_t more = zaya ? layers * 2 * (16 + kv) * size : states * 8 * hidden;
    CHECK(twice >= static_cast<std::size_t>(more));
  });
}

namespace {

/// Bytes that change what a config says, or what is no config.
void mutate(std::string& text, Random& random) {
  static const std::vector<std::string> pieces = {"null",     "0",
                                                  "-1",       "1",
                                                  "4097",     "1048576",
                                                  "1048577",  "99999999999999999999",
                                                  "1e5",      "\"auto\"",
                                                  "[]",       "{}",
                                                  "[[",       "Infinity",
                                                  "\"",       "\\",
                                                  ",",        ":",
                                                  "\xff",     "true",
                                                  "\"conv\"", "\"full_attention\"",
                                                  "[1, 2]",   "{\"num_heads\": 3}"};
  const auto at = static_cast<std::size_t>(random.between(0, std::ssize(text)));
  const auto length =
      static_cast<std::size_t>(random.between(0, 3) == 0 ? random.between(0, 40) : random.between(0, 2));
  std::size_t begin = at, end = length;
  if (random.chance(80)) {  // a whole value
    begin = std::min(text.find(": ", at), text.size());
    begin = std::min(begin + 2, text.size());
    end = std::min(text.find_first_of(",}\n", begin), text.size()) - begin;
  }
  text.replace(
      begin, std::min(end, text.size() - begin),
      random.chance(10) ? std::string() : pieces[static_cast<std::size_t>(random.between(0, std::ssize(pieces) - 1))]);
}

}  // namespace

TEST_CASE("a mutated config is read or refused, and what is read has a layout") {
  const std::set<std::string> names = config_names();
  std::int64_t read = 0, refused = 0;
  test::for_each_seed(20'000, [&](Random& random, std::uint64_t) {
    std::string text = config_text(*std::next(names.begin(), random.between(0, std::ssize(names) - 1)));
    for (std::int64_t count = random.between(1, 3); count > 0; --count) mutate(text, random);
    std::optional<ModelInfo> model;
    try {
      model = models::from_config(text);
    } catch (const InvalidArgument& error) {
      CHECK(!error.argument().empty());
      ++refused;
      return;
    }
    ++read;
    CHECK(model->state_layers >= 1);
    CHECK(model->state_layers <= model->layers);
    CHECK(models::layout(*model).whole() == models::spec(*model));
  });
  MESSAGE(read << " read, " << refused << " refused");
  CHECK(read > 0);
  CHECK(refused > 0);
}
