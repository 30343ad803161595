// SPDX-License-Identifier: Apache-2.0
// What lies below a request cache, by an engine that carries out transfers itself and checks every read.
#include "cache_engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { block_tokens = 4, prompts = 6, prompt_max = 22, output_max = 12, steps = 150 };

static const stateport_state_group groups[engine_groups_max] = {{.size = sizeof *groups,
                                                                 .block_size_tokens = 2 * block_tokens,
                                                                 .blocks = 26,
                                                                 .conv_window = engine_window + engine_drafts_max,
                                                                 .layout_fingerprint = 5},
                                                                {.size = sizeof *groups,
                                                                 .block_size_tokens = 2 * block_tokens,
                                                                 .blocks = 26,
                                                                 .conv_window = engine_window + engine_drafts_max,
                                                                 .layout_fingerprint = 6}};

static const stateport_tier_options tiers_of_test = {
    .size = sizeof tiers_of_test, .host_bytes = 90, .file_bytes = 300, .state_image_bytes = 10, .kv_image_bytes = 3};

static stateport_request_cache_options options_for(int32_t index, int32_t drafts, const stateport_tier_options* tiers) {
  const bool align = index == STATEPORT_INDEX_ALIGN;
  return (stateport_request_cache_options){.size = sizeof(stateport_request_cache_options),
                                           .index = index,
                                           .max_requests = engine_requests,
                                           .max_request_tokens = engine_tokens_max,
                                           .drafts = drafts,
                                           .block_size_tokens = block_tokens,
                                           .kv_tokens = 3 * engine_tokens_max / 2,
                                           .layout_fingerprint = align ? 0 : 42,
                                           .checkpoints = align ? 0 : 3,
                                           .scan_alignment_tokens = index == STATEPORT_INDEX_TREE ? 0 : 2,
                                           .decode_checkpoint_tokens = align ? 0 : block_tokens,
                                           .groups = align ? groups : NULL,
                                           .group_count = align ? engine_groups_max : 0,
                                           .fast_hash = 1,
                                           .events = 1,
                                           .tiers = tiers};
}

/// Requests come and go; transfers end late, in any order, and some fail; and every read is right.
static void serve(engine* self, engine_tiers* tiers, const stateport_request_cache_options* options, uint64_t seed) {
  stateport_request_cache* cache = NULL;
  CHECK_OK(stateport_request_cache_create(options, &cache));
  engine_make(self, cache, options, seed);
  memset(tiers, 0, sizeof *tiers);
  tiers->options = *options->tiers;
  self->tiers = tiers;
  int32_t tokens[prompts][prompt_max];
  int32_t counts[prompts];
  for (int i = 0; i < prompts; ++i) {
    counts[i] = block_tokens + 1 + engine_random(self, prompt_max - block_tokens);
    const int32_t shared = i == 0 ? 0 : engine_random(self, counts[0]);
    for (int32_t at = 0; at < counts[i]; ++at)
      tokens[i][at] = at < shared ? tokens[0][at] : 10 + engine_random(self, 90);
  }
  for (int step = 0; step < steps; ++step) {
    const int index = engine_random(self, engine_requests);
    const int prompt = engine_random(self, prompts);
    if (self->requests[index].id == STATEPORT_NONE)
      engine_start(self, index, tokens[prompt], counts[prompt], counts[prompt] + 1 + engine_random(self, output_max));
    else if (engine_random(self, 12) == 0)
      engine_end(self, index, STATEPORT_PREEMPTED + engine_random(self, 2));
    engine_step(self, 3 + engine_random(self, 24));
    if (engine_random(self, 20) == 0) engine_read_events(self);
    if (engine_random(self, 40) == 0) CHECK_OK(stateport_request_cache_drain(cache));
    CHECK_OK(stateport_request_cache_check(cache));
  }
  for (int index = 0; index < engine_requests; ++index)
    if (self->requests[index].id != STATEPORT_NONE) engine_end(self, index, STATEPORT_ABORTED);
  engine_take_transfers(self);
  engine_settle_transfers(self, true);
  stateport_request_cache_info info = {.size = sizeof info};
  CHECK_OK(stateport_request_cache_describe(cache, &info));
  CHECK(info.running_requests == 0 && info.transfers_under_way == 0);
  engine_read_events(self);
  CHECK_OK(stateport_request_cache_reset(cache));
  engine_take_transfers(self);
  CHECK(tiers->count == 0);  // a cache that is reset forgets what lies below, too
  CHECK_OK(stateport_request_cache_check(cache));
  CHECK_OK(stateport_request_cache_destroy(cache));
}

void test_cache_tiers(void) {
  static engine self;
  static engine_tiers tiers;
  const char* const wanted = getenv("STATEPORT_TEST_SEEDS");
  const int seeds = wanted == NULL ? 12 : atoi(wanted);
  for (int32_t index = STATEPORT_INDEX_SLOTS; index <= STATEPORT_INDEX_ALIGN; ++index) {
    int64_t kinds[4] = {0};
    int64_t loaded = 0;
    int64_t failed = 0;
    for (int seed = 0; seed < seeds; ++seed) {
      const int before = check_failures;
      const stateport_request_cache_options options =
          options_for(index, seed % (engine_drafts_max + 1), &tiers_of_test);
      serve(&self, &tiers, &options, (uint64_t)seed);
      for (int kind = 0; kind < 4; ++kind) kinds[kind] += tiers.transfers[kind];
      loaded += tiers.loaded_tokens;
      failed += tiers.failed;
      if (check_failures > before) fprintf(stderr, "cache tiers: index %d, seed %d\n", (int)index, seed);
    }
    // What is to be tested happened.
    for (int kind = 0; kind < 4; ++kind) CHECK(kinds[kind] > 0);
    CHECK(loaded > 0 && failed > 0);
  }
}
