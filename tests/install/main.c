// SPDX-License-Identifier: Apache-2.0
// The same from C: make a pool of states for a model and copy one slot to another.
#include <stateport.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void expect(stateport_status status) {
  if (status == STATEPORT_OK) return;
  fprintf(stderr, "status %d: %s\n", (int)status, stateport_last_error());
  exit(1);
}

int main(void) {
  stateport_runtime* runtime = NULL;
  stateport_spec* spec = NULL;
  stateport_store* states = NULL;
  const stateport_store_options options = {.size = sizeof options, .slots = 4};
  expect(stateport_runtime_create(NULL, &runtime));
  expect(stateport_spec_find("qwen3-next-80b-a3b", NULL, &spec));
  expect(stateport_store_create(spec, &options, NULL, &states));

  char written[64] = "the state of slot 0";
  char read[sizeof written] = "";
  stateport_tensor_memory tensor = {.size = sizeof tensor};
  expect(stateport_store_tensor(states, 0, &tensor));
  expect(stateport_copy_bytes(NULL, tensor.base, written, sizeof written));
  const stateport_slot_copy restore = {.src_slot = 0, .dst_slot = 3, .recurrent_src_slot = 0};
  expect(stateport_store_copy(states, NULL, &restore, 1));  // one launch: all layers, all tensors
  expect(stateport_copy_bytes(NULL, read, (char*)tensor.base + 3 * tensor.slot_stride_bytes, sizeof read));
  expect(stateport_stream_synchronize(NULL));

  const int differs = memcmp(read, written, sizeof read);
  printf("C, stateport %s for %s: the copy %s\n", stateport_version(), stateport_backend(),
         differs ? "DIFFERS" : "is equal");
  expect(stateport_store_destroy(states));
  expect(stateport_spec_destroy(spec));
  expect(stateport_runtime_destroy(runtime));
  return differs ? 1 : 0;
}
