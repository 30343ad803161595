// SPDX-License-Identifier: Apache-2.0
// The states after chosen draft steps move from the engine's scratch memory to live slots and to checkpoints.
#include "device.h"

#include <string.h>

enum {
  requests = 2,
  steps = 3,
  strip_tokens = conv_window + steps - 1,
  slots = 4,
  conv_bytes = conv_window * conv_dim * 2,
  token_bytes = conv_dim * 2,
  strip_bytes = strip_tokens * token_bytes,
  recurrent_bytes = recurrent_elements * 4
};

/// Scratch memory of the small model's tensors, on the host and on the device: strips of conv inputs, [time][channel],
/// and one recurrent state after each step.
typedef struct scratch_memory {
  unsigned char host[small_tensors][requests * steps * recurrent_bytes];
  device_bytes device[small_tensors];
  stateport_step_scratch description[small_tensors];
} scratch_memory;

static size_t request_bytes(size_t tensor) {
  return tensor % 2 == 0 ? strip_bytes : steps * recurrent_bytes;
}
static size_t step_bytes(size_t tensor) {
  return tensor % 2 == 0 ? token_bytes : recurrent_bytes;
}

static void make_scratch(scratch_memory* scratch) {
  memset(scratch, 0, sizeof *scratch);
  for (size_t tensor = 0; tensor < small_tensors; ++tensor) {
    const size_t bytes = requests * request_bytes(tensor);
    for (size_t i = 0; i < bytes; ++i) scratch->host[tensor][i] = (unsigned char)(i * 7 + tensor * 13 + i / 251);
    scratch->device[tensor] = to_device(scratch->host[tensor], bytes);
    scratch->description[tensor] = (stateport_step_scratch){.size = sizeof(stateport_step_scratch),
                                                            .base = scratch->device[tensor].data,
                                                            .request_stride_bytes = (int64_t)request_bytes(tensor),
                                                            .step_stride_bytes = (int64_t)step_bytes(tensor),
                                                            .token_stride = tensor % 2 == 0 ? conv_dim : 0,
                                                            .channel_stride = tensor % 2 == 0 ? 1 : 0,
                                                            .type = tensor % 2 == 0 ? STATEPORT_BF16 : STATEPORT_FP32};
  }
}

/// Whether a slot holds the state of `request` after `step`.
static bool slot_holds_step(stateport_store* store, int32_t slot, const scratch_memory* scratch, size_t request,
                            size_t step) {
  unsigned char found[recurrent_bytes];
  for (size_t tensor = 0; tensor < small_tensors; ++tensor) {
    read_slot(store, tensor, slot, found, tensor_bytes(tensor));
    const unsigned char* const wanted =
        scratch->host[tensor] + request * request_bytes(tensor) + step * step_bytes(tensor);
    if (memcmp(found, wanted, tensor_bytes(tensor)) != 0) return false;
  }
  return true;
}

static void test_commit(stateport_step_committer* committer, stateport_store* store, const scratch_memory* scratch) {
  // Rows of the batch: last_step, live_slot, track_step, track_slot.
  const int32_t rows[4][requests] = {{2, 0}, {1, 0}, {1, -1}, {3, 2}};
  const device_bytes device = to_device(rows, sizeof rows);
  const int32_t* const at = device.data;
  stateport_step_targets targets = {.size = sizeof targets,
                                    .last_step = at,
                                    .live_slot = at + requests,
                                    .track_step = at + 2 * requests,
                                    .track_slot = at + 3 * requests,
                                    .rows = requests};
  fill_slot(store, 2, 9);
  CHECK_OK(stateport_step_committer_commit(committer, NULL, &targets));
  CHECK(slot_holds_step(store, 1, scratch, 0, 2) && slot_holds_step(store, 0, scratch, 1, 0));
  CHECK(slot_holds_step(store, 3, scratch, 0, 1));
  CHECK(slot_holds(store, 2, 9));

  fill_slot(store, 3, 9);
  targets.track_step = NULL;
  CHECK_REFUSED(stateport_step_committer_commit(committer, NULL, &targets), STATEPORT_INVALID_ARGUMENT, "track");
  targets.track_slot = NULL;
  CHECK_OK(stateport_step_committer_commit(committer, NULL, &targets));
  CHECK(slot_holds(store, 3, 9));
  targets.rows = requests + 1;
  CHECK_REFUSED(stateport_step_committer_commit(committer, NULL, &targets), STATEPORT_INVALID_ARGUMENT, "rows = 3");
  targets.rows = requests;
  targets.live_slot = NULL;
  CHECK_REFUSED(stateport_step_committer_commit(committer, NULL, &targets), STATEPORT_INVALID_ARGUMENT, "live_slot");
  CHECK_REFUSED(stateport_step_committer_commit(committer, NULL, NULL), STATEPORT_INVALID_ARGUMENT, "targets = null");
  CHECK_OK(stateport_store_destroy(device.store));
}

static void test_refusals(stateport_store* store, const scratch_memory* good) {
  stateport_step_committer* none = NULL;
  stateport_step_scratch scratch[small_tensors];
  memcpy(scratch, good->description, sizeof scratch);
  CHECK_REFUSED(stateport_step_committer_create(scratch, 3, store, requests, steps, &none), STATEPORT_INVALID_ARGUMENT,
                "scratch = 3");
  CHECK_REFUSED(stateport_step_committer_create(NULL, 4, store, requests, steps, &none), STATEPORT_INVALID_ARGUMENT,
                "scratch = null");
  CHECK_REFUSED(stateport_step_committer_create(scratch, 4, store, 0, steps, &none), STATEPORT_INVALID_ARGUMENT,
                "requests = 0");
  CHECK_REFUSED(stateport_step_committer_create(scratch, 4, store, requests, 0, &none), STATEPORT_INVALID_ARGUMENT,
                "steps = 0");
  CHECK_REFUSED(stateport_step_committer_create(scratch, 4, NULL, requests, steps, &none), STATEPORT_INVALID_HANDLE,
                "destination = null");
  scratch[1].type = STATEPORT_INT8;
  CHECK_REFUSED(stateport_step_committer_create(scratch, 4, store, requests, steps, &none), STATEPORT_INVALID_ARGUMENT,
                "type");
  scratch[1].type = STATEPORT_DEFAULT_TYPE;
  CHECK_REFUSED(stateport_step_committer_create(scratch, 4, store, requests, steps, &none), STATEPORT_INVALID_ARGUMENT,
                "type");
  scratch[1] = good->description[1];
  scratch[0].channel_stride = 0;
  CHECK_REFUSED(stateport_step_committer_create(scratch, 4, store, requests, steps, &none), STATEPORT_INVALID_ARGUMENT,
                "channel_stride = 0");
  CHECK(none == NULL);
}

void test_step_committer(void) {
  stateport_spec* spec = small_spec();
  const stateport_store_options options = {.size = sizeof options, .slots = slots};
  stateport_store* store = NULL;
  CHECK_OK(stateport_store_create(spec, &options, NULL, &store));
  static scratch_memory scratch;
  make_scratch(&scratch);
  stateport_step_committer* committer = NULL;
  CHECK_OK(stateport_step_committer_create(scratch.description, small_tensors, store, requests, steps, &committer));
  test_commit(committer, store, &scratch);
  test_refusals(store, &scratch);
  CHECK_OK(stateport_step_committer_destroy(committer));
  CHECK_REFUSED(stateport_step_committer_commit(committer, NULL, NULL), STATEPORT_INVALID_HANDLE, "destroyed");
  for (size_t tensor = 0; tensor < small_tensors; ++tensor)
    CHECK_OK(stateport_store_destroy(scratch.device[tensor].store));
  CHECK_OK(stateport_store_destroy(store));
  CHECK_OK(stateport_spec_destroy(spec));
}
