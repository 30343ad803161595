// SPDX-License-Identifier: Apache-2.0
// The one interface for each index and each layout, by an engine whose every read is checked.
#include "cache_engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { prompts = 4, output_max = 12, steps = 60 };

static const stateport_state_group align_groups[engine_groups_max] = ENGINE_GROUPS(60);

static void make_setup(cache_setup* self, int32_t kind, int32_t drafts, bool overlap) {
  engine_setup(self, kind, drafts, align_groups);
  self->options.kv_tokens = 4 * engine_tokens_max;
  self->slots.checkpoints = 6;
  self->options.overlap = overlap;
}

static void check_stats(engine* self) {
  stateport_cache_stats stats = {.size = sizeof stats};
  CHECK_OK(stateport_request_cache_stats(self->cache, &stats));
  CHECK(stats.requests == self->started && stats.hit_tokens == self->reused_tokens);
  CHECK(memcmp(stats.lost_tokens, self->lost_tokens, sizeof stats.lost_tokens) == 0);
  CHECK(stats.requests_hit <= stats.requests && stats.hit_flops == (double)stats.hit_tokens);
  char text[20000];
  size_t bytes = 0;
  CHECK_OK(stateport_request_cache_prometheus(self->cache, "engine", text, sizeof text, &bytes));
  CHECK(bytes == strlen(text) + 1 && bytes <= sizeof text && strstr(text, "engine_") != NULL);
  char part[8];
  CHECK_OK(stateport_request_cache_prometheus(self->cache, "engine", part, sizeof part, &bytes));
  CHECK(strlen(part) == sizeof part - 1 && memcmp(part, text, sizeof part - 1) == 0);
  CHECK_OK(stateport_request_cache_prometheus(self->cache, NULL, NULL, 0, &bytes));
  CHECK(bytes > 1);
}

/// Starts one of the prompts, some of them with a part of their answer, as the next turn of a conversation has it.
static void start_one(engine* self, int index, int32_t (*prompts_tokens)[engine_prompt_max], const int32_t* counts) {
  const int32_t prompt = engine_random(self, prompts);
  int32_t tokens[engine_prompt_max + output_max];
  const int32_t count = counts[prompt] + (engine_random(self, 2) == 0 ? 0 : engine_random(self, output_max));
  engine_oracle(prompts_tokens[prompt], counts[prompt], tokens, count);
  const int64_t named[] = {1 + engine_random(self, count), count};
  self->names.breakpoints = named;
  self->names.breakpoint_count = named[0] < count ? (size_t)engine_random(self, 3) : 0;
  engine_start(self, index, tokens, count, count + 1 + engine_random(self, output_max));
  self->names.breakpoint_count = 0;
}

/// Requests come and go, and every read is right. Returns tokens that were not computed again.
static int64_t serve(engine* self, const stateport_request_cache_options* options, uint64_t seed) {
  stateport_request_cache* cache = NULL;
  CHECK_OK(stateport_request_cache_create(options, &cache));
  engine_make(self, cache, options, seed);
  int32_t tokens[prompts][engine_prompt_max];
  int32_t counts[prompts];
  engine_prompts(self, prompts, tokens, counts);
  for (int step = 0; step < steps; ++step) {
    const int index = engine_random(self, engine_requests);
    if (self->requests[index].id == STATEPORT_NONE)
      start_one(self, index, tokens, counts);
    else if (engine_random(self, 12) == 0)
      engine_end(self, index, STATEPORT_PREEMPTED + engine_random(self, 2));
    engine_step(self, 3 + engine_random(self, 16));
    if (engine_random(self, 20) == 0) engine_read_events(self);
    CHECK_OK(stateport_request_cache_check(cache));
  }
  engine_settle(self);
  for (int index = 0; index < engine_requests; ++index)
    if (self->requests[index].id != STATEPORT_NONE) engine_end(self, index, STATEPORT_ABORTED);
  check_stats(self);
  engine_read_events(self);
  CHECK(self->found > 0);
  CHECK_OK(stateport_request_cache_reset(cache));
  engine_read_events(self);
  CHECK(self->found == 0);
  CHECK_OK(stateport_request_cache_check(cache));
  CHECK_OK(stateport_request_cache_destroy(cache));
  return self->reused_tokens;
}

void test_request_caches(void) {
  static engine self;
  const char* const wanted = getenv("STATEPORT_TEST_SEEDS");
  const int seeds = wanted == NULL ? 12 : atoi(wanted);
  for (int32_t kind = 0; kind < combinations; ++kind) {
    int64_t reused = 0;
    int64_t finished = 0;
    int64_t ahead = 0;
    int64_t ready = 0;
    int64_t published = 0;
    int64_t moved = 0;
    for (int seed = 0; seed < seeds; ++seed) {
      const int before = check_failures;
      cache_setup setup;
      make_setup(&setup, kind, seed % (engine_drafts_max + 1), seed / (engine_drafts_max + 1) % 2 == 1);
      reused += serve(&self, &setup.options, (uint64_t)seed);
      finished += self.finished;
      ahead += self.planned_ahead;
      ready += self.ready_ahead;
      published += self.published;
      moved += self.step_commits;
      if (check_failures > before) fprintf(stderr, "request cache: combination %d, seed %d\n", (int)kind, seed);
    }
    // Each case that this test is for occurred.
    CHECK(reused > 0 && finished > 0 && published > 0);
    if (seeds >= 6) CHECK(ahead > ready && ready > 0);
    CHECK((moved > 0) == (!in_columns(kind)));
  }
}

/// A prefix that another engine has computed is found at the places to which it was copied.
void test_inserted_prefixes(void) {
  enum { count = 3 * engine_prompt_max, whole = 24 };
  int32_t tokens[count];
  for (int32_t i = 0; i < count; ++i) tokens[i] = i;
  for (int32_t kind = 0; kind < combinations; ++kind) {
    cache_setup setup;
    make_setup(&setup, kind, 0, false);
    stateport_request_cache* cache = NULL;
    CHECK_OK(stateport_request_cache_create(&setup.options, &cache));
    const stateport_prompt prompt = {.size = sizeof prompt, .tokens = tokens, .count = whole + 3};
    stateport_started_request started = {.size = sizeof started};
    size_t done = 0;
    CHECK_OK(stateport_request_cache_start(cache, &prompt, 1, &started, &done));
    stateport_hit_places places = {.size = sizeof places};
    CHECK_OK(stateport_request_cache_places(cache, started.request, 0, &places));
    CHECK(places.tokens == 0);
    stateport_group_plan groups[engine_groups_max];
    stateport_group_commit commits[engine_groups_max];
    const size_t group_count = in_columns(kind) ? setup.columns.group_count : 1;
    for (size_t g = 0; g < group_count; ++g) {
      groups[g].size = sizeof groups[g];
      commits[g].size = sizeof commits[g];
    }
    stateport_pass_plan plan = {.size = sizeof plan, .groups = groups, .group_count = group_count};
    stateport_pass_commit commit = {.size = sizeof commit, .groups = commits, .group_count = group_count};
    CHECK_OK(stateport_request_cache_insert(cache, started.request, whole, &plan, &commit));
    CHECK(plan.rows == 1 && plan.room[0] == 1 && plan.start[0] == 0);
    CHECK(plan.kv_count[0] * plan.kv_tokens_per_id >= whole);
    CHECK(in_columns(kind) || (commit.published_states == 1 && commits[0].copy_count == 1));
    const int32_t kv = plan.kv[0][whole / plan.kv_tokens_per_id - 1];
    const int32_t slot = in_columns(kind) ? groups[0].write_slot[0] : commits[0].copies[0].dst_slot;
    CHECK_OK(stateport_request_cache_end(cache, &started.request, 1, STATEPORT_ABORTED, NULL, NULL));
    CHECK_OK(stateport_request_cache_start(cache, &prompt, 1, &started, &done));
    CHECK(started.reused_tokens == whole);
    CHECK_OK(stateport_request_cache_places(cache, started.request, 0, &places));
    CHECK(places.tokens == whole && places.state == slot);
    CHECK(places.kv[whole / places.kv_tokens_per_id - 1] == kv);
    // Behind the hit; then its places are no longer those of a hit.
    CHECK_OK(stateport_request_cache_insert(cache, started.request, whole + 1, &plan, &commit));
    CHECK(plan.start[0] == whole && groups[0].copy_count == 0);
    CHECK_REFUSED(stateport_request_cache_places(cache, started.request, 0, &places), STATEPORT_INVALID_STATE,
                  "has committed a pass");
    const int64_t planned = started.request;
    const int32_t one = 1;
    const stateport_pass_batch batch = {.size = sizeof batch, .request = &planned, .tokens = &one, .rows = 1};
    CHECK_OK(stateport_request_cache_plan(cache, &batch, &plan));
    CHECK_REFUSED(stateport_request_cache_insert(cache, started.request, whole + 2, &plan, &commit),
                  STATEPORT_INVALID_STATE, "outstanding passes");
    CHECK_OK(stateport_request_cache_end(cache, &started.request, 1, STATEPORT_ABORTED, NULL, NULL));
    CHECK_OK(stateport_request_cache_check(cache));
    CHECK_OK(stateport_request_cache_destroy(cache));
  }
}

/// Requests that fill the KV leave no room for an insert, which changes nothing.
void test_insert_without_room(void) {
  int32_t tokens[engine_tokens_max];
  for (int32_t i = 0; i < engine_tokens_max; ++i) tokens[i] = i;
  cache_setup setup;
  make_setup(&setup, hash_slots, 0, false);
  setup.options.kv_tokens = engine_tokens_max;
  stateport_request_cache* cache = NULL;
  CHECK_OK(stateport_request_cache_create(&setup.options, &cache));
  int64_t requests[2];
  for (int i = 0; i < 2; ++i) {
    tokens[0] = i;
    const stateport_prompt prompt = {.size = sizeof prompt, .tokens = tokens, .count = engine_tokens_max - 2};
    stateport_started_request started = {.size = sizeof started};
    size_t done = 0;
    CHECK_OK(stateport_request_cache_start(cache, &prompt, 1, &started, &done));
    requests[i] = started.request;
  }
  stateport_pass_plan plan = {.size = sizeof plan};
  stateport_pass_commit commit = {.size = sizeof commit};
  CHECK_OK(stateport_request_cache_insert(cache, requests[0], engine_tokens_max - 4, &plan, &commit));
  CHECK_REFUSED(stateport_request_cache_insert(cache, requests[1], 8, &plan, &commit), STATEPORT_NO_CAPACITY,
                "blocks of KV or states");
  stateport_running_request running = {.size = sizeof running};
  CHECK_OK(stateport_request_cache_request(cache, requests[1], &running));
  CHECK(running.computed == 0);
  CHECK_OK(stateport_request_cache_check(cache));
  CHECK_OK(stateport_request_cache_end(cache, requests, 2, STATEPORT_ABORTED, NULL, NULL));
  CHECK_OK(stateport_request_cache_destroy(cache));
}

/// A request that gives way inside a block starts again from the checkpoint that decoding left.
void test_decode_checkpoints(void) {
  static engine self;
  for (int32_t kind = hash_slots; kind <= tree_slots; ++kind) {
    cache_setup setup;
    make_setup(&setup, kind, 2, false);
    stateport_request_cache* cache = NULL;
    CHECK_OK(stateport_request_cache_create(&setup.options, &cache));
    engine_make(&self, cache, &setup.options, 1);
    const int32_t prompt[] = {1, 2, 3, 4, 5};
    int32_t tokens[engine_tokens_max];
    CHECK(engine_start(&self, 0, prompt, 5, 30));
    while (self.requests[0].reported < 16 || self.requests[0].computed % engine_block_tokens == 0)
      engine_step(&self, 8);
    const int32_t reported = self.requests[0].reported;
    memcpy(tokens, self.requests[0].tokens, sizeof tokens);
    engine_end(&self, 0, STATEPORT_PREEMPTED);
    CHECK(engine_start(&self, 0, tokens, reported, reported + 4));
    CHECK(self.reused_tokens >= 2 * engine_block_tokens && self.reused_tokens % engine_block_tokens == 0);
    while (self.requests[0].id != STATEPORT_NONE) engine_step(&self, 8);
    CHECK(self.finished == 1);
    CHECK_OK(stateport_request_cache_destroy(cache));
  }
}

/// Runs a prompt to its end.
static void serve_once(engine* self, const int32_t* prompt, int32_t count) {
  CHECK(engine_start(self, 0, prompt, count, count + 8));
  while (self->requests[0].reported == count) engine_step(self, engine_prompt_max);
  engine_end(self, 0, STATEPORT_FINISHED);
}

/// Tokens of a prompt that need not be computed.
static int64_t reused(engine* self, const int32_t* prompt, int32_t count) {
  const int64_t before = self->reused_tokens;
  CHECK(engine_start(self, 0, prompt, count, count + 1));
  engine_end(self, 0, STATEPORT_ABORTED);
  return self->reused_tokens - before;
}

/// hix evicts the state without an expected use, although it is the younger one.
void test_request_hints(void) {
  static engine self;
  const stateport_eviction_options hix = {.size = sizeof hix, .order = STATEPORT_EVICT_HIX, .samples = -1};
  const stateport_reuse_hint last = {.size = sizeof last, .last_turn = 1, .expected_idle_s = 1e6};
  for (int hinted = 0; hinted < 2; ++hinted) {
    cache_setup setup;
    make_setup(&setup, hash_slots, 0, false);
    setup.slots.checkpoints = 2;
    setup.options.max_requests = 1;
    setup.slots.decode_checkpoint_tokens = 0;
    setup.slots.scan_alignment_tokens = -1;
    setup.options.eviction = &hix;
    stateport_request_cache* cache = NULL;
    CHECK_OK(stateport_request_cache_create(&setup.options, &cache));
    engine_make(&self, cache, &setup.options, 1);
    int32_t prompt[3][2 * engine_block_tokens + 1];
    for (int i = 0; i < 3; ++i)
      for (int at = 0; at <= 2 * engine_block_tokens; ++at) prompt[i][at] = 20 * i + at;
    for (int i = 0; i < 3; ++i) {
      self.names.now_s = 100 * i;
      self.names.hint = i == 1 && hinted ? &last : NULL;
      serve_once(&self, prompt[i], 2 * engine_block_tokens);
    }
    CHECK(reused(&self, prompt[hinted], 2 * engine_block_tokens + 1) == 0);
    CHECK(reused(&self, prompt[1 - hinted], 2 * engine_block_tokens + 1) == 2 * engine_block_tokens);
    CHECK_OK(stateport_request_cache_destroy(cache));
  }
}

/// Prompts share nothing with those of another tenant, nor behind another image.
void test_request_names(void) {
  static engine self;
  for (int32_t kind = 0; kind < combinations; ++kind) {
    cache_setup setup;
    make_setup(&setup, kind, 0, false);
    stateport_request_cache* cache = NULL;
    CHECK_OK(stateport_request_cache_create(&setup.options, &cache));
    engine_make(&self, cache, &setup.options, 1);
    const int32_t prompt[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17};
    const stateport_namespace tenant = {.size = sizeof tenant, .salt = "a", .salt_bytes = 1};
    const stateport_namespace other = {.size = sizeof other, .salt = "b", .salt_bytes = 1};
    const stateport_media_key image = {.size = sizeof image, .id = "cat", .id_bytes = 3, .first_token = 9};
    const stateport_media_key same_place = {.size = sizeof image, .id = "dog", .id_bytes = 3, .first_token = 9};
    self.names = (stateport_prompt){.name_space = &tenant, .media = &image, .media_count = 1};
    serve_once(&self, prompt, 17);
    CHECK(reused(&self, prompt, 17) == 16);
    self.names.name_space = &other;
    CHECK(reused(&self, prompt, 17) == 0);
    self.names.name_space = &tenant;
    self.names.media = &same_place;
    CHECK(reused(&self, prompt, 17) <= 8);
    self.names.media = &image;
    CHECK(reused(&self, prompt, 17) == 16);
    CHECK_OK(stateport_request_cache_destroy(cache));
  }
}

/// A prompt that leaves another one at a named position continues from there. A pass that runs over one says so.
void test_request_breakpoints(void) {
  static engine self;
  enum { count = 6 * engine_block_tokens + 1 };
  int32_t prompt[count];
  for (int at = 0; at < count; ++at) prompt[at] = at;
  for (int32_t kind = 0; kind < combinations; ++kind) {
    cache_setup setup;
    make_setup(&setup, kind, 0, false);
    setup.slots.scan_alignment_tokens = -1;
    stateport_request_cache* cache = NULL;
    CHECK_OK(stateport_request_cache_create(&setup.options, &cache));
    engine_make(&self, cache, &setup.options, 1);
    const int64_t named[] = {2, 3 * engine_block_tokens};
    self.names.breakpoints = named;
    self.names.breakpoint_count = 2;
    serve_once(&self, prompt, count);
    self.names.breakpoint_count = 0;
    prompt[3 * engine_block_tokens] = 99;
    const int64_t hit = reused(&self, prompt, count);
    CHECK(kind >= hash_columns || hit == 3 * engine_block_tokens);
    prompt[0] = 98;  // shares nothing
    const stateport_prompt asked = {
        .size = sizeof asked, .tokens = prompt, .count = count, .breakpoints = named, .breakpoint_count = 2};
    stateport_started_request started = {.size = sizeof started};
    size_t done = 0;
    CHECK_OK(stateport_request_cache_start(cache, &asked, 1, &started, &done));
    CHECK(started.breakpoint_count == 2 && started.breakpoints[0] == 0 && started.breakpoints[1] >= hit);
    if (kind < hash_columns) {
      const int32_t tokens = 5 * engine_block_tokens;
      const stateport_pass_batch batch = {
          .size = sizeof batch, .request = &started.request, .tokens = &tokens, .rows = 1};
      stateport_pass_plan plan = {.size = sizeof plan};
      CHECK_OK(stateport_request_cache_plan(cache, &batch, &plan));
      const int32_t none = 0;
      stateport_pass_commit commit = {.size = sizeof commit};
      CHECK_OK(stateport_request_cache_commit(cache, plan.pass, &none, 1, NULL, 0, &commit));
      CHECK(commit.refused_breakpoint_count == 1 && commit.refused_breakpoints[0].request == started.request &&
            commit.refused_breakpoints[0].tokens == 3 * engine_block_tokens);
      stateport_cache_stats stats = {.size = sizeof stats};
      CHECK_OK(stateport_request_cache_stats(cache, &stats));
      CHECK(stats.breakpoints_kept == 1 && stats.breakpoints_refused == 1);
    }
    CHECK_OK(stateport_request_cache_end(cache, &started.request, 1, STATEPORT_ABORTED, NULL, NULL));
    const int64_t wrong[] = {4, 3};
    stateport_prompt refused = asked;
    refused.breakpoints = wrong;
    CHECK_REFUSED(stateport_request_cache_start(cache, &refused, 1, &started, &done), STATEPORT_INVALID_ARGUMENT,
                  "breakpoints = 3");
    refused.breakpoints = NULL;
    CHECK_REFUSED(stateport_request_cache_start(cache, &refused, 1, &started, &done), STATEPORT_INVALID_ARGUMENT,
                  "breakpoints");
    CHECK_OK(stateport_request_cache_destroy(cache));
    for (int at = 0; at < count; ++at) prompt[at] = at;
  }
}

/// First blocks of two tenants with one 63-bit key under xxh3_128 and different prefixes share nothing, whichever comes
/// first, nor with the other one's name. With a seed the keys differ.
void test_colliding_keys(void) {
  static engine self;
  enum { count = 3 * engine_block_tokens + 1 };
  const stateport_namespace names[] = {{.size = sizeof names[0], .salt = "b", .salt_bytes = 1},
                                       {.size = sizeof names[0], .salt = "a", .salt_bytes = 1}};
  const int32_t prompts[2][count] = {{1207531, 710360, 377369, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8},
                                     {949596, 1597246, 27063, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8}};
  int64_t keys[2][3];
  uint64_t prefixes[2][3][2];
  for (uint64_t seed = 0; seed < 2; ++seed) {
    for (int i = 0; i < 2; ++i) {
      const stateport_hash_options hash = {.size = sizeof hash,
                                           .block_size_tokens = engine_block_tokens,
                                           .fast = 1,
                                           .salt = names[i].salt,
                                           .salt_bytes = 1,
                                           .seed = seed};
      CHECK_OK(stateport_hash_blocks(&hash, prompts[i], count, keys[i], prefixes[i][0]));
    }
    CHECK((keys[0][0] == keys[1][0]) == (seed == 0));
    CHECK(memcmp(prefixes[0][0], prefixes[1][0], sizeof prefixes[0][0]) != 0);
  }
  for (int32_t kind = 0; kind < combinations; ++kind)
    for (int first = 0; first < 2; ++first) {
      const int second = 1 - first;
      cache_setup setup;
      make_setup(&setup, kind, 0, false);
      stateport_request_cache* cache = NULL;
      CHECK_OK(stateport_request_cache_create(&setup.options, &cache));
      engine_make(&self, cache, &setup.options, 1);
      self.names.name_space = &names[first];
      serve_once(&self, prompts[first], count);
      CHECK(reused(&self, prompts[second], count) == 0);
      self.names.name_space = &names[second];
      CHECK(reused(&self, prompts[second], count) == 0 && reused(&self, prompts[first], count) == 0);
      serve_once(&self, prompts[second], count);
      CHECK(self.reused_tokens == 0);
      // Nor is any of it lost: KV of the other one is not there.
      for (int reason = 0; reason < STATEPORT_LOST_REASONS_MAX; ++reason)
        CHECK(self.lost_tokens[reason] == 0 || reason == STATEPORT_LOST_NEVER_STORED);
      CHECK(reused(&self, prompts[second], count) > 0);
      CHECK_OK(stateport_request_cache_check(cache));
      CHECK_OK(stateport_request_cache_destroy(cache));
    }
}

static stateport_cache_stats stats_of(const engine* self) {
  stateport_cache_stats stats = {.size = sizeof stats};
  CHECK_OK(stateport_request_cache_stats(self->cache, &stats));
  return stats;
}

/// A prompt of four blocks leaves as many states as its placement says, and a budget of one unit none.
void test_request_placement(void) {
  static engine self;
  const stateport_eviction_options costs = {
      .size = sizeof costs, .order = STATEPORT_EVICT_HIX, .samples = -1, .state_bytes = 100, .kv_bytes_per_token = 10};
  const int64_t states[] = {[STATEPORT_PLACE_LAST] = 1, [STATEPORT_PLACE_RUNGS] = 3, [STATEPORT_PLACE_EVERY] = 4};
  const int32_t placements[] = {STATEPORT_PLACE_LAST, STATEPORT_PLACE_RUNGS, STATEPORT_PLACE_EVERY};
  int32_t prompt[4 * engine_block_tokens + 1];
  for (int at = 0; at <= 4 * engine_block_tokens; ++at) prompt[at] = at;
  for (int32_t kind = hash_slots; kind <= tree_slots; ++kind)
    for (int i = 0; i < 3; ++i)
      for (int limited = 0; limited < 2; ++limited) {
        cache_setup setup;
        make_setup(&setup, kind, 0, false);
        setup.slots.placement = placements[i];
        setup.slots.scan_alignment_tokens = 0;
        setup.slots.decode_checkpoint_tokens = 0;
        setup.options.position_tokens = engine_block_tokens;
        setup.options.eviction = &costs;
        setup.slots.budget_bytes = limited;
        stateport_request_cache* cache = NULL;
        CHECK_OK(stateport_request_cache_create(&setup.options, &cache));
        engine_make(&self, cache, &setup.options, 1);
        serve_once(&self, prompt, 4 * engine_block_tokens + 1);
        const stateport_cache_stats stats = stats_of(&self);
        CHECK(stats.states == (limited ? 0 : states[placements[i]]));
        CHECK(stats.evicted_states == (limited ? states[placements[i]] : 0));
        CHECK(stats.kv_tokens == (limited ? 0 : 4 * engine_block_tokens));
        CHECK(stats.evicted_kv_tokens == (limited ? 4 * engine_block_tokens : 0));
        CHECK_OK(stateport_request_cache_destroy(cache));
      }
}
