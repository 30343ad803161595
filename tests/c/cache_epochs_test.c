// SPDX-License-Identifier: Apache-2.0
// Weights that change while a request runs, and namespaces that are forgotten, over an engine whose every read is
// checked.
#include "cache_engine.h"

#include <string.h>

enum { prompt_tokens = 17 };

static const stateport_state_group groups[engine_groups_max] = ENGINE_GROUPS(60);
static const stateport_namespace tenant = {.size = sizeof tenant, .salt = "tenant", .salt_bytes = 6};
static const stateport_namespace adapter = {.size = sizeof adapter, .extra_key = "adapter", .extra_key_bytes = 7};

/// Serves a prompt alone, with one token of output. Returns the tokens of it that were reused.
static int64_t serve(engine* self, int index, const stateport_namespace* name_space) {
  int32_t tokens[prompt_tokens];
  for (int32_t i = 0; i < prompt_tokens; ++i) tokens[i] = 7 * i % 5;
  self->names.name_space = name_space;
  const int64_t before = self->reused_tokens;
  CHECK(engine_start(self, index, tokens, prompt_tokens, prompt_tokens + 1));
  const int64_t reused = self->reused_tokens - before;
  for (int step = 0; step < 20 && self->requests[index].id != STATEPORT_NONE; ++step) engine_step(self, 64);
  engine_settle(self);
  CHECK(self->requests[index].id == STATEPORT_NONE);
  CHECK_OK(stateport_request_cache_check(self->cache));
  return reused;
}

static int64_t kv_tokens(engine* self) {
  stateport_cache_stats stats = {.size = sizeof stats};
  CHECK_OK(stateport_request_cache_stats(self->cache, &stats));
  return stats.kv_tokens;
}

static uint64_t epoch_of(engine* self) {
  uint64_t epoch = 99;
  CHECK_OK(stateport_request_cache_epoch(self->cache, &epoch));
  return epoch;
}

static bool is_stale(engine* self, int64_t request) {
  uint8_t stale = 9;
  CHECK_OK(stateport_request_cache_is_stale(self->cache, request, &stale));
  CHECK(stale <= 1);
  return stale == 1;
}

static void change_weights(engine* self) {
  CHECK(serve(self, 0, NULL) == 0);
  CHECK(serve(self, 0, NULL) == 16);
  // A request that runs keeps its tokens, and publishes none of them.
  int32_t tokens[prompt_tokens];
  for (int32_t i = 0; i < prompt_tokens; ++i) tokens[i] = 7 * i % 5;
  CHECK(engine_start(self, 1, tokens, prompt_tokens, prompt_tokens + 6));
  const int64_t running = self->requests[1].id;
  engine_step(self, 64);
  uint64_t epoch = 0;
  CHECK_OK(stateport_request_cache_advance_epoch(self->cache, 0, &epoch));
  CHECK(epoch == 4 && epoch_of(self) == 4 && is_stale(self, running));
  for (int step = 0; step < 20 && self->requests[1].id != STATEPORT_NONE; ++step) engine_step(self, 64);
  engine_settle(self);
  CHECK(self->requests[1].id == STATEPORT_NONE && kv_tokens(self) == 0);
  CHECK(serve(self, 0, NULL) == 0);
  CHECK(serve(self, 0, NULL) == 16);
  CHECK_OK(stateport_request_cache_advance_epoch(self->cache, 0, NULL));
  CHECK(epoch_of(self) == 5 && kv_tokens(self) == 0);
}

static void forget_names(engine* self) {
  const stateport_namespace* const names[] = {NULL, &tenant, &adapter};
  for (int i = 0; i < 3; ++i) CHECK(serve(self, 0, names[i]) == 0);
  for (int i = 0; i < 3; ++i) CHECK(serve(self, 0, names[i]) == 16);
  CHECK_OK(stateport_request_cache_forget(self->cache, &tenant, STATEPORT_FORGET_NAME_SPACE));
  CHECK(serve(self, 0, NULL) == 16 && serve(self, 0, &adapter) == 16 && serve(self, 0, &tenant) == 0);
  CHECK_OK(stateport_request_cache_forget(self->cache, &adapter, STATEPORT_FORGET_EXTRA_KEY));
  CHECK(serve(self, 0, NULL) == 16 && serve(self, 0, &tenant) == 16 && serve(self, 0, &adapter) == 0);
  // Neither the tenant nor the adapter has the other's name.
  CHECK_OK(stateport_request_cache_forget(self->cache, NULL, STATEPORT_FORGET_SALT));
  CHECK(serve(self, 0, NULL) == 0 && serve(self, 0, &tenant) == 16 && serve(self, 0, &adapter) == 0);
  CHECK(epoch_of(self) == 5);
}

/// Another cache, which adopts what this one has forgotten by names.
static void adopt(engine* self, const stateport_request_cache_options* options) {
  stateport_forget_record records[4];
  memset(records, 0x77, sizeof records);
  size_t count = 0;
  CHECK_OK(stateport_request_cache_forgotten(self->cache, records, 2, &count));
  CHECK(count == 3 && records[2].cache == 0x7777777777777777);
  CHECK_OK(stateport_request_cache_forgotten(self->cache, records, 4, &count));
  CHECK(count == 3 && records[0].cache == records[2].cache && records[0].call == 1 && records[2].call == 3);
  CHECK(records[0].by == STATEPORT_FORGET_NAME_SPACE && records[1].by == STATEPORT_FORGET_EXTRA_KEY);
  CHECK(records[0].names != 0 && records[1].names >> 32 != 0 && records[1].names << 32 == 0 && records[2].names == 0);
  CHECK(records[3].cache == 0x7777777777777777);

  static engine other;
  stateport_request_cache* cache = NULL;
  CHECK_OK(stateport_request_cache_create(options, &cache));
  engine_make(&other, cache, options, 1);
  const stateport_namespace* const names[] = {NULL, &tenant, &adapter};
  for (int i = 0; i < 3; ++i) CHECK(serve(&other, 0, names[i]) == 0);
  uint8_t adopted = 9;
  CHECK_OK(stateport_request_cache_adopt_forgotten(cache, records, 1, &adopted));
  CHECK(adopted == 1 && serve(&other, 0, &tenant) == 0 && serve(&other, 0, &adapter) == 16);
  CHECK_OK(stateport_request_cache_adopt_forgotten(cache, records, 3, NULL));
  for (int i = 0; i < 3; ++i) CHECK(serve(&other, 0, names[i]) == (i == 1 ? 16 : 0));
  stateport_forget_record bad[2] = {records[0], {.cache = 1, .call = 1, .by = 4}};
  adopted = 9;
  CHECK_REFUSED(stateport_request_cache_adopt_forgotten(cache, bad, 2, &adopted), STATEPORT_INVALID_ARGUMENT,
                "records.by = 4");
  bad[1].by = STATEPORT_FORGET_ALL;
  bad[1].reserved = 1;
  CHECK_REFUSED(stateport_request_cache_adopt_forgotten(cache, bad, 2, &adopted), STATEPORT_INVALID_ARGUMENT,
                "records.reserved = 1");
  bad[1].reserved = 0;
  bad[1].names = 1;
  CHECK_REFUSED(stateport_request_cache_adopt_forgotten(cache, bad, 2, &adopted), STATEPORT_INVALID_ARGUMENT,
                "records = 1 (salt must be 0");
  CHECK_REFUSED(stateport_request_cache_adopt_forgotten(cache, NULL, 2, &adopted), STATEPORT_INVALID_ARGUMENT,
                "records = null");
  CHECK_REFUSED(stateport_request_cache_forgotten(cache, NULL, 2, &count), STATEPORT_INVALID_ARGUMENT, "out = null");
  CHECK_REFUSED(stateport_request_cache_forgotten(cache, NULL, 0, NULL), STATEPORT_INVALID_ARGUMENT, "count = null");
  CHECK(adopted == 9);
  CHECK_OK(stateport_request_cache_forgotten(cache, NULL, 0, &count));
  CHECK(count == 3);
  CHECK_OK(stateport_request_cache_forget(cache, NULL, STATEPORT_FORGET_ALL));
  CHECK(kv_tokens(&other) == 0);
  CHECK_OK(stateport_request_cache_forgotten(cache, NULL, 0, &count));
  CHECK(count == 4);
  CHECK_OK(stateport_request_cache_destroy(cache));
  CHECK_REFUSED(stateport_request_cache_forgotten(cache, NULL, 0, &count), STATEPORT_INVALID_HANDLE, "cache");
  CHECK_REFUSED(stateport_request_cache_adopt_forgotten(cache, NULL, 0, NULL), STATEPORT_INVALID_HANDLE, "cache");
}

static void reset_while_running(engine* self) {
  int32_t tokens[prompt_tokens] = {0};
  CHECK(engine_start(self, 2, tokens, prompt_tokens, prompt_tokens + 1));
  CHECK_OK(stateport_request_cache_reset(self->cache));
  CHECK(epoch_of(self) == 5 && is_stale(self, self->requests[2].id));
  engine_end(self, 2, STATEPORT_ABORTED);
  CHECK_OK(stateport_request_cache_reset(self->cache));
  CHECK(epoch_of(self) == 5);
  uint64_t epoch = 0;
  CHECK_REFUSED(stateport_request_cache_advance_epoch(self->cache, 5, &epoch), STATEPORT_INVALID_ARGUMENT, "epoch = 5");
  CHECK(epoch == 0 && epoch_of(self) == 5);
  CHECK_OK(stateport_request_cache_advance_epoch(self->cache, 60, &epoch));
  CHECK(epoch == 60 && epoch_of(self) == 60);
}

static void refuse(engine* self) {
  stateport_request_cache* const cache = self->cache;
  uint8_t stale = 9;
  const stateport_namespace bad = {.size = 3};
  CHECK_REFUSED(stateport_request_cache_epoch(cache, NULL), STATEPORT_INVALID_ARGUMENT, "epoch = null");
  CHECK_REFUSED(stateport_request_cache_is_stale(cache, 0, &stale), STATEPORT_INVALID_ARGUMENT, "request = 0");
  CHECK_REFUSED(stateport_request_cache_is_stale(cache, 0, NULL), STATEPORT_INVALID_ARGUMENT, "stale = null");
  CHECK_REFUSED(stateport_request_cache_forget(cache, NULL, 4), STATEPORT_INVALID_ARGUMENT, "by = 4");
  CHECK_REFUSED(stateport_request_cache_forget(cache, NULL, -1), STATEPORT_INVALID_ARGUMENT, "by = -1");
  CHECK_REFUSED(stateport_request_cache_forget(cache, &bad, 0), STATEPORT_INVALID_ARGUMENT, "name_space = 3");
  CHECK(stale == 9 && epoch_of(self) == 60);
  uint64_t epoch = 0;
  CHECK_OK(stateport_request_cache_destroy(cache));
  CHECK_REFUSED(stateport_request_cache_advance_epoch(cache, 0, &epoch), STATEPORT_INVALID_HANDLE, "cache");
  CHECK_REFUSED(stateport_request_cache_epoch(cache, &epoch), STATEPORT_INVALID_HANDLE, "cache");
  CHECK_REFUSED(stateport_request_cache_forget(cache, NULL, 0), STATEPORT_INVALID_HANDLE, "cache");
  CHECK_REFUSED(stateport_request_cache_is_stale(cache, 0, &stale), STATEPORT_INVALID_HANDLE, "cache");
}

void test_cache_epochs(void) {
  static engine self;
  for (int32_t kind = 0; kind < combinations; ++kind) {
    cache_setup setup;
    engine_setup(&setup, kind, 0, groups);
    setup.options.kv_tokens = 4 * engine_tokens_max;
    setup.slots.checkpoints = 12;
    setup.options.epoch = 3;
    stateport_request_cache* cache = NULL;
    CHECK_OK(stateport_request_cache_create(&setup.options, &cache));
    engine_make(&self, cache, &setup.options, 1);
    change_weights(&self);
    forget_names(&self);
    adopt(&self, &setup.options);
    reset_while_running(&self);
    refuse(&self);
  }
}
