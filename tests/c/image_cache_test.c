// SPDX-License-Identifier: Apache-2.0
// Images below the device by key, for an engine that keeps its own cache.
#include "check.h"

enum { image_bytes = 10 };

static stateport_image_key state(uint64_t number) {
  return (stateport_image_key){.prefix = {number, 7}, .tokens = 64, .content = STATEPORT_STATE};
}

static stateport_image_cache* make(int64_t host_images, int64_t file_images) {
  const int64_t groups[] = {image_bytes, 2 * image_bytes};
  const stateport_image_cache_options options = {.size = sizeof options,
                                                 .host_bytes = host_images * image_bytes,
                                                 .file_bytes = file_images * image_bytes,
                                                 .state_image_bytes = groups,
                                                 .state_groups = 2};
  stateport_image_cache* made = NULL;
  CHECK_OK(stateport_image_cache_create(&options, &made));
  return made;
}

/// Ends a transfer that is done.
static stateport_image_plan settle(stateport_image_cache* cache, uint64_t id) {
  const stateport_transfer_result result = {.id = id};
  stateport_image_plan plan = {.size = sizeof plan};
  CHECK_OK(stateport_image_cache_settle(cache, &result, 1, &plan));
  CHECK(plan.request == STATEPORT_NONE);
  return plan;
}

static int32_t medium_of(stateport_image_cache* cache, uint64_t number) {
  const stateport_image_key key = state(number);
  int32_t medium = -7;
  size_t leading = 9;
  CHECK_OK(stateport_image_cache_find(cache, &key, 1, &medium, &leading));
  CHECK(leading == (medium == STATEPORT_NONE ? 0U : 1U));
  return medium;
}

void test_image_cache(void) {
  stateport_image_cache* cache = make(2, 3);
  const stateport_image_key keys[] = {state(1), state(2), state(3)};
  const int32_t places[] = {4, 5, 6};
  stateport_image_plan plan = {.size = sizeof plan};
  CHECK_OK(stateport_image_cache_put(cache, keys, places, 2, &plan));
  const int64_t request = plan.request;
  CHECK(plan.transfer_count == 2 && plan.ended_count == 0);
  CHECK(plan.transfers[0].kind == STATEPORT_TRANSFER_STORE && plan.transfers[0].to == STATEPORT_MEDIUM_HOST);
  CHECK(plan.transfers[0].place == 5 && plan.transfers[0].image.prefix[0] == 2);
  CHECK(plan.transfers[0].request == request);
  CHECK(settle(cache, 1).ended_count == 0);
  plan = settle(cache, 2);
  CHECK(plan.ended_count == 1 && plan.ended[0].request == request && plan.ended[0].missing == 0);
  size_t under_way = 7;
  CHECK_OK(stateport_image_cache_under_way(cache, &under_way));
  CHECK(under_way == 0);

  stateport_flag pinned = 7;
  CHECK_OK(stateport_image_cache_pin(cache, keys, 3, &pinned));
  CHECK(pinned == 0);
  CHECK_OK(stateport_image_cache_pin(cache, keys, 1, &pinned));
  CHECK(pinned == 1);
  CHECK_OK(stateport_image_cache_touch(cache, keys + 1, 1));
  CHECK_OK(stateport_image_cache_put(cache, keys + 2, places, 1, &plan));
  CHECK(plan.transfer_count == 1 && plan.transfers[0].kind == STATEPORT_TRANSFER_COPY);
  CHECK(plan.transfers[0].image.prefix[0] == 2 && plan.transfers[0].to == STATEPORT_MEDIUM_FILE);
  plan = settle(cache, 3);
  CHECK(plan.transfer_count == 2 && plan.transfers[0].kind == STATEPORT_TRANSFER_DROP);
  settle(cache, 4);
  CHECK_OK(stateport_image_cache_unpin(cache, keys, 1));
  CHECK(medium_of(cache, 1) == STATEPORT_MEDIUM_HOST && medium_of(cache, 2) == STATEPORT_MEDIUM_FILE);
  CHECK(medium_of(cache, 4) == STATEPORT_NONE);

  CHECK_OK(stateport_image_cache_get(cache, keys, places, 3, &plan));
  CHECK(plan.transfer_count == 3 && plan.transfers[1].kind == STATEPORT_TRANSFER_LOAD);
  CHECK(plan.transfers[1].from == STATEPORT_MEDIUM_FILE && plan.transfers[1].place == 5);
  for (uint64_t id = 5; id < 8; ++id) settle(cache, id);
  CHECK_OK(stateport_image_cache_drain(cache, &plan));
  CHECK(plan.transfer_count == 2 && plan.transfers[0].kind == STATEPORT_TRANSFER_COPY);
  for (uint64_t id = 8; id < 10; ++id) settle(cache, id);
  uint8_t attached[2] = {7, 7};
  const stateport_image_key found[] = {state(1), state(9)};
  CHECK_OK(stateport_image_cache_attach(cache, STATEPORT_MEDIUM_FILE, found, 2, attached));
  CHECK(attached[0] == 1 && attached[1] == 0);
  stateport_image_tier_usage usage = {.size = sizeof usage};
  CHECK_OK(stateport_image_cache_usage(cache, STATEPORT_MEDIUM_FILE, &usage));
  CHECK(usage.images == 3 && usage.bytes == 3 * image_bytes && usage.written_images == 3 && usage.read_images == 1);
  CHECK_OK(stateport_image_cache_remove(cache, keys, 3, &plan));
  CHECK(plan.transfer_count == 5 && plan.ended_count == 0);
  CHECK_OK(stateport_image_cache_usage(cache, STATEPORT_MEDIUM_REMOTE, &usage));
  CHECK(usage.images == 0);
  CHECK_OK(stateport_image_cache_check(cache));
  CHECK_OK(stateport_image_cache_destroy(cache));
}

void test_image_cache_remote(void) {
  const int64_t bytes = image_bytes;
  const stateport_image_cache_options options = {.size = sizeof options,
                                                 .remote_bytes = 4 * image_bytes,
                                                 .state_image_bytes = &bytes,
                                                 .state_groups = 1,
                                                 .eviction = STATEPORT_EVICT_FIFO,
                                                 .images_under_way_max = 4};
  stateport_image_cache* cache = NULL;
  CHECK_OK(stateport_image_cache_create(&options, &cache));
  const stateport_image_key key = state(1);
  stateport_image_plan plan = {.size = sizeof plan};
  CHECK_OK(stateport_image_cache_ask(cache, &key, 1, &plan));
  CHECK(plan.transfer_count == 1 && plan.transfers[0].kind == STATEPORT_TRANSFER_FIND);
  plan = settle(cache, 1);
  CHECK(plan.ended_count == 1 && plan.ended[0].missing == 0 && medium_of(cache, 1) == STATEPORT_MEDIUM_REMOTE);
  CHECK_OK(stateport_image_cache_destroy(cache));
}

void test_image_cache_refusals(void) {
  const int64_t bytes = image_bytes;
  stateport_image_cache_options options = {
      .size = sizeof options, .host_bytes = 9, .state_image_bytes = &bytes, .state_groups = 1};
  stateport_image_cache* cache = NULL;
  CHECK_REFUSED(stateport_image_cache_create(&options, &cache), STATEPORT_INVALID_ARGUMENT, "host_bytes = 9");
  CHECK_REFUSED(stateport_image_cache_create(NULL, &cache), STATEPORT_INVALID_ARGUMENT, "options");
  options.host_bytes = 20;
  options.eviction = STATEPORT_EVICT_GDSF;
  CHECK_REFUSED(stateport_image_cache_create(&options, &cache), STATEPORT_INVALID_ARGUMENT, "eviction = gdsf");
  options.eviction = 99;
  CHECK_REFUSED(stateport_image_cache_create(&options, &cache), STATEPORT_INVALID_ARGUMENT, "eviction = 99");
  options.eviction = 0;
  options.state_groups = 0;
  CHECK_REFUSED(stateport_image_cache_create(&options, &cache), STATEPORT_INVALID_ARGUMENT, "kv_image_bytes = 0");

  cache = make(2, 0);
  const stateport_image_key key = state(1);
  stateport_image_key bad = state(1);
  const int32_t place = 3;
  const int32_t nowhere = -1;
  stateport_image_plan plan = {.size = sizeof plan};
  CHECK_REFUSED(stateport_image_cache_put(cache, NULL, &place, 1, &plan), STATEPORT_INVALID_ARGUMENT, "images");
  CHECK_REFUSED(stateport_image_cache_put(cache, &key, NULL, 1, &plan), STATEPORT_INVALID_ARGUMENT, "places");
  CHECK_REFUSED(stateport_image_cache_put(cache, &key, &nowhere, 1, &plan), STATEPORT_INVALID_ARGUMENT, "places = -1");
  CHECK_REFUSED(stateport_image_cache_put(cache, &key, &place, 1, NULL), STATEPORT_INVALID_ARGUMENT, "out");
  bad.group = 2;
  CHECK_REFUSED(stateport_image_cache_get(cache, &bad, &place, 1, &plan), STATEPORT_INVALID_ARGUMENT,
                "images.group = 2");
  stateport_image_key unknown = bad;
  unknown.content = 5;
  CHECK_REFUSED(stateport_image_cache_touch(cache, &unknown, 1), STATEPORT_INVALID_ARGUMENT, "content = 5");
  CHECK_REFUSED(stateport_image_cache_ask(cache, &key, 1, &plan), STATEPORT_INVALID_STATE, "no remote tier");
  CHECK_REFUSED(stateport_image_cache_unpin(cache, &key, 1), STATEPORT_INVALID_ARGUMENT, "not pinned");
  const stateport_transfer_result result = {.id = 5};
  CHECK_REFUSED(stateport_image_cache_settle(cache, &result, 1, &plan), STATEPORT_INVALID_ARGUMENT, "results");
  uint8_t attached = 0;
  CHECK_REFUSED(stateport_image_cache_attach(cache, STATEPORT_MEDIUM_FILE, &key, 1, &attached),
                STATEPORT_INVALID_ARGUMENT, "medium = 2");
  const stateport_image_key one_bad[] = {key, bad};
  uint8_t both[2] = {7, 7};
  CHECK_REFUSED(stateport_image_cache_attach(cache, STATEPORT_MEDIUM_HOST, one_bad, 2, both),
                STATEPORT_INVALID_ARGUMENT, "images.group = 2");
  CHECK(both[0] == 7 && medium_of(cache, 1) == STATEPORT_NONE);
  CHECK_REFUSED(stateport_image_cache_find(cache, &key, 1, NULL, NULL), STATEPORT_INVALID_ARGUMENT, "leading");
  CHECK_REFUSED(stateport_image_cache_pin(cache, &key, 1, NULL), STATEPORT_INVALID_ARGUMENT, "pinned");
  CHECK_REFUSED(stateport_image_cache_under_way(cache, NULL), STATEPORT_INVALID_ARGUMENT, "out");
  stateport_image_tier_usage usage = {.size = sizeof usage};
  CHECK_REFUSED(stateport_image_cache_usage(cache, 9, &usage), STATEPORT_INVALID_ARGUMENT, "medium = 9");
  CHECK_OK(stateport_image_cache_check(cache));
  CHECK_OK(stateport_image_cache_destroy(cache));
  CHECK_REFUSED(stateport_image_cache_drain(cache, &plan), STATEPORT_INVALID_HANDLE, "cache");
}
