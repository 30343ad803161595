// SPDX-License-Identifier: Apache-2.0
// Calls that inform a policy decide the victim: in each test another call would have another victim.
#include "check.h"

#include <string.h>

enum { prompts = 3, prompt_tokens = 8, position_tokens = 4 };

/// Takes one of the states of the three prompts and tells whose. They were served in order, and without hints the first
/// one goes.
typedef int32_t victim_of(const stateport_eviction_options* eviction, const stateport_reuse_hint* hints);

static void prompt_of(int32_t prompt, int32_t* tokens, int32_t* kv) {
  for (int32_t i = 0; i < prompt_tokens; ++i) {
    tokens[i] = 1000 * prompt + i;
    kv[i] = prompt_tokens * prompt + i;
  }
}

static stateport_tree* make_tree(const stateport_eviction_options* eviction) {
  const stateport_tree_options options = {.size = sizeof options,
                                          .slots = prompts,
                                          .layout_fingerprint = 42,
                                          .eviction_options = eviction,
                                          .position_tokens = position_tokens};
  stateport_tree* tree = NULL;
  CHECK_OK(stateport_tree_create(&options, &tree));
  return tree;
}

/// `again`: the request was looked up before.
static stateport_match look_up_prompt(stateport_tree* tree, int32_t prompt, bool again) {
  int32_t tokens[prompt_tokens];
  int32_t kv[prompt_tokens];
  prompt_of(prompt, tokens, kv);
  stateport_match hit = {.size = sizeof hit};
  CHECK_OK(again ? stateport_tree_match_again(tree, tokens, prompt_tokens, NULL, NULL, &hit)
                 : stateport_tree_match(tree, tokens, prompt_tokens, NULL, NULL, &hit));
  return hit;
}

static stateport_match look_up(stateport_tree* tree, int32_t prompt) {
  return look_up_prompt(tree, prompt, false);
}

/// Keeps a prompt with a state at its end.
static void keep(stateport_tree* tree, int32_t prompt, const stateport_match* hit, const stateport_reuse_hint* hint) {
  int32_t tokens[prompt_tokens];
  int32_t kv[prompt_tokens];
  prompt_of(prompt, tokens, kv);
  stateport_insert prefix = {
      .size = sizeof prefix, .tokens = tokens, .kv = kv, .count = prompt_tokens, .hint = hint, .request_tokens = 0};
  if (hit != NULL) memcpy(prefix.past, hit->past, sizeof prefix.past);
  stateport_insert_result kept = {.size = sizeof kept};
  CHECK_OK(stateport_tree_allocate_slots(tree, &prefix.slot, 1));
  CHECK_OK(stateport_tree_tag_slot(tree, prefix.slot, tokens, prompt_tokens, NULL));
  CHECK_OK(stateport_tree_insert(tree, &prefix, &kept));
  CHECK(kept.state_exists == 0);
}

static bool tree_has(stateport_tree* tree, int32_t prompt) {
  const stateport_match hit = look_up_prompt(tree, prompt, true);
  CHECK(hit.past[0] == 0 && hit.past[1] == 0);
  return hit.slot != STATEPORT_NONE;
}

/// Evicts one state, and ends the tree.
static int32_t take_from_tree(stateport_tree* tree) {
  int64_t states = 0;
  CHECK_OK(stateport_tree_evict(tree, 0, 1, NULL, &states));
  CHECK(states == 1);
  CHECK_OK(stateport_tree_check(tree));
  int32_t victim = STATEPORT_NONE;
  for (int32_t prompt = 0; prompt < prompts; ++prompt)
    if (!tree_has(tree, prompt)) victim = prompt;
  CHECK_OK(stateport_tree_destroy(tree));
  return victim;
}

static int32_t victim_of_tree(const stateport_eviction_options* eviction, const stateport_reuse_hint* hints) {
  stateport_tree* tree = make_tree(eviction);
  for (int32_t prompt = 0; prompt < prompts; ++prompt) {
    CHECK_OK(stateport_tree_set_time(tree, 10 * prompt));
    const stateport_match hit = look_up(tree, prompt);
    keep(tree, prompt, &hit, &hints[prompt]);
  }
  return take_from_tree(tree);
}

static stateport_slot_allocator* make_allocator(const stateport_eviction_options* eviction) {
  const stateport_slot_allocator_options options = {
      .size = sizeof options, .blocks = prompts + 2, .slots = prompts, .eviction = eviction};
  stateport_slot_allocator* allocator = NULL;
  CHECK_OK(stateport_slot_allocator_create(&options, &allocator));
  return allocator;
}

/// A block of its own for each prompt, with a state.
static int32_t store_state(stateport_slot_allocator* allocator, int32_t prompt) {
  const int64_t hash = 100 + prompt;
  const stateport_tag tag = {.size = sizeof tag, .token_count = prompt_tokens, .prefix = {(uint64_t)hash, 0}};
  int32_t block = STATEPORT_NONE;
  int32_t slot = STATEPORT_NONE;
  CHECK_OK(stateport_slot_allocator_allocate_blocks(allocator, &block, 1));
  CHECK_OK(stateport_slot_allocator_register_blocks(allocator, &block, &hash, NULL, 1));
  CHECK_OK(stateport_slot_allocator_allocate_slots(allocator, &block, 1, &slot));
  CHECK_OK(stateport_slot_allocator_set_tag(allocator, block, &tag));
  CHECK_OK(stateport_slot_allocator_register_states(allocator, &block, &hash, 1));
  return block;
}

static void note_served(stateport_slot_allocator* allocator, int32_t prompt, double now_s,
                        const stateport_reuse_hint* hint) {
  const int64_t hash = 100 + prompt;
  const stateport_served_prompt served = {
      .size = sizeof served, .now_s = now_s, .hashes = &hash, .count = 1, .hint = hint};
  CHECK_OK(stateport_slot_allocator_note_served(allocator, &served));
}

/// Another block takes a slot.
static int32_t take_from_allocator(stateport_slot_allocator* allocator, const int32_t* blocks) {
  store_state(allocator, prompts);
  CHECK_OK(stateport_slot_allocator_check(allocator));
  int32_t victim = STATEPORT_NONE;
  for (int32_t prompt = 0; prompt < prompts; ++prompt) {
    int32_t slot = STATEPORT_NONE;
    CHECK_OK(stateport_slot_allocator_slot_of(allocator, blocks[prompt], &slot));
    if (slot == STATEPORT_NONE) victim = prompt;
  }
  CHECK_OK(stateport_slot_allocator_destroy(allocator));
  return victim;
}

static int32_t victim_of_allocator(const stateport_eviction_options* eviction, const stateport_reuse_hint* hints) {
  stateport_slot_allocator* allocator = make_allocator(eviction);
  int32_t blocks[prompts];
  for (int32_t prompt = 0; prompt < prompts; ++prompt) {
    blocks[prompt] = store_state(allocator, prompt);
    note_served(allocator, prompt, 10 * prompt, &hints[prompt]);
    CHECK_OK(stateport_slot_allocator_release_blocks(allocator, &blocks[prompt], 1));
    CHECK_OK(stateport_slot_allocator_advance_tick(allocator));
  }
  return take_from_allocator(allocator, blocks);
}

typedef struct hinted {
  const char* what;
  int32_t victim;  ///< of hix
  stateport_reuse_hint hints[prompts];
} hinted;

static const hinted cases[] = {
    {"no hint", 0, {{0}}},
    {"a last turn", 1, {{0}, {.last_turn = 1}}},
    {"any number that is not 0", 1, {{0}, {.last_turn = -2}}},
    {"a pending tool call", 1, {{.tool_call_pending = 1}}},
    {"more likely", 1, {{.factor = 4}}},
    {"less likely", 1, {{0}, {.factor = 0.0625}}},
    {"factor 1, as is", 0, {{.factor = 1}}},
    {"idle for long", 2, {{0}, {0}, {.expected_idle_s = 1e5}}},
    {"a session that went on elsewhere", 1, {{0}, {.session = 7}, {.session = 7}}},
    {"sessions apart", 0, {{0}, {.session = 7}, {.session = 8}}},
};

static void test_hints_of(victim_of* victim) {
  const stateport_eviction_options hix = {.size = sizeof hix, .order = STATEPORT_EVICT_HIX};
  const stateport_eviction_options lru = {.size = sizeof lru, .order = STATEPORT_EVICT_LRU};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    stateport_reuse_hint hints[prompts];
    memcpy(hints, cases[i].hints, sizeof hints);
    for (int32_t prompt = 0; prompt < prompts; ++prompt) hints[prompt].size = sizeof *hints;
    check(victim(&hix, hints) == cases[i].victim, cases[i].what, __FILE__, __LINE__);
    check(victim(&lru, hints) == 0, "hints are nothing to lru", __FILE__, __LINE__);
  }
}

void test_hints(void) {
  test_hints_of(victim_of_tree);
  test_hints_of(victim_of_allocator);
}

void test_pasts(void) {
  const stateport_eviction_options hix = {.size = sizeof hix, .order = STATEPORT_EVICT_HIX};
  // The requests interleave: the one that was looked up first is kept last. With its past of the look-up it is the
  // oldest; else it counts as the newest.
  for (int reported = 0; reported < 2; ++reported) {
    stateport_tree* tree = make_tree(&hix);
    stateport_match hits[prompts];
    for (int32_t prompt = 0; prompt < prompts; ++prompt) {
      CHECK_OK(stateport_tree_set_time(tree, 100 * prompt));
      hits[prompt] = look_up(tree, prompt);
      CHECK(hits[prompt].past[1] != 0);
    }
    for (int32_t prompt = prompts; prompt-- > 0;) {
      CHECK_OK(stateport_tree_set_time(tree, 100 * (2 * prompts - prompt)));
      keep(tree, prompt, reported ? &hits[prompt] : NULL, NULL);
    }
    CHECK(take_from_tree(tree) == (reported ? 0 : prompts - 1));
  }

  // No other policy has a past to tell.
  const stateport_eviction_options gdsf = {.size = sizeof gdsf, .order = STATEPORT_EVICT_GDSF};
  stateport_tree* tree = make_tree(&gdsf);
  const stateport_match hit = look_up(tree, 0);
  CHECK(hit.past[0] == 0 && hit.past[1] == 0);
  CHECK_OK(stateport_tree_destroy(tree));
}

void test_served_prompts(void) {
  const stateport_eviction_options hix = {.size = sizeof hix, .order = STATEPORT_EVICT_HIX};
  const stateport_eviction_options gdsf = {.size = sizeof gdsf, .order = STATEPORT_EVICT_GDSF};
  // A state that no request has reported is evicted first, whatever its age.
  for (int32_t untold = 0; untold < prompts; ++untold) {
    for (int gdsf_too = 0; gdsf_too < 2; ++gdsf_too) {
      stateport_slot_allocator* allocator = make_allocator(gdsf_too ? &gdsf : &hix);
      int32_t blocks[prompts];
      for (int32_t prompt = 0; prompt < prompts; ++prompt) {
        blocks[prompt] = store_state(allocator, prompt);
        if (prompt != untold) note_served(allocator, prompt, prompt, NULL);
        CHECK_OK(stateport_slot_allocator_release_blocks(allocator, &blocks[prompt], 1));
        CHECK_OK(stateport_slot_allocator_advance_tick(allocator));
      }
      CHECK(take_from_allocator(allocator, blocks) == untold);
    }
  }
}

/// Of orders that the caller tells nothing.
void test_orders(void) {
  const stateport_reuse_hint hints[prompts] = {
      {.size = sizeof *hints}, {.size = sizeof *hints}, {.size = sizeof *hints}};
  const struct {
    int32_t order;
    int32_t victim;
  } wanted[] = {
      {STATEPORT_EVICT_LRU, 0}, {STATEPORT_EVICT_FIFO, 0}, {STATEPORT_EVICT_FILO, 2}, {STATEPORT_EVICT_SLRU, 0}};
  for (size_t i = 0; i < sizeof wanted / sizeof *wanted; ++i) {
    const stateport_eviction_options options = {.size = sizeof options, .order = wanted[i].order};
    check(victim_of_allocator(&options, hints) == wanted[i].victim, "an order", __FILE__, __LINE__);
  }
  CHECK(victim_of_allocator(NULL, hints) == 0);
}
