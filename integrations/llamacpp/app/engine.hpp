// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/llamacpp/cache.hpp>

#include <llama.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace stateport::llamacpp {

struct EngineOptions {
  std::string model;  ///< a GGUF file
  std::uint32_t context_tokens = 4096;
  std::int32_t threads = 1;
  std::uint64_t memory_bytes = std::uint64_t{1} << 30;
  std::string folder;  ///< of images that survive; empty: none do
  std::uint64_t file_bytes = std::uint64_t{8} << 30;
};

struct Answer {
  std::vector<llama_token> tokens;
  std::int64_t reused_tokens = 0;  ///< of the prompt
  double first_token_s = 0;        ///< from the start of the request, loads included
  double image_s = 0;              ///< of the whole request, to save and to restore images
};

/// A model that serves one request at a time, with greedy sampling. Throws std::runtime_error for a model or a context
/// that cannot be made.
class Engine {
 public:
  explicit Engine(const EngineOptions& options);

  /// `on_token` hears of each token of the output. The output ends with a token that ends generation, which it has not,
  /// or after `output_tokens`.
  Answer serve(std::span<const llama_token> prompt, std::int64_t output_tokens,
               const std::function<void(llama_token)>& on_token = {});
  /// The time to the first token without the cache, in seconds.
  [[nodiscard]] double time_without_cache(std::span<const llama_token> prompt);
  /// Writes the cached contents to the folder.
  void drain() { cache_->drain(); }

  [[nodiscard]] const llama_model* model() const noexcept { return model_.get(); }
  [[nodiscard]] const llama_vocab* vocabulary() const noexcept { return llama_model_get_vocab(model_.get()); }
  [[nodiscard]] std::int64_t context_tokens() const noexcept { return options_.context_tokens; }

 private:
  struct Free {
    void operator()(llama_model* model) const noexcept { llama_model_free(model); }
    void operator()(llama_context* context) const noexcept { llama_free(context); }
  };
  using Context = std::unique_ptr<llama_context, Free>;

  [[nodiscard]] double images_s() const noexcept;
  [[nodiscard]] Context make_context(std::uint32_t sequences) const;
  [[nodiscard]] llama_context_params parameters(std::uint32_t sequences) const;

  EngineOptions options_;
  std::unique_ptr<llama_model, Free> model_;
  Context context_;
  Context plain_;  ///< without a cache; made when it is first needed
  std::unique_ptr<Cache> cache_;
};

}  // namespace stateport::llamacpp
