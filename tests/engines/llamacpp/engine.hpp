// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stateport/llamacpp/cache.hpp>

#include <llama.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace stateport::test {

using Tokens = std::vector<llama_token>;
using Logits = std::vector<float>;

/// The folder of models.py, from STATEPORT_LLAMA_MODELS.
[[nodiscard]] std::string models_folder();
[[nodiscard]] std::vector<std::string> architectures();

struct ModelFree {
  void operator()(llama_model* model) const noexcept { llama_model_free(model); }
};
struct ContextFree {
  void operator()(llama_context* context) const noexcept { llama_free(context); }
};
using Model = std::unique_ptr<llama_model, ModelFree>;
using Context = std::unique_ptr<llama_context, ContextFree>;

[[nodiscard]] Model load(const std::string& architecture);
[[nodiscard]] std::int32_t vocabulary(const llama_model* model);

/// Parameters of small contexts: one thread, unified KV.
[[nodiscard]] llama_context_params parameters(std::uint32_t cells, std::uint32_t sequences);

/// A context that knows no cache.
class PlainEngine {
 public:
  PlainEngine(llama_model* model, std::uint32_t cells);
  /// Decodes the tokens from the empty sequence, with passes that end at `ends` and at the last token. Logits of that.
  [[nodiscard]] Logits run(std::span<const llama_token> tokens, std::span<const std::int64_t> ends);
  /// Decodes further tokens in one pass.
  [[nodiscard]] Logits go_on(std::span<const llama_token> tokens, std::int64_t from);

 private:
  Context context_;
};

/// The same model under a cache, one request at a time.
class CachedEngine {
 public:
  CachedEngine(llama_model* model, const llamacpp::CacheOptions& options, std::uint32_t cells = 2048,
               const std::string& weights = "random");

  struct Answer {
    std::int64_t reused = 0;    ///< tokens of the prompt that were not computed
    std::int64_t computed = 0;  ///< tokens of the prompt that were
    llama_seq_id sequence = 0;
    std::vector<std::int64_t> ends;  ///< of the passes
    Logits logits;                   ///< of the prompt's last token
    std::vector<Logits> further;     ///< of the output's tokens
    Tokens output;
  };
  /// Serves a prompt with passes of at most `budget` tokens. Output tokens are greedy.
  Answer serve(const Tokens& prompt, std::int64_t output = 0, std::int64_t budget = 64);

  [[nodiscard]] llamacpp::Cache& cache() noexcept { return *cache_; }
  [[nodiscard]] llama_context* context() const noexcept { return context_.get(); }

 private:
  Context context_;
  std::unique_ptr<llamacpp::Cache> cache_;
};

[[nodiscard]] llama_token greedy(const Logits& logits);
/// The largest difference of two logits at the same place.
[[nodiscard]] float largest_difference(const Logits& a, const Logits& b);

}  // namespace stateport::test
