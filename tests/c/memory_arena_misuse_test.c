// SPDX-License-Identifier: Apache-2.0
// Arenas that no cache can have, and calls that an arena refuses.
#include "arena_setup.h"

static void refuse_arena(const stateport_arena* arena, int64_t budget_bytes, const char* text) {
  arena_setup setup;
  make_arena_setup(&setup, hash_slots);
  const stateport_eviction_options costs = {.size = sizeof costs, .state_bytes = 40, .kv_bytes_per_token = 10};
  setup.cache.options.eviction = &costs;
  setup.cache.slots.budget_bytes = budget_bytes;
  setup.cache.slots.arena = arena;
  stateport_request_cache* cache = NULL;
  CHECK_REFUSED(stateport_request_cache_create(&setup.cache.options, &cache), STATEPORT_INVALID_ARGUMENT, text);
  CHECK(cache == NULL);
}

static void refuse_arenas(void) {
  arena_setup setup;
  make_arena_setup(&setup, hash_slots);
  const stateport_arena good = setup.arena;
  refuse_arena(&good, 7, "budget_bytes = 7");
#define REFUSE(member, value, text) \
  do {                              \
    stateport_arena wrong = good;   \
    wrong.member = (value);         \
    refuse_arena(&wrong, 0, text);  \
  } while (0)
  REFUSE(size, 4, "arena = 4");
  REFUSE(bytes, -1, "arena.bytes = -1");
  REFUSE(bytes, 400, "arena.bytes = 400");
  REFUSE(kv_extent_count, -1, "arena.kv.count = -1");
  REFUSE(kv_extent_bytes, 0, "arena.kv.bytes = 0");
  REFUSE(states_extent_count, -2, "arena.states.count = -2");
  REFUSE(states_extent_bytes, -5, "arena.states.bytes = -5");
  REFUSE(state_share, 1.5, "arena.state_share = 1.5");
  REFUSE(state_share, -0.5, "arena.state_share = -0.5");
#undef REFUSE
}

/// Extents of one number each by default.
static void refuse_calls(void) {
  arena_setup setup;
  make_arena_setup(&setup, tree_slots);
  setup.arena.kv_extent_count = 0;
  setup.arena.states_extent_count = 0;
  stateport_request_cache* cache = NULL;
  CHECK_OK(stateport_request_cache_create(&setup.cache.options, &cache));
  uint8_t mapped = 9;
  CHECK_OK(stateport_request_cache_is_mapped(cache, STATEPORT_PART_STATES, checkpoints - 1, &mapped));
  CHECK(mapped == 0);
  mapped = 9;
  CHECK_REFUSED(stateport_request_cache_is_mapped(cache, STATEPORT_PART_STATES, checkpoints, &mapped),
                STATEPORT_INVALID_ARGUMENT, "extent = 80");
  CHECK_REFUSED(stateport_request_cache_is_mapped(cache, STATEPORT_PART_KV, -1, &mapped), STATEPORT_INVALID_ARGUMENT,
                "extent = -1");
  CHECK_REFUSED(stateport_request_cache_is_mapped(cache, 2, 0, &mapped), STATEPORT_INVALID_ARGUMENT, "part = 2");
  CHECK(mapped == 9);
  CHECK_REFUSED(stateport_request_cache_is_mapped(cache, STATEPORT_PART_KV, 0, NULL), STATEPORT_INVALID_ARGUMENT,
                "mapped = null");
  CHECK_REFUSED(stateport_request_cache_settle_move(cache, 1, 1), STATEPORT_INVALID_ARGUMENT, "move = 1");
  CHECK_REFUSED(stateport_request_cache_take_memory(cache, NULL), STATEPORT_INVALID_ARGUMENT, "out = null");
  CHECK_REFUSED(stateport_request_cache_arena_usage(cache, NULL), STATEPORT_INVALID_ARGUMENT, "out = null");
  CHECK_REFUSED(stateport_request_cache_settle_move(NULL, 1, 1), STATEPORT_INVALID_HANDLE, "cache = null");
  CHECK_OK(stateport_request_cache_destroy(cache));
}

/// No arena, or one without bytes.
static void refuse_calls_without(const stateport_arena* arena) {
  arena_setup setup;
  make_arena_setup(&setup, tree_slots);
  setup.cache.slots.arena = arena;
  stateport_request_cache* cache = NULL;
  CHECK_OK(stateport_request_cache_create(&setup.cache.options, &cache));
  uint8_t mapped = 9;
  CHECK_REFUSED(stateport_request_cache_is_mapped(cache, STATEPORT_PART_KV, 0, &mapped), STATEPORT_INVALID_STATE,
                "has no arena");
  CHECK_REFUSED(stateport_request_cache_settle_move(cache, 1, 1), STATEPORT_INVALID_STATE, "has no arena");
  stateport_memory_plan memory = {.size = sizeof memory};
  CHECK_REFUSED(stateport_request_cache_take_memory(cache, &memory), STATEPORT_INVALID_STATE, "has no arena");
  const stateport_arena_usage usage = usage_of(cache);
  CHECK(usage.kv_bytes == 0 && usage.state_bytes == 0 && usage.moves == 0 && usage.refused_moves == 0);
  CHECK_OK(stateport_request_cache_destroy(cache));
}

void test_memory_arena_refusals(void) {
  refuse_arenas();
  refuse_calls();
  refuse_calls_without(NULL);
  const stateport_arena empty = {.size = sizeof empty};
  refuse_calls_without(&empty);
}
