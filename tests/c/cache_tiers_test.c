// SPDX-License-Identifier: Apache-2.0
// Tiers below a request cache, with an engine that carries out transfers itself and checks every read.
#include "cache_engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { prompts = 6, output_max = 12, steps = 150 };

static const stateport_state_group groups[engine_groups_max] = ENGINE_GROUPS(26);

static const stateport_tier_options tiers_of_test = {
    .size = sizeof tiers_of_test, .host_bytes = 90, .file_bytes = 300, .state_image_bytes = 10, .kv_image_bytes = 3};

static void make_setup(cache_setup* self, int32_t kind, int32_t drafts, const stateport_tier_options* tiers) {
  engine_setup(self, kind, drafts, groups);
  self->options.kv_tokens = 3 * engine_tokens_max / 2;
  self->slots.checkpoints = 3;
  self->options.tiers = tiers;
}

/// Requests come and go; transfers end late, in any order, and some fail; and every read is right.
static void serve(engine* self, engine_tiers* tiers, const stateport_request_cache_options* options, uint64_t seed) {
  stateport_request_cache* cache = NULL;
  CHECK_OK(stateport_request_cache_create(options, &cache));
  engine_make(self, cache, options, seed);
  memset(tiers, 0, sizeof *tiers);
  tiers->options = *options->tiers;
  self->tiers = tiers;
  int32_t tokens[prompts][engine_prompt_max];
  int32_t counts[prompts];
  engine_prompts(self, prompts, tokens, counts);
  for (int step = 0; step < steps; ++step) {
    const int index = engine_random(self, engine_requests);
    const int prompt = engine_random(self, prompts);
    if (self->requests[index].id == STATEPORT_NONE)
      engine_start(self, index, tokens[prompt], counts[prompt], counts[prompt] + 1 + engine_random(self, output_max));
    else if (engine_random(self, 12) == 0)
      engine_end(self, index, STATEPORT_PREEMPTED + engine_random(self, 2));
    engine_step(self, 3 + engine_random(self, 24));
    if (engine_random(self, 20) == 0) engine_read_events(self);
    if (engine_random(self, 40) == 0) {
      stateport_transfer_plan drained = {.size = sizeof drained};
      CHECK_OK(stateport_request_cache_drain(cache, &drained));
      engine_carry_out(self, drained.transfers, drained.count);
    }
    CHECK_OK(stateport_request_cache_check(cache));
  }
  for (int index = 0; index < engine_requests; ++index)
    if (self->requests[index].id != STATEPORT_NONE) engine_end(self, index, STATEPORT_ABORTED);
  engine_carry_out_rest(self);
  engine_settle_transfers(self, true);
  stateport_request_cache_info info = {.size = sizeof info};
  CHECK_OK(stateport_request_cache_describe(cache, &info));
  CHECK(info.running_requests == 0 && info.transfers_under_way == 0);
  engine_read_events(self);
  CHECK_OK(stateport_request_cache_reset(cache));
  engine_carry_out_rest(self);
  // A reset cache forgets its tiers, too. Images in the shared tier stay.
  for (int i = 0; i < tiers->count; ++i) CHECK(tiers->image[i].medium == STATEPORT_MEDIUM_REMOTE);
  CHECK_OK(stateport_request_cache_check(cache));
  CHECK_OK(stateport_request_cache_destroy(cache));
}

static engine self;

/// As many as chance says.
static int64_t leading_blocks(const uint64_t* prefixes, size_t count, void* context) {
  engine* const of = context;
  CHECK(of == &self && count > 0 && (prefixes[0] != 0 || prefixes[1] != 0));
#ifndef STATEPORT_TEST_MEMORY  // failures are counted for the call that is under way
  CHECK_REFUSED(stateport_request_cache_check(of->cache), STATEPORT_INVALID_STATE, "by a callback");
#endif
  return engine_random(of, (int32_t)count + 2) - 1;
}

/// Every other seed keeps KV elsewhere; every third one has checkpoints in a store of their own; half of them have a
/// remote tier.
void test_cache_tiers(void) {
  static engine_tiers tiers;
  stateport_tier_options states_alone = tiers_of_test;
  states_alone.kv_image_bytes = 0;
  states_alone.leading_blocks = leading_blocks;
  states_alone.leading_blocks_context = &self;
  const char* const wanted = getenv("STATEPORT_TEST_SEEDS");
#ifdef STATEPORT_TEST_MEMORY
  const int seeds_of_test = 36;
#else
  const int seeds_of_test = 200;
#endif
  const int seeds = wanted == NULL ? seeds_of_test : atoi(wanted);
  for (int32_t kind = 0; kind < combinations; ++kind) {
    int64_t kinds[5] = {0};
    int64_t loaded = 0;
    int64_t failed = 0;
    int64_t elsewhere = 0;
    for (int seed = 0; seed < seeds; ++seed) {
      const int before = check_failures;
      const bool alone = seed % 2 == 1;
      stateport_tier_options below = alone ? states_alone : tiers_of_test;
      if (seed / 6 % 2 == 1) below.remote_bytes = 600;
      cache_setup setup;
      make_setup(&setup, kind, seed % (engine_drafts_max + 1), &below);
      setup.slots.separate_checkpoints = !in_columns(kind) && seed / 2 % 3 == 0;
      serve(&self, &tiers, &setup.options, (uint64_t)seed);
      for (int kind = 0; kind < 5; ++kind) kinds[kind] += tiers.transfers[kind];
      loaded += tiers.loaded_tokens;
      failed += tiers.failed;
      elsewhere += tiers.elsewhere;
      CHECK(tiers.elsewhere == 0 || alone);
      if (check_failures > before) fprintf(stderr, "cache tiers: combination %d, seed %d\n", (int)kind, seed);
    }
    // Every kind of transfer occurred.
    for (int kind = 0; kind < 5; ++kind) CHECK(kinds[kind] > 0);
    CHECK(loaded > 0 && failed > 0 && elsewhere > 0);
  }
}

// --- Misuse ----------------------------------------------------------------------------------------------------------

static void refuse_options(stateport_tier_options tiers, const char* text) {
  cache_setup setup;
  make_setup(&setup, tree_slots, 0, &tiers);
  stateport_request_cache* cache = NULL;
  CHECK_REFUSED(stateport_request_cache_create(&setup.options, &cache), STATEPORT_INVALID_ARGUMENT, text);
  CHECK(cache == NULL);
}

static void refuse_all_options(void) {
  stateport_tier_options wrong = tiers_of_test;
  wrong.host_bytes = -1;
  refuse_options(wrong, "tiers.host_bytes = -1");
  wrong = tiers_of_test;
  wrong.host_bytes = 12;
  refuse_options(wrong, "tiers.host_bytes = 12 (is less than");
  wrong = tiers_of_test;
  wrong.file_bytes = 12;
  refuse_options(wrong, "tiers.file_bytes = 12 (is less than");
  wrong = tiers_of_test;
  wrong.file_bytes = 0;
  wrong.write_through = 1;
  refuse_options(wrong, "tiers.write_through");
  wrong = tiers_of_test;
  wrong.queue_bytes = -5;
  refuse_options(wrong, "tiers.queue_bytes = -5");
  wrong = tiers_of_test;
  wrong.tokens_per_s = -5;
  refuse_options(wrong, "tiers.tokens_per_s = -5");
  wrong = tiers_of_test;
  wrong.host_bytes_per_s = -1;
  refuse_options(wrong, "tiers.host_bytes_per_s = -1");
  wrong = tiers_of_test;
  wrong.file_bytes_per_s = -1;
  refuse_options(wrong, "tiers.file_bytes_per_s = -1");
  wrong = tiers_of_test;
  wrong.remote_bytes = 12;
  refuse_options(wrong, "tiers.remote_bytes = 12 (is less than");
  wrong = tiers_of_test;
  wrong.max_finds = -2;
  refuse_options(wrong, "tiers.max_finds = -2");
  wrong = tiers_of_test;
  wrong.remote_bytes_per_s = -1;
  refuse_options(wrong, "tiers.remote_bytes_per_s = -1");
  wrong = tiers_of_test;
  wrong.remote_latency_s = -1;
  refuse_options(wrong, "tiers.remote_latency_s = -1");
  wrong = tiers_of_test;
  wrong.kv_image_bytes = 0;
  refuse_options(wrong, "tiers.state_image_bytes = 10 (must be given with kv_image_bytes");
  wrong.size = 4;
  refuse_options(wrong, "tiers = 4");
}

/// A cache without tiers, in the first step of a request.
static void refuse_without_tiers(void) {
  cache_setup setup;
  make_setup(&setup, tree_slots, 0, NULL);
  stateport_request_cache* cache = NULL;
  CHECK_OK(stateport_request_cache_create(&setup.options, &cache));
  stateport_transfer_plan plan = {.size = sizeof plan};
  stateport_tier_usage usage = {.size = sizeof usage, .states = 5};
  const stateport_tier_speeds speeds = {.size = sizeof speeds};
  size_t done = 9;
  stateport_settled_transfers settled = {.size = sizeof settled};
  CHECK_REFUSED(stateport_request_cache_settle(cache, NULL, 0, &settled), STATEPORT_INVALID_STATE, "has no tiers");
  CHECK_REFUSED(stateport_request_cache_loading(cache, NULL, 0, NULL), STATEPORT_INVALID_STATE, "has no tiers");
  CHECK_REFUSED(stateport_request_cache_drain(cache, &plan), STATEPORT_INVALID_STATE, "has no tiers");
  CHECK_REFUSED(stateport_request_cache_attach(cache, STATEPORT_MEDIUM_FILE, NULL, 0, NULL, &done),
                STATEPORT_INVALID_STATE, "has no tiers");
  CHECK_REFUSED(stateport_request_cache_set_speeds(cache, &speeds), STATEPORT_INVALID_STATE, "has no tiers");
  CHECK_OK(stateport_request_cache_tier_usage(cache, STATEPORT_MEDIUM_HOST, &usage));
  CHECK(usage.states == 0 && done == 9);
  CHECK_OK(stateport_request_cache_destroy(cache));
}

/// One call starts two prompts of 40 tokens in a cache with nothing in it. Each names its own finds, this number of
/// them; -1: more than one.
static void start_two(int32_t max_finds, int finds) {
  stateport_tier_options below = tiers_of_test;
  below.remote_bytes = 600;
  below.max_finds = max_finds;
  cache_setup setup;
  make_setup(&setup, tree_slots, 0, &below);
  stateport_request_cache* cache = NULL;
  CHECK_OK(stateport_request_cache_create(&setup.options, &cache));
  int32_t tokens[41];
  for (int32_t i = 0; i < 41; ++i) tokens[i] = i;
  const stateport_prompt prompts[] = {{.size = sizeof *prompts, .tokens = tokens, .count = 40},
                                      {.size = sizeof *prompts, .tokens = tokens + 1, .count = 40}};
  stateport_started_request started[] = {{.size = sizeof *started}, {.size = sizeof *started}};
  size_t done = 0;
  CHECK_OK(stateport_request_cache_start(cache, prompts, 2, started, &done));
  CHECK(done == 2);
  for (int i = 0; i < 2; ++i) {
    CHECK(finds < 0 ? started[i].transfer_count > 1 : started[i].transfer_count == (size_t)finds);
    for (size_t find = 0; find < started[i].transfer_count; ++find) {
      CHECK(started[i].transfers[find].kind == STATEPORT_TRANSFER_FIND);
      CHECK(started[i].transfers[find].request == started[i].request);
    }
  }
  CHECK_OK(stateport_request_cache_destroy(cache));
}

static void refuse_answers(stateport_request_cache* cache) {
  const int32_t tokens[] = {1, 2, 3, 4, 5};
  const stateport_prompt prompt = {.size = sizeof prompt, .tokens = tokens, .count = 5};
  stateport_started_request started = {.size = sizeof started};
  size_t done = 0;
  CHECK_OK(stateport_request_cache_start(cache, &prompt, 1, &started, &done));
  CHECK(started.load_tokens == 0 && started.load_bytes == 0 && started.load_medium == STATEPORT_MEDIUM_DEVICE);
  const int32_t five = 5;
  const stateport_pass_batch batch = {.size = sizeof batch, .request = &started.request, .tokens = &five, .rows = 1};
  stateport_pass_plan pass = {.size = sizeof pass};
  CHECK_OK(stateport_request_cache_plan(cache, &batch, &pass));
  const stateport_transfer_result nobody = {.id = 77, .status = STATEPORT_TRANSFER_DONE};
  const stateport_transfer_result unknown = {.id = 1, .status = STATEPORT_TRANSFER_FAILED + 1};
  CHECK(pass.transfer_count == 0);
  stateport_settled_transfers settled = {.size = sizeof settled, .ready_requests = 9};
  CHECK_REFUSED(stateport_request_cache_settle(cache, &nobody, 1, &settled), STATEPORT_INVALID_ARGUMENT,
                "result.id = 77 (is not under way)");
  CHECK_REFUSED(stateport_request_cache_settle(cache, &unknown, 1, &settled), STATEPORT_INVALID_ARGUMENT, "status = 7");
  CHECK_REFUSED(stateport_request_cache_settle(cache, NULL, 0, NULL), STATEPORT_INVALID_ARGUMENT, "out = null");
  CHECK_REFUSED(stateport_request_cache_settle(cache, NULL, 1, &settled), STATEPORT_INVALID_ARGUMENT, "results = null");
  CHECK_REFUSED(stateport_request_cache_drain(cache, NULL), STATEPORT_INVALID_ARGUMENT, "out = null");
  CHECK(settled.ready_requests == 9);
  CHECK_OK(stateport_request_cache_settle(cache, NULL, 0, &settled));
  CHECK(settled.ready_requests == 0 && settled.transfer_count == 0);
  uint8_t loading[2] = {9, 9};
  const int64_t requests[] = {started.request, started.request + 1};
  CHECK_REFUSED(stateport_request_cache_loading(cache, requests, 2, loading), STATEPORT_INVALID_ARGUMENT, "request");
  CHECK(loading[0] == 9);
  CHECK_OK(stateport_request_cache_loading(cache, requests, 1, loading));
  CHECK(loading[0] == 0 && loading[1] == 9);
  CHECK_OK(stateport_request_cache_end(cache, requests, 1, STATEPORT_ABORTED, NULL, NULL));
}

static void refuse_attached(stateport_request_cache* cache) {
  stateport_image_key images[2] = {{.prefix = {1, 2}, .tokens = 4, .content = STATEPORT_STATE},
                                   {.prefix = {1, 2}, .tokens = 5, .content = STATEPORT_STATE}};
  uint8_t attached[2] = {9, 9};
  size_t done = 9;
  CHECK_REFUSED(stateport_request_cache_attach(cache, STATEPORT_MEDIUM_DEVICE, images, 1, attached, &done),
                STATEPORT_INVALID_ARGUMENT, "medium = 0");
  CHECK_REFUSED(stateport_request_cache_attach(cache, 5, images, 1, attached, &done), STATEPORT_INVALID_ARGUMENT,
                "medium = 5");
  CHECK(done == 0 && attached[0] == 9);
  CHECK_REFUSED(stateport_request_cache_attach(cache, STATEPORT_MEDIUM_HOST, images, 2, attached, &done),
                STATEPORT_INVALID_ARGUMENT, "image.tokens = 5");
  CHECK(done == 1 && attached[0] == 1 && attached[1] == 9);
  images[1].tokens = 4;
  images[1].group = 1;
  CHECK_REFUSED(stateport_request_cache_attach(cache, STATEPORT_MEDIUM_HOST, images, 2, attached, &done),
                STATEPORT_INVALID_ARGUMENT, "image.group = 1");
  images[1].content = 7;
  CHECK_REFUSED(stateport_request_cache_attach(cache, STATEPORT_MEDIUM_HOST, images, 2, attached, &done),
                STATEPORT_INVALID_ARGUMENT, "content = 7");
  stateport_tier_usage usage = {.size = sizeof usage};
  CHECK_OK(stateport_request_cache_tier_usage(cache, STATEPORT_MEDIUM_HOST, &usage));
  CHECK(usage.states == 1 && usage.bytes == tiers_of_test.state_image_bytes);
  // More than there is room for: the rest is the engine's to remove.
  stateport_image_key many[12];
  uint8_t reported[12];
  for (uint64_t i = 0; i < 12; ++i)
    many[i] = (stateport_image_key){.prefix = {i + 10, 3}, .tokens = 4, .content = STATEPORT_STATE};
  CHECK_OK(stateport_request_cache_attach(cache, STATEPORT_MEDIUM_HOST, many, 12, reported, &done));
  CHECK(done == 12 && reported[0] == 1 && reported[7] == 1 && reported[8] == 0 && reported[11] == 0);
  CHECK_REFUSED(stateport_request_cache_tier_usage(cache, -1, &usage), STATEPORT_INVALID_ARGUMENT, "medium = -1");
  stateport_tier_speeds speeds = {.size = sizeof speeds, .file_bytes_per_s = -3};
  CHECK_REFUSED(stateport_request_cache_set_speeds(cache, &speeds), STATEPORT_INVALID_ARGUMENT,
                "file_bytes_per_s = -3");
  speeds.file_bytes_per_s = 3;
  CHECK_OK(stateport_request_cache_set_speeds(cache, &speeds));
}

void test_cache_tiers_refusals(void) {
  start_two(0, -1);
  start_two(1, 1);
  start_two(STATEPORT_NONE, 0);
  refuse_all_options();
  refuse_without_tiers();
  cache_setup setup;
  make_setup(&setup, tree_slots, 0, &tiers_of_test);
  stateport_request_cache* cache = NULL;
  CHECK_OK(stateport_request_cache_create(&setup.options, &cache));
  refuse_answers(cache);
  refuse_attached(cache);
  CHECK_OK(stateport_request_cache_check(cache));
  CHECK_OK(stateport_request_cache_destroy(cache));
}
