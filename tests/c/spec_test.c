// SPDX-License-Identifier: Apache-2.0
#include "check.h"

void test_specs(void) {
  size_t models = 0;
  while (stateport_model_name(models) != NULL) {
    stateport_spec* spec = NULL;
    CHECK_OK(stateport_spec_find(stateport_model_name(models), NULL, &spec));
    CHECK_OK(stateport_spec_destroy(spec));
    ++models;
  }
  CHECK(models > 10);

  const stateport_spec_options options = {
      .size = sizeof options, .drafts = 3, .conv_layout = STATEPORT_DS, .recurrent_type = STATEPORT_BF16};
  stateport_spec* spec = NULL;
  CHECK_OK(stateport_spec_find("Qwen3-Next-80B-A3B", &options, &spec));
  stateport_spec_info info = {.size = sizeof info};
  CHECK_OK(stateport_spec_describe(spec, &info));
  CHECK(info.tensors == 72 && info.size == sizeof info);
  stateport_tensor_spec tensor = {.size = sizeof tensor};
  CHECK_OK(stateport_spec_tensor(spec, 0, &tensor));
  CHECK(tensor.kind == STATEPORT_CONV && tensor.conv_layout == STATEPORT_DS && tensor.shape[0] == 3 + 3);
  CHECK_OK(stateport_spec_tensor(spec, 1, &tensor));
  CHECK(tensor.kind == STATEPORT_RECURRENT && tensor.type == STATEPORT_BF16);
  CHECK_REFUSED(stateport_spec_tensor(spec, 72, &tensor), STATEPORT_INVALID_ARGUMENT, "index = 72");
  CHECK_OK(stateport_spec_destroy(spec));

  CHECK_REFUSED(stateport_spec_find("gpt-2", NULL, &spec), STATEPORT_INVALID_ARGUMENT, "gpt-2");
  CHECK_REFUSED(stateport_spec_find(NULL, NULL, &spec), STATEPORT_INVALID_ARGUMENT, "model = null");
  CHECK_REFUSED(stateport_spec_find("gpt-2", NULL, NULL), STATEPORT_INVALID_ARGUMENT, "out = null");
  stateport_spec_options wrong = options;
  wrong.drafts = -1;
  CHECK_REFUSED(stateport_spec_find("qwen3-next-80b-a3b", &wrong, &spec), STATEPORT_INVALID_ARGUMENT, "drafts");
  wrong = options;
  wrong.recurrent_type = 8;
  CHECK_REFUSED(stateport_spec_find("qwen3-next-80b-a3b", &wrong, &spec), STATEPORT_INVALID_ARGUMENT, "type");

  stateport_spec* own = small_spec();
  stateport_spec* checkpoint = NULL;
  CHECK_OK(stateport_spec_quantised(own, STATEPORT_INT8_BLOCK32, &checkpoint));
  CHECK_OK(stateport_spec_describe(own, &info));
  const uint64_t live_fingerprint = info.fingerprint;
  CHECK_OK(stateport_spec_describe(checkpoint, &info));
  CHECK(info.tensors == small_tensors && info.fingerprint != live_fingerprint);
  CHECK(info.slot_bytes < (uint64_t)2 * (conv_window * conv_dim * 2 + recurrent_elements * 4));
  CHECK_OK(stateport_spec_tensor(checkpoint, 1, &tensor));
  CHECK(tensor.kind == STATEPORT_RECURRENT && tensor.type == STATEPORT_INT8_BLOCK32);
  CHECK_REFUSED(stateport_spec_quantised(own, STATEPORT_FP8, &checkpoint), STATEPORT_INVALID_ARGUMENT, "type = fp8");
  CHECK_REFUSED(stateport_spec_quantised(own, STATEPORT_BF16, NULL), STATEPORT_INVALID_ARGUMENT, "out = null");
  CHECK_REFUSED(stateport_spec_quantised(NULL, STATEPORT_BF16, &checkpoint), STATEPORT_INVALID_HANDLE, "live");
  CHECK_OK(stateport_spec_destroy(checkpoint));

  CHECK_OK(stateport_spec_describe(own, &info));
  CHECK(info.tensors == small_tensors && info.slot_bytes == 2 * (conv_window * conv_dim * 2 + recurrent_elements * 4));
  CHECK_OK(stateport_spec_destroy(own));
  tensor.type = STATEPORT_DEFAULT_TYPE;
  CHECK_REFUSED(stateport_spec_create(&tensor, 1, &own), STATEPORT_INVALID_ARGUMENT, "type");
  CHECK_REFUSED(stateport_spec_create(NULL, 0, &own), STATEPORT_INVALID_ARGUMENT, "tensors");
  CHECK_REFUSED(stateport_spec_create(NULL, 1, &own), STATEPORT_INVALID_ARGUMENT, "tensors = null");
}
