// SPDX-License-Identifier: Apache-2.0
// Runs the C interface from C11: every function, and every kind of misuse that it promises to notice.
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "check.h"

static int failures = 0;

void check(bool ok, const char* what, const char* file, int line) {
  if (ok) return;
  ++failures;
  fprintf(stderr, "%s:%d: failed: %s\n", file, line, what);
}

void check_status(stateport_status status, stateport_status wanted, const char* text, const char* what,
                  const char* file, int line) {
  const bool right_text = text == NULL || strstr(stateport_last_error(), text) != NULL;
  if (status == wanted && right_text) return;
  ++failures;
  fprintf(stderr, "%s:%d: failed: %s: status %d, wanted %d; last error: %s\n", file, line, what, (int)status,
          (int)wanted, stateport_last_error());
}

stateport_spec* small_spec(void) {
  stateport_tensor_spec tensors[small_tensors];
  memset(tensors, 0, sizeof tensors);
  for (int i = 0; i < small_tensors; ++i) {
    const bool conv = i % 2 == 0;
    tensors[i].size = sizeof tensors[i];
    tensors[i].layer = i / 2;
    tensors[i].kind = conv ? STATEPORT_CONV : STATEPORT_RECURRENT;
    tensors[i].type = conv ? STATEPORT_BF16 : STATEPORT_FP32;
    tensors[i].shape[0] = conv ? conv_window : recurrent_elements / 8;
    tensors[i].shape[1] = conv ? conv_dim : 8;
    tensors[i].shape[2] = 1;
  }
  stateport_spec* spec = NULL;
  CHECK_OK(stateport_spec_create(tensors, small_tensors, &spec));
  return spec;
}

size_t tensor_bytes(size_t tensor) {
  return tensor % 2 == 0 ? (size_t)conv_window * conv_dim * 2 : (size_t)recurrent_elements * 4;
}

static char* slot_address(stateport_store* store, size_t tensor, int32_t slot) {
  stateport_tensor_memory memory = {.size = sizeof memory};
  CHECK_OK(stateport_store_tensor(store, tensor, &memory));
  return (char*)memory.base + slot * memory.slot_stride_bytes;
}

void read_slot(stateport_store* store, size_t tensor, int32_t slot, void* to, size_t bytes) {
  CHECK_OK(stateport_copy_bytes(NULL, to, slot_address(store, tensor, slot), bytes));
  CHECK_OK(stateport_stream_synchronize(NULL));
}

void write_slot(stateport_store* store, size_t tensor, int32_t slot, const void* from, size_t bytes) {
  CHECK_OK(stateport_copy_bytes(NULL, slot_address(store, tensor, slot), from, bytes));
  CHECK_OK(stateport_stream_synchronize(NULL));
}

enum { slot_bytes_max = recurrent_elements * 4 };

static void pattern(unsigned char* bytes, size_t tensor, unsigned seed) {
  for (size_t i = 0; i < tensor_bytes(tensor); ++i) bytes[i] = (unsigned char)(seed * 31u + tensor * 7u + i);
}

void fill_slot(stateport_store* store, int32_t slot, unsigned seed) {
  unsigned char bytes[slot_bytes_max];
  for (size_t tensor = 0; tensor < small_tensors; ++tensor) {
    pattern(bytes, tensor, seed);
    write_slot(store, tensor, slot, bytes, tensor_bytes(tensor));
  }
}

bool slot_holds(stateport_store* store, int32_t slot, unsigned seed) {
  unsigned char wanted[slot_bytes_max];
  unsigned char found[slot_bytes_max];
  for (size_t tensor = 0; tensor < small_tensors; ++tensor) {
    pattern(wanted, tensor, seed);
    read_slot(store, tensor, slot, found, tensor_bytes(tensor));
    if (memcmp(found, wanted, tensor_bytes(tensor)) != 0) return false;
  }
  return true;
}

device_bytes to_device(const void* from, size_t bytes) {
  const stateport_tensor_spec tensor = {
      .size = sizeof tensor, .kind = STATEPORT_RECURRENT, .type = STATEPORT_INT8, .shape = {(int64_t)bytes, 1, 1}};
  const stateport_store_options options = {.size = sizeof options, .slots = 1};
  stateport_spec* spec = NULL;
  device_bytes result = {NULL, NULL};
  CHECK_OK(stateport_spec_create(&tensor, 1, &spec));
  CHECK_OK(stateport_store_create(spec, &options, NULL, &result.store));
  CHECK_OK(stateport_spec_destroy(spec));
  result.data = slot_address(result.store, 0, 0);
  write_slot(result.store, 0, 0, from, bytes);
  return result;
}

int main(void) {
  CHECK(strcmp(stateport_last_error(), "") == 0);
  CHECK_REFUSED(stateport_stream_synchronize(NULL), STATEPORT_BACKEND_ERROR, "Runtime");
  stateport_runtime* runtime = NULL;
  const stateport_status started = stateport_runtime_create(NULL, &runtime);
  if (started == STATEPORT_BACKEND_ERROR && strstr(stateport_last_error(), "no device found") != NULL) {
    printf("skipped: %s\n", stateport_last_error());
    return 77;
  }
  CHECK_OK(started);
  const stateport_runtime_options nowhere = {.size = sizeof nowhere, .device_id = 1000};
  stateport_runtime* second = NULL;
  CHECK_REFUSED(stateport_runtime_create(&nowhere, &second), STATEPORT_INVALID_ARGUMENT, "device_id = 1000");
  CHECK_OK(stateport_runtime_create(NULL, &second));
  CHECK_OK(stateport_runtime_destroy(second));

  test_specs();
  test_stores();
  test_copiers();
  test_scratch_and_device_plans();
  test_block_hashes();
  test_slot_allocator();
  test_slot_allocator_refusals();
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
  test_hints();
  test_pasts();
  test_served_prompts();
  test_orders();
  test_eviction_refusals();
  test_align();
  test_align_refusals();
  test_align_planner();
  test_align_retention();
  test_align_planner_refusals();
  test_handles();
  test_struct_sizes();
  test_threads();

  CHECK_OK(stateport_stream_forget(NULL));
  CHECK_OK(stateport_runtime_destroy(runtime));
  printf("stateport %s for %s, from C: %s\n", stateport_version(), stateport_backend(),
         failures == 0 ? "all checks passed" : "FAILED");
  return failures == 0 ? 0 : 1;
}
