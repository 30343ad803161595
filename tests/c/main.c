// SPDX-License-Identifier: Apache-2.0
// Runs the part of the C interface that needs a device, from C11: every function, and every kind of misuse that it
// promises to notice.
#include "device.h"

#include <stdio.h>
#include <string.h>

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

  test_stores();
  test_copiers();
  test_scratch_and_device_plans();
  test_layer_ranges();
  test_strides();
#ifdef STATEPORT_TEST_MEMORY
  test_state_tiers_without_memory();
  test_remote_store_without_memory();
#else
  test_state_tiers();
  test_images();
  test_file_limits();
  test_scrubbed_files();
  test_remote_store();
#endif
  test_file_tier();
  test_file_tier_refusals();
  test_remote_store_refusals();
  test_resharders();
#ifndef STATEPORT_TEST_MEMORY
  test_remote_tiers();
#endif
  test_handovers();
  test_step_committer();
  test_integrity();
  test_elastic_memory();
  test_elastic_refusals();
#ifndef STATEPORT_TEST_MEMORY
  test_state_tiers_refusals();
  test_align();
  test_align_refusals();
#else
  CHECK(memory_failures > 1000 / memory_calls_apart);
  printf("memory ran out %lld times, ", (long long)memory_failures);
#endif
  CHECK_OK(stateport_stream_forget(NULL));
  CHECK_OK(stateport_runtime_destroy(runtime));
  printf("stateport %s for %s, from C: %s\n", stateport_version(), stateport_backend(),
         check_failures == 0 ? "all checks passed" : "FAILED");
  return check_failures == 0 ? 0 : 1;
}
