// SPDX-License-Identifier: Apache-2.0
// Wrong calls of elastic memory. None changes anything.
#include "elastic_setup.h"

static void test_memory_refusals(void) {
  stateport_elastic_options options = {.size = sizeof options};
  stateport_elastic_memory* memory = NULL;
  CHECK_REFUSED(stateport_elastic_memory_create(&options, &memory), STATEPORT_INVALID_ARGUMENT, "limit_bytes = 0");
  options.limit_bytes = 1;
  options.granularity_bytes = (uint64_t)smallest_granule() + 1;
  CHECK_REFUSED(stateport_elastic_memory_create(&options, &memory), STATEPORT_INVALID_ARGUMENT, "granularity");
  CHECK_REFUSED(stateport_elastic_memory_create(NULL, &memory), STATEPORT_INVALID_ARGUMENT, "options = null");
  options.granularity_bytes = 0;
  CHECK_REFUSED(stateport_elastic_memory_create(&options, NULL), STATEPORT_INVALID_ARGUMENT, "out = null");
  CHECK(memory == NULL);
  stateport_elastic_usage usage = {.size = sizeof usage};
  CHECK_REFUSED(stateport_elastic_memory_usage(memory, &usage), STATEPORT_INVALID_HANDLE, "memory");
}

static void* no_memory(size_t bytes, size_t alignment, void* stream, void* context) {
  (void)bytes, (void)alignment, (void)stream, (void)context;
  return NULL;
}

static void test_store_refusals(const elastic_setup* setup) {
  stateport_store_options options = {.size = sizeof options, .slots = 2, .allocate = no_memory};
  stateport_store* store = NULL;
  CHECK_REFUSED(stateport_elastic_store_create(setup->memory, setup->spec, &options, NULL, &store),
                STATEPORT_INVALID_ARGUMENT, "allocate");
  options.allocate = NULL;
  options.layout = 2;
  CHECK_REFUSED(stateport_elastic_store_create(setup->memory, setup->spec, &options, NULL, &store),
                STATEPORT_INVALID_ARGUMENT, "layout = 2");
  options.layout = STATEPORT_SLOT_MAJOR;
  options.slots = 0;
  CHECK_REFUSED(stateport_elastic_store_create(setup->memory, setup->spec, &options, NULL, &store),
                STATEPORT_INVALID_ARGUMENT, "slots = 0");
  options.slots = 2;
  CHECK_OK(stateport_store_create(setup->spec, &options, NULL, &store));
  stateport_elastic_store_info info = {.size = sizeof info};
  CHECK_REFUSED(stateport_elastic_store_describe(store, &info), STATEPORT_INVALID_ARGUMENT, "must be an elastic one");
  CHECK_REFUSED(stateport_elastic_store_map(store, 0), STATEPORT_INVALID_ARGUMENT, "must be an elastic one");
  CHECK_OK(stateport_store_destroy(store));

  CHECK_REFUSED(stateport_elastic_store_map(setup->kv, elastic_blocks), STATEPORT_INVALID_ARGUMENT, "extent = 20");
  CHECK_REFUSED(stateport_elastic_store_map(setup->kv, -1), STATEPORT_INVALID_ARGUMENT, "extent = -1");
  CHECK_REFUSED(stateport_elastic_store_unmap(setup->kv, 3), STATEPORT_INVALID_ARGUMENT, "must be mapped");
  CHECK_OK(stateport_elastic_store_map(setup->kv, 3));
  CHECK_REFUSED(stateport_elastic_store_map(setup->kv, 3), STATEPORT_INVALID_ARGUMENT, "must not be mapped");
  CHECK_REFUSED(stateport_elastic_store_is_mapped(setup->kv, 3, NULL), STATEPORT_INVALID_ARGUMENT, "mapped = null");
}

/// Extent 3 of the KV is mapped by hand.
static void test_mover_refusals(elastic_setup* setup, stateport_memory_mover** mover) {
  CHECK_REFUSED(stateport_memory_mover_create(setup->cache, setup->kv, setup->kv, mover), STATEPORT_INVALID_ARGUMENT,
                "must be another store");
  CHECK_REFUSED(stateport_memory_mover_create(setup->cache, setup->states, setup->kv, mover),
                STATEPORT_INVALID_ARGUMENT, "kv = 18");
  CHECK_REFUSED(stateport_memory_mover_create(setup->cache, setup->kv, setup->states, mover), STATEPORT_INVALID_STATE,
                "extents of this store are mapped");
  CHECK_OK(stateport_elastic_store_unmap(setup->kv, 3));
  CHECK_REFUSED(stateport_memory_mover_create(setup->cache, setup->kv, setup->states, NULL),
                STATEPORT_INVALID_ARGUMENT, "out = null");

  stateport_spec* two = spec_of_bytes(2 * setup->granule_bytes);
  stateport_store* wide = make_elastic_store(setup->memory, two, elastic_blocks);
  CHECK_REFUSED(stateport_memory_mover_create(setup->cache, wide, setup->states, mover), STATEPORT_INVALID_ARGUMENT,
                "must have the extents of the arena");
  CHECK_OK(stateport_store_destroy(wide));
  CHECK_OK(stateport_spec_destroy(two));

  // The cache counts on more memory than there is.
  stateport_request_cache* greedy = make_elastic_cache(setup, 2 * elastic_granules);
  CHECK_REFUSED(stateport_memory_mover_create(greedy, setup->kv, setup->states, mover), STATEPORT_OUT_OF_MEMORY,
                "MemoryMover");
  CHECK_OK(stateport_request_cache_destroy(greedy));
  CHECK(elastic_usage_of(setup->memory).mapped_bytes == 0 && *mover == NULL);

  CHECK_OK(stateport_memory_mover_create(setup->cache, setup->kv, setup->states, mover));
  stateport_memory_mover* second = NULL;
  CHECK_REFUSED(stateport_memory_mover_create(setup->cache, setup->kv, setup->states, &second),
                STATEPORT_INVALID_STATE, "another mover has this store");
  CHECK_REFUSED(stateport_elastic_store_unmap(setup->kv, 0), STATEPORT_INVALID_STATE, "memory mover");
  CHECK_REFUSED(stateport_elastic_store_map(setup->kv, elastic_blocks - 1), STATEPORT_INVALID_STATE, "memory mover");
}

static void test_plan_refusals(const elastic_setup* setup, stateport_memory_mover* mover) {
  const uint64_t mapped_bytes = elastic_usage_of(setup->memory).mapped_bytes;
  stateport_memory_move move = {.id = 1, .kind = STATEPORT_MOVE_UNMAP, .part = STATEPORT_PART_KV, .extent = 0};
  stateport_memory_plan plan = {.size = sizeof plan, .moves = &move, .move_count = 1};
  // The cache has decided none.
  CHECK_REFUSED(stateport_memory_mover_carry_out(mover, NULL, &plan, 1, NULL), STATEPORT_INVALID_ARGUMENT,
                "must be the next move of the cache");
  move.kind = 2;
  CHECK_REFUSED(stateport_memory_mover_carry_out(mover, NULL, &plan, 1, NULL), STATEPORT_INVALID_ARGUMENT,
                "moves.kind = 2");
  move.kind = STATEPORT_MOVE_MAP;
  move.part = 2;
  CHECK_REFUSED(stateport_memory_mover_carry_out(mover, NULL, &plan, 1, NULL), STATEPORT_INVALID_ARGUMENT,
                "moves.part = 2");
  move.part = STATEPORT_PART_STATES;
  move.reserved = 1;
  CHECK_REFUSED(stateport_memory_mover_carry_out(mover, NULL, &plan, 1, NULL), STATEPORT_INVALID_ARGUMENT,
                "moves.reserved = 1");
  const stateport_slot_copy copy = {0, elastic_blocks - 1, 0, 0};
  const stateport_memory_plan copies = {.size = sizeof copies, .kv_copies = &copy, .kv_copy_count = 1};
  CHECK_REFUSED(stateport_memory_mover_carry_out(mover, NULL, &copies, 1, NULL), STATEPORT_INVALID_ARGUMENT,
                "kv_copies = 19");
  CHECK_REFUSED(stateport_memory_mover_carry_out(NULL, NULL, NULL, 1, NULL), STATEPORT_INVALID_HANDLE, "mover");
  CHECK(elastic_usage_of(setup->memory).mapped_bytes == mapped_bytes);
}

void test_elastic_refusals(void) {
  test_memory_refusals();
  elastic_setup setup;
  make_elastic_setup(&setup);
  test_store_refusals(&setup);
  stateport_memory_mover* mover = NULL;
  test_mover_refusals(&setup, &mover);
  test_plan_refusals(&setup, mover);
  CHECK_OK(stateport_memory_mover_destroy(mover));
  CHECK_OK(stateport_elastic_store_unmap(setup.kv, 0));  // its owner's again
  end_elastic_setup(&setup);
}
