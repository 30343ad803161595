// SPDX-License-Identifier: Apache-2.0
// Options of a request cache of each index and each layout.
#ifndef STATEPORT_TESTS_C_COMBINATION_H
#define STATEPORT_TESTS_C_COMBINATION_H

#include <stateport.h>

#include <stdbool.h>

/// An index and a layout of a request cache.
enum { hash_slots, tree_slots, hash_columns, tree_columns, combinations };

static inline bool in_columns(int32_t combination) {
  return combination >= hash_columns;
}

/// Options with the layouts that they can point to.
typedef struct cache_setup {
  stateport_request_cache_options options;
  stateport_slot_layout slots;
  stateport_column_layout columns;
} cache_setup;

/// Sets the index, and points to the layout of this combination. Leaves the other members of `self` as they are.
static inline void set_combination(cache_setup* self, int32_t combination) {
  self->options.size = sizeof self->options;
  self->options.index = combination % 2 == 0 ? STATEPORT_INDEX_HASH : STATEPORT_INDEX_TREE;
  self->slots.size = sizeof self->slots;
  self->columns.size = sizeof self->columns;
  self->options.slots = in_columns(combination) ? NULL : &self->slots;
  self->options.columns = in_columns(combination) ? &self->columns : NULL;
}

#endif
