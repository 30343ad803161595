// SPDX-License-Identifier: Apache-2.0
// Two prompts of one model in llama.cpp, with a common beginning: shared-prefix MODEL.gguf
#include <stateport/llamacpp/cache.hpp>

#include <ggml-backend.h>
#include <llama.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <span>
#include <vector>

using Tokens = std::vector<llama_token>;

static void expect(bool ok, const char* problem) {
  if (ok) return;
  std::fprintf(stderr, "%s\n", problem);
  std::exit(1);
}

static llama_token greedy(llama_context* context, std::int32_t output) {
  const float* const logits = llama_get_logits_ith(context, output);
  const std::int32_t words = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(context)));
  return static_cast<llama_token>(std::max_element(logits, logits + words) - logits);
}

// docs: a request
/// Serves one prompt, and returns how many of its tokens were not computed again.
static std::int64_t serve(stateport::llamacpp::Cache& cache, llama_context* context, const Tokens& prompt,
                          std::int64_t answer_tokens) {
  const auto started = cache.start({.tokens = prompt});
  expect(started.has_value(), "all sequences run: start this request later");
  const stateport::RequestId request = started->request;
  while (cache.is_loading(request)) {
  }  // from files; an engine runs other requests meanwhile
  const std::int64_t reused = cache.computed(request), prompt_tokens = std::ssize(prompt);

  while (std::ssize(cache.tokens(request)) < prompt_tokens + answer_tokens) {
    // A batch of one row; a server has a row for each request that runs.
    const std::int64_t budget = llama_n_batch(context);
    const bool in_prompt = cache.computed(request) < prompt_tokens;
    const stateport::PassRow row{.request = request,
                                 .tokens = in_prompt ? static_cast<std::int32_t>(cache.chunk(request, budget)) : 1};
    const stateport::llamacpp::Pass& pass = cache.plan({&row, 1});  // restores KV and state
    expect(pass.rows_without_room == 0, "no room for KV: end a request as preempted");
    if (llama_decode(context, pass.batch) != 0) {
      cache.end(request, stateport::RequestEnd::aborted);
      return 0;
    }
    const std::int32_t output = pass.outputs[0];  // -1: the prompt goes on
    const std::int32_t count = output >= 0;
    const llama_token token = count ? greedy(context, output) : 0;
    cache.commit({&count, 1}, {&token, static_cast<std::size_t>(count)});  // saves KV and states
  }
  cache.end(request, stateport::RequestEnd::finished);
  return reused;
}
// docs end

int main(int argc, char** argv) {
  expect(argc == 2, "give the GGUF file of a model");
  llama_log_set([](ggml_log_level, const char*, void*) {}, nullptr);
  // docs: the context
  ggml_backend_load_all();
  const std::unique_ptr<llama_model, decltype(&llama_model_free)> model(
      llama_model_load_from_file(argv[1], llama_model_default_params()), llama_model_free);
  expect(model != nullptr, "this is no model that llama.cpp can load");
  llama_context_params params = llama_context_default_params();
  params.n_ctx = 2048;
  params.n_batch = 512;
  params.n_seq_max = 2;      // one more than requests that run at a time
  params.kv_unified = true;  // sequences share cells
  params.n_threads = params.n_threads_batch = 1;
  const std::unique_ptr<llama_context, decltype(&llama_free)> context(llama_init_from_model(model.get(), params),
                                                                      llama_free);
  expect(context != nullptr, "no context");
  // docs end
  // docs: the cache
  stateport::llamacpp::CacheOptions options;
  options.memory_bytes = 256 << 20;
  // options.files = {.folder = "/var/stateport", .capacity_bytes = 8ull << 30};  // survives the process
  stateport::llamacpp::Cache cache(context.get(), params, "my-model, revision 1", options);
  // docs end

  Tokens first(700), second;
  for (std::size_t i = 0; i < first.size(); ++i) first[i] = static_cast<llama_token>(261 + i * i % 250);
  second.assign(first.begin(), first.begin() + 600);  // then another question
  second.insert(second.end(), 100, 300);
  for (const Tokens* prompt : {&first, &second})
    std::printf("%d of %d tokens reused\n", int(serve(cache, context.get(), *prompt, 8)), int(prompt->size()));
  return serve(cache, context.get(), second, 8) >= 600 ? 0 : 1;
}
