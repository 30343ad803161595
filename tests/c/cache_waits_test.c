// SPDX-License-Identifier: Apache-2.0
// Prompts that wait for a request which computes their prefix, and prompts that are looked up again, over an engine
// whose every read is checked.
#include "cache_engine.h"

enum { shared_tokens = 16, prompt_tokens = 18 };

static const stateport_state_group groups[engine_groups_max] = ENGINE_GROUPS(60);
static const stateport_share_running share = {.size = sizeof share, .least_tokens = 4};

static void setup_waits(cache_setup* self, int32_t combination, const stateport_share_running* share_running) {
  engine_setup(self, combination, 0, groups);
  self->options.kv_tokens = 4 * engine_tokens_max;
  self->options.share_running = share_running;
  self->slots.checkpoints = 12;
}

static void make(engine* self, int32_t combination, const stateport_share_running* share_running) {
  cache_setup setup;
  setup_waits(&setup, combination, share_running);
  stateport_request_cache* cache = NULL;
  CHECK_OK(stateport_request_cache_create(&setup.options, &cache));
  engine_make(self, cache, &setup.options, 1);
}

/// Starts one of the prompts, which share their first tokens.
static void start(engine* self, int index) {
  int32_t tokens[prompt_tokens];
  for (int32_t at = 0; at < prompt_tokens; ++at) tokens[at] = at < shared_tokens ? at : 100 * index + at;
  CHECK(engine_start(self, index, tokens, prompt_tokens, prompt_tokens + 2));
}

/// Serves all to their ends. Returns what the cache counted.
static stateport_cache_stats finish(engine* self) {
  for (int step = 0; step < 40 && self->finished < self->started; ++step) {
    engine_step(self, 3 * prompt_tokens);
    CHECK_OK(stateport_request_cache_check(self->cache));
  }
  CHECK(self->finished == self->started);
  stateport_cache_stats stats = {.size = sizeof stats};
  CHECK_OK(stateport_request_cache_stats(self->cache, &stats));
  CHECK(stats.requests == self->started);
  CHECK_OK(stateport_request_cache_destroy(self->cache));
  return stats;
}

/// A burst of prompts with a common prefix computes it once, if they wait.
static void serve_burst(engine* self, int32_t combination, const stateport_share_running* share_running) {
  make(self, combination, share_running);
  for (int index = 0; index < engine_requests; ++index) {
    start(self, index);
    const bool waits = share_running != NULL && index > 0;
    CHECK(self->start.waits_for_request == (waits ? self->requests[0].id : STATEPORT_NONE));
    CHECK(self->start.waits_for_tokens == (waits ? shared_tokens : 0));
    CHECK(self->start.reused_tokens == 0 && (self->start.lost == STATEPORT_LOST_NOTHING) == waits);
  }
  const stateport_cache_stats stats = finish(self);
  CHECK(stats.hit_tokens == (share_running == NULL ? 0 : 2 * shared_tokens));
  CHECK(stats.awaited_tokens == stats.hit_tokens);
}

/// A request that has waited for enough commits runs, although the prefix is not computed yet.
static void end_wait(engine* self, int32_t combination) {
  const stateport_share_running short_waits = {.size = sizeof short_waits, .least_tokens = 4, .longest_commits = 1};
  make(self, combination, &short_waits);
  start(self, 0);
  start(self, 1);
  const int64_t budget = 64;
  int64_t tokens = 9;
  int64_t least = 9;
  CHECK_OK(stateport_request_cache_chunk(self->cache, &self->requests[1].id, &budget, 1, &tokens, &least));
  CHECK(tokens == 0 && least == 0);
  engine_step(self, shared_tokens / 2);
  CHECK_OK(stateport_request_cache_chunk(self->cache, &self->requests[1].id, &budget, 1, &tokens, &least));
  CHECK(self->requests[0].computed < shared_tokens && tokens > 0 && least > 0);
  finish(self);
}

/// A prompt that was started before its prefix was computed finds it later.
static void look_up_again(engine* self, int32_t combination) {
  make(self, combination, NULL);
  for (int index = 0; index < engine_requests; ++index) start(self, index);
  engine_step(self, prompt_tokens);  // of the first one alone
  stateport_started_request more = {.size = sizeof more};
  uint8_t found = 9;
  // A refused call has not looked it up.
  CHECK_REFUSED(stateport_request_cache_refresh(self->cache, self->requests[1].id, NULL, &found),
                STATEPORT_INVALID_ARGUMENT, "out = null");
  CHECK_REFUSED(stateport_request_cache_refresh(self->cache, self->requests[1].id, &more, NULL),
                STATEPORT_INVALID_ARGUMENT, "found = null");
  CHECK_OK(stateport_request_cache_refresh(self->cache, self->requests[1].id, &more, &found));
  CHECK(found == 1 && more.request == self->requests[1].id && more.reused_tokens == shared_tokens);
  CHECK(more.waits_for_request == STATEPORT_NONE && more.load_medium == STATEPORT_MEDIUM_DEVICE);
  self->requests[1].computed = shared_tokens;
  more.reused_tokens = -7;
  CHECK_OK(stateport_request_cache_refresh(self->cache, self->requests[1].id, &more, &found));
  CHECK(found == 0 && more.reused_tokens == -7);
  const stateport_cache_stats stats = finish(self);
  CHECK(stats.hit_tokens == shared_tokens && stats.requests_hit == 1 && stats.awaited_tokens == 0);
}

static void refuse_refresh(engine* self, int32_t combination) {
  make(self, combination, NULL);
  stateport_request_cache* const cache = self->cache;
  start(self, 0);
  const int64_t request = self->requests[0].id;
  stateport_started_request more = {.size = sizeof more, .reused_tokens = -7};
  stateport_started_request bad = {.size = 3};
  uint8_t found = 9;
  CHECK_REFUSED(stateport_request_cache_refresh(cache, request + 1, &more, &found), STATEPORT_INVALID_ARGUMENT,
                "request = 1");
  CHECK_REFUSED(stateport_request_cache_refresh(cache, STATEPORT_NONE, &more, &found), STATEPORT_INVALID_ARGUMENT,
                "request = ");
  CHECK_REFUSED(stateport_request_cache_refresh(cache, request, &bad, &found), STATEPORT_INVALID_ARGUMENT, "out = 3");
  const int32_t tokens = shared_tokens;
  const stateport_pass_batch batch = {.size = sizeof batch, .request = &request, .tokens = &tokens, .rows = 1};
  stateport_pass_plan plan = {.size = sizeof plan};
  CHECK_OK(stateport_request_cache_plan(cache, &batch, &plan));
  CHECK_REFUSED(stateport_request_cache_refresh(cache, request, &more, &found), STATEPORT_INVALID_STATE,
                "is in an outstanding pass");
  CHECK_OK(stateport_request_cache_cancel(cache, plan.pass));
  CHECK(found == 9);
  CHECK_OK(stateport_request_cache_refresh(cache, request, &more, &found));
  CHECK(found == 0);
  found = 9;
  engine_step(self, shared_tokens);
  CHECK_REFUSED(stateport_request_cache_refresh(cache, request, &more, &found), STATEPORT_INVALID_STATE,
                "has committed a pass");
  CHECK(found == 9 && more.reused_tokens == -7);
  finish(self);
  CHECK_REFUSED(stateport_request_cache_refresh(cache, request, &more, &found), STATEPORT_INVALID_HANDLE, "cache");
}

static void refuse_options(int32_t combination) {
  stateport_share_running wrong = share;
  cache_setup setup;
  setup_waits(&setup, combination, &wrong);
  stateport_request_cache* none = NULL;
  wrong.least_tokens = -1;
  CHECK_REFUSED(stateport_request_cache_create(&setup.options, &none), STATEPORT_INVALID_ARGUMENT,
                "share_running.least_tokens = -1");
  wrong.least_tokens = 1;
  wrong.longest_commits = -1;
  CHECK_REFUSED(stateport_request_cache_create(&setup.options, &none), STATEPORT_INVALID_ARGUMENT,
                "share_running.longest_commits = -1");
  wrong.size = 3;
  CHECK_REFUSED(stateport_request_cache_create(&setup.options, &none), STATEPORT_INVALID_ARGUMENT, "share_running = 3");
  setup.options.share_running = &share;
  setup.columns.mode = STATEPORT_ALIGN_MODE_NONE;
  if (combination == hash_columns)
    CHECK_REFUSED(stateport_request_cache_create(&setup.options, &none), STATEPORT_INVALID_ARGUMENT,
                  "share_running.least_tokens = 4");
  CHECK(none == NULL);
}

void test_cache_waits(void) {
  static engine self;
  for (int32_t combination = 0; combination < combinations; ++combination) {
    serve_burst(&self, combination, NULL);
    serve_burst(&self, combination, &share);
    end_wait(&self, combination);
    look_up_again(&self, combination);
    refuse_refresh(&self, combination);
    refuse_options(combination);
  }
}
