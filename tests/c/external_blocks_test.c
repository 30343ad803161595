// SPDX-License-Identifier: Apache-2.0
// A slot allocator over the engine's own KV pool, which tells of its blocks in batches.
#include "check.h"

#include <string.h>

enum { blocks = 6, slots = 2 };

static stateport_slot_allocator* make_allocator(void) {
  const stateport_slot_allocator_options options = {
      .size = sizeof options, .blocks = blocks, .slots = slots, .external_blocks = 1};
  stateport_slot_allocator* allocator = NULL;
  CHECK_OK(stateport_slot_allocator_create(&options, &allocator));
  return allocator;
}

static size_t found_blocks(stateport_slot_allocator* allocator, const int64_t* hashes, size_t count) {
  int32_t out[blocks];
  size_t found = 99;
  CHECK_OK(stateport_slot_allocator_find_blocks(allocator, hashes, count, out, &found));
  return found;
}

static bool has_state(stateport_slot_allocator* allocator, int32_t block) {
  int32_t slot = -7;
  CHECK_OK(stateport_slot_allocator_slot_of(allocator, block, &slot));
  return slot != STATEPORT_NONE;
}

void test_external_blocks(void) {
  stateport_slot_allocator* allocator = make_allocator();
  // Two requests share a block; the last one of the pool is a block like the others.
  const int32_t first[] = {0, 5};
  const int32_t second[] = {0, 3};
  const int64_t hashes[] = {11, 12};
  const int64_t parents[] = {0, 11};
  int32_t slot[slots] = {0};
  CHECK_OK(stateport_slot_allocator_retain_blocks(allocator, first, 2));
  CHECK_OK(stateport_slot_allocator_register_blocks(allocator, first, hashes, parents, 2));
  CHECK_OK(stateport_slot_allocator_retain_blocks(allocator, second, 2));
  CHECK(describe_allocator(allocator).external_blocks == 2 && describe_allocator(allocator).free_blocks == 0);
  CHECK(found_blocks(allocator, hashes, 2) == 2);
  CHECK_OK(stateport_slot_allocator_allocate_slots(allocator, first, 2, slot));
  CHECK_OK(stateport_slot_allocator_register_states(allocator, first, hashes, 2));

  // Block 5 goes out of use and stays cached: its state gives way to that of block 3, its KV does not.
  CHECK_OK(stateport_slot_allocator_advance_tick(allocator));
  CHECK_OK(stateport_slot_allocator_release_blocks(allocator, first, 2));
  CHECK_OK(stateport_slot_allocator_allocate_slots(allocator, second + 1, 1, slot));
  CHECK(!has_state(allocator, 5) && has_state(allocator, 0) && describe_allocator(allocator).evictions == 1);
  CHECK(found_blocks(allocator, hashes, 2) == 2 && describe_allocator(allocator).registered_states == 1);

  // The engine evicts block 5. The next content of it is another one.
  CHECK_OK(stateport_slot_allocator_deregister_blocks(allocator, first + 1, 1));
  CHECK(found_blocks(allocator, hashes, 2) == 1 && describe_allocator(allocator).external_blocks == 1);
  CHECK_OK(stateport_slot_allocator_retain_blocks(allocator, first + 1, 1));
  CHECK(found_blocks(allocator, hashes, 2) == 1);

  // A block that is not registered has no content and no state once its last reference is gone.
  CHECK_OK(stateport_slot_allocator_release_blocks(allocator, second, 2));
  CHECK(!has_state(allocator, 3) && has_state(allocator, 0));
  CHECK_OK(stateport_slot_allocator_clear_blocks(allocator));
  CHECK(!has_state(allocator, 0) && describe_allocator(allocator).free_slots == slots &&
        describe_allocator(allocator).external_blocks == 0);
  CHECK(found_blocks(allocator, hashes, 2) == 0);
  CHECK_OK(stateport_slot_allocator_destroy(allocator));
}

void test_external_block_refusals(void) {
  stateport_slot_allocator* allocator = make_allocator();
  int32_t out[2] = {0};
  const int32_t both[] = {1, 2};
  const int32_t one_unknown[] = {1, 4};
  const int32_t twice[] = {1, 1};
  const int64_t hashes[] = {11, 12};
  CHECK_REFUSED(stateport_slot_allocator_allocate_blocks(allocator, out, 1), STATEPORT_INVALID_ARGUMENT,
                "allocator = over external blocks");
  CHECK_OK(stateport_slot_allocator_retain_blocks(allocator, both, 2));
  CHECK_REFUSED(stateport_slot_allocator_retain_blocks(allocator, (const int32_t[]){1, blocks}, 2),
                STATEPORT_INVALID_ARGUMENT, "6");
  CHECK_REFUSED(stateport_slot_allocator_release_blocks(allocator, one_unknown, 2), STATEPORT_INVALID_ARGUMENT, "4");
  CHECK_REFUSED(stateport_slot_allocator_release_blocks(allocator, twice, 2), STATEPORT_INVALID_ARGUMENT, "1");

  // Blocks that were never retained, or that stand twice in one call.
  CHECK_REFUSED(stateport_slot_allocator_register_blocks(allocator, one_unknown, hashes, NULL, 2),
                STATEPORT_INVALID_ARGUMENT, "4");
  CHECK_REFUSED(stateport_slot_allocator_register_blocks(allocator, twice, hashes, NULL, 2), STATEPORT_INVALID_ARGUMENT,
                "1");
  CHECK_REFUSED(stateport_slot_allocator_register_blocks(allocator, both, (const int64_t[]){11, 0}, NULL, 2),
                STATEPORT_INVALID_ARGUMENT, "0");
  CHECK(found_blocks(allocator, hashes, 1) == 0 && describe_allocator(allocator).external_blocks == 0);
  CHECK_OK(stateport_slot_allocator_register_blocks(allocator, both, hashes, NULL, 2));
  CHECK_REFUSED(stateport_slot_allocator_register_blocks(allocator, both + 1, hashes + 1, NULL, 1),
                STATEPORT_INVALID_ARGUMENT, "2");
  CHECK_REFUSED(stateport_slot_allocator_deregister_blocks(allocator, both, 2), STATEPORT_INVALID_ARGUMENT, "1");
  CHECK_OK(stateport_slot_allocator_release_blocks(allocator, both, 1));
  CHECK_REFUSED(stateport_slot_allocator_deregister_blocks(allocator, both, 2), STATEPORT_INVALID_ARGUMENT, "2");
  CHECK_REFUSED(stateport_slot_allocator_deregister_blocks(allocator, twice, 2), STATEPORT_INVALID_ARGUMENT, "1");
  CHECK(found_blocks(allocator, hashes, 2) == 2);
  CHECK_OK(stateport_slot_allocator_deregister_blocks(allocator, both, 1));
  CHECK_REFUSED(stateport_slot_allocator_deregister_blocks(allocator, both, 1), STATEPORT_INVALID_ARGUMENT, "1");
  CHECK(describe_allocator(allocator).external_blocks == 1);
  CHECK_OK(stateport_slot_allocator_destroy(allocator));

  const stateport_slot_allocator_options with_policy = {.size = sizeof with_policy,
                                                        .blocks = blocks,
                                                        .slots = slots,
                                                        .policy = STATEPORT_BLOCK_REF_ZERO,
                                                        .external_blocks = 1};
  CHECK_REFUSED(stateport_slot_allocator_create(&with_policy, &allocator), STATEPORT_INVALID_ARGUMENT, "policy = 1");

  // An allocator's own blocks are not the engine's.
  const stateport_slot_allocator_options options = {.size = sizeof options, .blocks = blocks, .slots = slots};
  CHECK_OK(stateport_slot_allocator_create(&options, &allocator));
  CHECK_REFUSED(stateport_slot_allocator_deregister_blocks(allocator, both, 1), STATEPORT_INVALID_ARGUMENT,
                "allocator = over blocks of its own");
  CHECK_REFUSED(stateport_slot_allocator_clear_blocks(allocator), STATEPORT_INVALID_ARGUMENT,
                "allocator = over blocks of its own");
  CHECK_OK(stateport_slot_allocator_destroy(allocator));
}
