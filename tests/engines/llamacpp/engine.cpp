// SPDX-License-Identifier: Apache-2.0
#include "engine.hpp"

#include <doctest/doctest.h>
#include <ggml-backend.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>

namespace stateport::test {
namespace {

Logits logits_of(llama_context* context, std::int32_t output) {
  const float* const logits = llama_get_logits_ith(context, output);
  REQUIRE(logits != nullptr);
  return {logits, logits + vocabulary(llama_get_model(context))};
}

std::string models_folder() {
  const char* const folder = std::getenv("STATEPORT_LLAMA_MODELS");
  return folder == nullptr ? "" : folder;
}

llama_token greedy(const Logits& logits) {
  return static_cast<llama_token>(std::ranges::max_element(logits) - logits.begin());
}

void start_backends() {
  static const bool started = [] {
    llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
    ggml_backend_load_all();
    return true;
  }();
  static_cast<void>(started);
}

}  // namespace

std::vector<std::string> architectures() {
  std::vector<std::string> names;
  REQUIRE_MESSAGE(!models_folder().empty(), "STATEPORT_LLAMA_MODELS names the folder of models.py");
  for (const auto& file : std::filesystem::directory_iterator(models_folder()))
    if (file.path().extension() == ".gguf") names.push_back(file.path().stem());
  std::ranges::sort(names);
  REQUIRE(names.size() >= 6);
  return names;
}

Model load(const std::string& architecture) {
  start_backends();
  const llama_model_params params = llama_model_default_params();
  Model model(llama_model_load_from_file((models_folder() + "/" + architecture + ".gguf").c_str(), params));
  REQUIRE(model != nullptr);
  return model;
}

std::int32_t vocabulary(const llama_model* model) {
  return llama_vocab_n_tokens(llama_model_get_vocab(model));
}

llama_context_params parameters(std::uint32_t cells, std::uint32_t sequences) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = cells;
  params.n_batch = 512;
  params.n_ubatch = 128;
  params.n_seq_max = sequences;
  params.n_threads = params.n_threads_batch = 1;
  params.kv_unified = true;
  return params;
}

PlainEngine::PlainEngine(llama_model* model, std::uint32_t cells)
    : context_(llama_init_from_model(model, parameters(cells, 1))) {
  REQUIRE(context_ != nullptr);
}

Logits PlainEngine::run(std::span<const llama_token> tokens, std::span<const std::int64_t> ends) {
  llama_memory_clear(llama_get_memory(context_.get()), true);
  std::int64_t from = 0;
  Logits logits;
  for (const std::int64_t end : ends) {
    logits = go_on(tokens.subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(end - from)), from);
    from = end;
  }
  return logits;
}

Logits PlainEngine::go_on(std::span<const llama_token> tokens, std::int64_t from) {
  llama_batch batch = llama_batch_init(static_cast<std::int32_t>(tokens.size()), 0, 1);
  for (const llama_token token : tokens) {
    const std::int32_t at = batch.n_tokens++;
    batch.token[at] = token;
    batch.pos[at] = static_cast<llama_pos>(from + at);
    batch.n_seq_id[at] = 1;
    batch.seq_id[at][0] = 0;
    batch.logits[at] = std::cmp_equal(batch.n_tokens, tokens.size());
  }
  REQUIRE(llama_decode(context_.get(), batch) == 0);
  llama_batch_free(batch);
  return logits_of(context_.get(), -1);
}

CachedEngine::CachedEngine(llama_model* model, const llamacpp::CacheOptions& options, std::uint32_t cells,
                           const std::string& weights) {
  const llama_context_params params = parameters(cells, static_cast<std::uint32_t>(options.sequences) + 1);
  context_.reset(llama_init_from_model(model, params));
  REQUIRE(context_ != nullptr);
  cache_ = std::make_unique<llamacpp::Cache>(context_.get(), params, weights, options);
}

bool CachedEngine::start(const Tokens& prompt, std::int64_t output_tokens) {
  const auto started = cache_->start({.tokens = prompt});
  if (!started) return false;
  while (cache_->is_loading(started->request)) {
  }
  running_.push_back({.request = started->request,
                      .prompt = prompt,
                      .output_tokens = output_tokens,
                      .reused = cache_->computed(started->request),
                      .sequence = started->sequence});
  return true;
}

void CachedEngine::step(std::int64_t budget_tokens) {
  std::vector<PassRow> rows;
  std::vector<std::size_t> served;
  for (std::size_t i = 0; i < running_.size(); ++i) {
    const Answer& one = running_[i];
    const bool decodes = cache_->computed(one.request) >= std::ssize(one.prompt);
    const std::int64_t tokens = decodes ? 1 : cache_->chunk(one.request, budget_tokens);
    if (tokens == 0) continue;
    if (!decodes) budget_tokens -= tokens;
    rows.push_back({.request = one.request, .tokens = static_cast<std::int32_t>(tokens)});
    served.push_back(i);
  }
  const llamacpp::Pass& pass = cache_->plan(rows);
  REQUIRE(pass.rows_without_room == 0);
  decoded_tokens_ += pass.batch.n_tokens;
  REQUIRE(llama_decode(context_.get(), pass.batch) == 0);
  std::vector<std::int32_t> counts;
  Tokens sampled;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Answer& one = running_[served[i]];
    one.ends.push_back(pass.rows[i].start + pass.rows[i].tokens);
    counts.push_back(pass.outputs[i] >= 0);
    if (pass.outputs[i] < 0) continue;
    one.logits.push_back(logits_of(context_.get(), pass.outputs[i]));
    one.output.push_back(greedy(one.logits.back()));
    sampled.push_back(one.output.back());
  }
  cache_->commit(counts, sampled);
  for (std::size_t i = running_.size(); i-- > 0;) {
    if (!running_[i].done()) continue;
    cache_->end(running_[i].request, RequestEnd::finished);
    ended_.push_back(std::move(running_[i]));
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(i));
  }
  cache_->decisions().check_invariants();
}

void CachedEngine::abort(std::size_t running) {
  cache_->end(running_[running].request, RequestEnd::aborted);
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(running));
}

Answer CachedEngine::serve(const Tokens& prompt, std::int64_t output_tokens, std::int64_t budget_tokens) {
  REQUIRE(running_.empty());
  REQUIRE(start(prompt, output_tokens));
  while (!running_.empty()) step(budget_tokens);
  return std::move(take().front());
}

float largest_difference(const Logits& a, const Logits& b) {
  REQUIRE(a.size() == b.size());
  float largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

float largest_difference(PlainEngine& plain, const Answer& answer) {
  std::vector<std::int64_t> ends;
  for (std::int64_t end = 128; end < std::ssize(answer.prompt); end += 128) ends.push_back(end);
  ends.push_back(std::ssize(answer.prompt));
  float largest = largest_difference(plain.run(answer.prompt, ends), answer.logits[0]);
  for (std::size_t i = 1; i < answer.logits.size(); ++i) {
    const auto at = static_cast<std::int64_t>(answer.prompt.size() + i) - 1;
    largest = std::max(largest, largest_difference(plain.go_on({&answer.output[i - 1], 1}, at), answer.logits[i]));
  }
  return largest;
}

}  // namespace stateport::test
