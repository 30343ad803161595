// SPDX-License-Identifier: Apache-2.0
// Requests that go on from the computed tokens of another one, over an engine whose every read is checked; and drafts
// that are trees.
#include "cache_engine.h"

#include <string.h>

enum { prompt_tokens = 10 };

static const stateport_state_group groups[engine_groups_max] = ENGINE_GROUPS(60);

/// A request behind its prompt.
static void make(engine* self, int32_t combination, int32_t drafts) {
  cache_setup setup;
  engine_setup(&setup, combination, drafts, groups);
  setup.options.kv_tokens = 4 * engine_tokens_max;
  setup.slots.checkpoints = 12;
  stateport_request_cache* cache = NULL;
  CHECK_OK(stateport_request_cache_create(&setup.options, &cache));
  engine_make(self, cache, &setup.options, 1);
  int32_t tokens[prompt_tokens];
  for (int32_t at = 0; at < prompt_tokens; ++at) tokens[at] = at;
  CHECK(engine_start(self, 0, tokens, prompt_tokens, prompt_tokens + 8));
  while (self->requests[0].computed < prompt_tokens) engine_step(self, prompt_tokens);
}

static void finish(engine* self) {
  for (int step = 0; step < 40 && self->finished < self->started; ++step) {
    engine_step(self, 64);
    CHECK_OK(stateport_request_cache_check(self->cache));
  }
  CHECK(self->finished == self->started);
  stateport_cache_stats stats = {.size = sizeof stats};
  CHECK_OK(stateport_request_cache_stats(self->cache, &stats));
  CHECK(stats.requests == 1 && stats.forks == 2);
  CHECK_OK(stateport_request_cache_destroy(self->cache));
}

/// Two forks decode at once, or have prompts of their own; the request goes on after them.
static void serve_forks(engine* self, int32_t combination, int32_t drafts, int32_t own_tokens) {
  make(self, combination, drafts);
  const int32_t own[6] = {1, 3, 0, 2, 1, 4};
  const int places[2] = {1, 2};
  const int32_t computed = self->requests[0].computed;
  engine_fork(self, 0, own, own_tokens, places, 2);
  for (int fork = 1; fork <= 2; ++fork) {
    stateport_running_request running = {.size = sizeof running};
    CHECK_OK(stateport_request_cache_request(self->cache, self->requests[fork].id, &running));
    CHECK(running.computed == computed && running.count == (size_t)(computed + own_tokens));
    CHECK(memcmp(running.tokens, self->requests[fork].tokens, running.count * sizeof *running.tokens) == 0);
  }
  const int64_t budget = 8;
  int64_t tokens = 9;
  int64_t least = 9;
  CHECK_OK(stateport_request_cache_chunk(self->cache, &self->requests[0].id, &budget, 1, &tokens, &least));
  CHECK(tokens == 0 && least == 0);
  engine_step(self, 64);
  CHECK(self->fork_copies == (computed % engine_block_tokens == 0 ? 0 : 2));
  finish(self);
}

/// A request that was forked ends, and its forks go on from it.
static void end_point(engine* self, int32_t combination) {
  make(self, combination, 0);
  const int32_t own[2] = {1, 2};
  const int places[2] = {1, 2};
  engine_fork(self, 0, own, 1, places, 2);
  const int64_t point = self->requests[0].id;
  engine_end(self, 0, STATEPORT_FINISHED);
  ++self->finished;
  stateport_request_cache_info info = {.size = sizeof info};
  CHECK_OK(stateport_request_cache_describe(self->cache, &info));
  CHECK(info.running_requests == 3);
  stateport_running_request running = {.size = sizeof running};
  CHECK_REFUSED(stateport_request_cache_request(self->cache, point, &running), STATEPORT_INVALID_ARGUMENT, "request");
  engine_step(self, 64);
  CHECK_OK(stateport_request_cache_describe(self->cache, &info));
  CHECK(info.running_requests == 2);
  finish(self);
}

static void refuse_forks(engine* self, int32_t combination) {
  make(self, combination, 0);
  stateport_request_cache* const cache = self->cache;
  const int64_t point = self->requests[0].id;
  const int32_t own[3] = {1, 2, 3};
  int64_t forks[3] = {-7, -7, -7};
  CHECK_REFUSED(stateport_request_cache_fork(cache, point + 1, own, 2, forks, 2), STATEPORT_INVALID_ARGUMENT,
                "request = 1");
  CHECK_REFUSED(stateport_request_cache_fork(cache, point, NULL, 2, forks, 2), STATEPORT_INVALID_ARGUMENT, "tokens");
  CHECK_REFUSED(stateport_request_cache_fork(cache, point, own, 2, NULL, 2), STATEPORT_INVALID_ARGUMENT, "forks");
  CHECK_REFUSED(stateport_request_cache_fork(cache, point, own, 2, forks, 0), STATEPORT_INVALID_ARGUMENT, "forks = 0");
  CHECK_REFUSED(stateport_request_cache_fork(cache, point, own, 3, forks, 2), STATEPORT_INVALID_ARGUMENT, "tokens = 3");
  CHECK_REFUSED(stateport_request_cache_fork(cache, point, own, 3, forks, 3), STATEPORT_NO_CAPACITY, "requests");
  CHECK(forks[0] == -7 && forks[1] == -7 && forks[2] == -7);
  CHECK_OK(stateport_request_cache_fork(cache, point, own, 1, forks, 1));
  CHECK_REFUSED(stateport_request_cache_fork(cache, forks[0], own, 1, forks + 1, 1), STATEPORT_INVALID_STATE,
                "has not begun");
  CHECK_OK(stateport_request_cache_check(cache));
  CHECK_OK(stateport_request_cache_destroy(cache));
  CHECK_REFUSED(stateport_request_cache_fork(cache, point, own, 1, forks, 1), STATEPORT_INVALID_HANDLE, "cache");
}

/// Two drafts follow the same token, and the second one is kept.
static void keep_second_draft(engine* self, int32_t combination) {
  make(self, combination, 2);
  stateport_request_cache* const cache = self->cache;
  const int64_t request = self->requests[0].id;
  const int32_t tokens = 3;
  const int32_t drafts = 2;
  const int32_t parents[2] = {0, 0};
  const stateport_pass_batch batch = {.size = sizeof batch,
                                      .request = &request,
                                      .tokens = &tokens,
                                      .drafts = &drafts,
                                      .rows = 1,
                                      .parents = parents,
                                      .parent_count = 2};
  stateport_pass_plan plan = {.size = sizeof plan};
  if (self->align) {
    CHECK_REFUSED(stateport_request_cache_plan(cache, &batch, &plan), STATEPORT_INVALID_ARGUMENT, "parents = 2");
    CHECK_OK(stateport_request_cache_destroy(cache));
    return;
  }
  CHECK_OK(stateport_request_cache_plan(cache, &batch, &plan));
  const int32_t* const kv = plan.kv[0];
  const int64_t start = plan.start[0];
  const int32_t per_id = plan.kv_tokens_per_id;
  const int32_t src = kv[(start + 2) / per_id] * per_id + (int32_t)((start + 2) % per_id);
  const int32_t dst = kv[(start + 1) / per_id] * per_id + (int32_t)((start + 1) % per_id);
  const int32_t count = 2;
  const int32_t sampled[2] = {3, 1};
  stateport_group_commit group = {.size = sizeof group};
  stateport_pass_commit commit = {.size = sizeof commit, .groups = &group, .group_count = 1};
  CHECK_REFUSED(stateport_request_cache_commit(cache, plan.pass, &count, 1, sampled, 2, &commit),
                STATEPORT_INVALID_ARGUMENT, "steps = 0");
  const int32_t steps[1] = {2};
  commit.steps = steps;
  CHECK_OK(stateport_request_cache_commit(cache, plan.pass, &count, 1, sampled, 2, &commit));
  CHECK(commit.kv_move_count == 1 && commit.kv_moves[0].src == src && commit.kv_moves[0].dst == dst);
  CHECK(group.step_count == 1 && group.steps[0].live_step == 2);
  CHECK_OK(stateport_request_cache_check(cache));
  CHECK_OK(stateport_request_cache_destroy(cache));
}

void test_cache_forks(void) {
  static engine self;
  for (int32_t combination = 0; combination < combinations; ++combination) {
    for (int32_t own = 1; own <= 3; ++own)
      for (int32_t drafts = 0; drafts <= engine_drafts_max; ++drafts) serve_forks(&self, combination, drafts, own);
    end_point(&self, combination);
    refuse_forks(&self, combination);
    keep_second_draft(&self, combination);
  }
}
