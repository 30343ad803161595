// SPDX-License-Identifier: Apache-2.0
// Shares of tenants, over an engine whose every read is checked.
#include "cache_engine.h"

#include <string.h>

enum { prompt_tokens = 17 };

static const stateport_state_group groups[engine_groups_max] = ENGINE_GROUPS(60);
static const stateport_namespace quiet = {.size = sizeof quiet, .salt = "quiet", .salt_bytes = 5};
static const stateport_namespace flood = {.size = sizeof flood, .salt = "flood", .salt_bytes = 5};

/// Serves a prompt alone, with one token of output. Returns the tokens of it that were reused.
static int64_t serve(engine* self, const stateport_namespace* tenant, int32_t first) {
  int32_t tokens[prompt_tokens];
  for (int32_t i = 0; i < prompt_tokens; ++i) tokens[i] = i == 0 ? first : 7 * i % 5;
  self->names.name_space = tenant;
  const int64_t before = self->reused_tokens;
  CHECK(engine_start(self, 0, tokens, prompt_tokens, prompt_tokens + 1));
  const int64_t reused = self->reused_tokens - before;
  for (int step = 0; step < 20 && self->requests[0].id != STATEPORT_NONE; ++step) engine_step(self, 64);
  engine_settle(self);
  CHECK(self->requests[0].id == STATEPORT_NONE);
  CHECK_OK(stateport_request_cache_check(self->cache));
  return reused;
}

static int64_t bytes_of(engine* self, const stateport_namespace* tenant) {
  int64_t kv_bytes = -1, state_bytes = -1;
  CHECK_OK(stateport_request_cache_tenant_usage(self->cache, tenant, &kv_bytes, &state_bytes));
  CHECK(kv_bytes >= 0 && state_bytes >= 0);
  return kv_bytes + state_bytes;
}

static void keep_floor(engine* self) {
  CHECK(serve(self, &quiet, 1) == 0);
  const int64_t held = bytes_of(self, &quiet);
  CHECK(held > 16);
  CHECK_OK(stateport_request_cache_set_quota(self->cache, &quiet, 2 * held, 0));
  for (int32_t i = 0; i < 60; ++i) CHECK(serve(self, &flood, 100 + i) == 0);
  CHECK(bytes_of(self, &quiet) == held);
  CHECK(serve(self, &quiet, 1) == 16);
  CHECK_OK(stateport_request_cache_set_quota(self->cache, &quiet, 0, 0));
  for (int32_t i = 0; i < 60; ++i) CHECK(serve(self, &flood, 200 + i) == 0);
  CHECK(serve(self, &quiet, 1) == 0);
}

static void keep_limit(engine* self) {
  CHECK(bytes_of(self, &flood) > 100);
  CHECK_OK(stateport_request_cache_set_quota(self->cache, &flood, 0, 100));
  CHECK(serve(self, NULL, 1) == 0);
  CHECK(bytes_of(self, &flood) <= 100);
}

static void refuse(engine* self) {
  stateport_request_cache* const cache = self->cache;
  const stateport_namespace bad = {.size = 3};
  int64_t bytes = -7;
  CHECK_REFUSED(stateport_request_cache_set_quota(cache, &quiet, -1, 0), STATEPORT_INVALID_ARGUMENT,
                "floor_bytes = -1");
  CHECK_REFUSED(stateport_request_cache_set_quota(cache, &quiet, 0, -1), STATEPORT_INVALID_ARGUMENT, "most_bytes = -1");
  CHECK_REFUSED(stateport_request_cache_set_quota(cache, &quiet, INT64_MAX, 0), STATEPORT_INVALID_ARGUMENT,
                "floor_bytes");
  CHECK_REFUSED(stateport_request_cache_set_quota(cache, &bad, 0, 1), STATEPORT_INVALID_ARGUMENT, "name_space = 3");
  CHECK_REFUSED(stateport_request_cache_tenant_usage(cache, &quiet, NULL, &bytes), STATEPORT_INVALID_ARGUMENT,
                "kv_bytes = null");
  CHECK_REFUSED(stateport_request_cache_tenant_usage(cache, &quiet, &bytes, NULL), STATEPORT_INVALID_ARGUMENT,
                "state_bytes = null");
  CHECK(bytes == -7);
  CHECK_OK(stateport_request_cache_destroy(cache));
  CHECK_REFUSED(stateport_request_cache_set_quota(cache, &quiet, 0, 1), STATEPORT_INVALID_HANDLE, "cache");
  CHECK_REFUSED(stateport_request_cache_tenant_usage(cache, &quiet, &bytes, &bytes), STATEPORT_INVALID_HANDLE, "cache");
}

void test_cache_tenants(void) {
  static engine self;
  static const stateport_eviction_options lru = {
      .size = sizeof lru, .order = STATEPORT_EVICT_LRU, .state_bytes = 20, .kv_bytes_per_token = 1};
  for (int32_t kind = 0; kind < combinations; ++kind) {
    cache_setup setup;
    engine_setup(&setup, kind, 0, groups);
    setup.options.kv_tokens = 4 * engine_tokens_max;
    setup.slots.checkpoints = 24;
    setup.options.eviction = &lru;
    stateport_request_cache* cache = NULL;
    CHECK_OK(stateport_request_cache_create(&setup.options, &cache));
    CHECK_REFUSED(stateport_request_cache_set_quota(cache, &quiet, 0, 1), STATEPORT_INVALID_STATE, "tenant_quotas");
    CHECK_OK(stateport_request_cache_destroy(cache));
    setup.options.tenant_quotas = 2;
    CHECK_OK(stateport_request_cache_create(&setup.options, &cache));
    engine_make(&self, cache, &setup.options, 1);
    keep_floor(&self);
    keep_limit(&self);
    refuse(&self);
  }
}
