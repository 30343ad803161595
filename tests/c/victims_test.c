// SPDX-License-Identifier: Apache-2.0
// Victims are reported to callers before they are evicted, and calls that a callback must not make.
#include "check.h"

#include <string.h>

enum { prompts = 3, prompt_tokens = 4 };

/// Reports that a callback received, and its orders.
typedef struct heard {
  int count;
  stateport_victim victims[prompts];
  int32_t first_tokens[prompts];
  int32_t last_kv[prompts];
  stateport_slot_victim slot_victims[prompts];
  bool keep;  ///< the slot
  // Where callbacks call: null, or handles of the structure that calls back, and one of another.
  stateport_tree* tree;
  stateport_tree_lock* lock;
  stateport_slot_allocator* allocator;
  stateport_checkpoint_planner* planner;
  stateport_tree* other;
} heard;

static const char* const by_callback = "is used by a callback of its own";

static void use_tree_in_callback(const heard* self) {
  stateport_tree_lock* lock = NULL;
  stateport_tree_lock* const locks[] = {self->lock};
  CHECK_REFUSED(stateport_tree_check(self->tree), STATEPORT_INVALID_STATE, by_callback);
  CHECK_REFUSED(stateport_tree_evict(self->tree, 1, 0, NULL, NULL), STATEPORT_INVALID_STATE, "tree: is used by");
  CHECK_REFUSED(stateport_tree_lock_node(self->tree, 0, &lock), STATEPORT_INVALID_STATE, by_callback);
  CHECK_REFUSED(stateport_tree_destroy(self->tree), STATEPORT_INVALID_STATE, by_callback);
  CHECK_REFUSED(stateport_tree_lock_destroy(self->lock), STATEPORT_INVALID_STATE, "lock: is used by");
  CHECK_REFUSED(stateport_tree_locks_destroy(locks, 1), STATEPORT_INVALID_STATE, by_callback);
  CHECK(lock == NULL);
  CHECK_OK(stateport_tree_check(self->other));
}

static int32_t hear_of_tree(const stateport_victim* victim, void* context) {
  heard* const self = context;
  CHECK(victim->size == sizeof *victim && self->count < prompts);
  if (self->tree != NULL) use_tree_in_callback(self);
  self->victims[self->count] = *victim;
  if (victim->count > 0) {
    self->first_tokens[self->count] = victim->tokens[0];
    self->last_kv[self->count] = victim->kv[victim->count - 1];
  }
  ++self->count;
  return self->keep ? -1 : 0;
}

static stateport_tree* make_tree(int32_t slots, heard* reported) {
  const stateport_eviction_options lru = {.size = sizeof lru, .order = STATEPORT_EVICT_LRU};
  const stateport_tree_options options = {.size = sizeof options,
                                          .slots = slots,
                                          .max_states_per_path = 1,
                                          .eviction_options = &lru,
                                          .on_victim = reported == NULL ? NULL : hear_of_tree,
                                          .on_victim_context = reported};
  stateport_tree* tree = NULL;
  CHECK_OK(stateport_tree_create(&options, &tree));
  return tree;
}

/// Keeps a prompt of `count` tokens with a state at its end, and answers its node and the slot.
static stateport_insert_result keep_prompt(stateport_tree* tree, int32_t prompt, size_t count, int32_t* slot) {
  int32_t tokens[2 * prompt_tokens];
  for (int32_t i = 0; i < 2 * prompt_tokens; ++i) tokens[i] = 100 * prompt + i;
  CHECK_OK(stateport_tree_allocate_slots(tree, slot, 1));
  CHECK_OK(stateport_tree_tag_slot(tree, *slot, tokens, count, NULL));
  const stateport_insert prefix = {
      .size = sizeof prefix, .tokens = tokens, .kv = tokens, .count = count, .slot = *slot};
  stateport_insert_result kept = {.size = sizeof kept};
  CHECK_OK(stateport_tree_insert(tree, &prefix, &kept));
  return kept;
}

static stateport_match find_prompt(stateport_tree* tree, int32_t prompt, int32_t* live_slot) {
  int32_t tokens[prompt_tokens];
  for (int32_t i = 0; i < prompt_tokens; ++i) tokens[i] = 100 * prompt + i;
  stateport_match hit = {.size = sizeof hit};
  if (live_slot == NULL) {
    CHECK_OK(stateport_tree_match(tree, tokens, prompt_tokens, NULL, NULL, &hit));
  } else {
    CHECK_OK(stateport_tree_match_with_live_slot(tree, tokens, prompt_tokens, NULL, NULL, STATEPORT_NONE, &hit));
    *live_slot = hit.live_slot;
  }
  return hit;
}

static stateport_tree_sizes sizes_of(stateport_tree* tree) {
  stateport_tree_sizes sizes = {.size = sizeof sizes};
  CHECK_OK(stateport_tree_describe(tree, &sizes));
  CHECK_OK(stateport_tree_check(tree));
  return sizes;
}

static void test_told_of_nodes(void) {
  heard reported = {0};
  stateport_tree* tree = make_tree(prompts, &reported);
  stateport_insert_result kept[prompts];
  int32_t slots[prompts];
  for (int32_t prompt = 0; prompt < prompts; ++prompt)
    kept[prompt] = keep_prompt(tree, prompt, prompt_tokens, &slots[prompt]);
  const stateport_match hit = find_prompt(tree, 0, NULL);  // and so it goes last
  stateport_victim foreseen[prompts];
  size_t count = 0;
  foreseen[0].size = sizeof *foreseen;
  CHECK_OK(stateport_tree_peek_victims(tree, STATEPORT_VICTIM_TOKENS, foreseen, prompts, &count));
  CHECK(count == prompts && reported.count == 0);

  int64_t states = 0;
  CHECK_ONCE(stateport_tree_evict(tree, prompts * prompt_tokens, 0, NULL, &states), STATEPORT_OK, NULL);
  CHECK(states == prompts && reported.count == prompts);
  const int32_t order[prompts] = {1, 2, 0};
  for (int i = 0; i < prompts; ++i) {
    const stateport_victim* const victim = &reported.victims[i];
    CHECK(victim->node == kept[order[i]].node && victim->node == foreseen[i].node);
    CHECK(victim->slot == slots[order[i]] && victim->end_tokens == prompt_tokens && victim->count == prompt_tokens);
    CHECK(reported.first_tokens[i] == 100 * order[i] && reported.last_kv[i] == 100 * order[i] + prompt_tokens - 1);
  }
  CHECK(memcmp(reported.victims[2].prefix, hit.prefix, sizeof hit.prefix) == 0);
  CHECK(sizes_of(tree).free_slots == prompts);
  CHECK_OK(stateport_tree_destroy(tree));
}

static void test_told_of_states(void) {
  heard reported = {0};
  stateport_tree* tree = make_tree(2, &reported);
  int32_t slot = STATEPORT_NONE;
  int32_t longer_slot = STATEPORT_NONE;
  int32_t live_slot = STATEPORT_NONE;
  // A path has one state: the longer prompt's drives out that of the shorter one.
  const stateport_insert_result shorter = keep_prompt(tree, 1, prompt_tokens, &slot);
  const stateport_insert_result longer = keep_prompt(tree, 1, prompt_tokens + 1, &longer_slot);
  CHECK(reported.count == 1 && reported.victims[0].node == shorter.node && reported.victims[0].slot == slot);
  CHECK(reported.victims[0].count == 0 && reported.victims[0].end_tokens == prompt_tokens);
  CHECK_OK(stateport_tree_drop_state(tree, longer.node));
  CHECK(reported.count == 2 && reported.victims[1].node == longer.node && reported.victims[1].slot == longer_slot);

  // A request starts from one of two states, and takes the slot of the other.
  CHECK_OK(stateport_tree_reset(tree));
  CHECK(reported.count == 2);
  reported.count = 0;
  keep_prompt(tree, 1, prompt_tokens, &slot);
  const stateport_insert_result second = keep_prompt(tree, 2, prompt_tokens, &longer_slot);
  CHECK(find_prompt(tree, 1, &live_slot).slot == slot && live_slot == longer_slot);
  CHECK(reported.count == 1 && reported.victims[0].node == second.node && reported.victims[0].slot == live_slot);
  CHECK_OK(stateport_tree_reset(tree));
  CHECK(reported.count == 1);
  CHECK_OK(stateport_tree_destroy(tree));
}

static void test_kept_slots(void) {
  heard reported = {.keep = true};
  stateport_tree* tree = make_tree(2, &reported);
  int32_t slots[2];
  for (int32_t prompt = 0; prompt < 2; ++prompt) keep_prompt(tree, prompt, prompt_tokens, &slots[prompt]);
  int64_t tokens = -1;
  int64_t states = -1;
  CHECK_OK(stateport_tree_evict(tree, 1, 0, &tokens, &states));
  CHECK(tokens == prompt_tokens && states == 0 && reported.count == 1 && reported.victims[0].slot == slots[0]);
  CHECK(find_prompt(tree, 0, NULL).node == 0 && sizes_of(tree).free_slots == 0);

  // It is the caller's: to tag, to give back, or to donate again.
  CHECK_OK(stateport_tree_release_slots(tree, &slots[0], 1));
  CHECK_REFUSED(stateport_tree_release_slots(tree, &slots[0], 1), STATEPORT_INVALID_ARGUMENT, "slot");
  CHECK(sizes_of(tree).free_slots == 1);
  // A kept slot is none that was freed: the demand is not met.
  CHECK_OK(stateport_tree_evict(tree, 0, 1, NULL, &states));
  CHECK(states == 0 && reported.count == 2 && sizes_of(tree).free_slots == 1 && sizes_of(tree).evictable_states == 0);
  CHECK_OK(stateport_tree_release_slots(tree, &slots[1], 1));
  CHECK_OK(stateport_tree_destroy(tree));
}

static void test_tree_in_its_callback(void) {
  heard reported = {.other = make_tree(1, NULL)};
  reported.tree = make_tree(1, &reported);
  int32_t slot = STATEPORT_NONE;
  const stateport_insert_result kept = keep_prompt(reported.tree, 1, prompt_tokens, &slot);
  keep_prompt(reported.other, 1, prompt_tokens, &slot);
  // An empty lock of the root: it locks nothing, and is of the tree.
  CHECK_OK(stateport_tree_lock_node(reported.tree, 0, &reported.lock));
  CHECK_OK(stateport_tree_drop_state(reported.tree, kept.node));
  CHECK(reported.count == 1 && sizes_of(reported.tree).free_slots == 1);
  CHECK_OK(stateport_tree_lock_destroy(reported.lock));
  CHECK_OK(stateport_tree_destroy(reported.tree));
  CHECK_OK(stateport_tree_destroy(reported.other));
}

void test_victims_of_trees(void) {
  test_told_of_nodes();
  test_told_of_states();
  test_kept_slots();
  test_tree_in_its_callback();
}

static void use_allocator_in_callback(const heard* self) {
  int64_t evicted = -1;
  CHECK_REFUSED(stateport_slot_allocator_check(self->allocator), STATEPORT_INVALID_STATE, by_callback);
  CHECK_REFUSED(stateport_slot_allocator_evict(self->allocator, 1, &evicted), STATEPORT_INVALID_STATE,
                "allocator: is used by");
  CHECK_REFUSED(stateport_slot_allocator_destroy(self->allocator), STATEPORT_INVALID_STATE, by_callback);
  CHECK_REFUSED(stateport_checkpoint_planner_check(self->planner), STATEPORT_INVALID_STATE, "planner: is used by");
  CHECK_REFUSED(stateport_checkpoint_planner_destroy(self->planner), STATEPORT_INVALID_STATE, by_callback);
  CHECK(evicted == -1);
  CHECK_OK(stateport_tree_check(self->other));
}

static void hear_of_allocator(const stateport_slot_victim* victim, void* context) {
  heard* const self = context;
  CHECK(victim->size == sizeof *victim && self->count < prompts);
  if (self->allocator != NULL) use_allocator_in_callback(self);
  self->slot_victims[self->count++] = *victim;
}

static stateport_slot_allocator* make_allocator(heard* reported) {
  const stateport_slot_allocator_options options = {.size = sizeof options,
                                                    .blocks = prompts + 2,
                                                    .slots = prompts,
                                                    .on_victim = reported == NULL ? NULL : hear_of_allocator,
                                                    .on_victim_context = reported};
  stateport_slot_allocator* allocator = NULL;
  CHECK_OK(stateport_slot_allocator_create(&options, &allocator));
  return allocator;
}

/// Blocks without references, each with a state; the first one is used last, and the second has neither tag nor hash.
static void store_states(stateport_slot_allocator* allocator, int32_t* blocks, int32_t* slots) {
  const int64_t keys[prompts] = {11, 12, 13};
  CHECK_OK(stateport_slot_allocator_allocate_blocks(allocator, blocks, prompts));
  CHECK_OK(stateport_slot_allocator_register_blocks(allocator, blocks, keys, NULL, prompts));
  CHECK_OK(stateport_slot_allocator_allocate_slots(allocator, blocks, prompts, slots));
  for (int32_t i = 0; i < prompts; i += 2) {
    const stateport_tag tag = {.size = sizeof tag,
                               .token_count = 16 + i,
                               .prefix = {70 + (uint64_t)i, 80 + (uint64_t)i},
                               .layout_fingerprint = 7};
    CHECK_OK(stateport_slot_allocator_set_tag(allocator, blocks[i], &tag));
    CHECK_OK(stateport_slot_allocator_register_states(allocator, &blocks[i], &keys[i], 1));
  }
  CHECK_OK(stateport_slot_allocator_advance_tick(allocator));
  CHECK_OK(stateport_slot_allocator_retain_blocks(allocator, blocks, 1));
  CHECK_OK(stateport_slot_allocator_release_blocks(allocator, blocks, 1));
  CHECK_OK(stateport_slot_allocator_release_blocks(allocator, blocks, prompts));
}

static void test_told_of_slots(void) {
  heard reported = {0};
  stateport_slot_allocator* allocator = make_allocator(&reported);
  int32_t blocks[prompts];
  int32_t slots[prompts];
  store_states(allocator, blocks, slots);
  stateport_slot_victim foreseen[prompts + 1];
  size_t count = 99;
  foreseen[0].size = sizeof *foreseen;
  CHECK_OK(stateport_slot_allocator_peek_victims(allocator, foreseen, prompts + 1, &count));
  CHECK(count == prompts && reported.count == 0 && describe_allocator(allocator).free_slots == 0);

  // The first state goes for a block that takes its slot, the others on demand.
  int32_t block = STATEPORT_NONE;
  int32_t slot = STATEPORT_NONE;
  CHECK_OK(stateport_slot_allocator_allocate_blocks(allocator, &block, 1));
  CHECK_OK(stateport_slot_allocator_allocate_slots(allocator, &block, 1, &slot));
  CHECK(reported.count == 1 && slot == slots[1]);
  int64_t evicted = -1;
  CHECK_OK(stateport_slot_allocator_evict(allocator, 1, &evicted));
  CHECK(reported.count == 2 && evicted == 1 && describe_allocator(allocator).free_slots == 1);
  CHECK_OK(stateport_slot_allocator_evict(allocator, 5, &evicted));
  CHECK(reported.count == 3 && evicted == 1);  // the new block is referenced
  CHECK(describe_allocator(allocator).free_slots == 2 && describe_allocator(allocator).evictions == 3);

  const int32_t order[prompts] = {1, 2, 0};
  for (int i = 0; i < prompts; ++i) {
    const stateport_slot_victim* const victim = &reported.slot_victims[i];
    const bool tagged = order[i] != 1;
    CHECK(victim->block == blocks[order[i]] && victim->slot == slots[order[i]]);
    CHECK(tagged ? victim->hash == 11 + order[i] : victim->hash <= 0);
    CHECK(victim->token_count == (tagged ? 16 + order[i] : -1));
    CHECK(!tagged || (victim->prefix[0] == 70 + (uint64_t)order[i] && victim->prefix[1] == 80 + (uint64_t)order[i] &&
                      victim->layout_fingerprint == 7));
    CHECK(memcmp(victim, &foreseen[i], sizeof *victim) == 0);
    CHECK_OK(stateport_slot_allocator_slot_of(allocator, blocks[i], &slot));
    CHECK(slot == STATEPORT_NONE);
  }

  evicted = -1;
  CHECK_REFUSED(stateport_slot_allocator_evict(allocator, -1, &evicted), STATEPORT_INVALID_ARGUMENT, "states = -1");
  CHECK(evicted == -1);
  CHECK_OK(stateport_slot_allocator_evict(allocator, 0, NULL));
  CHECK_REFUSED(stateport_slot_allocator_evict(NULL, 0, NULL), STATEPORT_INVALID_HANDLE, "allocator = null");
  count = 99;
  CHECK_REFUSED(stateport_slot_allocator_peek_victims(allocator, NULL, 1, &count), STATEPORT_INVALID_ARGUMENT,
                "out = null");
  CHECK_REFUSED(stateport_slot_allocator_peek_victims(allocator, foreseen, 1, NULL), STATEPORT_INVALID_ARGUMENT,
                "count = null");
  CHECK(count == 99);
  CHECK_OK(stateport_slot_allocator_destroy(allocator));
}

static void test_allocator_in_its_callback(void) {
  heard reported = {.other = make_tree(1, NULL)};
  reported.allocator = make_allocator(&reported);
  const stateport_checkpoint_options options = {.size = sizeof options};
  CHECK_OK(stateport_checkpoint_planner_create(reported.allocator, &options, &reported.planner));
  int32_t blocks[prompts];
  int32_t slots[prompts];
  store_states(reported.allocator, blocks, slots);
  int64_t evicted = 0;
  CHECK_OK(stateport_slot_allocator_evict(reported.allocator, 2, &evicted));
  CHECK(evicted == 2 && reported.count == 2 && describe_allocator(reported.allocator).free_slots == 2);
  CHECK_OK(stateport_checkpoint_planner_destroy(reported.planner));
  CHECK_OK(stateport_slot_allocator_destroy(reported.allocator));
  CHECK_OK(stateport_tree_destroy(reported.other));
}

/// The library does not read past the options of a caller that was compiled before callbacks existed.
static void test_earlier_callers(void) {
  stateport_slot_allocator_options options = {
      .size = offsetof(stateport_slot_allocator_options, on_victim), .blocks = prompts + 2, .slots = prompts};
  memset((char*)&options + options.size, 0xee, sizeof options - options.size);
  stateport_slot_allocator* allocator = NULL;
  CHECK_OK(stateport_slot_allocator_create(&options, &allocator));
  int32_t blocks[prompts];
  int32_t slots[prompts];
  store_states(allocator, blocks, slots);
  CHECK_OK(stateport_slot_allocator_evict(allocator, prompts, NULL));
  CHECK(describe_allocator(allocator).free_slots == prompts);
  CHECK_OK(stateport_slot_allocator_destroy(allocator));

  stateport_tree_options tree_options = {.size = offsetof(stateport_tree_options, on_victim), .slots = 1};
  memset((char*)&tree_options + tree_options.size, 0xee, sizeof tree_options - tree_options.size);
  stateport_tree* tree = NULL;
  int32_t slot = STATEPORT_NONE;
  CHECK_OK(stateport_tree_create(&tree_options, &tree));
  keep_prompt(tree, 1, prompt_tokens, &slot);
  CHECK_OK(stateport_tree_evict(tree, 1, 0, NULL, NULL));
  CHECK(sizes_of(tree).free_slots == 1);
  CHECK_OK(stateport_tree_destroy(tree));
}

void test_victims_of_allocators(void) {
  test_told_of_slots();
  test_allocator_in_its_callback();
  test_earlier_callers();
}

_Static_assert(offsetof(stateport_tree_options, on_victim) == 88 &&
                   offsetof(stateport_slot_allocator_options, on_victim) == 40 && sizeof(stateport_slot_victim) == 56,
               "members are only added behind the last one");
