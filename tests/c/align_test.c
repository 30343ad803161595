// SPDX-License-Identifier: Apache-2.0
#include "device.h"

#include <string.h>

enum { columns = 3, blocks = 6, block_tokens = 4 };

static stateport_store* make_store(void) {
  stateport_spec* spec = small_spec();
  const stateport_store_options options = {.size = sizeof options, .slots = blocks};
  stateport_store* store = NULL;
  CHECK_OK(stateport_store_create(spec, &options, NULL, &store));
  CHECK_OK(stateport_spec_destroy(spec));
  return store;
}

static stateport_align* make_align(void) {
  const stateport_align_group group = {
      .size = sizeof group, .block_size_tokens = block_tokens, .blocks = blocks, .conv_window = conv_window};
  const stateport_align_options options = {
      .size = sizeof options, .drafts = 1, .max_requests = 2, .groups = &group, .group_count = 1};
  stateport_align* align = NULL;
  CHECK_OK(stateport_align_create(&options, &align));
  return align;
}

static int32_t from_device(const int32_t* at) {
  int32_t value = 0;
  CHECK_OK(stateport_copy_bytes(NULL, &value, at, sizeof value));
  CHECK_OK(stateport_stream_synchronize(NULL));
  return value;
}

/// One request, one row: staged, and before its forward.
static stateport_align_batch before_forward(stateport_align* align, int32_t computed, int32_t scheduled) {
  const int32_t request = 1;
  const stateport_align_batch host = {
      .size = sizeof host, .request = &request, .computed = &computed, .scheduled = &scheduled, .rows = 1};
  stateport_align_batch batch = {.size = sizeof batch};
  CHECK_OK(stateport_align_stage(align, NULL, &host, &batch));
  CHECK_OK(stateport_align_pre_step(align, NULL, &batch));
  return batch;
}

void test_align(void) {
  stateport_store* store = make_store();
  stateport_align* align = make_align();
  const int32_t row[columns] = {2, 3, 5};
  const device_bytes table = to_device(row, sizeof row);
  const int32_t one = 1;
  const device_bytes request = to_device(&one, sizeof one);
  const uint8_t decodes = 1;
  const device_bytes decode = to_device(&decodes, sizeof decodes);
  const int32_t room[4] = {0};
  const device_bytes gathered = to_device(room, sizeof room);
  const stateport_align_binding binding = {
      .size = sizeof binding, .store = store, .block_table = table.data, .row_stride = columns, .columns = columns};
  CHECK_OK(stateport_align_bind(align, &binding, 1));
  CHECK_OK(stateport_align_add_request(align, NULL, 1, 0));
  stateport_align_arrays arrays = {.size = sizeof arrays};
  CHECK_OK(stateport_align_group_arrays(align, 0, &arrays));
  CHECK(from_device(arrays.columns + 1) == -1 && from_device(arrays.accepted + 1) == 1);

  // A prefill of one block ends in column 0; the decode after it runs in column 1, where its state must be.
  stateport_align_batch batch = before_forward(align, 0, block_tokens);
  CHECK(from_device(arrays.columns + 1) == 0);
  CHECK_OK(stateport_align_scatter_accepted(align, NULL, request.data, request.data, 1));
  CHECK_OK(stateport_align_post_step(align, NULL, &batch));
  fill_slot(store, 2, 77);
  batch = before_forward(align, block_tokens, 1);
  CHECK(from_device(arrays.columns + 1) == 1 && from_device(arrays.src_columns + 1) == 0);
  CHECK(slot_holds(store, 3, 77) && slot_holds(store, 2, 77));
  int32_t* const accepted = gathered.data;
  CHECK_OK(stateport_align_gather_decode(align, NULL, 0, &batch, decode.data, 2, accepted, accepted + 2));
  CHECK(from_device(accepted) == 1 && from_device(accepted + 1) == 1 && from_device(accepted + 2) == 0 &&
        from_device(accepted + 3) == -1);
  CHECK_OK(stateport_align_post_step_advanced(align, NULL, &batch));
  CHECK_OK(stateport_align_forget(align, NULL, 1));
  CHECK(from_device(arrays.columns + 1) == -2);

  // The context keeps the store that it is bound to.
  CHECK_OK(stateport_store_destroy(store));
  CHECK_OK(stateport_align_pre_step(align, NULL, &batch));
  CHECK_REFUSED(stateport_align_bind(align, &binding, 1), STATEPORT_INVALID_HANDLE, "store");
  CHECK_OK(stateport_align_destroy(align));
  CHECK_OK(stateport_store_destroy(table.store));
  CHECK_OK(stateport_store_destroy(request.store));
  CHECK_OK(stateport_store_destroy(decode.store));
  CHECK_OK(stateport_store_destroy(gathered.store));
}

void test_align_refusals(void) {
  stateport_store* store = make_store();
  stateport_align* align = make_align();
  const int32_t values[columns] = {0, 0, 0};
  const device_bytes table = to_device(values, sizeof values);
  stateport_align_binding binding = {
      .size = sizeof binding, .store = store, .block_table = table.data, .row_stride = columns, .columns = columns};
  stateport_align_batch batch = {.size = sizeof batch, .rows = 1};
  stateport_align_batch staged = {.size = sizeof staged};
  CHECK_REFUSED(stateport_align_pre_step(align, NULL, &batch), STATEPORT_INVALID_STATE, "bind()");
  CHECK_REFUSED(stateport_align_bind(align, &binding, 0), STATEPORT_INVALID_ARGUMENT, "groups");
  binding.row_stride = 1;
  CHECK_REFUSED(stateport_align_bind(align, &binding, 1), STATEPORT_INVALID_ARGUMENT, "row_stride = 1");
  binding.row_stride = columns;
  binding.block_table = NULL;
  CHECK_REFUSED(stateport_align_bind(align, &binding, 1), STATEPORT_INVALID_ARGUMENT, "block_table");
  binding.block_table = table.data;
  CHECK_OK(stateport_align_bind(align, &binding, 1));
  CHECK_REFUSED(stateport_align_pre_step(align, NULL, &batch), STATEPORT_INVALID_ARGUMENT, "request");
  CHECK_REFUSED(stateport_align_pre_step(align, NULL, NULL), STATEPORT_INVALID_ARGUMENT, "batch = null");
  CHECK_REFUSED(stateport_align_stage(align, NULL, &batch, &staged), STATEPORT_INVALID_ARGUMENT, "request = null");
  batch.rows = -1;
  CHECK_REFUSED(stateport_align_stage(align, NULL, &batch, &staged), STATEPORT_INVALID_ARGUMENT, "rows = -1");
  CHECK_REFUSED(stateport_align_post_step(align, NULL, &batch), STATEPORT_INVALID_ARGUMENT, "rows = -1");
  CHECK_REFUSED(stateport_align_add_request(align, NULL, 2, 0), STATEPORT_INVALID_ARGUMENT, "request = 2");
  CHECK_REFUSED(stateport_align_forget(align, NULL, -1), STATEPORT_INVALID_ARGUMENT, "request = -1");
  CHECK_REFUSED(stateport_align_scatter_accepted(align, NULL, NULL, NULL, 1), STATEPORT_INVALID_ARGUMENT, "null");
  stateport_align_arrays arrays = {.size = sizeof arrays};
  CHECK_REFUSED(stateport_align_group_arrays(align, 1, &arrays), STATEPORT_INVALID_ARGUMENT, "group = 1");
  CHECK_OK(stateport_align_destroy(align));
  const stateport_align_options no_group = {.size = sizeof no_group, .max_requests = 2};
  CHECK_REFUSED(stateport_align_create(&no_group, &align), STATEPORT_INVALID_ARGUMENT, "group");
  CHECK_OK(stateport_store_destroy(table.store));
  CHECK_OK(stateport_store_destroy(store));
}
