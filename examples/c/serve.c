// SPDX-License-Identifier: Apache-2.0
// A request cache from C, without a device: the second prompt begins as the first one, and most of it is not computed.
#include <stateport/c/core.h>

#include <stdio.h>
#include <stdlib.h>

enum { prompt_tokens_max = 300 };

// docs: check a status
static void expect(stateport_status status) {
  if (status == STATEPORT_OK) return;
  fprintf(stderr, "status %d: %s\n", (int)status, stateport_last_error());
  exit(1);
}
// docs end

// docs: make a cache
static stateport_request_cache* make_cache(void) {
  stateport_spec* spec = NULL;
  stateport_spec_info info = {.size = sizeof info};
  expect(stateport_spec_find("qwen3-next-80b-a3b", NULL, &spec));
  expect(stateport_spec_describe(spec, &info));
  expect(stateport_spec_destroy(spec));
  const stateport_slot_layout slots = {.size = sizeof slots, .layout_fingerprint = info.fingerprint, .checkpoints = 64};
  const stateport_request_cache_options options = {.size = sizeof options,
                                                   .index = STATEPORT_INDEX_TREE,
                                                   .slots = &slots,
                                                   .max_requests = 8,
                                                   .max_request_tokens = 4096,
                                                   .block_size_tokens = 16,
                                                   .kv_tokens = 1 << 16};
  stateport_request_cache* cache = NULL;
  expect(stateport_request_cache_create(&options, &cache));
  return cache;
}
// docs end

// docs: serve a prompt
/// Returns the number of tokens that were not computed again.
static int64_t serve(stateport_request_cache* cache, const int32_t* tokens, size_t count) {
  const stateport_prompt prompt = {.size = sizeof prompt, .tokens = tokens, .count = count};
  stateport_started_request started = {.size = sizeof started};
  size_t done = 0;
  expect(stateport_request_cache_start(cache, &prompt, 1, &started, &done));  // STATEPORT_NO_CAPACITY: later
  for (int64_t computed = started.reused_tokens; computed < (int64_t)count;) {
    const int64_t budget = 64;
    int64_t chunk = 0;
    expect(stateport_request_cache_chunk(cache, &started.request, &budget, 1, &chunk, NULL));
    const int32_t row_tokens = (int32_t)chunk;
    const stateport_pass_batch batch = {
        .size = sizeof batch, .request = &started.request, .tokens = &row_tokens, .rows = 1};
    stateport_group_plan group = {.size = sizeof group};
    stateport_pass_plan plan = {.size = sizeof plan, .groups = &group, .group_count = 1};
    expect(stateport_request_cache_plan(cache, &batch, &plan));
    // Clear group.clear, copy group.copies, run the forward pass; then:
    computed += chunk;
    const int32_t sampled = computed == (int64_t)count, token = 7;
    stateport_group_commit after = {.size = sizeof after};
    stateport_pass_commit commit = {.size = sizeof commit, .groups = &after, .group_count = 1};
    expect(stateport_request_cache_commit(cache, plan.pass, &sampled, 1, &token, (size_t)sampled, &commit));
    // Copy after.copies: live states become checkpoints.
  }
  expect(stateport_request_cache_end(cache, &started.request, 1, STATEPORT_FINISHED, NULL, NULL));
  return started.reused_tokens;
}
// docs end

int main(void) {
  stateport_request_cache* const cache = make_cache();
  int32_t tokens[prompt_tokens_max];
  for (int32_t i = 0; i < prompt_tokens_max; ++i) tokens[i] = i;
  const int64_t first = serve(cache, tokens, 200);
  const int64_t second = serve(cache, tokens, 300);
  printf("%d tokens of the first prompt were reused, and %d of the second\n", (int)first, (int)second);
  expect(stateport_request_cache_destroy(cache));
  return first == 0 && second == 192 ? 0 : 1;
}
