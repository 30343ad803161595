// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine.hpp"
#include "random_numbers.hpp"

#include <filesystem>
#include <string>

namespace stateport::test {

/// A prompt of random tokens. Prompts with equal `seed` share all of them.
[[nodiscard]] inline Tokens random_prompt(const llama_model* model, std::int64_t length, std::uint64_t seed) {
  Random random(seed);
  Tokens tokens(static_cast<std::size_t>(length));
  for (llama_token& token : tokens) token = random.between32(0, vocabulary(model) - 1);
  return tokens;
}

[[nodiscard]] inline Tokens joined(Tokens tokens, const Tokens& more) {
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

[[nodiscard]] inline Tokens first(const Tokens& tokens, std::int64_t count) {
  return {tokens.begin(), tokens.begin() + count};
}

/// A folder that goes with it.
class Folder {
 public:
  Folder() {
    std::string name = std::filesystem::temp_directory_path() / "stateport-llamacpp-XXXXXX";
    path_ = ::mkdtemp(name.data());
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { std::filesystem::remove_all(path_); }

  /// Files of a cache.
  [[nodiscard]] FileTierOptions files() const { return {.folder = path_ + "/images", .capacity_bytes = 64 << 20}; }
  [[nodiscard]] const std::string& path() const noexcept { return path_; }

 private:
  std::string path_;
};

}  // namespace stateport::test
