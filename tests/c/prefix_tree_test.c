// SPDX-License-Identifier: Apache-2.0
#include "check.h"

#include <string.h>

enum { tokens_max = 12 };

static stateport_tree* make_tree(int32_t slots) {
  const stateport_tree_options options = {
      .size = sizeof options, .page_size = 2, .slots = slots, .layout_fingerprint = 42, .kv_indices = 1000};
  stateport_tree* tree = NULL;
  CHECK_OK(stateport_tree_create(&options, &tree));
  return tree;
}

static stateport_tree_sizes sizes_of(stateport_tree* tree) {
  stateport_tree_sizes sizes = {.size = sizeof sizes};
  CHECK_OK(stateport_tree_describe(tree, &sizes));
  CHECK_OK(stateport_tree_check(tree));
  return sizes;
}

static stateport_match match(stateport_tree* tree, const int32_t* tokens, size_t count, int32_t* kv) {
  stateport_match result = {.size = sizeof result};
  CHECK_OK(stateport_tree_match(tree, tokens, count, NULL, kv, &result));
  return result;
}

/// Keeps `count` tokens with a state of their own.
static stateport_insert_result donate(stateport_tree* tree, const int32_t* tokens, const int32_t* kv, size_t count,
                                      const stateport_namespace* name_space) {
  int32_t slot = STATEPORT_NONE;
  CHECK_OK(stateport_tree_allocate_slots(tree, &slot, 1));
  CHECK_OK(stateport_tree_tag_slot(tree, slot, tokens, count, name_space));
  const stateport_insert prefix = {
      .size = sizeof prefix, .tokens = tokens, .kv = kv, .count = count, .name_space = name_space, .slot = slot};
  stateport_insert_result result = {.size = sizeof result};
  CHECK_OK(stateport_tree_insert(tree, &prefix, &result));
  if (result.state_exists) CHECK_OK(stateport_tree_release_slots(tree, &slot, 1));
  return result;
}

static size_t take_freed(stateport_tree* tree, int32_t* out, size_t capacity) {
  size_t count = 99;
  CHECK_OK(stateport_tree_take_freed_kv(tree, out, capacity, &count));
  return count;
}

static void test_locks(stateport_tree* tree, const int32_t* tokens) {
  int64_t tokens_freed = -1;
  int64_t states_freed = -1;
  int32_t tag_check = -1;
  const stateport_match hit = match(tree, tokens, 8, NULL);
  CHECK(hit.tokens == 8 && hit.slot != STATEPORT_NONE && hit.lost == STATEPORT_LOST_NOTHING);
  stateport_tree_lock* lock = NULL;
  CHECK_OK(stateport_tree_lock_node(tree, hit.node, &lock));
  CHECK(sizes_of(tree).protected_tokens == 8 && sizes_of(tree).protected_states == 1);
  CHECK_OK(stateport_tree_evict(tree, 8, 1, &tokens_freed, &states_freed));
  CHECK(tokens_freed == 0 && states_freed == 0);
  CHECK_OK(stateport_tree_check_restore(tree, &hit, &tag_check));
  CHECK(tag_check == STATEPORT_TAG_MATCH);

  // Its own slot is taken for the request, then given back.
  stateport_match live = {.size = sizeof live};
  CHECK_OK(stateport_tree_match_with_live_slot(tree, tokens, 8, NULL, NULL, STATEPORT_NONE, &live));
  CHECK(live.live_slot != STATEPORT_NONE && live.live_slot != live.slot);
  CHECK_OK(stateport_tree_release_slots(tree, &live.live_slot, 1));

  CHECK_OK(stateport_tree_lock_destroy(lock));
  CHECK_REFUSED(stateport_tree_lock_destroy(lock), STATEPORT_INVALID_HANDLE, "destroyed");
  CHECK_OK(stateport_tree_evict(tree, 8, 0, &tokens_freed, NULL));
  CHECK(tokens_freed == 8 && sizes_of(tree).evictable_tokens == 0);
  CHECK_OK(stateport_tree_check_restore(tree, &hit, &tag_check));
  CHECK(tag_check != STATEPORT_TAG_MATCH);
  CHECK_REFUSED(stateport_tree_lock_node(tree, hit.node, &lock), STATEPORT_INVALID_ARGUMENT, "evicted");
  CHECK_OK(stateport_tree_lock_node(tree, 0, &lock));
  CHECK_OK(stateport_tree_lock_destroy(lock));
}

/// A node is not another one that came where it was.
static void test_nodes_that_went(void) {
  stateport_tree* tree = make_tree(2);
  const int32_t tokens[] = {1, 2, 3, 4};
  const int32_t others[] = {5, 6, 7, 8};
  const int32_t kv[][4] = {{10, 11, 12, 13}, {20, 21, 22, 23}};
  const uint64_t before = donate(tree, tokens, kv[0], 4, NULL).node;
  int64_t freed = 0;
  CHECK_OK(stateport_tree_evict(tree, 4, 1, &freed, NULL));
  CHECK(freed == 4);
  const uint64_t after = donate(tree, others, kv[1], 4, NULL).node;
  CHECK(after != before);
  stateport_tree_lock* lock = NULL;
  CHECK_REFUSED(stateport_tree_lock_node(tree, before, &lock), STATEPORT_INVALID_ARGUMENT, "evicted");
  CHECK_OK(stateport_tree_lock_node(tree, after, &lock));
  CHECK_OK(stateport_tree_lock_destroy(lock));
  CHECK_OK(stateport_tree_destroy(tree));
}

/// An empty salt is a salt: its prompts share nothing with prompts that have none.
static void test_empty_salt(void) {
  stateport_tree* tree = make_tree(2);
  const int32_t tokens[] = {1, 2, 3, 4};
  const int32_t kv[] = {10, 11, 12, 13};
  const stateport_namespace tenant = {.size = sizeof tenant, .salt = "", .salt_bytes = 0};
  donate(tree, tokens, kv, 4, &tenant);
  CHECK(match(tree, tokens, 4, NULL).tokens == 0);
  stateport_match own = {.size = sizeof own};
  CHECK_OK(stateport_tree_match(tree, tokens, 4, &tenant, NULL, &own));
  CHECK(own.tokens == 4);
  CHECK_OK(stateport_tree_destroy(tree));
}

void test_tree(void) {
  test_nodes_that_went();
  test_empty_salt();

  stateport_tree* tree = make_tree(3);
  int32_t tokens[tokens_max];
  int32_t kv[tokens_max];
  int32_t row[tokens_max] = {0};
  int32_t freed[tokens_max];
  for (int i = 0; i < tokens_max; ++i) {
    tokens[i] = 50 + i;
    kv[i] = 200 + i;
  }
  CHECK(match(tree, tokens, 8, row).node == 0);
  const stateport_insert_result kept = donate(tree, tokens, kv, 8, NULL);
  CHECK(kept.prefix_tokens == 0 && kept.state_exists == 0 && kept.node != 0);
  const stateport_match hit = match(tree, tokens, 11, row);
  CHECK(hit.node == kept.node && hit.tokens == 8 && hit.walked_tokens == 8 && memcmp(row, kv, 8 * sizeof *kv) == 0);

  // The same tokens with other KV: the duplicates are the caller's again, and so is the slot.
  const int32_t other_kv[8] = {300, 301, 302, 303, 304, 305, 306, 307};
  CHECK(donate(tree, tokens, other_kv, 8, NULL).state_exists != 0);
  CHECK(take_freed(tree, freed, 3) == 3 && freed[0] == 300 && freed[2] == 302);
  CHECK(take_freed(tree, freed, tokens_max) == 5 && freed[4] == 307);
  CHECK(take_freed(tree, freed, tokens_max) == 0);
  CHECK(sizes_of(tree).free_slots == 2);

  // A fork inside the segment has KV, and no state there.
  int32_t fork[tokens_max];
  memcpy(fork, tokens, sizeof fork);
  fork[4] = 1;
  const stateport_match lost = match(tree, fork, 8, NULL);
  CHECK(lost.node == 0 && lost.walked_tokens == 4 && lost.branching_position == 4 &&
        lost.lost == STATEPORT_LOST_NO_CHECKPOINT);

  // Another tenant shares nothing.
  const stateport_namespace tenant = {.size = sizeof tenant, .salt = "b", .salt_bytes = 1};
  stateport_match foreign = {.size = sizeof foreign};
  CHECK_OK(stateport_tree_match(tree, tokens, 8, &tenant, NULL, &foreign));
  CHECK(foreign.node == 0 && foreign.walked_tokens == 0);

  test_locks(tree, tokens);
  CHECK(take_freed(tree, freed, tokens_max) == 8);

  donate(tree, tokens, kv, 8, &tenant);
  CHECK_OK(stateport_tree_reset(tree));
  CHECK(sizes_of(tree).free_slots == 3 && take_freed(tree, freed, tokens_max) == 8);
  CHECK_OK(stateport_tree_destroy(tree));
}

void test_tree_refusals(void) {
  stateport_tree* tree = make_tree(2);
  const int32_t tokens[4] = {1, 2, 3, 4};
  int32_t kv[4] = {1, 2, 3, 4};
  int32_t slots[3] = {0};
  stateport_match hit = {.size = sizeof hit};
  stateport_insert_result kept = {.size = sizeof kept};
  CHECK_REFUSED(stateport_tree_match(tree, NULL, 4, NULL, NULL, &hit), STATEPORT_INVALID_ARGUMENT, "tokens = null");
  CHECK_REFUSED(stateport_tree_match(tree, tokens, 4, NULL, NULL, NULL), STATEPORT_INVALID_ARGUMENT, "out = null");
  CHECK_REFUSED(stateport_tree_match(tree, tokens, SIZE_MAX, NULL, NULL, &hit), STATEPORT_INVALID_ARGUMENT, "tokens");
  const stateport_namespace no_key = {.size = sizeof no_key, .salt_bytes = 3};
  CHECK_REFUSED(stateport_tree_match(tree, tokens, 4, &no_key, NULL, &hit), STATEPORT_INVALID_ARGUMENT, "salt = null");
  CHECK_REFUSED(stateport_tree_match_with_live_slot(tree, tokens, 4, NULL, NULL, 2, &hit), STATEPORT_INVALID_ARGUMENT,
                "2");

  // Slot 0 is not the caller's: a forgotten STATEPORT_NONE is noticed.
  stateport_insert prefix = {.size = sizeof prefix, .tokens = tokens, .kv = kv, .count = 4};
  CHECK_REFUSED(stateport_tree_insert(tree, &prefix, &kept), STATEPORT_INVALID_ARGUMENT, "slot");
  CHECK_OK(stateport_tree_allocate_slots(tree, slots, 2));
  prefix.slot = slots[0];
  CHECK_REFUSED(stateport_tree_insert(tree, &prefix, &kept), STATEPORT_INVALID_ARGUMENT, "holds no state");
  CHECK_REFUSED(stateport_tree_allocate_slots(tree, slots, 3), STATEPORT_NO_CAPACITY, "required 3, available 0");
  CHECK_OK(stateport_tree_release_slots(tree, slots, 2));
  CHECK_REFUSED(stateport_tree_release_slots(tree, slots, 1), STATEPORT_INVALID_ARGUMENT, "slot");
  CHECK_REFUSED(stateport_tree_tag_slot(tree, 0, tokens, 4, NULL), STATEPORT_INVALID_ARGUMENT, "slot");
  prefix.slot = STATEPORT_NONE;
  prefix.prev_tokens = 1;
  CHECK_REFUSED(stateport_tree_insert(tree, &prefix, &kept), STATEPORT_INVALID_ARGUMENT, "prev_tokens = 1");
  prefix.prev_tokens = 0;
  kv[3] = 1000;
  CHECK_REFUSED(stateport_tree_insert(tree, &prefix, &kept), STATEPORT_INVALID_ARGUMENT, "1000");
  CHECK_REFUSED(stateport_tree_evict(tree, -1, 0, NULL, NULL), STATEPORT_INVALID_ARGUMENT, "tokens");
  CHECK(sizes_of(tree).free_slots == 2 && sizes_of(tree).evictable_tokens == 0);
  CHECK_OK(stateport_tree_set_time(tree, 5));
  CHECK_REFUSED(stateport_tree_set_time(tree, 4), STATEPORT_INVALID_ARGUMENT, "now_s = 4");
  stateport_tree_lock* lock = NULL;
  CHECK_REFUSED(stateport_tree_lock_node(tree, UINT64_MAX, &lock), STATEPORT_INVALID_ARGUMENT, "node");
  CHECK_OK(stateport_tree_destroy(tree));

  stateport_tree_options options = {.size = sizeof options, .page_size = -1};
  CHECK_REFUSED(stateport_tree_create(&options, &tree), STATEPORT_INVALID_ARGUMENT, "page_size = -1");
  options.page_size = 0;
  options.eviction = 9;
  CHECK_REFUSED(stateport_tree_create(&options, &tree), STATEPORT_INVALID_ARGUMENT, "eviction = 9");
  options.eviction = STATEPORT_EVICT_HIX;
  options.state_bytes = -1;
  CHECK_REFUSED(stateport_tree_create(&options, &tree), STATEPORT_INVALID_ARGUMENT, "state_bytes = -1");
  options.state_bytes = 0;
  options.max_states_per_path = -1;
  CHECK_REFUSED(stateport_tree_create(&options, &tree), STATEPORT_INVALID_ARGUMENT, "max_states_per_path");
}
