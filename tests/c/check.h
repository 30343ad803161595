// SPDX-License-Identifier: Apache-2.0
// Shared by the tests of the C interface: checks that count, and a small model.
#ifndef STATEPORT_TESTS_C_CHECK_H
#define STATEPORT_TESTS_C_CHECK_H

#include <stateport/c/core.h>
#include <stateport/c/parts.h>

#include <stdbool.h>

extern int check_failures;

/// Prints and counts a failure unless `ok`.
void check(bool ok, const char* what, const char* file, int line);
/// A status other than the wanted one, or a last error without `text`, is a failure.
void check_status(stateport_status status, stateport_status wanted, const char* text, const char* what,
                  const char* file, int line);

#ifdef STATEPORT_TEST_MEMORY
/// Makes the call with its first allocation failing, then with its second, and so on, as long as it answers that memory
/// has run out. If a failed call has changed anything, the checks after it fail.
#define ANSWER(status, call)   \
  do {                         \
    fail_no_allocation();      \
    do {                       \
      fail_allocation();       \
      (status) = (call);       \
    } while (ran_out(status)); \
  } while (0)
void fail_no_allocation(void);
/// The first one after fail_no_allocation(), then the second one …
void fail_allocation(void);
/// No allocation fails any more. Returns whether one did and the call answered so.
bool ran_out(stateport_status status);
/// Allocations that were made to fail so far.
extern int64_t memory_failures;
/// 1: in every call, 2: in every other one, at random …
extern int32_t memory_calls_apart;
#else
#define ANSWER(status, call) ((status) = (call))
#endif

/// Without such failures: of a call that does a part of its work when memory runs out.
#define CHECK_ONCE(call, wanted, text) check_status((call), (wanted), (text), #call, __FILE__, __LINE__)

#define CHECK(condition) check((condition), #condition, __FILE__, __LINE__)
#define CHECK_OK(call) CHECK_REFUSED(call, STATEPORT_OK, NULL)
/// stateport_last_error() contains `text`.
#define CHECK_REFUSED(call, wanted, text)                               \
  do {                                                                  \
    stateport_status answer_;                                           \
    ANSWER(answer_, call);                                              \
    check_status(answer_, (wanted), (text), #call, __FILE__, __LINE__); \
  } while (0)

enum { conv_window = 4, conv_dim = 6, recurrent_elements = 40, small_tensors = 4 };

/// Two layers, each a conv [4, 6] in bf16 and a recurrent [5, 8] in fp32.
stateport_spec* small_spec(void);
/// Checks the allocator, too.
stateport_slot_allocator_info describe_allocator(stateport_slot_allocator* allocator);

void test_specs(void);
void test_block_hashes(void);
void test_hasher(void);
void test_hasher_refusals(void);
void test_slot_allocator(void);
void test_slot_allocator_refusals(void);
void test_external_blocks(void);
void test_external_block_refusals(void);
void test_checkpoints(void);
void test_checkpoint_refusals(void);
void test_tree(void);
void test_tree_refusals(void);
void test_tree_match_many(void);
void test_tree_match_many_again(void);
void test_tree_insert_many(void);
void test_tree_touch(void);
void test_tree_locks(void);
void test_tree_bytes(void);
void test_tree_victims(void);
void test_victims_of_trees(void);
void test_victims_of_allocators(void);
void test_hints(void);
void test_pasts(void);
void test_served_prompts(void);
void test_orders(void);
void test_eviction_refusals(void);
void test_align_planner(void);
void test_align_retention(void);
void test_align_planner_refusals(void);
void test_request_caches(void);
void test_decode_checkpoints(void);
void test_inserted_prefixes(void);
void test_insert_without_room(void);
void test_request_hints(void);
void test_request_placement(void);
void test_request_breakpoints(void);
void test_request_names(void);
void test_colliding_keys(void);
void test_request_cache_refusals(void);
void test_refused_plans(void);
void test_cache_tiers(void);
void test_cache_tiers_refusals(void);
void test_cache_epochs(void);
void test_cache_prefixes(void);
void test_cache_tenants(void);
void test_cache_waits(void);
void test_cache_forks(void);
void test_memory_arena(void);
void test_memory_arena_refusals(void);
void test_image_cache(void);
void test_image_cache_remote(void);
void test_image_cache_refusals(void);
void test_router_index(void);
void test_router_index_refusals(void);
void test_handles(void);
void test_struct_sizes(void);
void test_threads(void);

#endif
