// SPDX-License-Identifier: Apache-2.0
// The part of the C interface that needs no device: keep a prefix with its state, and find it again.
#include <stateport/c/core.h>

#include <stdio.h>
#include <stdlib.h>

static void expect(stateport_status status) {
  if (status == STATEPORT_OK) return;
  fprintf(stderr, "status %d: %s\n", (int)status, stateport_last_error());
  exit(1);
}

int main(void) {
  const int32_t tokens[] = {11, 12, 13, 14};
  const int32_t kv[] = {0, 1, 2, 3};
  const stateport_tree_options options = {.size = sizeof options, .slots = 2};
  stateport_tree* tree = NULL;
  int32_t slot = STATEPORT_NONE;
  expect(stateport_tree_create(&options, &tree));
  expect(stateport_tree_allocate_slots(tree, &slot, 1));
  expect(stateport_tree_tag_slot(tree, slot, tokens, 4, NULL));  // once the state was copied there
  const stateport_insert prefix = {.size = sizeof prefix, .tokens = tokens, .kv = kv, .count = 4, .slot = slot};
  stateport_insert_result kept = {.size = sizeof kept};
  expect(stateport_tree_insert(tree, &prefix, &kept));

  stateport_match hit = {.size = sizeof hit};
  expect(stateport_tree_match(tree, tokens, 4, NULL, NULL, &hit));
  expect(stateport_tree_destroy(tree));
  printf("stateport %s without a device, from C: %s\n", stateport_version(),
         hit.tokens == 4 && hit.slot == slot ? "found" : "LOST");
  return hit.tokens == 4 && hit.slot == slot ? 0 : 1;
}
