// SPDX-License-Identifier: Apache-2.0
// Tiers used as they must not be: a clear error, and nothing has changed.
#include "tier_engine.h"

#include <stdio.h>
#include <string.h>

enum { folder_bytes = 64, slots = 4 };

static stateport_store* make_store(stateport_spec* (*make)(void), int32_t count) {
  stateport_spec* const spec = make();
  const stateport_store_options options = {.size = sizeof options, .slots = count};
  stateport_store* store = NULL;
  CHECK_OK(stateport_store_create(spec, &options, NULL, &store));
  CHECK_OK(stateport_spec_destroy(spec));
  return store;
}

static void refuse(const stateport_state_tiers_options* options, stateport_status status, const char* text) {
  stateport_state_tiers* tiers = NULL;
  CHECK_REFUSED(stateport_state_tiers_create(options, &tiers), status, text);
  CHECK(tiers == NULL);
}

static void refuse_options(stateport_store* states, const char* folder) {
  const stateport_state_tiers_options right = {.size = sizeof right,
                                               .states = &states,
                                               .state_count = 1,
                                               .model = "m",
                                               .model_bytes = 1,
                                               .host_bytes = 1 << 16,
                                               .folder = folder,
                                               .file_bytes = 1 << 20};
  stateport_state_tiers_options wrong = right;
  CHECK_REFUSED(stateport_state_tiers_create(&right, NULL), STATEPORT_INVALID_ARGUMENT, "out = null");
  refuse(NULL, STATEPORT_INVALID_ARGUMENT, "options = null");
  wrong.state_count = 0;
  refuse(&wrong, STATEPORT_INVALID_ARGUMENT, "states = empty");
  wrong = right;
  wrong.states = NULL;
  refuse(&wrong, STATEPORT_INVALID_ARGUMENT, "states = null");
  stateport_store* nothing = NULL;
  wrong.states = &nothing;
  refuse(&wrong, STATEPORT_INVALID_HANDLE, "states = null (must be the handle of a store)");
  wrong = right;
  wrong.model_bytes = 0;
  refuse(&wrong, STATEPORT_INVALID_ARGUMENT, "model_bytes = 0");
  wrong = right;
  wrong.model = NULL;
  refuse(&wrong, STATEPORT_INVALID_ARGUMENT, "model = null");
  wrong = right;
  wrong.folder = NULL;
  refuse(&wrong, STATEPORT_INVALID_ARGUMENT, "file_bytes = 1048576 (needs a folder)");
  wrong = right;
  wrong.host_bytes = 4096;
  refuse(&wrong, STATEPORT_INVALID_ARGUMENT, "budget_bytes = 4096");
  wrong = right;
  wrong.file_bytes = 4096;
  refuse(&wrong, STATEPORT_INVALID_ARGUMENT, "capacity_bytes = 4096");
  wrong = right;
  wrong.file_queue_bytes = 4096;
  refuse(&wrong, STATEPORT_INVALID_ARGUMENT, "queue_bytes = 4096");
  wrong = right;
  wrong.file_lanes = 1000;
  refuse(&wrong, STATEPORT_INVALID_ARGUMENT, "lanes = 1000");
  wrong = right;
  wrong.layer_end = 1;
  wrong.head_groups = 2;
  wrong.head_group = 2;
  refuse(&wrong, STATEPORT_INVALID_ARGUMENT, "head_group");
  wrong = right;
  wrong.folder = "/nowhere/at/all";
  refuse(&wrong, STATEPORT_INVALID_ARGUMENT, "/nowhere/at/all");
  wrong.folder = "/proc/self/status";
  refuse(&wrong, STATEPORT_INVALID_ARGUMENT, "/proc/self/status");
}

static stateport_transfer store_of(uint64_t id, int32_t place) {
  return (stateport_transfer){.id = id,
                              .kind = STATEPORT_TRANSFER_STORE,
                              .from = STATEPORT_MEDIUM_DEVICE,
                              .to = STATEPORT_MEDIUM_HOST,
                              .place = place,
                              .request = STATEPORT_NONE,
                              .image = {.prefix = {id, 1}, .tokens = 4, .content = STATEPORT_STATE}};
}

static void refuse_transfers(stateport_state_tiers* tiers) {
  stateport_transfer plan[2] = {store_of(1, 0), store_of(2, slots)};
  CHECK_REFUSED(stateport_state_tiers_execute(tiers, NULL, plan, 2), STATEPORT_INVALID_ARGUMENT, "place = 4");
  CHECK_REFUSED(stateport_state_tiers_execute(tiers, NULL, NULL, 2), STATEPORT_INVALID_ARGUMENT, "transfers = null");
  plan[1] = store_of(2, 1);
  plan[1].kind = 5;
  CHECK_REFUSED(stateport_state_tiers_execute(tiers, NULL, plan, 2), STATEPORT_INVALID_ARGUMENT, "kind = 5");
  plan[1] = store_of(2, 1);
  plan[1].to = STATEPORT_MEDIUM_FILE;
  CHECK_REFUSED(stateport_state_tiers_execute(tiers, NULL, plan, 2), STATEPORT_INVALID_ARGUMENT, "to = 2");
  plan[1].to = 4;
  CHECK_REFUSED(stateport_state_tiers_execute(tiers, NULL, plan, 2), STATEPORT_INVALID_ARGUMENT, "to = 4");
  plan[1] = store_of(2, 1);
  plan[1].from = -1;
  CHECK_REFUSED(stateport_state_tiers_execute(tiers, NULL, plan, 2), STATEPORT_INVALID_ARGUMENT, "from = -1");
  plan[1] = store_of(2, 1);
  plan[1].image.content = 2;
  CHECK_REFUSED(stateport_state_tiers_execute(tiers, NULL, plan, 2), STATEPORT_INVALID_ARGUMENT, "content = 2");
  plan[1].image.content = STATEPORT_KV_BLOCK;
  CHECK_REFUSED(stateport_state_tiers_execute(tiers, NULL, plan, 2), STATEPORT_INVALID_ARGUMENT, "content");
  plan[1] = store_of(2, 1);
  plan[1].image.group = 1;
  CHECK_REFUSED(stateport_state_tiers_execute(tiers, NULL, plan, 2), STATEPORT_INVALID_ARGUMENT, "group = 1");
  plan[1] = store_of(2, 1);
  plan[1].image.tokens = -1;
  CHECK_REFUSED(stateport_state_tiers_execute(tiers, NULL, plan, 2), STATEPORT_INVALID_ARGUMENT, "tokens = -1");
  plan[1] = store_of(UINT64_C(1) << 63, 1);
  CHECK_REFUSED(stateport_state_tiers_execute(tiers, NULL, plan, 2), STATEPORT_INVALID_ARGUMENT, "id = ");
}

static void refuse_images(stateport_state_tiers* tiers) {
  const stateport_slot_image image = {.key = store_of(1, 0).image, .slot = slots};
  uint64_t first = 9;
  size_t count = 9;
  int32_t medium = 9;
  CHECK_REFUSED(stateport_state_tiers_put(tiers, NULL, &image, 1, STATEPORT_MEDIUM_HOST, &first),
                STATEPORT_INVALID_ARGUMENT, "place = 4");
  CHECK_REFUSED(stateport_state_tiers_put(tiers, NULL, &image, 0, STATEPORT_MEDIUM_HOST, NULL),
                STATEPORT_INVALID_ARGUMENT, "first = null");
  CHECK_REFUSED(stateport_state_tiers_put(tiers, NULL, &image, 1, STATEPORT_MEDIUM_DEVICE, &first),
                STATEPORT_INVALID_ARGUMENT, "to = 0");
  CHECK_REFUSED(stateport_state_tiers_put(tiers, NULL, NULL, 1, STATEPORT_MEDIUM_HOST, &first),
                STATEPORT_INVALID_ARGUMENT, "images = null");
  CHECK_REFUSED(stateport_state_tiers_get(tiers, NULL, &image, 1, &first), STATEPORT_INVALID_ARGUMENT, "place = 4");
  CHECK_REFUSED(stateport_state_tiers_lookup(tiers, &image.key, 1, NULL), STATEPORT_INVALID_ARGUMENT, "media = null");
  CHECK_REFUSED(stateport_state_tiers_remove(tiers, NULL, NULL, 1), STATEPORT_INVALID_ARGUMENT, "images = null");
  CHECK_REFUSED(stateport_state_tiers_keys(tiers, STATEPORT_MEDIUM_FILE, NULL, 0, &count), STATEPORT_INVALID_ARGUMENT,
                "medium = 2");
  CHECK_REFUSED(stateport_state_tiers_keys(tiers, 9, NULL, 0, &count), STATEPORT_INVALID_ARGUMENT, "medium = 9");
  CHECK_REFUSED(stateport_state_tiers_drain(tiers, NULL, &count), STATEPORT_INVALID_STATE, "no file tier");
  CHECK_REFUSED(stateport_state_tiers_poll(tiers, NULL, NULL, 1, &count), STATEPORT_INVALID_ARGUMENT, "out = null");
  CHECK_REFUSED(stateport_state_tiers_poll(tiers, NULL, NULL, 0, NULL), STATEPORT_INVALID_ARGUMENT, "count = null");
  CHECK(first == 9 && count == 9 && medium == 9);
  CHECK_REFUSED(stateport_state_tiers_prometheus(tiers, NULL, NULL, 1, &count), STATEPORT_INVALID_ARGUMENT,
                "text = null");
  CHECK_REFUSED(stateport_state_tiers_prometheus(tiers, NULL, NULL, 0, NULL), STATEPORT_INVALID_ARGUMENT,
                "bytes = null");
  CHECK_REFUSED(stateport_state_tiers_prometheus(tiers, "1", NULL, 0, &count), STATEPORT_INVALID_ARGUMENT,
                "prefix = 1");
  CHECK(count == 9);
  stateport_state_tiers_info info = {.size = sizeof info};
  CHECK_OK(stateport_state_tiers_describe(tiers, &info));
  CHECK(info.host_images == 0 && info.in_flight == 0);
}

static void refuse_handles(stateport_state_tiers* tiers, stateport_store* states) {
  stateport_state_tiers_info info = {.size = sizeof info};
  CHECK_REFUSED(stateport_state_tiers_describe((stateport_state_tiers*)states, &info), STATEPORT_INVALID_HANDLE,
                "tiers = store (must be the handle of a state tiers)");
  CHECK_REFUSED(stateport_state_tiers_describe(tiers, NULL), STATEPORT_INVALID_ARGUMENT, "out = null");
  CHECK_REFUSED(stateport_state_tiers_begin_transfers(tiers, NULL, NULL, NULL, 0), STATEPORT_INVALID_HANDLE,
                "cache = null");
  CHECK_REFUSED(stateport_image_bytes(NULL, NULL), STATEPORT_INVALID_HANDLE, "spec = null");
  CHECK_OK(stateport_state_tiers_destroy(NULL));
}

static stateport_status begin(tier_engine* self, const stateport_transfer* transfers, size_t count) {
  return stateport_state_tiers_begin_transfers(self->tiers, NULL, self->cache, transfers, count);
}

/// Serves prompts whose passes do nothing, until the mover refuses a transfer of the cache.
static stateport_status serve_until_refused(tier_engine* self) {
  stateport_status status = STATEPORT_OK;
  for (int32_t number = 7; number < 12 && status == STATEPORT_OK; ++number) {
    int32_t tokens[tier_prompt_tokens];
    for (int i = 0; i < tier_prompt_tokens; ++i) tokens[i] = number * 50 + i;
    const int32_t whole = tier_whole_tokens;
    const int32_t none = 0;
    const stateport_prompt prompt = {.size = sizeof prompt, .tokens = tokens, .count = tier_prompt_tokens};
    stateport_started_request started = {.size = sizeof started};
    size_t done = 0;
    CHECK_OK(stateport_request_cache_start(self->cache, &prompt, 1, &started, &done));
    status = begin(self, started.transfers, started.transfer_count);
    const stateport_pass_batch batch = {.size = sizeof batch, .request = &started.request, .tokens = &whole, .rows = 1};
    stateport_pass_plan plan = {.size = sizeof plan};
    stateport_pass_commit after = {.size = sizeof after};
    CHECK_OK(stateport_request_cache_plan(self->cache, &batch, &plan));
    if (status == STATEPORT_OK) status = begin(self, plan.transfers, plan.transfer_count);
    CHECK_OK(stateport_request_cache_commit(self->cache, plan.pass, &none, 1, NULL, 0, &after));
    if (status == STATEPORT_OK) status = begin(self, after.transfers, after.transfer_count);
    CHECK_OK(stateport_request_cache_end(self->cache, &started.request, 1, STATEPORT_ABORTED, NULL, NULL));
  }
  return status;
}

/// One mover serves one cache at a time.
static void refuse_second_user(tier_engine* one, tier_engine* other) {
  stateport_attached_images attached = {.size = sizeof attached};
  CHECK_REFUSED(stateport_state_tiers_attach(one->tiers, NULL, one->cache, &attached), STATEPORT_INVALID_STATE,
                "no file tier");
  const stateport_transfer store = store_of(1, 0);
  CHECK_OK(stateport_state_tiers_execute(one->tiers, NULL, &store, 1));
  CHECK_REFUSED(begin(one, NULL, 0), STATEPORT_INVALID_STATE, "under way");
  stateport_transfer_result result;
  size_t count = 0;
  CHECK_OK(stateport_state_tiers_poll(one->tiers, NULL, &result, 1, &count));
  CHECK(count == 1 && result.id == 1 && result.status == STATEPORT_TRANSFER_DONE);
  CHECK_OK(begin(one, NULL, 0));
  CHECK_REFUSED(stateport_state_tiers_execute(one->tiers, NULL, &store, 1), STATEPORT_INVALID_STATE, "begin_transfers");
  // The engine's poll returns no results that the cache must hear; only end_transfers takes them.
  CHECK(serve_until_refused(one) == STATEPORT_OK);
  CHECK_OK(stateport_state_tiers_poll(one->tiers, NULL, &result, 1, &count));
  CHECK(count == 0);
  CHECK_REFUSED(stateport_state_tiers_end_transfers(one->tiers, NULL, other->cache, NULL), STATEPORT_INVALID_STATE,
                "another cache");
  CHECK_OK(stateport_state_tiers_end_transfers(one->tiers, NULL, one->cache, NULL));
  CHECK(tier_engine_usage(one, STATEPORT_MEDIUM_HOST).states > 0);
}

/// A mover whose store has fewer slots than the cache names.
static void refuse_places(tier_engine* self) {
  stateport_store* const few = make_store(small_spec, 1);
  const stateport_state_tiers_options options = {
      .size = sizeof options, .states = &few, .state_count = 1, .kv = self->kv, .host_bytes = 1 << 20};
  stateport_state_tiers* tiers = NULL;
  CHECK_OK(stateport_state_tiers_create(&options, &tiers));
  stateport_state_tiers* const right = self->tiers;
  self->tiers = tiers;
  CHECK(serve_until_refused(self) == STATEPORT_INVALID_ARGUMENT);
  CHECK(strstr(stateport_last_error(), "place = ") != NULL);
  // Refused transfers have failed: the cache waits for none of them and serves on.
  stateport_request_cache_info info = {.size = sizeof info};
  CHECK_OK(stateport_request_cache_describe(self->cache, &info));
  CHECK(info.transfers_under_way == 0 && tier_engine_usage(self, STATEPORT_MEDIUM_HOST).refused_images > 0);
  CHECK(tier_engine_usage(self, STATEPORT_MEDIUM_HOST).states == 0);
  CHECK_OK(stateport_request_cache_check(self->cache));
  CHECK_OK(stateport_state_tiers_destroy(tiers));
  self->tiers = right;
  tier_engine_serve(self, 20);
  CHECK_OK(stateport_store_destroy(few));
}

static size_t count_named(const tier_engine* self) {
  stateport_settled_transfers settled = {.size = sizeof settled};
  CHECK_OK(stateport_request_cache_settle(self->cache, NULL, 0, &settled));
  return settled.transfer_count;
}

/// By a mover that serves no cache yet. Drops have no answers.
static void carry_out(const tier_engine* self, const stateport_transfer* transfer) {
  stateport_transfer_result result = {.status = STATEPORT_TRANSFER_FAILED};
  size_t count = 0;
  CHECK_OK(stateport_state_tiers_execute(self->tiers, NULL, transfer, 1));
  CHECK_OK(stateport_stream_synchronize(NULL));
  CHECK_OK(stateport_state_tiers_poll(self->tiers, NULL, &result, 1, &count));
  if (transfer->kind == STATEPORT_TRANSFER_DROP)
    CHECK(count == 0);
  else
    CHECK(count == 1 && result.id == transfer->id && result.status == STATEPORT_TRANSFER_DONE);
}

/// Answers these transfers, and those that follow: the remote tier has nothing, and all else is done. Transfers of the
/// first group are carried out, if so wanted.
static void answer_by_hand(tier_engine* self, bool carries_out, const stateport_transfer* transfers, size_t named) {
  stateport_settled_transfers settled = {.size = sizeof settled, .transfers = transfers, .transfer_count = named};
  while (settled.transfer_count > 0) {
    stateport_transfer_result results[64];
    size_t count = 0;
    for (size_t i = 0; i < settled.transfer_count; ++i) {
      const stateport_transfer* const transfer = &settled.transfers[i];
      const int32_t status =
          transfer->kind == STATEPORT_TRANSFER_FIND ? STATEPORT_TRANSFER_GONE : STATEPORT_TRANSFER_DONE;
      if (carries_out && transfer->image.group == 0) carry_out(self, transfer);
      if (transfer->kind == STATEPORT_TRANSFER_DROP) continue;
      CHECK(count < 64);
      results[count++] = (stateport_transfer_result){.id = transfer->id, .status = status};
    }
    CHECK_OK(stateport_request_cache_settle(self->cache, results, count, &settled));
  }
}

static stateport_started_request start_prompt(tier_engine* self, int32_t number, int32_t count) {
  int32_t tokens[tier_request_tokens_max];
  for (int i = 0; i < count; ++i) tokens[i] = number * 50 + i;
  const stateport_prompt prompt = {.size = sizeof prompt, .tokens = tokens, .count = (size_t)count};
  stateport_started_request started = {.size = sizeof started};
  size_t done = 0;
  CHECK_OK(stateport_request_cache_start(self->cache, &prompt, 1, &started, &done));
  return started;
}

static void serve_by_hand(tier_engine* self, int32_t number, bool carries_out) {
  const stateport_started_request started = start_prompt(self, number, tier_prompt_tokens);
  answer_by_hand(self, carries_out, started.transfers, started.transfer_count);
  const int32_t whole = tier_whole_tokens;
  const int32_t none = 0;
  const stateport_pass_batch batch = {.size = sizeof batch, .request = &started.request, .tokens = &whole, .rows = 1};
  stateport_pass_plan plan = {.size = sizeof plan};
  stateport_pass_commit after = {.size = sizeof after};
  CHECK_OK(stateport_request_cache_plan(self->cache, &batch, &plan));
  answer_by_hand(self, carries_out, plan.transfers, plan.transfer_count);
  CHECK_OK(stateport_request_cache_commit(self->cache, plan.pass, &none, 1, NULL, 0, &after));
  answer_by_hand(self, carries_out, after.transfers, after.transfer_count);
  CHECK_OK(stateport_request_cache_end(self->cache, &started.request, 1, STATEPORT_ABORTED, NULL, NULL));
  stateport_settled_transfers rest = {.size = sizeof rest};
  CHECK_OK(stateport_request_cache_settle(self->cache, NULL, 0, &rest));
  answer_by_hand(self, carries_out, rest.transfers, rest.transfer_count);
}

static void check_nothing_under_way(const tier_engine* self) {
  stateport_request_cache_info info = {.size = sizeof info};
  CHECK_OK(stateport_request_cache_describe(self->cache, &info));
  CHECK(info.transfers_under_way == 0);
  CHECK(count_named(self) == 0);
  CHECK_OK(stateport_request_cache_check(self->cache));
}

/// The cache asks a mover without a remote tier for a find, since host memory has less than the prompt. The mover
/// refuses the find. The load from host memory that would follow is not left for a later call, which could come before
/// the transfers of a plan are enqueued.
static void refuse_finds(void) {
  const tier_engine_options options = {.combination = tree_slots, .host_bytes = 1 << 20, .remote_bytes = 1 << 20};
  tier_engine self;
  tier_engine_make(&self, &options);
  for (int32_t number = 7; number < 12; ++number) serve_by_hand(&self, number, false);
  CHECK(tier_engine_usage(&self, STATEPORT_MEDIUM_HOST).states > 0);
  const stateport_started_request started = start_prompt(&self, 7, tier_prompt_tokens + tier_block_tokens);
  CHECK_REFUSED(begin(&self, started.transfers, started.transfer_count), STATEPORT_INVALID_ARGUMENT,
                "from = 3 (is no tier that can be asked)");
  check_nothing_under_way(&self);
  CHECK_OK(stateport_request_cache_end(self.cache, &started.request, 1, STATEPORT_ABORTED, NULL, NULL));
  int32_t status = 9;
  CHECK_REFUSED(stateport_state_tiers_share_forgotten(self.tiers, self.cache, &status), STATEPORT_INVALID_STATE,
                "there is no remote tier");
  CHECK_REFUSED(stateport_state_tiers_share_forgotten(self.tiers, self.cache, NULL), STATEPORT_INVALID_ARGUMENT,
                "status = null");
  CHECK_REFUSED(stateport_state_tiers_share_forgotten(self.tiers, NULL, &status), STATEPORT_INVALID_HANDLE, "cache");
  CHECK_REFUSED(stateport_state_tiers_share_forgotten(NULL, self.cache, &status), STATEPORT_INVALID_HANDLE, "tiers");
  CHECK(status == 9);
  tier_engine_destroy(&self);
}

static int64_t host_images(const tier_engine* self) {
  stateport_state_tiers_info info = {.size = sizeof info};
  CHECK_OK(stateport_state_tiers_describe(self->tiers, &info));
  return info.host_images;
}

static int64_t host_images_of_cache(const tier_engine* self) {
  const stateport_tier_usage host = tier_engine_usage(self, STATEPORT_MEDIUM_HOST);
  return host.states + host.kv_blocks;
}

/// A mover of one group for a cache of two, whose host tier has images. The mover refuses the call that drops some
/// images and stores others. Every store is answered, and the images of the drops are removed.
static void refuse_groups(void) {
  const int64_t prompt_bytes = (int64_t)(image_bytes(small_spec) + 2 * image_bytes(kv_spec));
  const tier_engine_options options = {.combination = hash_columns, .host_bytes = 2 * prompt_bytes, .groups = 2};
  tier_engine self;
  tier_engine_make(&self, &options);
  for (int32_t number = 1; number < 7; ++number) serve_by_hand(&self, number, true);
  const int64_t before = host_images(&self);
  CHECK(before > 0 && before == host_images_of_cache(&self));
  CHECK(serve_until_refused(&self) == STATEPORT_INVALID_ARGUMENT);
  CHECK(strstr(stateport_last_error(), "group = 1") != NULL);
  CHECK(host_images(&self) < before && host_images(&self) == host_images_of_cache(&self));
  check_nothing_under_way(&self);
  tier_engine_destroy(&self);
}

/// A cache goes before it hears of its stores, and before its engine takes the loads of KV from elsewhere: the next
/// cache that the mover serves hears of neither.
static void serve_the_next(bool states_alone) {
  const tier_engine_options options = {.combination = tree_slots, .host_bytes = 1 << 20, .states_alone = states_alone};
  tier_engine one;
  tier_engine next;
  tier_engine_make(&one, &options);
  tier_engine_make(&next, &options);
  for (int32_t number = 0; number < 6; ++number) tier_engine_serve(&one, number);
  const stateport_started_request started = start_prompt(&one, 0, tier_prompt_tokens);
  CHECK(started.transfer_count > 0);
  CHECK_OK(begin(&one, started.transfers, started.transfer_count));
  CHECK_OK(stateport_stream_synchronize(NULL));
  stateport_transfer_result result;
  size_t count = 0;
  CHECK_OK(stateport_state_tiers_poll(one.tiers, NULL, &result, 1, &count));
  stateport_state_tiers_info info = {.size = sizeof info};
  CHECK_OK(stateport_state_tiers_describe(one.tiers, &info));
  CHECK(count == 0 && info.in_flight > 0);
  CHECK_OK(stateport_request_cache_destroy(one.cache));
  one.cache = NULL;
  int32_t loaded = 9;
  CHECK_OK(stateport_state_tiers_end_transfers(one.tiers, NULL, next.cache, &loaded));
  CHECK_OK(stateport_state_tiers_describe(one.tiers, &info));
  CHECK(loaded == 0 && info.in_flight == 0);
  stateport_transfer load;
  CHECK_OK(stateport_state_tiers_take_loads(one.tiers, &load, 1, &count));
  CHECK(count == 0);
  tier_engine_destroy(&one);
  tier_engine_destroy(&next);
}

void test_state_tiers_refusals(void) {
  char folder[folder_bytes];
  make_folder(folder, sizeof folder);
  stateport_store* const states = make_store(small_spec, slots);
  refuse_options(states, folder);
  const stateport_state_tiers_options options = {
      .size = sizeof options, .states = &states, .state_count = 1, .host_bytes = 1 << 16};
  stateport_state_tiers* tiers = NULL;
  CHECK_OK(stateport_state_tiers_create(&options, &tiers));
  refuse_transfers(tiers);
  refuse_images(tiers);
  refuse_handles(tiers, states);
  CHECK_OK(stateport_state_tiers_check(tiers));
  CHECK_OK(stateport_state_tiers_destroy(tiers));
  CHECK_REFUSED(stateport_state_tiers_check(tiers), STATEPORT_INVALID_HANDLE, "destroyed");
  CHECK_OK(stateport_store_destroy(states));
  const tier_engine_options host = {.combination = tree_slots, .host_bytes = 1 << 20};
  tier_engine one;
  tier_engine other;
  tier_engine_make(&one, &host);
  tier_engine_make(&other, &host);
  refuse_second_user(&one, &other);
  refuse_places(&other);
  refuse_finds();
  refuse_groups();
  serve_the_next(false);
  serve_the_next(true);
  tier_engine_destroy(&one);
  tier_engine_destroy(&other);
  remove_folder(folder);
}
