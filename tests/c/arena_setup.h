// SPDX-License-Identifier: Apache-2.0
// Options of a request cache whose KV and states share one memory.
#ifndef STATEPORT_TESTS_C_ARENA_SETUP_H
#define STATEPORT_TESTS_C_ARENA_SETUP_H

#include "check.h"
#include "combination.h"

#include <string.h>

enum {
  block_tokens = 4,
  blocks = 80,
  checkpoints = 80,
  request_tokens_max = 24,
  kv_count = 2,
  kv_bytes = 50,
  states_count = 3,
  states_bytes = 90,
  arena_bytes = 2400,
  extents_max = blocks + 1
};

typedef struct arena_setup {
  cache_setup cache;
  stateport_arena arena;
} arena_setup;

static inline void make_arena_setup(arena_setup* self, int32_t combination) {
  memset(self, 0, sizeof *self);
  set_combination(&self->cache, combination);
  self->arena = (stateport_arena){.size = sizeof self->arena,
                                  .bytes = arena_bytes,
                                  .kv_extent_count = kv_count,
                                  .kv_extent_bytes = kv_bytes,
                                  .states_extent_count = states_count,
                                  .states_extent_bytes = states_bytes};
  self->cache.slots.layout_fingerprint = 3;
  self->cache.slots.checkpoints = checkpoints;
  self->cache.slots.separate_checkpoints = 1;
  self->cache.slots.placement = STATEPORT_PLACE_LAST;
  self->cache.slots.arena = &self->arena;
  self->cache.options.max_requests = 2;
  self->cache.options.max_request_tokens = request_tokens_max;
  self->cache.options.block_size_tokens = block_tokens;
  self->cache.options.kv_tokens = (int64_t)block_tokens * blocks;
  self->cache.options.hash = STATEPORT_HASH_XXH3_128;
}

static inline stateport_arena_usage usage_of(stateport_request_cache* cache) {
  stateport_arena_usage usage = {.size = sizeof usage};
  CHECK_OK(stateport_request_cache_arena_usage(cache, &usage));
  return usage;
}

#endif
