// SPDX-License-Identifier: Apache-2.0
#include "states/named_model.hpp"

#include <stateport/core/model/error.hpp>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <system_error>

namespace stateport::replay {

models::ModelInfo named_model(const std::string& name) {
  std::filesystem::path path = name;
  std::error_code ignored;  // a name that cannot be a path is none
  if (std::filesystem::is_directory(path, ignored)) path /= "config.json";
  try {
    return models::info(name);
  } catch (const InvalidArgument&) {
    if (!std::filesystem::exists(path, ignored)) throw;
  }
  std::ifstream file(path, std::ios::binary);
  const std::string text(std::istreambuf_iterator<char>(file), {});
  if (!file || text.empty()) throw std::runtime_error(path.string() + ": cannot be read, or is empty");
  try {
    return models::from_config(text);
  } catch (const InvalidArgument& error) {
    throw std::runtime_error(path.string() + ": " + error.what());
  }
}

}  // namespace stateport::replay
