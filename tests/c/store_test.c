// SPDX-License-Identifier: Apache-2.0
#include "device.h"

#include <stdlib.h>
#include <string.h>

static void test_view(stateport_spec* spec, stateport_store* owned) {
  // A view of the owned store's memory sees the same states.
  stateport_tensor_memory memory[small_tensors];
  for (size_t i = 0; i < small_tensors; ++i) {
    memory[i].size = sizeof memory[i];
    CHECK_OK(stateport_store_tensor(owned, i, &memory[i]));
  }
  stateport_store* view = NULL;
  CHECK_OK(stateport_store_view(spec, memory, small_tensors, 4, &view));
  CHECK(slot_holds(view, 3, 1));
  const stateport_slot_copy copy = {3, 1, 0, 3};
  CHECK_OK(stateport_store_copy(view, NULL, &copy, 1));
  CHECK(slot_holds(owned, 1, 1));
  CHECK_OK(stateport_store_destroy(view));

  CHECK_REFUSED(stateport_store_view(spec, memory, 3, 4, &view), STATEPORT_INVALID_ARGUMENT, "count = 3");
  CHECK_REFUSED(stateport_store_view(spec, memory, small_tensors, 0, &view), STATEPORT_INVALID_ARGUMENT, "slots = 0");
  CHECK_REFUSED(stateport_store_view(spec, NULL, small_tensors, 4, &view), STATEPORT_INVALID_ARGUMENT, "null");
  memory[2].slot_stride_bytes = 1;
  CHECK_REFUSED(stateport_store_view(spec, memory, small_tensors, 4, &view), STATEPORT_INVALID_ARGUMENT, "stride");
  memory[2].slot_stride_bytes = INT64_MAX / 4;
  CHECK_REFUSED(stateport_store_view(spec, memory, small_tensors, 4, &view), STATEPORT_INVALID_ARGUMENT, "stride");
  memory[2].base = NULL;
  CHECK_REFUSED(stateport_store_view(spec, memory, small_tensors, 4, &view), STATEPORT_INVALID_ARGUMENT, "base");
}

/// Slots whose bytes together do not fit into 64 bits are more than memory has, not few.
static void test_more_than_memory_has(void) {
  const stateport_tensor_spec tensor = {
      .size = sizeof tensor, .kind = STATEPORT_RECURRENT, .type = STATEPORT_FP32, .shape = {INT64_C(1) << 38, 1, 1}};
  stateport_spec* spec = NULL;
  CHECK_OK(stateport_spec_create(&tensor, 1, &spec));
  for (int32_t layout = STATEPORT_LAYER_MAJOR; layout <= STATEPORT_SLOT_MAJOR; ++layout) {
    const stateport_store_options options = {.size = sizeof options, .slots = 1 << 24, .layout = layout};
    stateport_store* store = NULL;
    CHECK_REFUSED(stateport_store_create(spec, &options, NULL, &store), STATEPORT_INVALID_ARGUMENT,
                  "slots = 16777216 (take more than memory has)");
  }
  CHECK_OK(stateport_spec_destroy(spec));
}

void test_stores(void) {
  stateport_spec* spec = small_spec();
  const stateport_store_options options = {.size = sizeof options, .slots = 4, .layout = STATEPORT_SLOT_MAJOR};
  stateport_store* store = NULL;
  CHECK_OK(stateport_store_create(spec, &options, NULL, &store));
  fill_slot(store, 0, 1);
  fill_slot(store, 2, 2);
  const stateport_slot_copy copies[] = {{0, 3, 0, 0}, {2, 1, 0, 2}, {-1, -1, 0, -1}};
  CHECK_OK(stateport_store_copy(store, NULL, copies, 3));
  CHECK_OK(stateport_store_copy(store, NULL, NULL, 0));
  CHECK(slot_holds(store, 3, 1) && slot_holds(store, 1, 2));

  const int32_t cleared[] = {2, -1};
  CHECK_OK(stateport_store_clear(store, NULL, cleared, 2));
  unsigned char byte = 1;
  read_slot(store, 1, 2, &byte, 1);
  CHECK(byte == 0 && slot_holds(store, 3, 1));

  // The conv states of one slot and the recurrent states of another one.
  const stateport_slot_copy parts = {3, 0, 0, 1};
  CHECK_OK(stateport_store_copy(store, NULL, &parts, 1));
  for (size_t i = 0; i < small_tensors; ++i) CHECK(tensor_holds(store, 0, i, i % 2 == 0 ? 1 : 2));

  const stateport_slot_copy behind = {0, 4, 0, 0};
  CHECK_REFUSED(stateport_store_copy(store, NULL, &behind, 1), STATEPORT_INVALID_ARGUMENT, "4");
  const stateport_slot_copy chain[] = {{0, 1, 0, 0}, {1, 2, 0, 1}};
  CHECK_REFUSED(stateport_store_copy(store, NULL, chain, 2), STATEPORT_INVALID_ARGUMENT, "slot");
  CHECK_REFUSED(stateport_store_copy(store, NULL, NULL, 1), STATEPORT_INVALID_ARGUMENT, "copies = null");
  CHECK_REFUSED(stateport_store_copy(store, NULL, copies, SIZE_MAX), STATEPORT_INVALID_ARGUMENT, "copies");
  const int32_t out_of_range = 4;
  CHECK_REFUSED(stateport_store_clear(store, NULL, &out_of_range, 1), STATEPORT_INVALID_ARGUMENT, "slots = 4");
  CHECK(slot_holds(store, 3, 1) && slot_holds(store, 1, 2));
  stateport_tensor_memory memory = {.size = sizeof memory};
  CHECK_REFUSED(stateport_store_tensor(store, small_tensors, &memory), STATEPORT_INVALID_ARGUMENT, "index");
  if (strcmp(stateport_backend(), "OpenMP") == 0)
    CHECK_REFUSED(stateport_store_copy(store, &byte, copies, 3), STATEPORT_INVALID_ARGUMENT, "native");

  test_view(spec, store);
  CHECK_OK(stateport_store_destroy(store));
  stateport_store_options wrong = options;
  wrong.layout = 2;
  CHECK_REFUSED(stateport_store_create(spec, &wrong, NULL, &store), STATEPORT_INVALID_ARGUMENT, "layout = 2");
  wrong = options;
  wrong.slots = 0;
  CHECK_REFUSED(stateport_store_create(spec, &wrong, NULL, &store), STATEPORT_INVALID_ARGUMENT, "slots = 0");
  CHECK_REFUSED(stateport_store_create(spec, NULL, NULL, &store), STATEPORT_INVALID_ARGUMENT, "options = null");
  CHECK_OK(stateport_spec_destroy(spec));
  test_more_than_memory_has();
}

typedef struct {
  int allocations;
  int deallocations;
  bool exhausted;
} counting_allocator;

static void* counted_allocate(size_t bytes, size_t alignment, void* stream, void* context) {
  counting_allocator* const counts = context;
  (void)stream;
  if (counts->exhausted) return NULL;
  ++counts->allocations;
  return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}
static void counted_deallocate(void* memory, size_t bytes, size_t alignment, void* stream, void* context) {
  counting_allocator* const counts = context;
  (void)bytes, (void)alignment, (void)stream;
  ++counts->deallocations;
  free(memory);
}

static void test_engines_allocator(stateport_spec* spec) {
  counting_allocator counts = {0, 0, false};
  stateport_store_options options = {.size = sizeof options,
                                     .slots = 2,
                                     .allocate = counted_allocate,
                                     .deallocate = counted_deallocate,
                                     .context = &counts};
  stateport_store* store = NULL;
  CHECK_OK(stateport_store_create(spec, &options, NULL, &store));
  CHECK(counts.allocations == 1);
  CHECK_OK(stateport_store_destroy(store));
  CHECK(counts.deallocations == 1);
  counts.exhausted = true;
  CHECK_REFUSED(stateport_store_create(spec, &options, NULL, &store), STATEPORT_OUT_OF_MEMORY, "out of memory");
  options.deallocate = NULL;
  CHECK_REFUSED(stateport_store_create(spec, &options, NULL, &store), STATEPORT_INVALID_ARGUMENT, "deallocate");
}

void test_copiers(void) {
  stateport_spec* spec = small_spec();
  stateport_store_options options = {.size = sizeof options, .slots = 2};
  stateport_store* source = NULL;
  stateport_store* destination = NULL;
  CHECK_OK(stateport_store_create(spec, &options, NULL, &source));
  options.slots = 3;
  options.layout = STATEPORT_SLOT_MAJOR;
  CHECK_OK(stateport_store_create(spec, &options, NULL, &destination));
  stateport_copier* copier = NULL;
  CHECK_OK(stateport_copier_create(source, destination, &copier));
  fill_slot(source, 1, 9);
  fill_slot(destination, 0, 5);

  const stateport_slot_copy whole = {1, 2, 0, 1};
  CHECK_OK(stateport_copier_copy(copier, NULL, &whole, 1));
  CHECK(slot_holds(destination, 2, 9));

  // Tokens [1, 4) of the conv state move to [0, 3); the last token of the destination stays.
  const stateport_slot_copy shifted = {1, 0, 1, 1};
  CHECK_OK(stateport_copier_copy_shifted(copier, NULL, &shifted, 1));
  const size_t token_bytes = (size_t)conv_dim * 2;
  unsigned char from[conv_window * conv_dim * 2];
  unsigned char to[sizeof from];
  read_slot(source, 0, 1, from, sizeof from);
  read_slot(destination, 0, 0, to, sizeof to);
  CHECK(memcmp(to, from + token_bytes, 3 * token_bytes) == 0);
  fill_slot(destination, 2, 5);
  read_slot(destination, 0, 2, from, sizeof from);
  CHECK(memcmp(to + 3 * token_bytes, from + 3 * token_bytes, token_bytes) == 0);

  CHECK_REFUSED(stateport_copier_copy(copier, NULL, &shifted, 1), STATEPORT_INVALID_ARGUMENT, "conv_shift");
  const stateport_slot_copy too_far = {1, 0, conv_window, 1};
  CHECK_REFUSED(stateport_copier_copy_shifted(copier, NULL, &too_far, 1), STATEPORT_INVALID_ARGUMENT, "conv_shift");
  if (strcmp(stateport_backend(), "OpenMP") == 0) test_engines_allocator(spec);

  // The stores are destroyed first; the copier keeps their memory alive.
  CHECK_OK(stateport_store_destroy(source));
  CHECK_OK(stateport_store_destroy(destination));
  CHECK_OK(stateport_copier_copy(copier, NULL, &whole, 1));
  CHECK_REFUSED(stateport_copier_create(source, destination, &copier), STATEPORT_INVALID_HANDLE,
                "source = a handle that was destroyed");
  CHECK_OK(stateport_copier_destroy(copier));
  CHECK_OK(stateport_spec_destroy(spec));
}

/// States that a scan saved, packed, and a live state go into one store in one launch.
static void test_commit_scratch(stateport_spec* spec) {
  stateport_store_options options = {.size = sizeof options, .slots = 2};
  stateport_store* scratch = NULL;
  stateport_store* live = NULL;
  stateport_store* cache = NULL;
  CHECK_OK(stateport_store_create(spec, &options, NULL, &scratch));
  CHECK_OK(stateport_store_create(spec, &options, NULL, &live));
  options.slots = 4;
  CHECK_OK(stateport_store_create(spec, &options, NULL, &cache));
  stateport_copier* copier = NULL;
  CHECK_OK(stateport_copier_create_scratch(scratch, live, cache, &copier));
  fill_slot(scratch, 0, 1);
  fill_slot(scratch, 1, 2);
  fill_slot(live, 1, 3);
  const stateport_slot_copy saved[] = {{0, 3, 0, 0}, {1, 0, 0, 1}};
  stateport_slot_copy end = {1, 2, 0, 1};
  CHECK_OK(stateport_copier_commit_scratch(copier, NULL, saved, 2, &end, 1));
  CHECK(slot_holds(cache, 3, 1) && slot_holds(cache, 0, 2) && slot_holds(cache, 2, 3));
  CHECK_OK(stateport_copier_commit_scratch(copier, NULL, NULL, 0, NULL, 0));

  end.dst_slot = 3;
  CHECK_REFUSED(stateport_copier_commit_scratch(copier, NULL, saved, 2, &end, 1), STATEPORT_INVALID_ARGUMENT, "3");
  end = (stateport_slot_copy){2, 2, 0, 2};
  CHECK_REFUSED(stateport_copier_commit_scratch(copier, NULL, saved, 2, &end, 1), STATEPORT_INVALID_ARGUMENT, "2");
  CHECK_REFUSED(stateport_copier_commit_scratch(copier, NULL, NULL, 2, &end, 1), STATEPORT_INVALID_ARGUMENT,
                "intermediates = null");
  CHECK_REFUSED(stateport_copier_commit_scratch(copier, NULL, saved, 2, NULL, 1), STATEPORT_INVALID_ARGUMENT,
                "ends = null");
  stateport_copier* plain = NULL;
  CHECK_OK(stateport_copier_create(scratch, cache, &plain));
  CHECK_REFUSED(stateport_copier_commit_scratch(plain, NULL, saved, 2, NULL, 0), STATEPORT_INVALID_ARGUMENT,
                "sources = 1");
  CHECK_REFUSED(stateport_copier_create_scratch(scratch, NULL, cache, &plain), STATEPORT_INVALID_HANDLE, "live = null");
  CHECK(slot_holds(cache, 3, 1) && slot_holds(cache, 2, 3));
  CHECK_OK(stateport_copier_destroy(plain));
  CHECK_OK(stateport_store_destroy(scratch));
  CHECK_OK(stateport_store_destroy(live));
  CHECK_OK(stateport_copier_commit_scratch(copier, NULL, saved, 2, NULL, 0));
  CHECK_OK(stateport_copier_destroy(copier));
  CHECK_OK(stateport_store_destroy(cache));
}

/// A plan in device memory. Parts that name a slot out of range are skipped.
static void test_copy_on_device(stateport_spec* spec) {
  const stateport_store_options options = {.size = sizeof options, .slots = 3};
  stateport_store* source = NULL;
  stateport_store* destination = NULL;
  CHECK_OK(stateport_store_create(spec, &options, NULL, &source));
  CHECK_OK(stateport_store_create(spec, &options, NULL, &destination));
  stateport_copier* copier = NULL;
  CHECK_OK(stateport_copier_create(source, destination, &copier));
  fill_slot(source, 2, 4);
  fill_slot(destination, 0, 5);
  fill_slot(destination, 1, 6);
  const stateport_slot_copy copies[] = {{2, 0, 0, 2}, {3, 1, 0, 3}, {-1, -1, 0, -1}};
  const device_bytes plan = to_device(copies, sizeof copies);
  CHECK_OK(stateport_copier_copy_on_device(copier, NULL, plan.data, 3));
  CHECK(slot_holds(destination, 0, 4) && slot_holds(destination, 1, 6));
  CHECK_OK(stateport_copier_copy_on_device(copier, NULL, NULL, 0));
  CHECK_REFUSED(stateport_copier_copy_on_device(copier, NULL, NULL, 1), STATEPORT_INVALID_ARGUMENT, "copies = null");
  CHECK_REFUSED(stateport_copier_copy_on_device(copier, NULL, plan.data, -1), STATEPORT_INVALID_ARGUMENT, "count = -1");
  CHECK_OK(stateport_copier_destroy(copier));
  CHECK_OK(stateport_store_destroy(plan.store));
  CHECK_OK(stateport_store_destroy(source));
  CHECK_OK(stateport_store_destroy(destination));
}

void test_scratch_and_device_plans(void) {
  stateport_spec* spec = small_spec();
  test_commit_scratch(spec);
  test_copy_on_device(spec);
  CHECK_OK(stateport_spec_destroy(spec));
}
