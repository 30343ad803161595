// SPDX-License-Identifier: Apache-2.0
#include "engine.hpp"

#include <ggml-backend.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <stdexcept>

namespace stateport::llamacpp {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

void decode(llama_context* context, const llama_batch& batch) {
  if (const std::int32_t answer = llama_decode(context, batch); answer != 0)
    throw std::runtime_error("llama_decode answered " + std::to_string(answer));
}

llama_token greedy(const llama_vocab* vocabulary, llama_context* context, std::int32_t output) {
  const float* const logits = llama_get_logits_ith(context, output);
  return static_cast<llama_token>(std::max_element(logits, logits + llama_vocab_n_tokens(vocabulary)) - logits);
}

void report_problems(ggml_log_level level, const char* text, void*) {
  if (level == GGML_LOG_LEVEL_ERROR) std::fputs(text, stderr);
}

}  // namespace

Engine::Engine(const EngineOptions& options) : options_(options) {
  llama_log_set(report_problems, nullptr);
  ggml_backend_load_all();
  model_.reset(llama_model_load_from_file(options.model.c_str(), llama_model_default_params()));
  if (!model_) throw std::runtime_error(options.model + " is no model that llama.cpp can load");
  context_ = make_context(2);
  CacheOptions cached{.memory_bytes = static_cast<std::int64_t>(options.memory_bytes)};
  if (!options.folder.empty()) cached.files = {.folder = options.folder, .capacity_bytes = options.file_bytes};
  // Of another file with this name and size the model's own numbers differ, or its time.
  const std::filesystem::path file(options.model);
  const std::string weights = file.filename().string() + " " + std::to_string(std::filesystem::file_size(file)) + " " +
                              std::to_string(std::filesystem::last_write_time(file).time_since_epoch().count());
  cache_ = std::make_unique<Cache>(context_.get(), parameters(2), weights, cached);
}

llama_context_params Engine::parameters(std::uint32_t sequences) const {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = options_.context_tokens;
  params.n_batch = std::min<std::uint32_t>(512, options_.context_tokens);
  params.n_ubatch = params.n_batch;
  params.n_seq_max = sequences;
  params.n_threads = params.n_threads_batch = options_.threads;
  params.kv_unified = true;
  return params;
}

Engine::Context Engine::make_context(std::uint32_t sequences) const {
  Context context(llama_init_from_model(model_.get(), parameters(sequences)));
  if (!context) throw std::runtime_error("llama.cpp makes no context of " + options_.model);
  return context;
}

Answer Engine::serve(std::span<const llama_token> prompt, std::int64_t output_tokens,
                     const std::function<void(llama_token)>& on_token) {
  const Clock::time_point begin = Clock::now();
  const auto started = cache_->start({.tokens = prompt});
  if (!started) throw std::runtime_error("a request runs already");
  const RequestId request = started->request;
  const double images_before = images_s();
  try {
    while (cache_->is_loading(request)) {
    }
    Answer answer{.reused_tokens = cache_->computed(request)};
    for (bool ends = false; !ends;) {
      const bool in_prompt = cache_->computed(request) < std::ssize(prompt);
      const PassRow row{
          .request = request,
          .tokens = in_prompt ? static_cast<std::int32_t>(cache_->chunk(request, llama_n_batch(context_.get()))) : 1};
      const Pass& pass = cache_->plan({&row, 1});
      if (pass.rows_without_room > 0) throw std::runtime_error("memory_bytes has no room for this prompt");
      decode(context_.get(), pass.batch);
      std::int32_t count = 0;
      llama_token token = 0;
      if (pass.outputs[0] >= 0) {
        token = greedy(vocabulary(), context_.get(), pass.outputs[0]);
        count = 1;
        if (answer.first_token_s == 0) answer.first_token_s = seconds_since(begin);
      }
      cache_->commit({&count, 1}, {&token, static_cast<std::size_t>(count)});
      if (count == 0) continue;
      ends = llama_vocab_is_eog(vocabulary(), token);
      if (ends) break;
      answer.tokens.push_back(token);
      if (on_token) on_token(token);
      ends = std::ssize(answer.tokens) >= output_tokens || std::ssize(cache_->tokens(request)) >= context_tokens();
    }
    cache_->end(request, RequestEnd::finished);
    answer.image_s = images_s() - images_before;
    return answer;
  } catch (...) {
    cache_->end(request, RequestEnd::aborted);
    throw;
  }
}

double Engine::images_s() const noexcept {
  return cache_->image_work().save_s + cache_->image_work().restore_s;
}

double Engine::time_without_cache(std::span<const llama_token> prompt) {
  if (!plain_) plain_ = make_context(1);
  llama_memory_clear(llama_get_memory(plain_.get()), true);
  const Clock::time_point begin = Clock::now();
  std::vector<llama_token> tokens(prompt.begin(), prompt.end());
  for (std::size_t at = 0; at < tokens.size();) {
    const std::size_t count = std::min<std::size_t>(llama_n_batch(plain_.get()), tokens.size() - at);
    decode(plain_.get(), llama_batch_get_one(tokens.data() + at, static_cast<std::int32_t>(count)));
    at += count;
  }
  static_cast<void>(greedy(vocabulary(), plain_.get(), -1));
  return seconds_since(begin);
}

}  // namespace stateport::llamacpp
