// SPDX-License-Identifier: Apache-2.0
#include "check.h"

#include <stdio.h>
#include <string.h>

int check_failures = 0;

void check(bool ok, const char* what, const char* file, int line) {
  if (ok) return;
  ++check_failures;
  fprintf(stderr, "%s:%d: failed: %s\n", file, line, what);
}

void check_status(stateport_status status, stateport_status wanted, const char* text, const char* what,
                  const char* file, int line) {
  const bool right_text = text == NULL || strstr(stateport_last_error(), text) != NULL;
  if (status == wanted && right_text) return;
  ++check_failures;
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

stateport_slot_allocator_info describe_allocator(stateport_slot_allocator* allocator) {
  stateport_slot_allocator_info info = {.size = sizeof info};
  CHECK_OK(stateport_slot_allocator_describe(allocator, &info));
  CHECK_OK(stateport_slot_allocator_check(allocator));
  return info;
}
