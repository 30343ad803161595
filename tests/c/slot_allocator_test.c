// SPDX-License-Identifier: Apache-2.0
#include "check.h"

#include <string.h>

enum { block_size = 4, prompt_blocks = 3, prompt_tokens = prompt_blocks * block_size };

static void hash_prompt(const char* salt, int64_t* keys, uint64_t* prefixes) {
  int32_t tokens[prompt_tokens + 1];
  for (int i = 0; i <= prompt_tokens; ++i) tokens[i] = 100 + i;
  const stateport_hash_options options = {.size = sizeof options,
                                          .block_size_tokens = block_size,
                                          .salt = salt,
                                          .salt_bytes = salt == NULL ? 0 : strlen(salt)};
  CHECK_OK(stateport_hash_blocks(&options, tokens, prompt_tokens + 1, keys, prefixes));
}

void test_block_hashes(void) {
  int64_t keys[prompt_blocks] = {0};
  int64_t salted[prompt_blocks] = {0};
  uint64_t prefixes[2 * prompt_blocks] = {0};
  hash_prompt(NULL, keys, prefixes);
  hash_prompt("tenant", salted, NULL);
  for (int i = 0; i < prompt_blocks; ++i) CHECK(keys[i] > 0 && salted[i] > 0 && keys[i] != salted[i]);
  CHECK(prefixes[0] != 0 && prefixes[2] != prefixes[0]);

  const int32_t tokens[block_size] = {1, 2, 3, 4};
  stateport_hash_options options = {.size = sizeof options, .block_size_tokens = block_size, .fast = 1};
  CHECK_OK(stateport_hash_blocks(&options, tokens, 3, NULL, NULL));
  CHECK_REFUSED(stateport_hash_blocks(&options, tokens, 4, NULL, NULL), STATEPORT_INVALID_ARGUMENT, "keys = null");
  options.block_size_tokens = 0;
  CHECK_REFUSED(stateport_hash_blocks(&options, tokens, 4, keys, NULL), STATEPORT_INVALID_ARGUMENT, "block_size");
}

static stateport_slot_allocator* make_allocator(int32_t blocks, int32_t slots) {
  const stateport_slot_allocator_options options = {.size = sizeof options, .blocks = blocks, .slots = slots};
  stateport_slot_allocator* allocator = NULL;
  CHECK_OK(stateport_slot_allocator_create(&options, &allocator));
  return allocator;
}

/// Finds and restores the prompt's state, then hides it.
static void reuse(stateport_slot_allocator* allocator, const int32_t* blocks, const int64_t* keys,
                  const stateport_tag* tag) {
  int32_t found_blocks[prompt_blocks] = {0};
  size_t found = 0;
  CHECK_OK(stateport_slot_allocator_find_blocks(allocator, keys, prompt_blocks, found_blocks, &found));
  CHECK(found == prompt_blocks && memcmp(found_blocks, blocks, sizeof found_blocks) == 0);
  CHECK_OK(stateport_slot_allocator_retain_blocks(allocator, found_blocks, found));

  stateport_found_state state = {.size = sizeof state};
  CHECK_OK(stateport_slot_allocator_find_state(allocator, keys, prompt_blocks, &state));
  CHECK(state.index == 1 && state.block == blocks[1]);
  int32_t slot = 0;
  int32_t pinned = 0;
  CHECK_OK(stateport_slot_allocator_slot_of(allocator, blocks[1], &slot));
  CHECK_OK(stateport_slot_allocator_pin(allocator, blocks[1], &pinned));
  CHECK(slot == state.slot && pinned == slot);

  stateport_restore restore = {.size = sizeof restore};
  CHECK_OK(stateport_slot_allocator_restore(allocator, blocks[1], 5, tag, &restore));
  CHECK(restore.check == STATEPORT_TAG_MATCH && restore.copy.src_slot == slot && restore.copy.dst_slot == 5 &&
        restore.copy.recurrent_src_slot == slot);
  stateport_tag other = *tag;
  ++other.prefix[1];
  CHECK_OK(stateport_slot_allocator_restore(allocator, blocks[1], 5, &other, &restore));
  CHECK(restore.check == STATEPORT_TAG_PREFIX);
  CHECK_OK(stateport_slot_allocator_unpin(allocator, slot));
  CHECK_REFUSED(stateport_slot_allocator_unpin(allocator, slot), STATEPORT_INVALID_ARGUMENT, "slot");

  CHECK_OK(stateport_slot_allocator_withdraw(allocator, blocks[1]));
  CHECK_OK(stateport_slot_allocator_find_state(allocator, keys, prompt_blocks, &state));
  CHECK(state.index == -1 && state.block == STATEPORT_NONE && state.slot == STATEPORT_NONE);
  CHECK_OK(stateport_slot_allocator_invalidate(allocator, &blocks[1], 1));
  CHECK_OK(stateport_slot_allocator_slot_of(allocator, blocks[1], &slot));
  CHECK(slot == STATEPORT_NONE);
  CHECK_OK(stateport_slot_allocator_release_blocks(allocator, found_blocks, found));
}

void test_slot_allocator(void) {
  stateport_slot_allocator* allocator = make_allocator(6, 2);
  int64_t keys[prompt_blocks];
  uint64_t prefixes[2 * prompt_blocks];
  hash_prompt(NULL, keys, prefixes);

  // A prompt of three blocks, with a checkpoint after the second.
  int32_t blocks[prompt_blocks];
  CHECK_OK(stateport_slot_allocator_allocate_blocks(allocator, blocks, prompt_blocks));
  const int64_t parents[prompt_blocks] = {0, keys[0], keys[1]};
  CHECK_OK(stateport_slot_allocator_register_blocks(allocator, blocks, keys, parents, prompt_blocks));
  int32_t slot = STATEPORT_NONE;
  CHECK_OK(stateport_slot_allocator_allocate_slots(allocator, &blocks[1], 1, &slot));
  CHECK(slot == 0 || slot == 1);
  const stateport_tag tag = {
      .size = sizeof tag, .token_count = 2 * block_size, .prefix = {prefixes[2], prefixes[3]}, .layout_fingerprint = 7};
  CHECK_OK(stateport_slot_allocator_set_tag(allocator, blocks[1], &tag));
  CHECK_OK(stateport_slot_allocator_register_states(allocator, &blocks[1], &keys[1], 1));
  CHECK_OK(stateport_slot_allocator_release_blocks(allocator, blocks, prompt_blocks));
  CHECK_OK(stateport_slot_allocator_advance_tick(allocator));
  const stateport_slot_allocator_info info = describe_allocator(allocator);
  CHECK(info.free_blocks == 2 && info.cached_blocks == 3 && info.free_slots == 1 && info.registered_states == 1 &&
        info.evictions == 0);

  reuse(allocator, blocks, keys, &tag);
  CHECK(describe_allocator(allocator).free_slots == 2);

  // Five blocks: the free ones, and the cached ones by eviction. No state is left.
  int32_t all[5];
  CHECK_OK(stateport_slot_allocator_allocate_blocks(allocator, all, 5));
  CHECK(describe_allocator(allocator).cached_blocks == 0 && describe_allocator(allocator).registered_states == 0);
  CHECK_OK(stateport_slot_allocator_destroy(allocator));
}

void test_slot_allocator_refusals(void) {
  stateport_slot_allocator* allocator = make_allocator(4, 1);
  int32_t blocks[4] = {0};
  int32_t slots[2] = {-5, -5};
  const int64_t keys[2] = {11, 12};
  CHECK_REFUSED(stateport_slot_allocator_allocate_blocks(allocator, blocks, 4), STATEPORT_NO_CAPACITY,
                "blocks (required 4, available 3)");
  CHECK_REFUSED(stateport_slot_allocator_allocate_blocks(allocator, blocks, SIZE_MAX), STATEPORT_INVALID_ARGUMENT,
                "out");
  CHECK_OK(stateport_slot_allocator_allocate_blocks(allocator, blocks, 2));
  CHECK_REFUSED(stateport_slot_allocator_allocate_slots(allocator, blocks, 2, slots), STATEPORT_NO_CAPACITY,
                "required 2, available 1");
  CHECK(slots[0] == -5 && slots[1] == -5);
  const int32_t nowhere = 4;
  CHECK_REFUSED(stateport_slot_allocator_allocate_slots(allocator, &nowhere, 1, slots), STATEPORT_INVALID_ARGUMENT,
                "4");
  CHECK_REFUSED(stateport_slot_allocator_allocate_slots(allocator, NULL, 1, slots), STATEPORT_INVALID_ARGUMENT,
                "blocks = null");
  CHECK_REFUSED(stateport_slot_allocator_allocate_slots(allocator, blocks, 1, NULL), STATEPORT_INVALID_ARGUMENT,
                "slots = null");
  CHECK_REFUSED(stateport_slot_allocator_register_states(allocator, blocks, keys, 1), STATEPORT_INVALID_ARGUMENT,
                "has no state");
  const stateport_tag tag = {.size = sizeof tag, .token_count = 4};
  CHECK_REFUSED(stateport_slot_allocator_set_tag(allocator, -1, &tag), STATEPORT_INVALID_ARGUMENT, "-1");
  CHECK_REFUSED(stateport_slot_allocator_set_tag(allocator, 0, NULL), STATEPORT_INVALID_ARGUMENT, "tag = null");
  CHECK_OK(stateport_slot_allocator_release_blocks(allocator, blocks, 2));
  CHECK_REFUSED(stateport_slot_allocator_release_blocks(allocator, blocks, 1), STATEPORT_INVALID_ARGUMENT, "block");
  CHECK(describe_allocator(allocator).free_blocks == 3);
  CHECK_OK(stateport_slot_allocator_destroy(allocator));

  stateport_slot_allocator_options options = {.size = sizeof options, .blocks = 0};
  CHECK_REFUSED(stateport_slot_allocator_create(&options, &allocator), STATEPORT_INVALID_ARGUMENT, "blocks");
  options.blocks = 1;
  options.slots = -1;
  CHECK_REFUSED(stateport_slot_allocator_create(&options, &allocator), STATEPORT_INVALID_ARGUMENT, "slots");
  options.slots = 0;
  options.policy = 9;
  CHECK_REFUSED(stateport_slot_allocator_create(&options, &allocator), STATEPORT_INVALID_ARGUMENT, "policy = 9");
}
