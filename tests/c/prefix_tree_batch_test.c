// SPDX-License-Identifier: Apache-2.0
// Calls of a tree that take several prompts or nodes, and demands in bytes.
#include "check.h"

#include <string.h>

enum { prompts = 3, prompt_tokens = 4, state_bytes = 1000, kv_bytes = 10 };

typedef struct {
  stateport_tree* tree;
  int32_t tokens[prompts][prompt_tokens];
  int32_t kv[prompts][prompt_tokens];
  stateport_insert prefixes[prompts];
  stateport_insert_result kept[prompts];
} fixture;

/// Three prompts with a state each, not kept yet.
static fixture make(int32_t eviction) {
  fixture made = {.tree = NULL};
  const stateport_tree_options options = {.size = sizeof options,
                                          .slots = prompts,
                                          .eviction = eviction,
                                          .kv_indices = 1000,
                                          .state_bytes = state_bytes,
                                          .kv_bytes_per_token = kv_bytes};
  CHECK_OK(stateport_tree_create(&options, &made.tree));
  int32_t slots[prompts] = {0};
  CHECK_OK(stateport_tree_allocate_slots(made.tree, slots, prompts));
  for (int32_t i = 0; i < prompts; ++i) {
    for (int32_t j = 0; j < prompt_tokens; ++j) {
      made.tokens[i][j] = 100 * i + j;
      made.kv[i][j] = 10 * i + j;
    }
    CHECK_OK(stateport_tree_tag_slot(made.tree, slots[i], made.tokens[i], prompt_tokens, NULL));
    made.kept[i].size = sizeof made.kept[i];
    made.prefixes[i] = (stateport_insert){.size = sizeof made.prefixes[i], .count = prompt_tokens, .slot = slots[i]};
  }
  return made;
}

/// The pointers of a fixture that has its place.
static void point(fixture* made) {
  for (int i = 0; i < prompts; ++i) {
    made->prefixes[i].tokens = made->tokens[i];
    made->prefixes[i].kv = made->kv[i];
  }
}

static stateport_tree_sizes sizes_of(stateport_tree* tree) {
  stateport_tree_sizes sizes = {.size = sizeof sizes};
  CHECK_OK(stateport_tree_describe(tree, &sizes));
  CHECK_OK(stateport_tree_check(tree));
  return sizes;
}

static void keep_all(fixture* made) {
  size_t done = 99;
  point(made);
  CHECK_OK(stateport_tree_insert_many(made->tree, made->prefixes, prompts, made->kept, &done));
  CHECK(done == prompts && sizes_of(made->tree).evictable_states == prompts);
}

/// Whether a prompt's state is there; changes no order of eviction but that prompt's own.
static bool has_state(const fixture* made, int prompt) {
  stateport_match hit = {.size = sizeof hit};
  CHECK_OK(stateport_tree_match(made->tree, made->tokens[prompt], prompt_tokens, NULL, NULL, &hit));
  return hit.slot != STATEPORT_NONE;
}

void test_tree_match_many(void) {
  fixture made = make(STATEPORT_EVICT_LRU);
  keep_all(&made);
  int32_t row[prompt_tokens] = {0};
  stateport_lookup lookups[prompts];
  memset(lookups, 0, sizeof lookups);
  for (int i = 0; i < prompts; ++i)
    lookups[i] = (stateport_lookup){.size = sizeof *lookups, .tokens = made.tokens[i], .count = prompt_tokens};
  const stateport_namespace tenant = {.size = sizeof tenant, .salt = "b", .salt_bytes = 1};
  lookups[1].name_space = &tenant;
  lookups[2].kv_out = row;
  lookups[2].again = 1;
  stateport_match hits[prompts];
  hits[0].size = sizeof *hits;  // the first one says it for all
  CHECK_OK(stateport_tree_match_many(made.tree, lookups, prompts, hits));
  CHECK(hits[0].node == made.kept[0].node && hits[0].tokens == prompt_tokens);
  CHECK(hits[1].node == 0 && hits[1].walked_tokens == 0 && hits[1].size == sizeof *hits);
  CHECK(hits[2].node == made.kept[2].node && memcmp(row, made.kv[2], sizeof row) == 0);
  CHECK_OK(stateport_tree_match_many(made.tree, NULL, 0, NULL));

  // The last lookup is wrong, so the first one is not done: prompt 0 stays the one used first.
  CHECK_OK(stateport_tree_touch(made.tree, (const uint64_t[]){made.kept[1].node, made.kept[2].node}, 2));
  stateport_match untouched = hits[0];
  lookups[2].tokens = NULL;
  CHECK_REFUSED(stateport_tree_match_many(made.tree, lookups, prompts, hits), STATEPORT_INVALID_ARGUMENT,
                "tokens = null");
  CHECK_REFUSED(stateport_tree_match_many(made.tree, lookups, prompts, NULL), STATEPORT_INVALID_ARGUMENT, "null");
  lookups[2].tokens = made.tokens[2];
  lookups[2].count = (size_t)INT32_MAX + 1;
  CHECK_REFUSED(stateport_tree_match_many(made.tree, lookups, prompts, hits), STATEPORT_INVALID_ARGUMENT,
                "tokens = 2147483648");
  CHECK(memcmp(&untouched, &hits[0], sizeof untouched) == 0);
  CHECK_OK(stateport_tree_evict(made.tree, 0, 1, NULL, NULL));
  CHECK(!has_state(&made, 0) && has_state(&made, 1) && has_state(&made, 2));
  CHECK_OK(stateport_tree_destroy(made.tree));
}

/// To hix, one of two lookups is of a request that was looked up before: it has no past of its own.
void test_tree_match_many_again(void) {
  fixture made = make(STATEPORT_EVICT_HIX);
  keep_all(&made);
  stateport_lookup lookups[2];
  for (int i = 0; i < 2; ++i)
    lookups[i] = (stateport_lookup){.size = sizeof *lookups, .tokens = made.tokens[i], .count = prompt_tokens};
  lookups[1].again = 1;
  stateport_match hits[2];
  hits[0].size = sizeof *hits;
  CHECK_OK(stateport_tree_match_many(made.tree, lookups, 2, hits));
  CHECK(hits[0].past[1] != 0 && hits[1].past[0] == 0 && hits[1].past[1] == 0);
  CHECK_OK(stateport_tree_destroy(made.tree));
}

void test_tree_insert_many(void) {
  fixture made = make(STATEPORT_EVICT_LRU);
  point(&made);
  size_t done = 99;
  // The arguments are read before any prefix is inserted: nothing is kept.
  made.prefixes[2].tokens = NULL;
  CHECK_REFUSED(stateport_tree_insert_many(made.tree, made.prefixes, prompts, made.kept, &done),
                STATEPORT_INVALID_ARGUMENT, "tokens = null");
  CHECK(done == 99 && sizes_of(made.tree).evictable_tokens == 0);
  CHECK_REFUSED(stateport_tree_insert_many(made.tree, made.prefixes, prompts, made.kept, NULL),
                STATEPORT_INVALID_ARGUMENT, "tokens = null");
  point(&made);
  CHECK_REFUSED(stateport_tree_insert_many(made.tree, made.prefixes, prompts, made.kept, NULL),
                STATEPORT_INVALID_ARGUMENT, "done = null");
  CHECK_REFUSED(stateport_tree_insert_many(made.tree, made.prefixes, prompts, NULL, &done), STATEPORT_INVALID_ARGUMENT,
                "out = null");
  CHECK(sizes_of(made.tree).evictable_tokens == 0);

  // The second one is refused by the tree: the first one is kept.
  made.kv[1][0] = made.kv[0][0];
  made.kept[1].node = 7;
  CHECK_ONCE(stateport_tree_insert_many(made.tree, made.prefixes, prompts, made.kept, &done),
             STATEPORT_INVALID_ARGUMENT, "kv = 0");
  CHECK(done == 1 && made.kept[0].node != 0 && made.kept[1].node == 7);
  CHECK(sizes_of(made.tree).evictable_tokens == prompt_tokens);
  made.kv[1][0] = 10;
  CHECK_OK(stateport_tree_insert_many(made.tree, made.prefixes + 1, prompts - 1, made.kept + 1, &done));
  CHECK(done == 2 && sizes_of(made.tree).evictable_states == prompts && has_state(&made, 2));
  CHECK_OK(stateport_tree_insert_many(made.tree, NULL, 0, NULL, &done));
  CHECK(done == 0);
  CHECK_OK(stateport_tree_destroy(made.tree));
}

void test_tree_touch(void) {
  fixture made = make(STATEPORT_EVICT_LRU);
  keep_all(&made);
  const uint64_t order[] = {made.kept[1].node, made.kept[0].node};
  CHECK_OK(stateport_tree_touch(made.tree, order, 2));
  CHECK_OK(stateport_tree_touch(made.tree, NULL, 0));
  const uint64_t with_root[] = {0};
  CHECK_OK(stateport_tree_touch(made.tree, with_root, 1));
  CHECK_OK(stateport_tree_evict(made.tree, 0, 1, NULL, NULL));
  CHECK_REFUSED(stateport_tree_touch(made.tree, NULL, 1), STATEPORT_INVALID_ARGUMENT, "nodes = null");
  // One of them has been evicted: the other keeps its age.
  const uint64_t gone[] = {made.kept[1].node, made.kept[2].node};
  CHECK_REFUSED(stateport_tree_touch(made.tree, gone, 2), STATEPORT_INVALID_ARGUMENT, "evicted");
  CHECK_OK(stateport_tree_evict(made.tree, 0, 1, NULL, NULL));
  CHECK(has_state(&made, 0) && !has_state(&made, 1) && !has_state(&made, 2));
  CHECK_OK(stateport_tree_destroy(made.tree));
}

void test_tree_locks(void) {
  fixture made = make(STATEPORT_EVICT_LRU);
  keep_all(&made);
  uint64_t nodes[prompts + 1] = {made.kept[0].node, made.kept[1].node, made.kept[0].node, 0};
  stateport_tree_lock* locks[prompts + 1] = {NULL};
  CHECK_OK(stateport_tree_lock_nodes(made.tree, nodes, prompts + 1, locks));
  CHECK(sizes_of(made.tree).protected_states == 2 && sizes_of(made.tree).protected_tokens == 2 * prompt_tokens);

  CHECK_REFUSED(stateport_tree_locks_destroy((stateport_tree_lock*[]){locks[0], locks[1], locks[0]}, 3),
                STATEPORT_INVALID_HANDLE, "named twice");
  stateport_tree_lock* foreign[] = {locks[1], (stateport_tree_lock*)(void*)made.tree};
  CHECK_REFUSED(stateport_tree_locks_destroy(foreign, 2), STATEPORT_INVALID_HANDLE, "locks = tree");
  CHECK_REFUSED(stateport_tree_locks_destroy(NULL, 2), STATEPORT_INVALID_ARGUMENT, "locks = null");
  CHECK(sizes_of(made.tree).protected_states == 2);
  CHECK_OK(stateport_tree_locks_destroy((stateport_tree_lock*[]){locks[0], NULL, locks[1]}, 3));
  CHECK(sizes_of(made.tree).protected_states == 1);
  CHECK_REFUSED(stateport_tree_locks_destroy(locks + 1, 2), STATEPORT_INVALID_HANDLE, "destroyed");
  CHECK_OK(stateport_tree_lock_destroy(locks[2]));
  CHECK_OK(stateport_tree_locks_destroy(locks + 3, 1));
  CHECK(sizes_of(made.tree).protected_states == 0);

  // A node that has gone: nothing is locked.
  CHECK_OK(stateport_tree_evict(made.tree, 0, 1, NULL, NULL));
  nodes[1] = made.kept[0].node;
  nodes[0] = made.kept[1].node;
  CHECK_REFUSED(stateport_tree_lock_nodes(made.tree, nodes, 2, locks), STATEPORT_INVALID_ARGUMENT, "evicted");
  CHECK_REFUSED(stateport_tree_lock_nodes(made.tree, nodes, 1, NULL), STATEPORT_INVALID_ARGUMENT, "out = null");
  CHECK_REFUSED(stateport_tree_lock_nodes(made.tree, NULL, 1, locks), STATEPORT_INVALID_ARGUMENT, "nodes = null");
  CHECK(sizes_of(made.tree).protected_states == 0 && sizes_of(made.tree).evictable_states == prompts - 1);
  CHECK_OK(stateport_tree_destroy(made.tree));
}

void test_tree_bytes(void) {
  fixture made = make(STATEPORT_EVICT_HIX);
  keep_all(&made);
  // A leaf frees its state and its KV.
  stateport_evict_demand demand = {.size = sizeof demand, .bytes = 1};
  stateport_evict_result done = {.size = sizeof done};
  CHECK_OK(stateport_tree_evict_demand(made.tree, &demand, &done));
  CHECK(done.states == 1 && done.tokens == prompt_tokens);
  demand.bytes = 2 * (state_bytes + prompt_tokens * kv_bytes);
  CHECK_OK(stateport_tree_evict_demand(made.tree, &demand, &done));
  CHECK(done.states == 2 && done.tokens == 2 * prompt_tokens && sizes_of(made.tree).free_slots == prompts);
  CHECK_OK(stateport_tree_evict_demand(made.tree, &demand, &done));
  CHECK(done.states == 0 && done.tokens == 0);
  int32_t freed[prompts * prompt_tokens + 1];
  size_t count = 0;
  CHECK_OK(stateport_tree_take_freed_kv(made.tree, freed, prompts * prompt_tokens + 1, &count));
  CHECK(count == prompts * prompt_tokens);

  demand.bytes = -1;
  CHECK_REFUSED(stateport_tree_evict_demand(made.tree, &demand, &done), STATEPORT_INVALID_ARGUMENT,
                "demand.bytes = -1");
  CHECK_REFUSED(stateport_tree_evict_demand(made.tree, NULL, &done), STATEPORT_INVALID_ARGUMENT, "demand = null");
  CHECK_REFUSED(stateport_tree_evict_demand(made.tree, &demand, NULL), STATEPORT_INVALID_ARGUMENT, "out = null");
  CHECK_OK(stateport_tree_destroy(made.tree));
}

void test_tree_victims(void) {
  fixture made = make(STATEPORT_EVICT_LRU);
  keep_all(&made);
  stateport_victim victims[prompts + 1];
  victims[0].size = sizeof *victims;
  size_t count = 99;
  CHECK_OK(stateport_tree_peek_victims(made.tree, STATEPORT_VICTIM_TOKENS, victims, prompts + 1, &count));
  CHECK(count == prompts);
  for (int i = 0; i < prompts; ++i) {
    CHECK(victims[i].node == made.kept[i].node && victims[i].end_tokens == prompt_tokens);
    CHECK(victims[i].slot == made.prefixes[i].slot && victims[i].count == prompt_tokens);
    CHECK(memcmp(victims[i].tokens, made.tokens[i], sizeof made.tokens[i]) == 0);
    CHECK(memcmp(victims[i].kv, made.kv[i], sizeof made.kv[i]) == 0);
  }
  stateport_match hit = {.size = sizeof hit};
  CHECK_OK(stateport_tree_match(made.tree, made.tokens[0], prompt_tokens, NULL, NULL, &hit));
  CHECK(memcmp(victims[0].prefix, hit.prefix, sizeof hit.prefix) == 0 && hit.kv_node == made.kept[0].node);
  // The prompt that was matched goes last now; its state can be given up on purpose, and its KV stays.
  CHECK_OK(stateport_tree_peek_victims(made.tree, STATEPORT_VICTIM_STATES, victims, 1, &count));
  CHECK(count == 1 && victims[0].node == made.kept[1].node);
  CHECK_OK(stateport_tree_drop_state(made.tree, made.kept[0].node));
  CHECK_OK(stateport_tree_match(made.tree, made.tokens[0], prompt_tokens, NULL, NULL, &hit));
  CHECK(hit.node == 0 && hit.walked_tokens == prompt_tokens && hit.kv_node == made.kept[0].node);
  CHECK(sizes_of(made.tree).free_slots == 1);

  CHECK_REFUSED(stateport_tree_drop_state(made.tree, made.kept[0].node), STATEPORT_INVALID_ARGUMENT, "has no state");
  stateport_tree_lock* lock = NULL;
  CHECK_OK(stateport_tree_lock_node(made.tree, made.kept[1].node, &lock));
  CHECK_REFUSED(stateport_tree_drop_state(made.tree, made.kept[1].node), STATEPORT_INVALID_ARGUMENT, "locked");
  CHECK_OK(stateport_tree_lock_destroy(lock));
  count = 99;
  CHECK_REFUSED(stateport_tree_peek_victims(made.tree, 3, victims, 1, &count), STATEPORT_INVALID_ARGUMENT, "kind = 3");
  CHECK_REFUSED(stateport_tree_peek_victims(made.tree, 0, NULL, 1, &count), STATEPORT_INVALID_ARGUMENT, "out = null");
  CHECK_REFUSED(stateport_tree_peek_victims(made.tree, 0, victims, 1, NULL), STATEPORT_INVALID_ARGUMENT,
                "count = null");
  CHECK(count == 99 && sizes_of(made.tree).evictable_states == prompts - 1);
  CHECK_OK(stateport_tree_peek_victims(made.tree, 0, NULL, 0, &count));
  CHECK(count == 0);
  CHECK_OK(stateport_tree_destroy(made.tree));
}
