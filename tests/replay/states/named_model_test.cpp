// SPDX-License-Identifier: Apache-2.0
#include "states/named_model.hpp"

#include <stateport/core/model/error.hpp>

#include "../../support/temporary_folder.hpp"

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

using namespace stateport;
using stateport::replay::named_model;

namespace {

constexpr const char* small_config =
    R"({"model_type": "lfm2", "hidden_size": 64, "num_attention_heads": 2, "conv_L_cache": 3,
        "num_hidden_layers": 3, "layer_types": ["conv", "full_attention", "conv"]})";

std::string model_error(const std::string& name) {
  try {
    static_cast<void>(named_model(name));
    return {};
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}

void write_model_file(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

}  // namespace

TEST_CASE("a model is a row of the catalogue, a config.json or its folder") {
  const stateport::test::TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "config.json";
  write_model_file(path, small_config);
  CHECK(named_model("LFM2-1.2B").name == "lfm2-1.2b");
  for (const std::string& name : {path.string(), folder.path().string()}) {
    CHECK(models::spec(named_model(name)) == StateSpec::uniform(2, {.window = 2, .dim = 64}, {}));
    CHECK(named_model(name).kv_bytes_per_token == 2 * 2 * 32 * 2u);
  }
}

TEST_CASE("a model that is neither is refused with the names, a bad config.json with its path") {
  const stateport::test::TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "config.json";
  CHECK_THROWS_WITH_AS(static_cast<void>(named_model("no-such-model")), doctest::Contains("known: nemotron-h-8b-base"),
                       InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(named_model(path.string())), InvalidArgument);
  CHECK_THROWS_AS(static_cast<void>(named_model(folder.path().string())), InvalidArgument);
  write_model_file(path, "");
  CHECK(model_error(path.string()) == path.string() + ": cannot be read, or is empty");
  write_model_file(path, R"({"model_type": "llama"})");
  CHECK(model_error(folder.path().string()).starts_with(path.string() + ": model_type = \"llama\" (is none of "));
}
