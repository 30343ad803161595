// SPDX-License-Identifier: Apache-2.0
// Pins, prefetches and sessions, over an engine whose every read is checked.
#include "cache_engine.h"

#include <math.h>
#include <string.h>

enum { prompt_tokens = 17 };

static const stateport_state_group groups[engine_groups_max] = ENGINE_GROUPS(60);
static const stateport_eviction_options lru = {
    .size = sizeof lru, .order = STATEPORT_EVICT_LRU, .state_bytes = 20, .kv_bytes_per_token = 1};
static const stateport_tier_options tiers_of_test = {
    .size = sizeof tiers_of_test, .host_bytes = 4000, .state_image_bytes = 10, .kv_image_bytes = 3};

static void fill(int32_t* tokens, int32_t first) {
  for (int32_t i = 0; i < prompt_tokens; ++i) tokens[i] = i == 0 ? first : 7 * i % 5;
}

/// Serves a prompt alone, with one token of output. Returns the tokens of it that were reused.
static int64_t serve(engine* self, uint64_t session, int32_t first) {
  int32_t tokens[prompt_tokens];
  fill(tokens, first);
  const stateport_reuse_hint hint = {.size = sizeof hint, .session = session};
  self->names.hint = &hint;
  self->names.search = STATEPORT_SEARCH_DEVICE;
  const int64_t before = self->reused_tokens;
  CHECK(engine_start(self, 0, tokens, prompt_tokens, prompt_tokens + 1));
  self->names.hint = NULL;
  const int64_t reused = self->reused_tokens - before;
  for (int step = 0; step < 20 && self->requests[0].id != STATEPORT_NONE; ++step) engine_step(self, 64);
  engine_settle(self);
  if (self->tiers != NULL) {
    engine_carry_out_rest(self);
    engine_settle_transfers(self, true);
  }
  CHECK(self->requests[0].id == STATEPORT_NONE);
  CHECK_OK(stateport_request_cache_check(self->cache));
  return reused;
}

static stateport_prompt prompt_of(const int32_t* tokens) {
  const stateport_prompt prompt = {.size = sizeof prompt, .tokens = tokens, .count = prompt_tokens, .now_s = 1000};
  return prompt;
}

static void keep_pinned(engine* self) {
  int32_t tokens[prompt_tokens];
  fill(tokens, 1);
  const stateport_prompt prompt = prompt_of(tokens);
  CHECK(serve(self, 0, 1) == 0);
  stateport_pinned_prefix pinned = {.size = sizeof pinned};
  CHECK_OK(stateport_request_cache_pin(self->cache, &prompt, 0, &pinned));
  CHECK(pinned.pin == 1 && pinned.tokens == 16 && pinned.refused == 0);
  self->names.now_s = 1000;
  for (int32_t i = 0; i < 60; ++i) CHECK(serve(self, 0, 100 + i) == 0);
  CHECK(serve(self, 0, 1) == 16);
  stateport_prefix_usage usage = {.size = sizeof usage};
  CHECK_OK(stateport_request_cache_prefix_usage(self->cache, &usage));
  CHECK(usage.pins == 1 && usage.made_pins == 1 && usage.pinned_kv_tokens == 16 && usage.pinned_states >= 1);
  CHECK(usage.pinned_bytes == 36);
  uint8_t unpinned = 7;
  CHECK_OK(stateport_request_cache_unpin(self->cache, 1, &unpinned));
  CHECK(unpinned == 1);
  CHECK_OK(stateport_request_cache_unpin(self->cache, 1, &unpinned));
  CHECK(unpinned == 0);
  for (int32_t i = 0; i < 60; ++i) CHECK(serve(self, 0, 200 + i) == 0);
  CHECK(serve(self, 0, 1) == 0);
}

static void close_session(engine* self) {
  uint8_t closed = 7;
  CHECK(serve(self, 5, 1) == 16);
  CHECK(serve(self, 5, 2) == 0);
  stateport_session_usage usage = {.size = sizeof usage};
  CHECK_OK(stateport_request_cache_session_usage(self->cache, 5, &usage));
  CHECK(usage.is_open == 1 && usage.kv_tokens == 16 && usage.states >= 1 && usage.bytes == 36);
  CHECK_OK(stateport_request_cache_close_session(self->cache, 5, &closed));
  CHECK(closed == 1);
  CHECK_OK(stateport_request_cache_close_session(self->cache, 5, &closed));
  CHECK(closed == 0);
  CHECK_OK(stateport_request_cache_session_usage(self->cache, 5, &usage));
  CHECK(usage.is_open == 0 && usage.bytes == 36);
  // The youngest content goes first.
  for (int32_t i = 0; i < 30 && usage.bytes > 0; ++i) {
    CHECK(serve(self, 0, 300 + i) == 0);
    CHECK_OK(stateport_request_cache_session_usage(self->cache, 5, &usage));
  }
  CHECK(usage.bytes == 0);
}

static void refuse(engine* self) {
  stateport_request_cache* const cache = self->cache;
  int32_t tokens[engine_tokens_max] = {0};
  stateport_prompt prompt = prompt_of(tokens);
  stateport_pinned_prefix pinned = {.size = sizeof pinned};
  stateport_prefetch prefetch = {.size = sizeof prefetch};
  stateport_prefix_usage usage = {.size = sizeof usage};
  stateport_session_usage session = {.size = sizeof session};
  uint8_t flag = 7;
  const int32_t refused = STATEPORT_INVALID_ARGUMENT;
  CHECK_REFUSED(stateport_request_cache_pin(cache, &prompt, -1, &pinned), refused, "lease_s = -1");
  CHECK_REFUSED(stateport_request_cache_pin(cache, &prompt, NAN, &pinned), refused, "lease_s");
  CHECK_REFUSED(stateport_request_cache_pin(cache, NULL, 0, &pinned), refused, "prompt");
  CHECK_REFUSED(stateport_request_cache_pin(cache, &prompt, 0, NULL), refused, "out");
  CHECK_REFUSED(stateport_request_cache_unpin(cache, 0, &flag), refused, "pin = 0");
  CHECK_REFUSED(stateport_request_cache_unpin(cache, 99, &flag), refused, "pin = 99");
  CHECK_REFUSED(stateport_request_cache_unpin(cache, 1, NULL), refused, "unpinned = null");
  CHECK_REFUSED(stateport_request_cache_prefetching(cache, 1, &flag), refused, "prefetch = 1");
  CHECK_REFUSED(stateport_request_cache_prefetching(cache, 1, NULL), refused, "under_way = null");
  prompt.search = STATEPORT_SEARCH_DEVICE;
  CHECK_REFUSED(stateport_request_cache_prefetch(cache, &prompt, &prefetch), refused, "search = 2");
  prompt.count = engine_tokens_max;
  CHECK_REFUSED(stateport_request_cache_pin(cache, &prompt, 0, &pinned), refused, "max_request_tokens");
  CHECK_REFUSED(stateport_request_cache_close_session(cache, 0, &flag), refused, "session = 0");
  CHECK_REFUSED(stateport_request_cache_close_session(cache, 1, NULL), refused, "closed = null");
  CHECK_REFUSED(stateport_request_cache_session_usage(cache, 0, &session), refused, "session = 0");
  CHECK(flag == 7);
  CHECK_OK(stateport_request_cache_destroy(cache));
  CHECK_REFUSED(stateport_request_cache_pin(cache, &prompt, 0, &pinned), STATEPORT_INVALID_HANDLE, "cache");
  CHECK_REFUSED(stateport_request_cache_unpin(cache, 1, &flag), STATEPORT_INVALID_HANDLE, "cache");
  CHECK_REFUSED(stateport_request_cache_prefetch(cache, &prompt, &prefetch), STATEPORT_INVALID_HANDLE, "cache");
  CHECK_REFUSED(stateport_request_cache_prefetching(cache, 1, &flag), STATEPORT_INVALID_HANDLE, "cache");
  CHECK_REFUSED(stateport_request_cache_prefix_usage(cache, &usage), STATEPORT_INVALID_HANDLE, "cache");
  CHECK_REFUSED(stateport_request_cache_close_session(cache, 1, &flag), STATEPORT_INVALID_HANDLE, "cache");
  CHECK_REFUSED(stateport_request_cache_session_usage(cache, 1, &session), STATEPORT_INVALID_HANDLE, "cache");
}

/// A cache whose options name neither.
static void refuse_without(cache_setup* setup) {
  stateport_request_cache* cache = NULL;
  CHECK_OK(stateport_request_cache_create(&setup->options, &cache));
  int32_t tokens[prompt_tokens] = {0};
  const stateport_prompt prompt = prompt_of(tokens);
  stateport_pinned_prefix pinned = {.size = sizeof pinned};
  stateport_prefetch prefetch = {.size = sizeof prefetch};
  stateport_prefix_usage usage = {.size = sizeof usage};
  stateport_session_usage session = {.size = sizeof session};
  uint8_t flag = 7;
  const int32_t refused = STATEPORT_INVALID_STATE;
  CHECK_REFUSED(stateport_request_cache_pin(cache, &prompt, 0, &pinned), refused, "prefixes");
  CHECK_REFUSED(stateport_request_cache_unpin(cache, 1, &flag), refused, "prefixes");
  CHECK_REFUSED(stateport_request_cache_prefetch(cache, &prompt, &prefetch), refused, "prefixes");
  CHECK_REFUSED(stateport_request_cache_prefetching(cache, 1, &flag), refused, "prefixes");
  CHECK_REFUSED(stateport_request_cache_prefix_usage(cache, &usage), refused, "prefixes");
  CHECK_REFUSED(stateport_request_cache_close_session(cache, 1, &flag), refused, "sessions");
  CHECK_REFUSED(stateport_request_cache_session_usage(cache, 1, &session), refused, "sessions");
  CHECK(flag == 7);
  CHECK_OK(stateport_request_cache_destroy(cache));
}

/// A prefetch brings a prefix up that a flood has evicted; loads of the test may fail. Returns the tokens it brought.
static int64_t prefetch(engine* self, cache_setup* setup, uint64_t seed) {
  static engine_tiers tiers;
  const stateport_prefix_options prefixes = {.size = sizeof prefixes, .prefetches = 1, .prefetched_bytes = 10000};
  setup->options.tiers = &tiers_of_test;
  setup->options.prefixes = &prefixes;
  setup->options.sessions = NULL;
  stateport_request_cache* cache = NULL;
  CHECK_OK(stateport_request_cache_create(&setup->options, &cache));
  engine_make(self, cache, &setup->options, seed);
  memset(&tiers, 0, sizeof tiers);
  tiers.options = tiers_of_test;
  self->tiers = &tiers;
  CHECK(serve(self, 0, 1) == 0);
  for (int32_t i = 0; i < 60; ++i) CHECK(serve(self, 0, 100 + i) == 0);
  int32_t tokens[prompt_tokens];
  fill(tokens, 1);
  const stateport_prompt prompt = prompt_of(tokens);
  stateport_prefetch started = {.size = sizeof started};
  CHECK_OK(stateport_request_cache_prefetch(cache, &prompt, &started));
  CHECK(started.cached_tokens == 0 && started.refused == 0);
  CHECK((started.prefetch > 0) == (started.load_medium == STATEPORT_MEDIUM_HOST));
  engine_carry_out(self, started.transfers, started.transfer_count);
  uint8_t under_way = started.prefetch > 0;
  for (int i = 0; i < 20 && under_way != 0; ++i) {
    engine_settle_transfers(self, true);
    CHECK_OK(stateport_request_cache_prefetching(cache, started.prefetch, &under_way));
  }
  CHECK(under_way == 0);
  stateport_prefix_usage usage = {.size = sizeof usage};
  CHECK_OK(stateport_request_cache_prefix_usage(cache, &usage));
  CHECK(usage.prefetches == 0 && usage.made_prefetches == (started.prefetch > 0));
  self->names.now_s = 1000;
  CHECK(serve(self, 0, 1) == usage.prefetched_tokens);
  self->tiers = NULL;
  CHECK_OK(stateport_request_cache_destroy(cache));
  return usage.prefetched_tokens;
}

void test_cache_prefixes(void) {
  static engine self;
  static const stateport_prefix_options prefixes = {.size = sizeof prefixes, .pins = 2, .pinned_bytes = 100};
  static const stateport_session_options sessions = {.size = sizeof sessions, .remembered = 8};
  for (int32_t kind = 0; kind < combinations; ++kind) {
    cache_setup setup;
    engine_setup(&setup, kind, 0, groups);
    setup.options.kv_tokens = 4 * engine_tokens_max;
    setup.slots.checkpoints = 24;
    setup.options.eviction = &lru;
    refuse_without(&setup);
    setup.options.prefixes = &prefixes;
    setup.options.sessions = &sessions;
    stateport_request_cache* cache = NULL;
    CHECK_OK(stateport_request_cache_create(&setup.options, &cache));
    engine_make(&self, cache, &setup.options, 1);
    keep_pinned(&self);
    close_session(&self);
    refuse(&self);
    int64_t brought = 0;
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      engine_setup(&setup, kind, 0, groups);
      setup.options.kv_tokens = 4 * engine_tokens_max;
      setup.slots.checkpoints = 24;
      setup.options.eviction = &lru;
      brought += prefetch(&self, &setup, seed);
    }
    CHECK(brought > 0);
  }
}
