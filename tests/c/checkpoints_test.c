// SPDX-License-Identifier: Apache-2.0
// Checkpoints of a prefill, and their way into slots.
#include "check.h"

#include <string.h>

enum { block_tokens = 4, prompt_blocks = 4, prompt_tokens = prompt_blocks * block_tokens };

typedef struct {
  stateport_slot_allocator* allocator;
  stateport_checkpoint_planner* planner;
  int32_t blocks[prompt_blocks];
  int64_t keys[prompt_blocks];
  uint64_t prefixes[2 * prompt_blocks];
} fixture;

/// A prompt of four blocks whose KV is registered, with `slots` slots for its states.
static fixture make(int32_t slots) {
  fixture made = {.allocator = NULL};
  const stateport_slot_allocator_options pool = {.size = sizeof pool, .blocks = prompt_blocks + 1, .slots = slots};
  CHECK_OK(stateport_slot_allocator_create(&pool, &made.allocator));
  const stateport_checkpoint_options options = {
      .size = sizeof options, .block_size_tokens = block_tokens, .alignment_tokens = 2, .max_rows = 2};
  CHECK_OK(stateport_checkpoint_planner_create(made.allocator, &options, &made.planner));
  int32_t tokens[prompt_tokens];
  for (int32_t i = 0; i < prompt_tokens; ++i) tokens[i] = i;
  const stateport_hash_options hash = {.size = sizeof hash, .block_size_tokens = block_tokens};
  CHECK_OK(stateport_hash_blocks(&hash, tokens, prompt_tokens, made.keys, made.prefixes));
  CHECK_OK(stateport_slot_allocator_allocate_blocks(made.allocator, made.blocks, prompt_blocks));
  CHECK_OK(stateport_slot_allocator_register_blocks(made.allocator, made.blocks, made.keys, NULL, prompt_blocks));
  return made;
}

static void destroy(fixture* made) {
  CHECK_OK(stateport_checkpoint_planner_check(made->planner));
  CHECK_OK(stateport_slot_allocator_check(made->allocator));
  CHECK_OK(stateport_slot_allocator_destroy(made->allocator));
  CHECK_OK(stateport_checkpoint_planner_destroy(made->planner));
}

/// All of the prompt in one chunk, which leaves a shared prefix after one block.
static stateport_prefill_chunk whole_prompt(const fixture* made, int32_t row) {
  return (stateport_prefill_chunk){.size = sizeof(stateport_prefill_chunk),
                                   .row = row,
                                   .live_slot = 5,
                                   .prompt_tokens = prompt_tokens,
                                   .chunk_tokens = prompt_tokens,
                                   .matched_blocks = 1,
                                   .required_blocks = prompt_blocks,
                                   .blocks = made->blocks,
                                   .block_count = prompt_blocks,
                                   .prefixes = made->prefixes,
                                   .prefix_count = prompt_blocks};
}

static void plan_whole_prompt(const fixture* made) {
  const stateport_prefill_chunk chunk = whole_prompt(made, 0);
  stateport_planned_checkpoints planned = {.size = sizeof planned};
  size_t done = 0;
  CHECK_OK(stateport_checkpoint_planner_plan(made->planner, &chunk, 1, &planned, &done));
  CHECK(done == 1 && planned.count == 2 && planned.offsets[0] == 4 && planned.offsets[1] == 12);
  CHECK(planned.blocks[0] == made->blocks[0] && planned.blocks[1] == made->blocks[2] &&
        planned.end_block == made->blocks[3]);
}

static int64_t found_state(const fixture* made) {
  stateport_found_state found = {.size = sizeof found};
  CHECK_OK(stateport_slot_allocator_find_state(made->allocator, made->keys, prompt_blocks, &found));
  return found.index;
}

static int32_t slot_of(const fixture* made, int block) {
  int32_t slot = -7;
  CHECK_OK(stateport_slot_allocator_slot_of(made->allocator, made->blocks[block], &slot));
  return slot;
}

void test_checkpoints(void) {
  fixture made = make(3);
  stateport_checkpoint_arrays arrays = {.size = sizeof arrays};
  CHECK_OK(stateport_checkpoint_planner_device_arrays(made.planner, 1, &arrays));
  CHECK(arrays.offsets == NULL && arrays.counts == NULL);
  plan_whole_prompt(&made);
  CHECK_OK(stateport_checkpoint_planner_device_arrays(made.planner, 2, &arrays));
  const int32_t offsets[] = {4, 12, 0, 0, 0, 0};
  const int32_t counts[] = {2, 0};
  CHECK(memcmp(arrays.offsets, offsets, sizeof offsets) == 0 && memcmp(arrays.counts, counts, sizeof counts) == 0);

  stateport_checkpoint_commit commit = {.size = sizeof commit};
  CHECK_OK(stateport_checkpoint_planner_commit(made.planner, &commit));
  CHECK(commit.scratch_count == 2 && commit.live_count == 1 && commit.dropped == 0);
  const stateport_slot_copy first = {0, slot_of(&made, 0), 0, 0};
  const stateport_slot_copy second = {1, slot_of(&made, 2), 0, 1};
  const stateport_slot_copy end = {5, slot_of(&made, 3), 0, 5};
  CHECK(memcmp(&commit.from_scratch[0], &first, sizeof first) == 0 &&
        memcmp(&commit.from_scratch[1], &second, sizeof second) == 0 &&
        memcmp(&commit.from_live[0], &end, sizeof end) == 0);
  CHECK(found_state(&made) == -1);
  CHECK_OK(stateport_checkpoint_planner_publish(made.planner));
  CHECK(found_state(&made) == 3);
  const stateport_tag tag = {
      .size = sizeof tag, .token_count = prompt_tokens, .prefix = {made.prefixes[6], made.prefixes[7]}};
  stateport_restore restore = {.size = sizeof restore};
  CHECK_OK(stateport_slot_allocator_restore(made.allocator, made.blocks[3], 5, &tag, &restore));
  CHECK(restore.check == STATEPORT_TAG_MATCH && restore.copy.src_slot == slot_of(&made, 3));
  destroy(&made);

  // Two slots for three checkpoints; then the copies are not enqueued.
  made = make(2);
  plan_whole_prompt(&made);
  CHECK_OK(stateport_checkpoint_planner_commit(made.planner, &commit));
  CHECK(commit.scratch_count == 2 && commit.live_count == 0 && commit.dropped == 1);
  CHECK(slot_of(&made, 0) != STATEPORT_NONE && slot_of(&made, 3) == STATEPORT_NONE);
  CHECK_OK(stateport_checkpoint_planner_abandon(made.planner));
  CHECK(slot_of(&made, 0) == STATEPORT_NONE && found_state(&made) == -1);

  // clear() forgets the plan. A planner that is destroyed abandons its commit.
  plan_whole_prompt(&made);
  CHECK_OK(stateport_checkpoint_planner_clear(made.planner));
  CHECK_OK(stateport_checkpoint_planner_commit(made.planner, &commit));
  CHECK(commit.scratch_count == 0 && commit.live_count == 0 && commit.dropped == 0);
  CHECK_OK(stateport_checkpoint_planner_publish(made.planner));
  plan_whole_prompt(&made);
  CHECK_OK(stateport_checkpoint_planner_commit(made.planner, &commit));
  CHECK(slot_of(&made, 2) != STATEPORT_NONE);
  CHECK_OK(stateport_checkpoint_planner_destroy(made.planner));
  CHECK(slot_of(&made, 2) == STATEPORT_NONE);
  CHECK_OK(stateport_slot_allocator_check(made.allocator));
  CHECK_OK(stateport_slot_allocator_destroy(made.allocator));
}

static void test_budgets(void) {
  int32_t scratch = 0;
  CHECK_OK(stateport_scratch_slots_bound(1000, 256, 8, &scratch));
  CHECK(scratch == 4);
  CHECK_REFUSED(stateport_scratch_slots_bound(0, 256, 8, &scratch), STATEPORT_INVALID_ARGUMENT, "max_tokens = 0");
  CHECK_REFUSED(stateport_scratch_slots_bound(1, 256, 8, NULL), STATEPORT_INVALID_ARGUMENT, "out = null");
  int64_t slots = 0;
  CHECK_OK(stateport_slots_for_budget(1000, 100, 4, &slots));
  CHECK(slots == 6);
  CHECK_REFUSED(stateport_slots_for_budget(499, 100, 4, &slots), STATEPORT_OUT_OF_MEMORY, "500");
  CHECK_REFUSED(stateport_slots_for_budget(499, 0, 4, &slots), STATEPORT_INVALID_ARGUMENT, "slot_bytes = 0");
}

void test_checkpoint_refusals(void) {
  fixture made = make(3);
  stateport_planned_checkpoints planned[2];
  planned[0].size = sizeof *planned;
  planned[1].count = -7;
  size_t done = 99;
  stateport_prefill_chunk chunks[2] = {whole_prompt(&made, 0), whole_prompt(&made, 2)};
  CHECK_REFUSED(stateport_checkpoint_planner_plan(made.planner, chunks, 2, planned, &done), STATEPORT_INVALID_ARGUMENT,
                "row = 2");
  CHECK(done == 1 && planned[0].count == 2 && planned[1].count == -7);
  CHECK_OK(stateport_checkpoint_planner_clear(made.planner));
  chunks[0].blocks = NULL;
  CHECK_REFUSED(stateport_checkpoint_planner_plan(made.planner, chunks, 1, planned, &done), STATEPORT_INVALID_ARGUMENT,
                "blocks = null");
  chunks[0] = whole_prompt(&made, 0);
  chunks[0].prefix_count = 3;
  CHECK_REFUSED(stateport_checkpoint_planner_plan(made.planner, chunks, 1, planned, &done), STATEPORT_INVALID_ARGUMENT,
                "prefixes = 3");
  chunks[0].prefixes = NULL;
  CHECK_REFUSED(stateport_checkpoint_planner_plan(made.planner, chunks, 1, planned, &done), STATEPORT_INVALID_ARGUMENT,
                "prefixes = null");
  chunks[0] = whole_prompt(&made, 0);
  chunks[0].skip_tokens = prompt_tokens + 1;
  CHECK_REFUSED(stateport_checkpoint_planner_plan(made.planner, chunks, 1, planned, &done), STATEPORT_INVALID_ARGUMENT,
                "skip_tokens = 17");
  CHECK(done == 0);
  CHECK_REFUSED(stateport_checkpoint_planner_plan(made.planner, NULL, 1, planned, &done), STATEPORT_INVALID_ARGUMENT,
                "chunks = null");
  CHECK_REFUSED(stateport_checkpoint_planner_plan(made.planner, chunks, 1, NULL, &done), STATEPORT_INVALID_ARGUMENT,
                "out = null");
  CHECK_REFUSED(stateport_checkpoint_planner_plan(made.planner, chunks, 1, planned, NULL), STATEPORT_INVALID_ARGUMENT,
                "done = null");
  stateport_checkpoint_arrays arrays = {.size = sizeof arrays};
  CHECK_REFUSED(stateport_checkpoint_planner_device_arrays(made.planner, 3, &arrays), STATEPORT_INVALID_ARGUMENT,
                "prefill_rows = 3");

  CHECK_REFUSED(stateport_checkpoint_planner_publish(made.planner), STATEPORT_INVALID_STATE, "no pending commit");
  CHECK_REFUSED(stateport_checkpoint_planner_abandon(made.planner), STATEPORT_INVALID_STATE, "no pending commit");
  plan_whole_prompt(&made);
  stateport_checkpoint_commit commit = {.size = sizeof commit};
  CHECK_REFUSED(stateport_checkpoint_planner_commit(made.planner, NULL), STATEPORT_INVALID_ARGUMENT, "out = null");
  CHECK_OK(stateport_checkpoint_planner_commit(made.planner, &commit));
  chunks[0] = whole_prompt(&made, 0);
  CHECK_REFUSED(stateport_checkpoint_planner_commit(made.planner, &commit), STATEPORT_INVALID_STATE, "commit");
  CHECK_REFUSED(stateport_checkpoint_planner_clear(made.planner), STATEPORT_INVALID_STATE, "clear");
  CHECK_REFUSED(stateport_checkpoint_planner_plan(made.planner, chunks, 1, planned, &done), STATEPORT_INVALID_STATE,
                "plan");
  CHECK_OK(stateport_checkpoint_planner_publish(made.planner));

  stateport_checkpoint_planner* none = NULL;
  stateport_checkpoint_options options = {.size = sizeof options, .block_size_tokens = -1};
  CHECK_REFUSED(stateport_checkpoint_planner_create(made.allocator, &options, &none), STATEPORT_INVALID_ARGUMENT,
                "block_size_tokens = -1");
  options = (stateport_checkpoint_options){.size = sizeof options, .max_rows = -1};
  CHECK_REFUSED(stateport_checkpoint_planner_create(made.allocator, &options, &none), STATEPORT_INVALID_ARGUMENT,
                "max_rows = -1");
  CHECK_REFUSED(stateport_checkpoint_planner_create(NULL, &options, &none), STATEPORT_INVALID_HANDLE,
                "allocator = null");
  CHECK_REFUSED(stateport_checkpoint_planner_check((stateport_checkpoint_planner*)(void*)made.allocator),
                STATEPORT_INVALID_HANDLE, "planner = slot allocator (must be the handle of a checkpoint planner)");
  destroy(&made);
  test_budgets();
}
