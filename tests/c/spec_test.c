// SPDX-License-Identifier: Apache-2.0
#include "check.h"

#include <string.h>

static const char config[] =
    "{\"model_type\": \"lfm2\", \"hidden_size\": 64, \"num_attention_heads\": 2, \"conv_L_cache\": 3,"
    " \"num_hidden_layers\": 3, \"layer_types\": [\"conv\", \"full_attention\", \"conv\"]}";

static void check_model(const stateport_model_info* model, const char* kind, int32_t layers, int32_t state_layers,
                        uint64_t kv_bytes_per_token) {
  CHECK(strcmp(model->kind, kind) == 0 && model->layers == layers && model->state_layers == state_layers);
  CHECK(model->kv_bytes_per_token == kv_bytes_per_token && model->size == sizeof *model);
}

static void test_models(void) {
  stateport_model_info model = {.size = sizeof model};
  CHECK_OK(stateport_model_describe("Qwen3-Next-80B-A3B", &model));
  check_model(&model, "gdn", 48, 36, 24576);
  CHECK(strcmp(model.name, "qwen3-next-80b-a3b") == 0 && strncmp(model.status, "verified", 8) == 0);
  CHECK_OK(stateport_model_describe("glm-5.3-flash", &model));
  check_model(&model, "kda", 45, 34, 0);
  CHECK_OK(stateport_config_describe(config, sizeof config - 1, &model));
  check_model(&model, "short_conv", 3, 2, 2 * 2 * 32 * 2);
  CHECK(strcmp(model.name, "lfm2") == 0 && strcmp(model.status, "from its config.json") == 0);

  const stateport_spec_options options = {.size = sizeof options, .drafts = 1, .conv_layout = STATEPORT_DS};
  stateport_spec* spec = NULL;
  stateport_model_layout* layout = NULL;
  stateport_tensor_spec tensor = {.size = sizeof tensor};
  stateport_spec_info info = {.size = sizeof info};
  CHECK_OK(stateport_spec_from_config(config, sizeof config - 1, &options, &spec));
  CHECK_OK(stateport_spec_describe(spec, &info));
  CHECK_OK(stateport_spec_tensor(spec, 1, &tensor));
  CHECK(info.tensors == 2 && tensor.shape[0] == 3 && tensor.shape[1] == 64 && tensor.conv_layout == STATEPORT_DS);
  CHECK_OK(stateport_spec_destroy(spec));
  CHECK_OK(stateport_model_layout_from_config(config, sizeof config - 1, NULL, &layout));
  const stateport_shard half = {.layer_end = 2, .head_group = 1, .head_groups = 2};
  CHECK_OK(stateport_model_layout_spec(layout, &half, &spec));
  CHECK_OK(stateport_spec_tensor(spec, 0, &tensor));
  CHECK(tensor.shape[0] == 2 && tensor.shape[1] == 32);
  CHECK_OK(stateport_spec_destroy(spec));
  CHECK_OK(stateport_model_layout_destroy(layout));

  CHECK_REFUSED(stateport_model_describe("gpt-2", &model), STATEPORT_INVALID_ARGUMENT, "gpt-2");
  CHECK_REFUSED(stateport_model_describe(NULL, &model), STATEPORT_INVALID_ARGUMENT, "model = null");
  CHECK_REFUSED(stateport_model_describe("gpt-2", NULL), STATEPORT_INVALID_ARGUMENT, "out = null");
  CHECK_REFUSED(stateport_config_describe(NULL, 3, &model), STATEPORT_INVALID_ARGUMENT, "config = null");
  CHECK_REFUSED(stateport_config_describe(NULL, 0, &model), STATEPORT_INVALID_ARGUMENT, "config = byte 1");
  CHECK_REFUSED(stateport_config_describe(config, sizeof config - 1, NULL), STATEPORT_INVALID_ARGUMENT, "out = null");
  CHECK_REFUSED(stateport_config_describe(config, sizeof config - 2, &model), STATEPORT_INVALID_ARGUMENT,
                "config = byte");
  CHECK_REFUSED(stateport_spec_from_config(config, sizeof config, NULL, &spec), STATEPORT_INVALID_ARGUMENT,
                "config = byte");
  CHECK_REFUSED(stateport_spec_from_config("{}", 2, NULL, &spec), STATEPORT_INVALID_ARGUMENT, "model_type = absent");
  CHECK_REFUSED(stateport_spec_from_config("{}", 2, NULL, NULL), STATEPORT_INVALID_ARGUMENT, "out = null");
  CHECK_REFUSED(stateport_model_layout_from_config("{}", 2, NULL, &layout), STATEPORT_INVALID_ARGUMENT,
                "model_type = absent");
}

void test_specs(void) {
  test_models();
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
