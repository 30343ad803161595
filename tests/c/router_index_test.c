// SPDX-License-Identifier: Apache-2.0
// The index of a router.
#include <stateport/c/router_index.h>

#include "check.h"

#include <stddef.h>
#include <stdint.h>

static stateport_cache_event stored(uint64_t prefix, int32_t content, int32_t medium, uint64_t sequence) {
  return (stateport_cache_event){.size = sizeof(stateport_cache_event),
                                 .sequence = sequence,
                                 .kind = STATEPORT_EVENT_STORED,
                                 .content = content,
                                 .medium = medium,
                                 .prefix = {prefix, 1}};
}

static stateport_router_index* make_index(int64_t prefixes_max) {
  const stateport_router_options options = {
      .size = sizeof options, .workers_max = 2, .state_groups = 1, .prefixes_max = prefixes_max, .blocks_max = 100};
  stateport_router_index* made = NULL;
  CHECK_OK(stateport_router_index_create(&options, &made));
  return made;
}

void test_router_index(void) {
  stateport_router_index* index = make_index(3);
  CHECK_OK(stateport_router_index_join(index, 0, 1));
  CHECK_OK(stateport_router_index_join(index, 1, 9));
  const stateport_cache_event events[] = {stored(5, STATEPORT_KV_BLOCK, STATEPORT_MEDIUM_DEVICE, 1),
                                          stored(6, STATEPORT_KV_BLOCK, STATEPORT_MEDIUM_DEVICE, 2),
                                          stored(6, STATEPORT_STATE, STATEPORT_MEDIUM_HOST, 3)};
  stateport_flag known = 0;
  CHECK_OK(stateport_router_index_hear(index, 0, events, 3, &known));
  CHECK(known != 0);
  CHECK_OK(stateport_router_index_hear_message(index, 1, 9, events, 1, &known));
  CHECK(known != 0);
  CHECK_OK(stateport_router_index_hear_message(index, 1, 11, events + 1, 2, &known));
  CHECK(known == 0);
  uint64_t next = 0;
  CHECK_OK(stateport_router_index_worker(index, 1, &next, &known));
  CHECK(next == 10 && known == 0);

  const uint64_t prefixes[] = {5, 1, 6, 1, 7, 1};
  stateport_router_reach found[2];
  size_t count = 0;
  CHECK_OK(stateport_router_index_find(index, prefixes, 3, found, 2, &count));
  CHECK(count == 1 && found[0].worker == 0 && found[0].medium == STATEPORT_MEDIUM_HOST);
  CHECK(found[0].blocks[STATEPORT_MEDIUM_DEVICE] == 0 && found[0].blocks[STATEPORT_MEDIUM_HOST] == 2 &&
        found[0].blocks[STATEPORT_MEDIUM_REMOTE] == 2);
  CHECK_OK(stateport_router_index_hear_message(index, 1, 10, NULL, 0, &known));
  CHECK_OK(stateport_router_index_hear_message(index, 1, 11, events + 1, 2, &known));
  CHECK(known != 0);
  found[1].worker = 7;
  CHECK_OK(stateport_router_index_find(index, prefixes, 3, found, 1, &count));
  CHECK(count == 2 && found[1].worker == 7);
  CHECK_OK(stateport_router_index_leave(index, 0));
  CHECK_OK(stateport_router_index_find(index, prefixes, 3, found, 2, &count));
  CHECK(count == 1 && found[0].worker == 1);

  const stateport_cache_event more[] = {stored(7, STATEPORT_KV_BLOCK, STATEPORT_MEDIUM_DEVICE, 0),
                                        stored(8, STATEPORT_KV_BLOCK, STATEPORT_MEDIUM_DEVICE, 0)};
  CHECK_OK(stateport_router_index_hear_message(index, 1, 12, more, 2, &known));
  stateport_router_usage usage = {.size = sizeof usage};
  CHECK_OK(stateport_router_index_usage(index, &usage));
  CHECK(usage.prefixes == 3 && usage.refused == 1);
  CHECK_OK(stateport_router_index_check(index));
  CHECK_OK(stateport_router_index_destroy(index));
}

void test_router_index_refusals(void) {
  stateport_router_options options = {.size = sizeof options, .workers_max = -1};
  stateport_router_index* index = NULL;
  CHECK_REFUSED(stateport_router_index_create(&options, &index), STATEPORT_INVALID_ARGUMENT, "workers_max = -1");
  options.workers_max = 0;
  options.prefixes_max = -1;
  CHECK_REFUSED(stateport_router_index_create(&options, &index), STATEPORT_INVALID_ARGUMENT, "prefixes_max = -1");
  options.prefixes_max = 0;
  options.blocks_max = -1;
  CHECK_REFUSED(stateport_router_index_create(&options, &index), STATEPORT_INVALID_ARGUMENT, "blocks_max = -1");
  CHECK_REFUSED(stateport_router_index_create(NULL, &index), STATEPORT_INVALID_ARGUMENT, "options");

  index = make_index(10);
  stateport_cache_event event = stored(5, STATEPORT_KV_BLOCK, STATEPORT_MEDIUM_DEVICE, 1);
  stateport_flag known = 0;
  CHECK_REFUSED(stateport_router_index_join(index, 2, 1), STATEPORT_INVALID_ARGUMENT, "worker = 2");
  CHECK_REFUSED(stateport_router_index_leave(index, -1), STATEPORT_INVALID_ARGUMENT, "worker = -1");
  CHECK_REFUSED(stateport_router_index_hear(index, 1, &event, 1, &known), STATEPORT_INVALID_ARGUMENT, "worker = 1");
  CHECK_OK(stateport_router_index_join(index, 1, 1));
  CHECK_REFUSED(stateport_router_index_hear(index, 1, NULL, 1, &known), STATEPORT_INVALID_ARGUMENT, "events");
  CHECK_REFUSED(stateport_router_index_hear(index, 1, &event, 1, NULL), STATEPORT_INVALID_ARGUMENT, "known");
  event.kind = 3;
  CHECK_REFUSED(stateport_router_index_hear(index, 1, &event, 1, &known), STATEPORT_INVALID_ARGUMENT, "kind = 3");
  event.kind = STATEPORT_EVENT_STORED;
  event.medium = 5;
  CHECK_REFUSED(stateport_router_index_hear(index, 1, &event, 1, &known), STATEPORT_INVALID_ARGUMENT, "medium = 5");
  event.medium = STATEPORT_MEDIUM_DEVICE;
  event.content = STATEPORT_STATE;
  event.group = 1;
  CHECK_REFUSED(stateport_router_index_hear(index, 1, &event, 1, &known), STATEPORT_INVALID_ARGUMENT, "group = 1");
  uint64_t next = 0;
  size_t count = 0;
  CHECK_REFUSED(stateport_router_index_worker(index, 1, NULL, &known), STATEPORT_INVALID_ARGUMENT, "next_sequence");
  CHECK_REFUSED(stateport_router_index_worker(index, 1, &next, NULL), STATEPORT_INVALID_ARGUMENT, "known");
  CHECK_OK(stateport_router_index_worker(index, 1, &next, &known));
  CHECK(next == 1 && known != 0);
  CHECK_REFUSED(stateport_router_index_find(index, NULL, 1, NULL, 0, &count), STATEPORT_INVALID_ARGUMENT, "prefixes");
  CHECK_REFUSED(stateport_router_index_find(index, NULL, 0, NULL, 1, &count), STATEPORT_INVALID_ARGUMENT, "out");
  CHECK_REFUSED(stateport_router_index_find(index, NULL, 0, NULL, 0, NULL), STATEPORT_INVALID_ARGUMENT, "count");
  CHECK_OK(stateport_router_index_find(index, NULL, 0, NULL, 0, &count));
  CHECK(count == 0);
  CHECK_OK(stateport_router_index_destroy(index));
  CHECK_REFUSED(stateport_router_index_check(index), STATEPORT_INVALID_HANDLE, "index");
}
