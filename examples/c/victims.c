// SPDX-License-Identifier: Apache-2.0
// A prefix tree from C that names the states which it is about to evict, and takes hints about prompts.
#include <stateport/c/core.h>

#include <stdio.h>
#include <stdlib.h>

static void expect(stateport_status status) {
  if (status == STATEPORT_OK) return;
  fprintf(stderr, "status %d: %s\n", (int)status, stateport_last_error());
  exit(1);
}

// docs: a victim
typedef struct engine {
  int32_t saved_states;
} engine;

static int32_t save(const stateport_victim* victim, void* context) {
  engine* const self = context;
  if (victim->slot == STATEPORT_NONE) return 0;  // KV alone
  // Here an engine enqueues stateport_copier_copy from victim->slot to a slot of a store on the host. The stream orders
  // the copy before everything that is written into the slot later.
  ++self->saved_states;
  return 0;  // 1: the slot stays the engine's until stateport_tree_release_slots
}
// docs end

/// Keeps a prefix of four tokens with the state at its end.
static void keep(stateport_tree* tree, int32_t first_token) {
  const int32_t tokens[] = {first_token, first_token + 1, first_token + 2, first_token + 3};
  const int32_t kv[] = {first_token, first_token + 1, first_token + 2, first_token + 3};
  int32_t slot = STATEPORT_NONE;
  expect(stateport_tree_allocate_slots(tree, &slot, 1));
  expect(stateport_tree_tag_slot(tree, slot, tokens, 4, NULL));  // once the state has been copied there
  // docs: a hint
  const stateport_reuse_hint hint = {.size = sizeof hint, .session = 42, .tool_call_pending = 1};
  const stateport_insert prefix = {
      .size = sizeof prefix, .tokens = tokens, .kv = kv, .count = 4, .slot = slot, .hint = &hint};
  // docs end
  stateport_insert_result kept = {.size = sizeof kept};
  expect(stateport_tree_insert(tree, &prefix, &kept));
}

int main(void) {
  engine self = {0};
  const stateport_tree_options options = {
      .size = sizeof options, .slots = 2, .on_victim = save, .on_victim_context = &self};
  stateport_tree* tree = NULL;
  expect(stateport_tree_create(&options, &tree));
  keep(tree, 100);
  keep(tree, 200);
  int64_t freed = 0;
  expect(stateport_tree_evict(tree, 0, 1, NULL, &freed));  // room for a third state
  keep(tree, 300);
  expect(stateport_tree_destroy(tree));
  printf("%d states were named before they were evicted\n", (int)self.saved_states);
  return self.saved_states == 1 && freed == 1 ? 0 : 1;
}
