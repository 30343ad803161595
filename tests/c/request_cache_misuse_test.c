// SPDX-License-Identifier: Apache-2.0
// The one interface used as it must not be: a clear error, and nothing has changed.
#include "check.h"
#include "combination.h"

#include <string.h>

enum { block_tokens = 4, prompt_tokens = 6, request_tokens_max = 16 };

static const int32_t tokens[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17};

static const stateport_state_group group_of_all = {
    .size = sizeof group_of_all, .block_size_tokens = block_tokens, .blocks = 20, .layout_fingerprint = 42};

static void make_setup(cache_setup* self, int32_t kind) {
  *self = (cache_setup){
      .options = {.max_requests = 2,
                  .max_request_tokens = request_tokens_max,
                  .drafts = 1,
                  .block_size_tokens = block_tokens,
                  .kv_tokens = 4 * request_tokens_max},
      .slots = {.layout_fingerprint = 42, .checkpoints = 2},
      .columns = {.groups = &group_of_all, .group_count = 1},
  };
  set_combination(self, kind);
}

static stateport_request_cache* make_cache(int32_t kind, bool overlap) {
  cache_setup setup;
  make_setup(&setup, kind);
  setup.options.overlap = overlap;
  stateport_request_cache* cache = NULL;
  CHECK_OK(stateport_request_cache_create(&setup.options, &cache));
  return cache;
}

static stateport_prompt prompt_of(size_t count) {
  return (stateport_prompt){.size = sizeof(stateport_prompt), .tokens = tokens, .count = count};
}

static int64_t start(stateport_request_cache* cache) {
  const stateport_prompt prompt = prompt_of(prompt_tokens);
  stateport_started_request started = {.size = sizeof started};
  size_t done = 0;
  CHECK_OK(stateport_request_cache_start(cache, &prompt, 1, &started, &done));
  return started.request;
}

static stateport_status plan(stateport_request_cache* cache, const int64_t* requests, const int32_t* counts,
                             const int32_t* drafts, size_t rows, uint64_t* pass) {
  const stateport_pass_batch batch = {
      .size = sizeof batch, .request = requests, .tokens = counts, .drafts = drafts, .rows = rows};
  stateport_pass_plan reported = {.size = sizeof reported};
  const stateport_status status = stateport_request_cache_plan(cache, &batch, &reported);
  if (status == STATEPORT_OK && pass != NULL) *pass = reported.pass;
  return status;
}

static stateport_status commit(stateport_request_cache* cache, uint64_t pass, const int32_t* counts, size_t rows,
                               size_t sampled) {
  stateport_pass_plan next = {.size = sizeof next};
  stateport_pass_commit done = {.size = sizeof done, .next = &next};
  return stateport_request_cache_commit(cache, pass, counts, rows, tokens, sampled, &done);
}

/// Tokens whose state is there; nothing of the request may have changed but these.
static int64_t computed(stateport_request_cache* cache, int64_t request) {
  stateport_running_request running = {.size = sizeof running};
  CHECK_OK(stateport_request_cache_request(cache, request, &running));
  CHECK_OK(stateport_request_cache_check(cache));
  return running.computed;
}

static void refuse_starts(stateport_request_cache* cache) {
  stateport_started_request started[3] = {{.size = sizeof *started}};
  size_t done = 9;
  stateport_prompt asked[3] = {prompt_of(prompt_tokens), prompt_of(request_tokens_max + 1), prompt_of(1)};
  CHECK_REFUSED(stateport_request_cache_start(cache, NULL, 1, started, &done), STATEPORT_INVALID_ARGUMENT,
                "prompts = null");
  CHECK_REFUSED(stateport_request_cache_start(cache, asked, 1, NULL, &done), STATEPORT_INVALID_ARGUMENT, "out = null");
  CHECK_REFUSED(stateport_request_cache_start(cache, asked, 1, started, NULL), STATEPORT_INVALID_ARGUMENT,
                "done = null");
  asked[2].tokens = NULL;
  CHECK_REFUSED(stateport_request_cache_start(cache, asked, 3, started, &done), STATEPORT_INVALID_ARGUMENT,
                "tokens = null");
  CHECK(done == 9);
  asked[2] = prompt_of(0);
  CHECK_REFUSED(stateport_request_cache_start(cache, asked + 2, 1, started, &done), STATEPORT_INVALID_ARGUMENT,
                "prompt");
  const stateport_reuse_hint hint = {.size = sizeof hint, .factor = -1};
  asked[2] = prompt_of(1);
  asked[2].hint = &hint;
  CHECK_REFUSED(stateport_request_cache_start(cache, asked + 2, 1, started, &done), STATEPORT_INVALID_ARGUMENT,
                "factor = -1");
  const stateport_media_key media[] = {{.size = sizeof *media, .id = "a", .id_bytes = 1, .first_token = 2},
                                       {.size = sizeof *media, .id = "b", .id_bytes = 1, .first_token = 1}};
  asked[2] = prompt_of(prompt_tokens);
  asked[2].media = media;
  asked[2].media_count = 2;
  CHECK_REFUSED(stateport_request_cache_start(cache, asked + 2, 1, started, &done), STATEPORT_INVALID_ARGUMENT,
                "media = 1 (must be ascending");

  // The first one starts, the second one is refused.
  CHECK_ONCE(stateport_request_cache_start(cache, asked, 2, started, &done), STATEPORT_INVALID_ARGUMENT, "17");
  CHECK(done == 1 && started[0].request >= 0);
  const int64_t first = started[0].request;
  const int64_t second = start(cache);
  asked[2] = prompt_of(prompt_tokens);
  CHECK_REFUSED(stateport_request_cache_start(cache, asked + 2, 1, started, &done), STATEPORT_NO_CAPACITY,
                "not enough requests (required 1, available 0)");
  CHECK(done == 0);
  const int64_t both[] = {first, second};
  CHECK_OK(stateport_request_cache_end(cache, both, 2, STATEPORT_ABORTED, NULL, NULL));
}

static void refuse_plans(stateport_request_cache* cache) {
  const int64_t request = start(cache);
  const int64_t twice[] = {request, request};
  const int64_t stranger[] = {request, request ^ 1};
  const int32_t counts[] = {prompt_tokens, prompt_tokens};
  const int32_t drafts[] = {1, 0};
  CHECK_REFUSED(plan(cache, twice, counts, NULL, 2, NULL), STATEPORT_INVALID_ARGUMENT, "twice");
  CHECK_REFUSED(plan(cache, stranger, counts, NULL, 2, NULL), STATEPORT_INVALID_ARGUMENT, "request");
  CHECK_REFUSED(plan(cache, twice, counts, drafts, 1, NULL), STATEPORT_INVALID_ARGUMENT, "drafts");
  CHECK_REFUSED(plan(cache, twice, (const int32_t[]){0}, NULL, 1, NULL), STATEPORT_INVALID_ARGUMENT, "tokens = 0");
  CHECK_REFUSED(plan(cache, twice, (const int32_t[]){prompt_tokens + 1}, NULL, 1, NULL), STATEPORT_INVALID_ARGUMENT,
                "tokens = 7");
  CHECK_REFUSED(plan(cache, NULL, counts, NULL, 1, NULL), STATEPORT_INVALID_ARGUMENT, "request = null");
  CHECK_REFUSED(plan(cache, twice, NULL, NULL, 1, NULL), STATEPORT_INVALID_ARGUMENT, "tokens = null");
  const stateport_pass_batch batch = {.size = sizeof batch, .request = &request, .tokens = counts, .rows = 1};
  CHECK_REFUSED(stateport_request_cache_plan(cache, &batch, NULL), STATEPORT_INVALID_ARGUMENT, "out = null");
  stateport_group_plan groups[2] = {{.size = sizeof *groups}};
  stateport_pass_plan reported = {.size = sizeof reported, .groups = groups, .group_count = 2};
  CHECK_REFUSED(stateport_request_cache_plan(cache, &batch, &reported), STATEPORT_INVALID_ARGUMENT, "group_count = 2");
  reported.group_count = 0;
  CHECK_REFUSED(stateport_request_cache_plan(cache, &batch, &reported), STATEPORT_INVALID_ARGUMENT, "group_count = 0");
  reported.groups = NULL;
  CHECK_REFUSED(stateport_request_cache_plan(cache, NULL, &reported), STATEPORT_INVALID_ARGUMENT, "batch = null");
  int64_t chunk = 9;
  const int64_t budgets[] = {4, -1};
  const int64_t budget = -1;
  CHECK_REFUSED(stateport_request_cache_chunk(cache, &request, &budget, 1, &chunk, NULL), STATEPORT_INVALID_ARGUMENT,
                "-1");
  CHECK_REFUSED(stateport_request_cache_chunk(cache, stranger, budgets, 2, &chunk, NULL), STATEPORT_INVALID_ARGUMENT,
                "");
  CHECK(chunk == 9 && computed(cache, request) == 0);
  CHECK_OK(stateport_request_cache_end(cache, &request, 1, STATEPORT_ABORTED, NULL, NULL));
}

static void refuse_commits(stateport_request_cache* cache) {
  const int64_t request = start(cache);
  const int32_t whole = prompt_tokens;
  const int32_t one = 1;
  const int32_t two = 2;
  uint64_t never = 0;
  uint64_t pass = 0;
  CHECK_REFUSED(commit(cache, 1000, &one, 1, 1), STATEPORT_INVALID_STATE, "1000");
  CHECK_REFUSED(stateport_request_cache_cancel(cache, 1000), STATEPORT_INVALID_STATE, "1000");
  // A plan that is never committed gives way to the next one.
  CHECK_OK(plan(cache, &request, &whole, NULL, 1, &never));
  CHECK_OK(plan(cache, &request, &whole, NULL, 1, &pass));
  CHECK(pass > never);
  CHECK_REFUSED(commit(cache, never, &one, 1, 1), STATEPORT_INVALID_STATE, "pass");
  CHECK_REFUSED(commit(cache, pass, &one, 0, 0), STATEPORT_INVALID_ARGUMENT, "counts");
  CHECK_REFUSED(commit(cache, pass, &two, 1, 2), STATEPORT_INVALID_ARGUMENT, "counts");
  CHECK_REFUSED(commit(cache, pass, &one, 1, 2), STATEPORT_INVALID_ARGUMENT, "sampled");
  CHECK_REFUSED(commit(cache, pass, NULL, 1, 1), STATEPORT_INVALID_ARGUMENT, "counts = null");
  CHECK_REFUSED(stateport_request_cache_commit(cache, pass, &one, 1, tokens, 1, NULL), STATEPORT_INVALID_ARGUMENT,
                "out = null");
  stateport_group_commit groups[2] = {{.size = sizeof *groups}};
  stateport_pass_commit done = {.size = sizeof done, .groups = groups, .group_count = 2};
  CHECK_REFUSED(stateport_request_cache_commit(cache, pass, &one, 1, tokens, 1, &done), STATEPORT_INVALID_ARGUMENT,
                "group_count = 2");
  CHECK(computed(cache, request) == 0);
  CHECK_OK(commit(cache, pass, &one, 1, 1));
  CHECK(computed(cache, request) == prompt_tokens);
  CHECK_REFUSED(commit(cache, pass, &one, 1, 1), STATEPORT_INVALID_STATE, "pass");
  // A pass that was cancelled cannot be committed.
  CHECK_OK(plan(cache, &request, &one, NULL, 1, &pass));
  CHECK_OK(stateport_request_cache_cancel(cache, pass));
  CHECK_REFUSED(stateport_request_cache_cancel(cache, pass), STATEPORT_INVALID_STATE, "pass");
  CHECK_REFUSED(commit(cache, pass, &one, 1, 1), STATEPORT_INVALID_STATE, "pass");
  CHECK(computed(cache, request) == prompt_tokens);
  CHECK_OK(stateport_request_cache_end(cache, &request, 1, STATEPORT_FINISHED, NULL, NULL));
}

static void refuse_ends(stateport_request_cache* cache) {
  const int64_t both[] = {start(cache), start(cache)};
  const int64_t before[] = {computed(cache, both[0]), computed(cache, both[1])};
  const int64_t twice[] = {both[0], both[1], both[0]};
  stateport_reuse_hint hints[] = {{.size = sizeof *hints}, {.size = sizeof *hints, .factor = -1}};
  CHECK_REFUSED(stateport_request_cache_end(cache, twice, 3, STATEPORT_FINISHED, NULL, NULL),
                STATEPORT_INVALID_ARGUMENT, "is named twice");
  CHECK_REFUSED(stateport_request_cache_end(cache, both, 2, STATEPORT_FINISHED, hints, NULL),
                STATEPORT_INVALID_ARGUMENT, "factor = -1");
  CHECK_REFUSED(stateport_request_cache_end(cache, both, 2, 3, NULL, NULL), STATEPORT_INVALID_ARGUMENT, "how = 3");
  CHECK_REFUSED(stateport_request_cache_end(cache, NULL, 2, 0, NULL, NULL), STATEPORT_INVALID_ARGUMENT,
                "requests = null");
  CHECK(computed(cache, both[0]) == before[0] && computed(cache, both[1]) == before[1]);
  CHECK_OK(stateport_request_cache_end(cache, both, 1, STATEPORT_PREEMPTED, NULL, NULL));
  // One of them has ended: the other one goes on, wherever it is named.
  const int64_t reversed[] = {both[1], both[0]};
  CHECK_REFUSED(stateport_request_cache_end(cache, reversed, 2, STATEPORT_FINISHED, NULL, NULL),
                STATEPORT_INVALID_ARGUMENT, "request");
  CHECK_REFUSED(stateport_request_cache_end(cache, both, 2, STATEPORT_FINISHED, NULL, NULL), STATEPORT_INVALID_ARGUMENT,
                "request");
  CHECK(computed(cache, both[1]) == before[1]);
  stateport_running_request running = {.size = sizeof running};
  stateport_group_plan state = {.size = sizeof state};
  CHECK_REFUSED(stateport_request_cache_request(cache, both[0], &running), STATEPORT_INVALID_ARGUMENT, "request");
  CHECK_REFUSED(stateport_request_cache_state(cache, both[0], 0, &state), STATEPORT_INVALID_ARGUMENT, "request");
  CHECK_REFUSED(stateport_request_cache_state(cache, both[1], 1, &state), STATEPORT_INVALID_ARGUMENT, "group = 1");
  CHECK_REFUSED(stateport_request_cache_request(cache, both[1], NULL), STATEPORT_INVALID_ARGUMENT, "out = null");
  stateport_hit_places places = {.size = sizeof places};
  stateport_pass_plan plan = {.size = sizeof plan};
  stateport_pass_commit commit = {.size = sizeof commit};
  CHECK_REFUSED(stateport_request_cache_places(cache, both[0], 0, &places), STATEPORT_INVALID_ARGUMENT, "request");
  CHECK_REFUSED(stateport_request_cache_places(cache, both[1], 1, &places), STATEPORT_INVALID_ARGUMENT, "group = 1");
  CHECK_REFUSED(stateport_request_cache_places(cache, both[1], 0, NULL), STATEPORT_INVALID_ARGUMENT, "out = null");
  CHECK_REFUSED(stateport_request_cache_insert(cache, both[0], 1, &plan, &commit), STATEPORT_INVALID_ARGUMENT,
                "request");
  CHECK_REFUSED(stateport_request_cache_insert(cache, both[1], 0, &plan, &commit), STATEPORT_INVALID_ARGUMENT,
                "tokens = 0");
  CHECK_REFUSED(stateport_request_cache_insert(cache, both[1], 1, NULL, &commit), STATEPORT_INVALID_ARGUMENT,
                "plan = null");
  CHECK_REFUSED(stateport_request_cache_insert(cache, both[1], 1, &plan, NULL), STATEPORT_INVALID_ARGUMENT,
                "commit = null");
  CHECK(computed(cache, both[1]) == before[1]);
  CHECK_OK(stateport_request_cache_end(cache, both + 1, 1, STATEPORT_FINISHED, NULL, NULL));
  CHECK_OK(stateport_request_cache_reset(cache));
  // Another request has the row of one of them.
  const int64_t other = start(cache);
  const int64_t old = (uint32_t)both[0] == (uint32_t)other ? both[0] : both[1];
  CHECK((uint32_t)old == (uint32_t)other && old != other);
  CHECK_REFUSED(stateport_request_cache_end(cache, &old, 1, STATEPORT_ABORTED, NULL, NULL), STATEPORT_INVALID_ARGUMENT,
                "request");
  CHECK_REFUSED(stateport_request_cache_request(cache, old, &running), STATEPORT_INVALID_ARGUMENT, "request");
  CHECK(computed(cache, other) == 0);
  CHECK_OK(stateport_request_cache_end(cache, &other, 1, STATEPORT_ABORTED, NULL, NULL));
  CHECK_OK(stateport_request_cache_reset(cache));
}

static void refuse_queries(stateport_request_cache* cache) {
  stateport_cache_event event = {.size = sizeof event};
  size_t count = 9;
  CHECK_REFUSED(stateport_request_cache_take_events(cache, &event, 1, &count), STATEPORT_INVALID_STATE, "events");
  CHECK_REFUSED(stateport_request_cache_take_events(cache, NULL, 1, &count), STATEPORT_INVALID_ARGUMENT, "out = null");
  CHECK_REFUSED(stateport_request_cache_prometheus(cache, NULL, NULL, 1, &count), STATEPORT_INVALID_ARGUMENT,
                "text = null");
  CHECK_REFUSED(stateport_request_cache_prometheus(cache, NULL, NULL, 0, NULL), STATEPORT_INVALID_ARGUMENT,
                "bytes = null");
  CHECK_REFUSED(stateport_request_cache_stats(cache, NULL), STATEPORT_INVALID_ARGUMENT, "out = null");
  CHECK_REFUSED(stateport_request_cache_describe(cache, NULL), STATEPORT_INVALID_ARGUMENT, "out = null");
  int32_t slots = 9;
  CHECK_REFUSED(stateport_request_cache_state_slots(cache, 1, &slots), STATEPORT_INVALID_ARGUMENT, "group = 1");
  CHECK(count == 9 && slots == 9);
}

/// The clock of prompts never goes back; a pass ahead needs room for its plan.
static void refuse_in_time(int32_t kind) {
  stateport_request_cache* cache = make_cache(kind, true);
  stateport_prompt prompt = prompt_of(prompt_tokens);
  prompt.now_s = 5;
  stateport_started_request started = {.size = sizeof started};
  size_t done = 0;
  CHECK_OK(stateport_request_cache_start(cache, &prompt, 1, &started, &done));
  prompt.now_s = 4;
  stateport_started_request second = {.size = sizeof second};
  CHECK_REFUSED(stateport_request_cache_start(cache, &prompt, 1, &second, &done), STATEPORT_INVALID_ARGUMENT, "now_s");
  const int32_t whole = prompt_tokens;
  const int32_t one = 1;
  uint64_t pass = 0;
  uint64_t ahead = 0;
  CHECK_OK(plan(cache, &started.request, &whole, NULL, 1, &pass));
  CHECK_OK(plan(cache, &started.request, &one, NULL, 1, &ahead));
  CHECK_REFUSED(commit(cache, ahead, &one, 1, 1), STATEPORT_INVALID_STATE, "pass");
  stateport_pass_commit no_room = {.size = sizeof no_room};
  CHECK_REFUSED(stateport_request_cache_commit(cache, pass, &one, 1, tokens, 1, &no_room), STATEPORT_INVALID_ARGUMENT,
                "next = null");
  CHECK_REFUSED(stateport_request_cache_cancel(cache, pass), STATEPORT_INVALID_STATE, "pass");
  CHECK_OK(commit(cache, pass, &one, 1, 1));
  CHECK_OK(commit(cache, ahead, &one, 1, 1));
  CHECK(computed(cache, started.request) == prompt_tokens + 1);
  CHECK_OK(stateport_request_cache_destroy(cache));
  CHECK_REFUSED(stateport_request_cache_check(cache), STATEPORT_INVALID_HANDLE, "cache = a handle that was destroyed");
}

static void refuse(const cache_setup* setup, const char* text) {
  stateport_request_cache* none = NULL;
  CHECK_REFUSED(stateport_request_cache_create(&setup->options, &none), STATEPORT_INVALID_ARGUMENT, text);
  CHECK(none == NULL);
}

static void refuse_options(void) {
  cache_setup setup;
  make_setup(&setup, tree_slots);
  setup.options.index = 2;
  refuse(&setup, "index = 2");
  setup.options.index = STATEPORT_INDEX_TREE;
  setup.options.hash = 2;
  refuse(&setup, "hash = 2");
  setup.options.hash = 0;
  setup.options.columns = &setup.columns;
  refuse(&setup, "slots = given");
  setup.options.columns = NULL;
  setup.options.slots = NULL;
  refuse(&setup, "slots = null");
  make_setup(&setup, tree_slots);
  const stateport_eviction_options eviction = {.size = sizeof eviction, .order = 9};
  setup.options.eviction = &eviction;
  refuse(&setup, "order = 9");
  setup.options.eviction = NULL;
  setup.options.kv_tokens = request_tokens_max - 1;
  refuse(&setup, "kv_tokens = 15");
  for (int32_t kind = hash_slots; kind <= tree_slots; ++kind) {
    const stateport_eviction_options wrong_cost = {
        .size = sizeof wrong_cost, .order = STATEPORT_EVICT_GDSF, .state_bytes = -1, .kv_bytes_per_token = 1};
    make_setup(&setup, kind);
    setup.options.eviction = &wrong_cost;
    refuse(&setup, "state_bytes = -1");
  }
  const stateport_eviction_options newest = {.size = sizeof newest, .order = STATEPORT_EVICT_MRU};
  make_setup(&setup, hash_slots);
  setup.options.eviction = &newest;
  refuse(&setup, "mru");
  stateport_request_cache* none = NULL;
  CHECK_REFUSED(stateport_request_cache_create(NULL, &none), STATEPORT_INVALID_ARGUMENT, "options = null");
  CHECK_REFUSED(stateport_request_cache_create(&setup.options, NULL), STATEPORT_INVALID_ARGUMENT, "out = null");
  // Members that an older caller's struct lacks are zero: here, all behind the layouts.
  make_setup(&setup, tree_slots);
  setup.options.size = offsetof(stateport_request_cache_options, max_requests);
  refuse(&setup, "max_requests = 0");
}

static void refuse_slots(void) {
  cache_setup setup;
  make_setup(&setup, tree_slots);
  setup.slots.layout_fingerprint = 0;
  refuse(&setup, "layout_fingerprint = 0");
  setup.options.unchecked_layout = 1;
  setup.slots.scan_alignment_tokens = -2;
  refuse(&setup, "scan_alignment_tokens = -2");
  setup.slots.scan_alignment_tokens = 0;
  setup.slots.placement = 5;
  refuse(&setup, "placement = 5");
  setup.slots.placement = 0;
  setup.slots.tail_tokens = -2;
  refuse(&setup, "tail_tokens = -2");
  setup.slots.tail_tokens = 0;
  setup.slots.breakpoint_saves = 9;
  refuse(&setup, "breakpoint_saves = 9");
  setup.slots.breakpoint_saves = 0;
  setup.slots.budget_bytes = 7;
  refuse(&setup, "budget_bytes = 7");
  setup.slots.budget_bytes = 0;
  setup.slots.size = 4;
  refuse(&setup, "slots = 4");
}

static void refuse_columns(void) {
  cache_setup setup;
  make_setup(&setup, hash_columns);
  const stateport_state_group group = {.size = sizeof group, .block_size_tokens = block_tokens, .blocks = 20};
  setup.columns.groups = &group;
  refuse(&setup, "layout_fingerprint = 0");
  setup.columns.groups = NULL;
  refuse(&setup, "groups = null");
  setup.columns.group_count = 0;
  refuse(&setup, "groups = 0");
  setup.columns.mode = 3;
  refuse(&setup, "mode = 3");
  setup.columns.mode = STATEPORT_ALIGN_MODE_ALL;
  setup.columns.tail_tokens = 64;
  refuse(&setup, "tail_tokens = 64");
}

/// Each of them may ask for a copy that has to be enqueued before the next one ends.
static void refuse_ends_together(void) {
  cache_setup setup;
  make_setup(&setup, tree_slots);
  setup.slots.separate_checkpoints = 1;
  stateport_request_cache* cache = NULL;
  CHECK_OK(stateport_request_cache_create(&setup.options, &cache));
  const int64_t both[] = {start(cache), start(cache)};
  CHECK_REFUSED(stateport_request_cache_end(cache, both, 2, STATEPORT_FINISHED, NULL, NULL), STATEPORT_INVALID_ARGUMENT,
                "count = 2");
  CHECK_REFUSED(stateport_request_cache_end(cache, both, 1, STATEPORT_FINISHED, NULL, NULL), STATEPORT_INVALID_ARGUMENT,
                "out = null");
  stateport_ended_requests ended = {.size = sizeof ended, .copy_count = 9, .transfer_count = 9};
  CHECK_OK(stateport_request_cache_end(cache, both, 2, STATEPORT_ABORTED, NULL, &ended));
  CHECK(ended.copy_count == 0 && ended.transfer_count == 0);
  CHECK_OK(stateport_request_cache_destroy(cache));
}

void test_request_cache_refusals(void) {
  refuse_options();
  refuse_slots();
  refuse_columns();
  refuse_ends_together();
  for (int32_t kind = 0; kind < combinations; ++kind) {
    stateport_request_cache* cache = make_cache(kind, false);
    refuse_starts(cache);
    refuse_plans(cache);
    refuse_commits(cache);
    refuse_ends(cache);
    refuse_queries(cache);
    CHECK_OK(stateport_request_cache_check(cache));
    CHECK_OK(stateport_request_cache_destroy(cache));
    refuse_in_time(kind);
  }
}
