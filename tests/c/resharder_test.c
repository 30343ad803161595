// SPDX-License-Identifier: Apache-2.0
// Ranks that share a model: copies between them, checkpoints in a store, hand-overs, and refusals of all.
#include <stateport.h>

#include "device.h"

#include <stddef.h>
#include <string.h>

static stateport_model_layout* small_layout(stateport_spec* whole) {
  const stateport_split_band channels = {.extent = conv_dim, .parts = 2};
  const stateport_split_band columns = {.extent = 8, .parts = 8};
  const stateport_tensor_split conv = {.bands = &channels, .band_count = 1, .axis = 1};
  const stateport_tensor_split recurrent = {.bands = &columns, .band_count = 1, .axis = 1};
  const stateport_tensor_split splits[small_tensors] = {conv, recurrent, conv, recurrent};
  stateport_model_layout* layout = NULL;
  CHECK_OK(stateport_model_layout_create(whole, splits, small_tensors, &layout));
  return layout;
}

static stateport_store* store_of(stateport_spec* spec) {
  const stateport_store_options options = {.size = sizeof options, .slots = 2};
  stateport_store* store = NULL;
  CHECK_OK(stateport_store_create(spec, &options, NULL, &store));
  return store;
}

static void copy(stateport_model_layout* layout, const stateport_shard_store* from, size_t from_count,
                 const stateport_shard_store* to, size_t to_count) {
  const stateport_slot_copy one = {.src_slot = 0, .dst_slot = 0, .recurrent_src_slot = 0};
  stateport_resharder* resharder = NULL;
  CHECK_OK(stateport_resharder_create(layout, from, from_count, to, to_count, &resharder));
  CHECK_OK(stateport_resharder_copy(resharder, NULL, &one, 1));
  const stateport_slot_copy outside = {.src_slot = 2, .dst_slot = 0, .recurrent_src_slot = 0};
  CHECK_REFUSED(stateport_resharder_copy(resharder, NULL, &outside, 1), STATEPORT_INVALID_ARGUMENT, "= 2");
  CHECK_OK(stateport_stream_synchronize(NULL));
  CHECK_OK(stateport_resharder_destroy(resharder));
}

static void check_refusals(stateport_spec* whole, stateport_model_layout* layout, stateport_store* store) {
  stateport_model_layout* made = NULL;
  stateport_spec* spec = NULL;
  stateport_resharder* resharder = NULL;
  const stateport_tensor_split wrong = {.axis = 1, .reserved = 1};
  CHECK_REFUSED(stateport_model_layout_create(whole, &wrong, 1, &made), STATEPORT_INVALID_ARGUMENT, "reserved = 1");
  CHECK_REFUSED(stateport_model_layout_create(whole, NULL, 0, &made), STATEPORT_INVALID_ARGUMENT, "splits = 0");
  CHECK_REFUSED(stateport_model_layout_find("no-model", NULL, &made), STATEPORT_INVALID_ARGUMENT, "no-model");
  CHECK_REFUSED(stateport_model_layout_find(NULL, NULL, &made), STATEPORT_INVALID_ARGUMENT, "model = null");
  CHECK_REFUSED(stateport_model_layout_spec(layout, NULL, &spec), STATEPORT_INVALID_ARGUMENT, "shard = null");
  const stateport_shard three = {0, 2, 0, 3};
  CHECK_REFUSED(stateport_model_layout_spec(layout, &three, &spec), STATEPORT_INVALID_ARGUMENT, "head_groups = 3");
  CHECK(made == NULL && spec == NULL);
  const stateport_shard_store all = {.store = store};
  const stateport_shard_store half = {.store = store, .shard = {0, 2, 0, 2}};
  CHECK_REFUSED(stateport_resharder_create(layout, &half, 1, &all, 1, &resharder), STATEPORT_INVALID_ARGUMENT,
                "sources");
  CHECK_REFUSED(stateport_resharder_create(layout, NULL, 0, &all, 1, &resharder), STATEPORT_INVALID_ARGUMENT,
                "sources");
  CHECK(resharder == NULL);
}

void test_resharders(void) {
  stateport_spec* whole = small_spec();
  stateport_model_layout* layout = small_layout(whole);
  stateport_store* store = store_of(whole);
  stateport_store* back = store_of(whole);
  stateport_shard_store halves[2];
  for (int32_t rank = 0; rank < 2; ++rank) {
    stateport_spec* spec = NULL;
    halves[rank].shard = (stateport_shard){0, 2, rank, 2};
    CHECK_OK(stateport_model_layout_spec(layout, &halves[rank].shard, &spec));
    halves[rank].store = store_of(spec);
    CHECK_OK(stateport_spec_destroy(spec));
  }
  const stateport_shard_store from = {.store = store}, to = {.store = back};
  fill_slot(store, 0, 5);
  fill_slot(back, 0, 6);
  copy(layout, &from, 1, halves, 2);
  copy(layout, halves, 2, &to, 1);
  CHECK(slot_holds(back, 0, 5));

  uint64_t mine = 0, catalogue = 0;
  stateport_model_layout* found = NULL;
  CHECK_OK(stateport_model_layout_find("granite-4.0-h-tiny", NULL, &found));
  CHECK_OK(stateport_model_layout_fingerprint(layout, &mine));
  CHECK_OK(stateport_model_layout_fingerprint(found, &catalogue));
  CHECK(mine != 0 && mine != catalogue);
  check_refusals(whole, layout, store);

  CHECK_OK(stateport_model_layout_destroy(found));
  for (int rank = 0; rank < 2; ++rank) CHECK_OK(stateport_store_destroy(halves[rank].store));
  CHECK_OK(stateport_store_destroy(back));
  CHECK_OK(stateport_store_destroy(store));
  CHECK_OK(stateport_model_layout_destroy(layout));
  CHECK_OK(stateport_spec_destroy(whole));
}

/// The status of the only transfer that is under way.
static int32_t wait_for_one(stateport_state_tiers* tiers, uint64_t id) {
  stateport_transfer_result result = {0};
  for (size_t count = 0; count == 0;) CHECK_OK(stateport_state_tiers_poll(tiers, NULL, &result, 1, &count));
  CHECK(result.id == id);
  return result.status;
}

void test_remote_tiers(void) {
  stateport_spec* spec = small_spec();
  stateport_model_layout* layout = small_layout(spec);
  stateport_store* states = store_of(spec);
  stateport_remote_objects* objects = NULL;
  stateport_remote_store* remote = NULL;
  CHECK_OK(stateport_remote_objects_create(1 << 20, &objects));
  CHECK_OK(stateport_remote_store_in_process(objects, NULL, 1, &remote));
  const stateport_shared_layout shared = {.layout = layout};
  const stateport_remote_options below = {.size = sizeof below,
                                          .store = remote,
                                          .states = &shared,
                                          .state_count = 1,
                                          .head_groups = 2,
                                          .staging_bytes = 1 << 20};
  stateport_state_tiers_options options = {
      .size = sizeof options, .states = &states, .state_count = 1, .remote = &below};
  stateport_state_tiers* tiers = NULL;
  CHECK_REFUSED(stateport_state_tiers_create(&options, &tiers), STATEPORT_INVALID_ARGUMENT, "model_bytes = 0");
  options.model = "m";
  options.model_bytes = 1;
  CHECK_OK(stateport_state_tiers_create(&options, &tiers));
  size_t count = 0;
  CHECK_REFUSED(stateport_remote_store_poll(remote, NULL, 0, &count), STATEPORT_INVALID_STATE, "used by state tiers");

  const stateport_slot_image put = {.key = {.prefix = {1, 2}, .tokens = 16, .content = STATEPORT_STATE}, .slot = 0};
  stateport_slot_image get = put;
  get.slot = 1;
  uint64_t id = 0;
  fill_slot(states, 0, 3);
  CHECK_OK(stateport_state_tiers_find(tiers, NULL, &put.key, 1, &id));
  CHECK(wait_for_one(tiers, id) == STATEPORT_TRANSFER_GONE);
  CHECK_OK(stateport_state_tiers_put(tiers, NULL, &put, 1, STATEPORT_MEDIUM_REMOTE, &id));
  CHECK(wait_for_one(tiers, id) == STATEPORT_TRANSFER_DONE);
  CHECK_OK(stateport_state_tiers_find(tiers, NULL, &put.key, 1, &id));
  CHECK(wait_for_one(tiers, id) == STATEPORT_TRANSFER_DONE);
  CHECK_OK(stateport_state_tiers_get(tiers, NULL, &get, 1, &id));
  CHECK(wait_for_one(tiers, id) == STATEPORT_TRANSFER_DONE);
  CHECK_OK(stateport_stream_synchronize(NULL));
  CHECK(slot_holds(states, 1, 3));
  stateport_state_tiers_info info = {.size = sizeof info};
  CHECK_OK(stateport_state_tiers_describe(tiers, &info));
  CHECK(info.remote_asked_images == 2 && info.remote_found_images == 1 && info.remote_read_bytes > 0 &&
        info.remote_written_bytes == info.remote_read_bytes && info.remote_removed_objects == 0);

  CHECK_OK(stateport_state_tiers_destroy(tiers));
  CHECK_OK(stateport_remote_store_poll(remote, NULL, 0, &count));
  CHECK_OK(stateport_remote_store_destroy(remote));
  CHECK_OK(stateport_remote_objects_destroy(objects));
  CHECK_OK(stateport_store_destroy(states));
  CHECK_OK(stateport_model_layout_destroy(layout));
  CHECK_OK(stateport_spec_destroy(spec));
}

/// Two ranks hand a state over to one.
void test_handovers(void) {
  stateport_spec* spec = small_spec();
  stateport_model_layout* layout = small_layout(spec);
  const stateport_rank sources[] = {{0, {0, 2, 0, 2}}, {1, {0, 2, 1, 2}}};
  const stateport_rank destination = {.global_rank = 9};
  stateport_handover_options options = {
      .size = sizeof options, .model = "m", .model_bytes = 1, .content = STATEPORT_STATE};
  stateport_handover_range ranges[2];
  size_t count = 0;
  CHECK_OK(stateport_handover_plan(layout, sources, 2, &destination, 1, &options, ranges, 1, &count));
  CHECK(count == 2 && options.head_groups == 2 && options.layers_per_object == 0);
  CHECK_OK(stateport_handover_plan(layout, sources, 2, &destination, 1, &options, ranges, 2, &count));
  CHECK(ranges[0].src_rank == 0 && ranges[1].src_rank == 1 && ranges[1].dst_rank == 9 &&
        ranges[1].dst_offset == ranges[0].bytes);
  CHECK_REFUSED(stateport_handover_plan(layout, sources, 1, &destination, 1, &options, ranges, 2, &count),
                STATEPORT_INVALID_ARGUMENT, "sources");
  stateport_handover_options unnamed = options;
  unnamed.model_bytes = 0;
  CHECK_REFUSED(stateport_handover_plan(layout, sources, 2, &destination, 1, &unnamed, ranges, 2, &count),
                STATEPORT_INVALID_ARGUMENT, "model_bytes = 0");

  stateport_store* stores[3] = {NULL};
  stateport_handover_end* ends[3] = {NULL};
  stateport_handover_memory memory[3];
  for (int i = 0; i < 3; ++i) {
    const stateport_shared_layout shared = {.layout = layout, .shard = i < 2 ? sources[i].shard : destination.shard};
    stateport_spec* own = NULL;
    CHECK_OK(stateport_model_layout_spec(layout, &shared.shard, &own));
    stores[i] = store_of(own);
    CHECK_OK(stateport_spec_destroy(own));
    CHECK_REFUSED(stateport_handover_end_create(stores[i], &shared, &options, 0, &ends[i]), STATEPORT_INVALID_ARGUMENT,
                  "places = 0");
    CHECK_OK(stateport_handover_end_create(stores[i], &shared, &options, 1, &ends[i]));
    memory[i].size = sizeof memory[i];
    CHECK_OK(stateport_handover_end_describe(ends[i], &memory[i]));
    CHECK(memory[i].bytes == memory[i].place_bytes);
  }
  stateport_store* whole = store_of(spec);
  fill_slot(whole, 0, 7);
  const stateport_shard_store from = {.store = whole};
  const stateport_shard_store to[] = {{stores[0], sources[0].shard}, {stores[1], sources[1].shard}};
  copy(layout, &from, 1, to, 2);

  const stateport_slot_copy one = {.src_slot = 0, .dst_slot = 0, .recurrent_src_slot = 0};
  const stateport_image_key key = {.prefix = {1, 2}, .tokens = 16, .content = STATEPORT_STATE};
  int32_t status = -1;
  for (int i = 0; i < 2; ++i) CHECK_OK(stateport_handover_end_pack(ends[i], NULL, &one, 1));
  CHECK_OK(stateport_stream_synchronize(NULL));
  for (int i = 0; i < 2; ++i) CHECK_OK(stateport_handover_end_seal(ends[i], 0, &key));
  CHECK_REFUSED(stateport_handover_end_seal(ends[0], 1, &key), STATEPORT_INVALID_ARGUMENT, "place = 1");
  memset(memory[2].base, 0, memory[2].bytes);
  CHECK_OK(stateport_handover_end_check(ends[2], 0, &key, &status));
  CHECK(status == STATEPORT_TRANSFER_DAMAGED);
  for (size_t i = 0; i < count; ++i)
    memcpy((char*)memory[2].base + ranges[i].dst_offset,
           (const char*)memory[ranges[i].src_rank].base + ranges[i].src_offset, ranges[i].bytes);
  CHECK_OK(stateport_handover_end_check(ends[2], 0, &key, &status));
  CHECK(status == STATEPORT_TRANSFER_DONE);
  CHECK_OK(stateport_handover_end_unpack(ends[2], NULL, &one, 1));
  CHECK_OK(stateport_stream_synchronize(NULL));
  CHECK(slot_holds(stores[2], 0, 7));

  for (int i = 0; i < 3; ++i) {
    CHECK_OK(stateport_handover_end_destroy(ends[i]));
    CHECK_OK(stateport_store_destroy(stores[i]));
  }
  CHECK_OK(stateport_store_destroy(whole));
  CHECK_OK(stateport_model_layout_destroy(layout));
  CHECK_OK(stateport_spec_destroy(spec));
}
