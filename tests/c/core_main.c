// SPDX-License-Identifier: Apache-2.0
// Runs the part of the C interface that needs no device, from C11: every function, and every kind of misuse that it
// promises to notice. With STATEPORT_TEST_MEMORY each call is made with every one of its allocations failing: it
// answers STATEPORT_OUT_OF_MEMORY and has changed nothing.
#include "check.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  CHECK(strcmp(stateport_last_error(), "") == 0);
  test_specs();
  test_block_hashes();
  test_hasher();
  test_hasher_refusals();
  test_slot_allocator();
  test_slot_allocator_refusals();
  test_external_blocks();
  test_external_block_refusals();
  test_checkpoints();
  test_checkpoint_refusals();
  test_tree();
  test_tree_refusals();
  test_tree_match_many();
  test_tree_match_many_again();
  test_tree_insert_many();
  test_tree_touch();
  test_tree_locks();
  test_tree_bytes();
  test_tree_victims();
  test_victims_of_trees();
  test_victims_of_allocators();
  test_hints();
  test_pasts();
  test_served_prompts();
  test_orders();
  test_eviction_refusals();
  test_align_planner();
  test_align_retention();
  test_align_planner_refusals();
  test_request_caches();
  test_decode_checkpoints();
  test_inserted_prefixes();
  test_insert_without_room();
  test_request_hints();
  test_request_placement();
  test_request_breakpoints();
  test_request_names();
  test_colliding_keys();
  test_request_cache_refusals();
  test_refused_plans();
  test_cache_tiers();
  test_cache_tiers_refusals();
  test_cache_epochs();
  test_cache_prefixes();
  test_cache_tenants();
  test_cache_waits();
  test_cache_forks();
  test_memory_arena();
  test_memory_arena_refusals();
  test_image_cache();
  test_image_cache_remote();
  test_image_cache_refusals();
  test_router_index();
  test_router_index_refusals();
  test_handles();
  test_struct_sizes();
#ifdef STATEPORT_TEST_MEMORY
  CHECK(memory_failures > 1000 / memory_calls_apart);
  printf("memory ran out %lld times, ", (long long)memory_failures);
#else
  test_threads();
#endif

  printf("stateport %s without a device, from C: %s\n", stateport_version(),
         check_failures == 0 ? "all checks passed" : "FAILED");
  return check_failures == 0 ? 0 : 1;
}
