// SPDX-License-Identifier: Apache-2.0
// Policies, hints and requests that cannot be.
#include "check.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

static stateport_tree* make_tree(const stateport_eviction_options* eviction) {
  const stateport_tree_options options = {.size = sizeof options, .slots = 1, .eviction_options = eviction};
  stateport_tree* tree = NULL;
  CHECK_OK(stateport_tree_create(&options, &tree));
  return tree;
}

static stateport_slot_allocator* make_allocator(const stateport_eviction_options* eviction) {
  const stateport_slot_allocator_options options = {
      .size = sizeof options, .blocks = 2, .slots = 1, .eviction = eviction};
  stateport_slot_allocator* allocator = NULL;
  CHECK_OK(stateport_slot_allocator_create(&options, &allocator));
  return allocator;
}

static void test_hint_refusals(void) {
  // Those that make nothing of a hint refuse it, too.
  const stateport_eviction_options lru = {.size = sizeof lru, .order = STATEPORT_EVICT_LRU};
  stateport_tree* tree = make_tree(&lru);
  stateport_slot_allocator* allocator = make_allocator(NULL);
  const int32_t tokens[4] = {1, 2, 3, 4};
  const int64_t hash = 5;
  stateport_reuse_hint hint = {.size = sizeof hint};
  const stateport_insert prefix = {
      .size = sizeof prefix, .tokens = tokens, .kv = tokens, .count = 4, .slot = STATEPORT_NONE, .hint = &hint};
  const stateport_served_prompt served = {.size = sizeof served, .hashes = &hash, .count = 1, .hint = &hint};
  stateport_insert_result kept = {.size = sizeof kept};
  const struct {
    size_t size;
    double factor;
    double expected_idle_s;
    const char* text;
  } wrong[] = {
      {sizeof hint, -1, 0, "hint.factor = -1"},
      {sizeof hint, NAN, 0, "hint.factor = "},
      {sizeof hint, 1, -0.5, "hint.expected_idle_s = -0.5"},
      {sizeof hint, 1, NAN, "hint.expected_idle_s = "},
      {0, 1, 0, "hint = 0 (its size"},
      {sizeof(size_t) - 1, 1, 0, "hint = 7 (its size"},
      {4097, 1, 0, "hint = 4097 (its size"},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    hint.size = wrong[i].size;
    hint.factor = wrong[i].factor;
    hint.expected_idle_s = wrong[i].expected_idle_s;
    CHECK_REFUSED(stateport_tree_insert(tree, &prefix, &kept), STATEPORT_INVALID_ARGUMENT, wrong[i].text);
    CHECK_REFUSED(stateport_slot_allocator_note_served(allocator, &served), STATEPORT_INVALID_ARGUMENT, wrong[i].text);
  }
  stateport_tree_sizes sizes = {.size = sizeof sizes};
  CHECK_OK(stateport_tree_describe(tree, &sizes));
  CHECK(sizes.evictable_tokens == 0);

  // An early caller's hint ends where its size says.
  hint.size = offsetof(stateport_reuse_hint, factor);
  CHECK_OK(stateport_tree_insert(tree, &prefix, &kept));
  CHECK_OK(stateport_slot_allocator_note_served(allocator, &served));
  CHECK_OK(stateport_tree_destroy(tree));
  CHECK_OK(stateport_slot_allocator_destroy(allocator));
}

static void test_insert_refusals(void) {
  stateport_tree* tree = make_tree(NULL);
  const int32_t tokens[4] = {1, 2, 3, 4};
  stateport_insert_result kept = {.size = sizeof kept};
  CHECK_OK(stateport_tree_set_time(tree, 5));
  stateport_match hit = {.size = sizeof hit};
  CHECK_OK(stateport_tree_match(tree, tokens, 4, NULL, NULL, &hit));
  stateport_insert prefix = {.size = sizeof prefix, .tokens = tokens, .kv = tokens, .count = 4, .slot = STATEPORT_NONE};
  const double times[] = {6, -1, INFINITY, NAN};
  for (size_t i = 0; i < sizeof times / sizeof *times; ++i) {
    memcpy(&prefix.past[0], &times[i], sizeof *times);
    prefix.past[1] = hit.past[1];
    CHECK_REFUSED(stateport_tree_insert(tree, &prefix, &kept), STATEPORT_INVALID_ARGUMENT, "past.looked_up_s = ");
  }
  prefix.past[0] = hit.past[0];
  prefix.past[1] = 0;
  CHECK_REFUSED(stateport_tree_insert(tree, &prefix, &kept), STATEPORT_INVALID_ARGUMENT, "past[1] = 0");
  prefix.past[1] = hit.past[1] | UINT64_C(1) << 63;
  CHECK_REFUSED(stateport_tree_insert(tree, &prefix, &kept), STATEPORT_INVALID_ARGUMENT, "past[1] = ");
  prefix.past[1] = hit.past[1] | UINT64_C(1) << 31;
  CHECK_REFUSED(stateport_tree_insert(tree, &prefix, &kept), STATEPORT_INVALID_ARGUMENT, "past.known_blocks = -");
  prefix.past[1] = hit.past[1];
  prefix.request_tokens = -1;
  CHECK_REFUSED(stateport_tree_insert(tree, &prefix, &kept), STATEPORT_INVALID_ARGUMENT, "request_tokens = -1");
  prefix.request_tokens = INT64_MAX;
  CHECK_REFUSED(stateport_tree_insert(tree, &prefix, &kept), STATEPORT_INVALID_ARGUMENT, "request_tokens = ");
  stateport_tree_sizes sizes = {.size = sizeof sizes};
  CHECK_OK(stateport_tree_describe(tree, &sizes));
  CHECK(sizes.evictable_tokens == 0);
  prefix.request_tokens = 10;
  CHECK_OK(stateport_tree_insert(tree, &prefix, &kept));

  // A caller that was compiled when inserts ended before the past.
  memset(&prefix.past, 0xee, sizeof prefix - offsetof(stateport_insert, past));
  prefix.size = offsetof(stateport_insert, past);
  CHECK_OK(stateport_tree_insert(tree, &prefix, &kept));
  CHECK_REFUSED(stateport_tree_match_again(tree, NULL, 4, NULL, NULL, NULL), STATEPORT_INVALID_ARGUMENT,
                "tokens = null");
  CHECK_OK(stateport_tree_destroy(tree));
}

static void test_served_refusals(void) {
  const stateport_eviction_options hix = {.size = sizeof hix, .order = STATEPORT_EVICT_HIX};
  stateport_slot_allocator* allocator = make_allocator(&hix);
  const int64_t hash = 5;
  const stateport_served_prompt good = {.size = sizeof good, .now_s = 5, .hashes = &hash, .count = 1};
  CHECK_OK(stateport_slot_allocator_note_served(allocator, &good));
  stateport_served_prompt wrong[9];
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) wrong[i] = good;
  wrong[0].now_s = 4;
  wrong[1].now_s = INFINITY;
  wrong[2].now_s = NAN;
  wrong[3].usable_blocks = -1;
  wrong[4].matched_blocks = -2;
  wrong[5].hit_blocks = -3;
  wrong[6].hashes = NULL;
  wrong[7].count = SIZE_MAX;
  wrong[8].size = 3;
  const char* const texts[] = {
      "now_s = 4",       "now_s = inf",   "now_s = ",  "usable_blocks = -1",  "matched_blocks = -2",
      "hit_blocks = -3", "hashes = null", "hashes = ", "prompt = 3 (its size"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i)
    CHECK_REFUSED(stateport_slot_allocator_note_served(allocator, &wrong[i]), STATEPORT_INVALID_ARGUMENT, texts[i]);
  CHECK_REFUSED(stateport_slot_allocator_note_served(allocator, NULL), STATEPORT_INVALID_ARGUMENT, "prompt = null");
  CHECK_REFUSED(stateport_slot_allocator_note_served(NULL, &good), STATEPORT_INVALID_HANDLE, "allocator = null");
  CHECK_OK(stateport_slot_allocator_note_served(allocator, &good));  // the time is still 5
  CHECK_OK(stateport_slot_allocator_check(allocator));
  CHECK_OK(stateport_slot_allocator_destroy(allocator));
}

static void test_option_refusals(void) {
  stateport_eviction_options wrong[10];
  const stateport_eviction_options good = {.size = sizeof good, .order = STATEPORT_EVICT_GDSF};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) wrong[i] = good;
  wrong[0].order = 9;
  wrong[1].order = -1;
  wrong[2].samples = -2;
  wrong[3].state_bytes = -1;
  wrong[4].state_bytes = 1;  // and no kv_bytes_per_token
  wrong[5].benefit_linear = -1;
  wrong[6].benefit_quadratic = NAN;
  wrong[7].order = STATEPORT_EVICT_HIX;
  wrong[7].positions = UINT64_MAX;
  wrong[8].size = 5;
  wrong[9].benefit_linear = INFINITY;
  const char* const texts[] = {
      "order = 9",           "order = -1",           "samples = -2", "state_bytes = -1", "kv_bytes_per_token = 0",
      "benefit.linear = -1", "benefit.quadratic = ", "positions = ", " = 5 (its size",   "benefit.linear = inf"};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    const stateport_slot_allocator_options options = {.size = sizeof options, .blocks = 2, .eviction = &wrong[i]};
    const stateport_tree_options tree_options = {.size = sizeof tree_options, .eviction_options = &wrong[i]};
    stateport_slot_allocator* allocator = NULL;
    stateport_tree* tree = NULL;
    CHECK_REFUSED(stateport_slot_allocator_create(&options, &allocator), STATEPORT_INVALID_ARGUMENT, texts[i]);
    CHECK_REFUSED(stateport_tree_create(&tree_options, &tree), STATEPORT_INVALID_ARGUMENT, texts[i]);
    CHECK(allocator == NULL && tree == NULL);
  }
  // A directory does not tell of uses that make keys smaller.
  const stateport_eviction_options mru = {.size = sizeof mru, .order = STATEPORT_EVICT_MRU};
  stateport_slot_allocator_options options = {.size = sizeof options, .blocks = 2, .eviction = &mru};
  stateport_slot_allocator* allocator = NULL;
  CHECK_REFUSED(stateport_slot_allocator_create(&options, &allocator), STATEPORT_INVALID_ARGUMENT, "eviction = mru");
  const stateport_tree_options tree_options = {.size = sizeof tree_options, .position_tokens = -1};
  stateport_tree* tree = NULL;
  CHECK_REFUSED(stateport_tree_create(&tree_options, &tree), STATEPORT_INVALID_ARGUMENT, "position_tokens = -1");

  // The library does not read past the options of a caller that was compiled before policies existed.
  memset(&options.eviction, 0xee, sizeof options.eviction);
  options.size = offsetof(stateport_slot_allocator_options, eviction);
  CHECK_OK(stateport_slot_allocator_create(&options, &allocator));
  CHECK_OK(stateport_slot_allocator_destroy(allocator));
}

void test_eviction_refusals(void) {
  test_hint_refusals();
  test_insert_refusals();
  test_served_refusals();
  test_option_refusals();
}

// Members that earlier callers know keep their offsets.
_Static_assert(offsetof(stateport_insert, past) == 64 && offsetof(stateport_match, past) == 72 &&
                   offsetof(stateport_tree_options, eviction_options) == 72 &&
                   offsetof(stateport_slot_allocator_options, eviction) == 24,
               "members are only added behind the last one");
