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

/// Of the models in the folder that STATEPORT_LLAMA_MODELS names: models.py writes it.
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
/// Of small contexts: one thread, unified KV.
[[nodiscard]] llama_context_params parameters(std::uint32_t cells, std::uint32_t sequences);

/// A context that knows no cache.
class PlainEngine {
 public:
  explicit PlainEngine(llama_model* model, std::uint32_t cells = 2048);
  /// Decodes the tokens from the empty sequence on, with passes that end at `ends`. Logits of the last token.
  [[nodiscard]] Logits run(std::span<const llama_token> tokens, std::span<const std::int64_t> ends);
  /// Decodes further tokens in one pass.
  [[nodiscard]] Logits go_on(std::span<const llama_token> tokens, std::int64_t from);

 private:
  Context context_;
};

/// A served request.
struct Answer {
  RequestId request;
  Tokens prompt;
  std::int64_t output_tokens = 0;  ///< wanted
  std::int64_t reused = 0;         ///< tokens of the prompt that were not computed
  llama_seq_id sequence = 0;
  std::vector<std::int64_t> ends;  ///< of its passes
  Tokens output;                   ///< greedy
  std::vector<Logits> logits;      ///< by which each of them was chosen

  [[nodiscard]] bool done() const noexcept { return std::ssize(output) >= output_tokens; }
};

/// A model under a cache.
class CachedEngine {
 public:
  explicit CachedEngine(llama_model* model, const llamacpp::CacheOptions& options = {.memory_bytes = 64 << 20},
                        std::uint32_t cells = 2048, const std::string& weights = "random weights");

  /// False: all sequences run.
  [[nodiscard]] bool start(const Tokens& prompt, std::int64_t output_tokens = 1);
  /// One pass over the running requests with this number of tokens of prompts at most. Requests that are done end.
  void step(std::int64_t budget_tokens = 64);
  void abort(std::size_t running);
  [[nodiscard]] std::vector<Answer>& running() noexcept { return running_; }
  /// Takes the requests that have ended.
  [[nodiscard]] std::vector<Answer> take() { return std::exchange(ended_, {}); }
  /// Serves one prompt alone.
  Answer serve(const Tokens& prompt, std::int64_t output_tokens = 1, std::int64_t budget_tokens = 64);

  /// Tokens of all batches so far.
  [[nodiscard]] std::int64_t decoded_tokens() const noexcept { return decoded_tokens_; }
  [[nodiscard]] llamacpp::Cache& cache() noexcept { return *cache_; }
  [[nodiscard]] llama_context* context() const noexcept { return context_.get(); }

 private:
  Context context_;
  std::unique_ptr<llamacpp::Cache> cache_;
  std::vector<Answer> running_, ended_;
  std::int64_t decoded_tokens_ = 0;
};

/// llama.cpp's own rounding: other passes, other cells and batches of several sequences change logits by up to 0.04
/// here. One other token at the start of a prompt of 300 changes them by 0.3 at least.
inline constexpr float rounding = 0.1F;

/// The largest difference of two logits at the same place.
[[nodiscard]] float largest_difference(const Logits& a, const Logits& b);
/// Of the logits of each output token from those of a context without a cache.
[[nodiscard]] float largest_difference(PlainEngine& plain, const Answer& answer);

}  // namespace stateport::test
