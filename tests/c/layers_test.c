// SPDX-License-Identifier: Apache-2.0
// Copies of some layers, and strides of the engine's own.
#include "device.h"

#include <string.h>

/// Whether both tensors of a layer of the small model hold the bytes that fill_slot(…, seed) wrote.
static bool layer_holds(stateport_store* store, int32_t slot, size_t layer, unsigned seed) {
  return tensor_holds(store, slot, 2 * layer, seed) && tensor_holds(store, slot, 2 * layer + 1, seed);
}

static stateport_store* small_store(stateport_spec* spec, int32_t slots) {
  const stateport_store_options options = {.size = sizeof options, .slots = slots};
  stateport_store* store = NULL;
  CHECK_OK(stateport_store_create(spec, &options, NULL, &store));
  return store;
}

static void test_copies_of_layers(stateport_copier* copier, stateport_store* source, stateport_store* destination) {
  const stateport_slot_copy copy = {0, 1, 0, 0};
  fill_slot(source, 0, 1);
  fill_slot(destination, 1, 2);
  CHECK_OK(stateport_copier_copy_layers(copier, NULL, &copy, 1, 1, 1));
  CHECK(layer_holds(destination, 1, 0, 2) && layer_holds(destination, 1, 1, 2));
  CHECK_OK(stateport_copier_copy_layers(copier, NULL, &copy, 1, 0, 1));
  CHECK(layer_holds(destination, 1, 0, 1) && layer_holds(destination, 1, 1, 2));
  CHECK_OK(stateport_copier_copy_shifted_layers(copier, NULL, &copy, 1, 1, 2));
  CHECK(layer_holds(destination, 1, 0, 1) && layer_holds(destination, 1, 1, 1));

  const device_bytes plan = to_device(&copy, sizeof copy);
  fill_slot(destination, 1, 2);
  CHECK_OK(stateport_copier_copy_on_device_layers(copier, NULL, plan.data, 1, 1, 2));
  CHECK(layer_holds(destination, 1, 0, 2) && layer_holds(destination, 1, 1, 1));
  CHECK_REFUSED(stateport_copier_copy_on_device_layers(copier, NULL, plan.data, 1, 0, 3), STATEPORT_INVALID_ARGUMENT,
                "layers.end = 3");
  CHECK_OK(stateport_store_destroy(plan.store));

  CHECK_REFUSED(stateport_copier_copy_layers(copier, NULL, &copy, 1, -1, 1), STATEPORT_INVALID_ARGUMENT,
                "layers.begin = -1");
  CHECK_REFUSED(stateport_copier_copy_layers(copier, NULL, &copy, 1, 1, 0), STATEPORT_INVALID_ARGUMENT,
                "layers.end = 0");
  CHECK_REFUSED(stateport_copier_copy_shifted_layers(copier, NULL, &copy, 1, 0, 3), STATEPORT_INVALID_ARGUMENT,
                "layers.end = 3");
  CHECK_REFUSED(stateport_copier_copy_layers(copier, NULL, &copy, 1, 0, INT32_MAX), STATEPORT_INVALID_ARGUMENT,
                "layers.end = 2147483647");
  CHECK(layer_holds(destination, 1, 0, 2) && layer_holds(destination, 1, 1, 1));
}

static void test_scratch_of_layers(stateport_spec* spec, stateport_store* source, stateport_store* destination) {
  stateport_store* live = small_store(spec, 1);
  stateport_copier* copier = NULL;
  CHECK_OK(stateport_copier_create_scratch(source, live, destination, &copier));
  const stateport_slot_copy saved = {0, 1, 0, 0};
  const stateport_slot_copy end = {0, 0, 0, 0};
  fill_slot(source, 0, 1);
  fill_slot(live, 0, 3);
  fill_slot(destination, 0, 2);
  fill_slot(destination, 1, 2);
  CHECK_OK(stateport_copier_commit_scratch_layers(copier, NULL, &saved, 1, &end, 1, 0, 1));
  CHECK(layer_holds(destination, 1, 0, 1) && layer_holds(destination, 0, 0, 3));
  CHECK(layer_holds(destination, 1, 1, 2) && layer_holds(destination, 0, 1, 2));
  CHECK_REFUSED(stateport_copier_commit_scratch_layers(copier, NULL, &saved, 1, &end, 1, 2, 1),
                STATEPORT_INVALID_ARGUMENT, "layers.end = 1");
  CHECK_OK(stateport_copier_destroy(copier));
  CHECK_OK(stateport_store_destroy(live));
}

void test_layer_ranges(void) {
  stateport_spec* spec = small_spec();
  stateport_store* source = small_store(spec, 1);
  stateport_store* destination = small_store(spec, 2);
  stateport_copier* copier = NULL;
  CHECK_OK(stateport_copier_create(source, destination, &copier));
  test_copies_of_layers(copier, source, destination);
  test_scratch_of_layers(spec, source, destination);
  CHECK_OK(stateport_copier_destroy(copier));
  CHECK_OK(stateport_store_destroy(source));
  CHECK_OK(stateport_store_destroy(destination));
  CHECK_OK(stateport_spec_destroy(spec));
}

enum { tokens = 3, channels = 4, gap = 2, row_elements = channels + gap };

static stateport_tensor_spec conv_tensor(void) {
  const stateport_tensor_spec tensor = {
      .size = sizeof tensor, .kind = STATEPORT_CONV, .type = STATEPORT_INT8, .shape = {tokens, channels, 1}};
  return tensor;
}

/// A conv state whose tokens lie apart goes to one in the other order, [dim, window], and nothing is written between.
void test_strides(void) {
  stateport_tensor_spec apart = conv_tensor();
  apart.token_stride = row_elements;
  apart.channel_stride = 1;
  stateport_tensor_spec other_order = conv_tensor();
  other_order.conv_layout = STATEPORT_DS;
  stateport_spec* from = NULL;
  stateport_spec* to = NULL;
  CHECK_OK(stateport_spec_create(&apart, 1, &from));
  CHECK_OK(stateport_spec_create(&other_order, 1, &to));
  stateport_tensor_spec reported = {.size = sizeof reported};
  CHECK_OK(stateport_spec_tensor(from, 0, &reported));
  CHECK(reported.token_stride == row_elements && reported.channel_stride == 1);
  CHECK_OK(stateport_spec_tensor(to, 0, &reported));
  CHECK(reported.token_stride == 1 && reported.channel_stride == tokens && reported.conv_layout == STATEPORT_DS);

  stateport_store* source = small_store(from, 1);
  stateport_store* destination = small_store(to, 1);
  unsigned char sent[tokens * row_elements];
  for (size_t i = 0; i < sizeof sent; ++i) sent[i] = (unsigned char)(i + 1);
  write_slot(source, 0, 0, sent, (tokens - 1) * row_elements + channels);
  stateport_copier* copier = NULL;
  CHECK_OK(stateport_copier_create(source, destination, &copier));
  const stateport_slot_copy copy = {0, 0, 0, 0};
  CHECK_OK(stateport_copier_copy(copier, NULL, &copy, 1));
  unsigned char received[tokens * channels];
  read_slot(destination, 0, 0, received, sizeof received);
  for (size_t token = 0; token < tokens; ++token)
    for (size_t channel = 0; channel < channels; ++channel)
      CHECK(received[channel * tokens + token] == sent[token * row_elements + channel]);

  apart.token_stride = 1;
  CHECK_REFUSED(stateport_spec_create(&apart, 1, &from), STATEPORT_INVALID_ARGUMENT, "stride");
  apart = conv_tensor();
  apart.kind = STATEPORT_RECURRENT;
  apart.token_stride = 1;
  CHECK_REFUSED(stateport_spec_create(&apart, 1, &from), STATEPORT_INVALID_ARGUMENT, "stride");
  CHECK_OK(stateport_copier_destroy(copier));
  CHECK_OK(stateport_store_destroy(source));
  CHECK_OK(stateport_store_destroy(destination));
  CHECK_OK(stateport_spec_destroy(from));
  CHECK_OK(stateport_spec_destroy(to));
}
