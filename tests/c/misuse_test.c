// SPDX-License-Identifier: Apache-2.0
// Handles, structs and threads used as they must not be.
#include "check.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>

static stateport_tree* make_tree(void) {
  const stateport_tree_options options = {.size = sizeof options, .slots = 4};
  stateport_tree* tree = NULL;
  CHECK_OK(stateport_tree_create(&options, &tree));
  return tree;
}

void test_handles(void) {
  stateport_tree* tree = make_tree();
  CHECK_REFUSED(stateport_tree_check(NULL), STATEPORT_INVALID_HANDLE, "tree = null (must be the handle of a tree)");
  stateport_spec_info info = {.size = sizeof info};
  CHECK_REFUSED(stateport_spec_describe((stateport_spec*)(void*)tree, &info), STATEPORT_INVALID_HANDLE,
                "spec = tree (must be the handle of a spec)");
  CHECK_REFUSED(stateport_spec_destroy((stateport_spec*)(void*)tree), STATEPORT_INVALID_HANDLE, "spec = tree");
  CHECK_OK(stateport_tree_check(tree));

  // Numbers that are no handle: an address, small ones, the handle with one bit more.
  int local = 0;
  CHECK_REFUSED(stateport_tree_check((stateport_tree*)(void*)&local), STATEPORT_INVALID_HANDLE, "no handle");
  const uintptr_t number = (uintptr_t)tree;
  for (int bit = 0; bit < 64; ++bit)
    CHECK(stateport_tree_check((stateport_tree*)(number ^ (uintptr_t)1 << bit)) == STATEPORT_INVALID_HANDLE);
  CHECK_REFUSED(stateport_tree_check((stateport_tree*)UINTPTR_MAX), STATEPORT_INVALID_HANDLE, "no handle");

  CHECK_OK(stateport_tree_destroy(tree));
  CHECK_OK(stateport_tree_destroy(NULL));
  CHECK_REFUSED(stateport_tree_destroy(tree), STATEPORT_INVALID_HANDLE, "destroyed");
  CHECK_REFUSED(stateport_tree_check(tree), STATEPORT_INVALID_HANDLE, "a handle that was destroyed");
  // The place is used again; the old handle stays dead.
  for (int i = 0; i < 100; ++i) {
    stateport_tree* next = make_tree();
    CHECK(next != tree);
    CHECK_REFUSED(stateport_tree_check(tree), STATEPORT_INVALID_HANDLE, "destroyed");
    CHECK_OK(stateport_tree_destroy(next));
  }

  // A lock may go after its tree.
  stateport_tree_lock* lock = NULL;
  tree = make_tree();
  CHECK_OK(stateport_tree_lock_node(tree, 0, &lock));
  CHECK_OK(stateport_tree_destroy(tree));
  CHECK_OK(stateport_tree_lock_destroy(lock));
}

void test_struct_sizes(void) {
  // A caller of a later version, with a member that this library does not know.
  struct {
    stateport_tree_options known;
    uint64_t later;
  } options = {.known = {.size = sizeof options, .slots = 2}};
  stateport_tree* tree = NULL;
  CHECK_OK(stateport_tree_create(&options.known, &tree));
  options.later = 1;
  stateport_tree* none = NULL;
  CHECK_REFUSED(stateport_tree_create(&options.known, &none), STATEPORT_INVALID_ARGUMENT, "does not know");
  CHECK(none == NULL);

  // Of an earlier one, which knew page_size and slots alone.
  stateport_tree_options early = {.size = offsetof(stateport_tree_options, chunk_size), .slots = 1};
  memset((char*)&early + early.size, 0xee, sizeof early - early.size);
  CHECK_OK(stateport_tree_create(&early, &none));
  CHECK_OK(stateport_tree_destroy(none));

  // Results fill the caller's struct, with zeros behind the members that the library knows.
  struct {
    stateport_tree_sizes known;
    uint64_t later;
  } sizes = {.known = {.size = sizeof sizes}, .later = 1};
  CHECK_OK(stateport_tree_describe(tree, &sizes.known));
  CHECK(sizes.known.free_slots == 2 && sizes.later == 0 && sizes.known.size == sizeof sizes);
  stateport_tree_sizes part = {.size = offsetof(stateport_tree_sizes, free_slots), .free_slots = -7};
  CHECK_OK(stateport_tree_describe(tree, &part));
  CHECK(part.free_slots == -7);

  const size_t wrong[] = {0, 1, sizeof(size_t) - 1, sizeof(size_t) + 4, 4097, 4104, SIZE_MAX};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
    options.known.size = wrong[i];
    CHECK_REFUSED(stateport_tree_create(&options.known, &none), STATEPORT_INVALID_ARGUMENT, "size");
    part.size = wrong[i];
    CHECK_REFUSED(stateport_tree_describe(tree, &part), STATEPORT_INVALID_ARGUMENT, "size");
  }
  CHECK_REFUSED(stateport_tree_create(NULL, &none), STATEPORT_INVALID_ARGUMENT, "options = null");
  CHECK_REFUSED(stateport_tree_describe(tree, NULL), STATEPORT_INVALID_ARGUMENT, "out = null");

  // The elements of an array have one size.
  stateport_tensor_spec tensors[2];
  memset(tensors, 0, sizeof tensors);
  tensors[0].size = sizeof *tensors;
  CHECK_REFUSED(stateport_spec_create(tensors, 2, (stateport_spec**)&none), STATEPORT_INVALID_ARGUMENT, "size");
  CHECK_OK(stateport_tree_destroy(tree));
}

typedef struct {
  stateport_tree* shared;  ///< ends while the threads use it
  int32_t first_token;
  bool ok;
} worker;

static void* work(void* argument) {
  worker* const self = argument;
  enum { rounds = 100, count = 4 };
  self->ok = true;
  for (int32_t round = 0; round < rounds; ++round) {
    int32_t tokens[count];
    int32_t kv[count];
    for (int32_t i = 0; i < count; ++i) tokens[i] = kv[i] = self->first_token + round * count + i;
    const stateport_insert prefix = {
        .size = sizeof prefix, .tokens = tokens, .kv = kv, .count = count, .slot = STATEPORT_NONE};
    stateport_insert_result kept = {.size = sizeof kept};
    const stateport_status status = stateport_tree_insert(self->shared, &prefix, &kept);
    const bool gone =
        status == STATEPORT_INVALID_HANDLE && strstr(stateport_last_error(), "that was destroyed") != NULL;
    self->ok = self->ok && (status == STATEPORT_OK || gone);

    // A mistake in another thread is not an error of this thread.
    stateport_tree* own = make_tree();
    int32_t slots[5];
    self->ok = self->ok && stateport_tree_allocate_slots(own, slots, 5) == STATEPORT_NO_CAPACITY &&
               strstr(stateport_last_error(), "required 5, available 4") != NULL &&
               stateport_tree_destroy(own) == STATEPORT_OK;
  }
  return NULL;
}

void test_threads(void) {
  enum { threads = 4 };
  pthread_t running[threads];
  worker workers[threads];
  stateport_tree* tree = make_tree();
  for (int i = 0; i < threads; ++i) {
    workers[i] = (worker){.shared = tree, .first_token = i * 100000, .ok = false};
    CHECK(pthread_create(&running[i], NULL, work, &workers[i]) == 0);
  }
  for (int i = 0; i < 50; ++i) CHECK_OK(stateport_tree_check(tree));
  CHECK_OK(stateport_tree_destroy(tree));
  CHECK_REFUSED(stateport_tree_check(NULL), STATEPORT_INVALID_HANDLE, "tree = null");
  for (int i = 0; i < threads; ++i) {
    CHECK(pthread_join(running[i], NULL) == 0);
    CHECK(workers[i].ok);
  }
  CHECK(strstr(stateport_last_error(), "tree = null") != NULL);
}
