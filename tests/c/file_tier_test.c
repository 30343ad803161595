// SPDX-License-Identifier: Apache-2.0
// Images of an engine's own memory in files: written, read, found after a restart, damaged, refused.
#define _POSIX_C_SOURCE 200809L
#include "tier_engine.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

enum { folder_bytes = 64, state_bytes = 5 * 4096, kv_bytes = 3 * 4096, room_bytes = state_bytes + 2 * kv_bytes };

static _Alignas(4096) unsigned char written[state_bytes];
static _Alignas(4096) unsigned char found[state_bytes];

static stateport_image_key key_of(int32_t content, uint64_t number) {
  return (stateport_image_key){.prefix = {number, 9}, .tokens = 4 * (int64_t)number, .content = content};
}

static stateport_file_tier_options options_for(const char* folder, stateport_spec** state, stateport_spec* kv) {
  return (stateport_file_tier_options){.size = sizeof(stateport_file_tier_options),
                                       .folder = folder,
                                       .file_bytes = room_bytes,
                                       .states = state,
                                       .state_count = 1,
                                       .kv = kv,
                                       .model = "a model",
                                       .model_bytes = 7};
}

static stateport_file_tier* open_folder(const char* folder) {
  stateport_spec* state = small_spec();
  stateport_spec* const kv = kv_spec();
  const stateport_file_tier_options options = options_for(folder, &state, kv);
  stateport_file_tier* tier = NULL;
  CHECK_OK(stateport_file_tier_create(&options, &tier));
  CHECK_OK(stateport_spec_destroy(state));
  CHECK_OK(stateport_spec_destroy(kv));
  return tier;
}

static void close_folder(stateport_file_tier* tier) {
  CHECK_OK(stateport_file_tier_check(tier));
  CHECK_OK(stateport_file_tier_destroy(tier));
}

/// The only answer there is.
static int32_t answer_to(stateport_file_tier* tier, uint64_t id) {
  stateport_transfer_result results[2];
  size_t count = 9;
  CHECK_OK(stateport_file_tier_wait(tier));
  CHECK_OK(stateport_file_tier_poll(tier, results, 2, &count));
  CHECK(count == 1 && results[0].id == id && results[0].reserved == 0);
  return results[0].status;
}

static void fill(unsigned char* image, size_t bytes, unsigned seed) {
  for (size_t i = 0; i < bytes; ++i) image[i] = (unsigned char)(i * 7 + i / 251 + seed);
}

/// Whether the sections of `found` are those of `written`.
static bool sections_are_equal(stateport_file_tier* tier, int32_t content) {
  stateport_image_layout layout = {.size = sizeof layout};
  CHECK_OK(stateport_file_tier_layout(tier, content, 0, &layout));
  CHECK(layout.sections == (content == STATEPORT_STATE ? small_tensors : kv_tensors));
  for (size_t i = 0; i < layout.sections; ++i) {
    uint64_t offset = 0;
    uint64_t bytes = 0;
    CHECK_OK(stateport_file_tier_section(tier, content, 0, i, &offset, &bytes));
    CHECK(offset == layout.header_bytes + 4096 * i && offset + bytes <= layout.image_bytes && bytes > 0);
    if (memcmp(written + offset, found + offset, bytes) != 0) return false;
  }
  return true;
}

static int32_t read_image(stateport_file_tier* tier, int32_t content, uint64_t number) {
  const stateport_image_key key = key_of(content, number);
  memset(found, 0, sizeof found);
  CHECK_OK(
      stateport_file_tier_read(tier, 50 + number, &key, found, content == STATEPORT_STATE ? state_bytes : kv_bytes));
  return answer_to(tier, 50 + number);
}

/// A state and a block, in one file each, and no room for another state.
static void write_images(stateport_file_tier* tier) {
  const stateport_image_key keys[] = {key_of(STATEPORT_STATE, 1), key_of(STATEPORT_KV_BLOCK, 2),
                                      key_of(STATEPORT_STATE, 3)};
  const void* const images[] = {written, written, written};
  fill(written, state_bytes, 1);
  CHECK_OK(stateport_file_tier_write(tier, 7, keys, images, 1));
  CHECK(answer_to(tier, 7) == STATEPORT_TRANSFER_DONE);
  fill(written, state_bytes, 2);
  CHECK_OK(stateport_file_tier_write(tier, 8, keys + 1, images + 1, 1));
  CHECK(answer_to(tier, 8) == STATEPORT_TRANSFER_DONE);
  char text[100];
  snprintf(text, sizeof text, "(required %d, available %d)", state_bytes, room_bytes - state_bytes - kv_bytes);
  CHECK_REFUSED(stateport_file_tier_write(tier, 9, keys + 2, images + 2, 1), STATEPORT_NO_CAPACITY, text);
  uint8_t held[3] = {9, 9, 9};
  CHECK_OK(stateport_file_tier_lookup(tier, keys, 3, held));
  CHECK(held[0] == 1 && held[1] == 1 && held[2] == 0);
  stateport_file_tier_info info = {.size = sizeof info};
  CHECK_OK(stateport_file_tier_describe(tier, &info));
  CHECK(info.images == 2 && info.written_images == 2 && info.written_bytes == state_bytes + kv_bytes);
  CHECK(info.file_bytes == state_bytes + kv_bytes && info.found_images == 0 && info.write_queue_bytes == 0);
}

static void read_images(stateport_file_tier* tier) {
  fill(written, state_bytes, 1);
  CHECK(read_image(tier, STATEPORT_STATE, 1) == STATEPORT_TRANSFER_DONE);
  CHECK(sections_are_equal(tier, STATEPORT_STATE));
  fill(written, state_bytes, 2);
  CHECK(read_image(tier, STATEPORT_KV_BLOCK, 2) == STATEPORT_TRANSFER_DONE);
  CHECK(sections_are_equal(tier, STATEPORT_KV_BLOCK));
  CHECK(read_image(tier, STATEPORT_STATE, 3) == STATEPORT_TRANSFER_GONE);
  stateport_image_key keys[3];
  size_t count = 0;
  CHECK_OK(stateport_file_tier_keys(tier, keys, 3, &count));
  const stateport_image_key wanted[] = {key_of(STATEPORT_STATE, 1), key_of(STATEPORT_KV_BLOCK, 2)};
  CHECK(count == 2 && memcmp(keys, wanted, sizeof wanted) == 0);
  CHECK_OK(stateport_file_tier_keys(tier, NULL, 0, &count));
  CHECK(count == 2);
}

/// Another byte in the last section of every file.
static void damage_files(const char* path) {
  DIR* const folder = opendir(path);
  CHECK(folder != NULL);
  for (const struct dirent* entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
    char name[600];
    snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
    FILE* const file = entry->d_name[0] == '.' ? NULL : fopen(name, "r+b");
    if (file == NULL) continue;
    if (fseek(file, 2 * 4096, SEEK_SET) == 0) {
      const int byte = fgetc(file);
      if (byte != EOF && fseek(file, 2 * 4096, SEEK_SET) == 0) CHECK(fputc(byte ^ 4, file) != EOF);
    }
    fclose(file);
  }
  closedir(folder);
}

/// A file tier reads into host memory the image that a mover stored from the device.
static void read_what_a_mover_wrote(const char* folder) {
  const tier_engine_options options = {
      .combination = tree_slots, .host_bytes = 1 << 20, .folder = folder, .by_hand = true};
  tier_engine engine;
  tier_engine_make(&engine, &options);
  fill_image(engine.states, small_tensors, 1, 77);
  const stateport_slot_image image = {.key = key_of(STATEPORT_STATE, 6), .slot = 1};
  uint64_t first = 0;
  size_t count = 0;
  stateport_transfer_result result;
#ifdef STATEPORT_TEST_MEMORY
  const int32_t usual = memory_calls_apart;
  memory_calls_apart = INT32_MAX;  // a tier without memory would answer `failed`
#endif
  CHECK_OK(stateport_state_tiers_put(engine.tiers, NULL, &image, 1, STATEPORT_MEDIUM_FILE, &first));
  while (count == 0) CHECK_OK(stateport_state_tiers_poll(engine.tiers, NULL, &result, 1, &count));
  CHECK(result.status == STATEPORT_TRANSFER_DONE);
#ifdef STATEPORT_TEST_MEMORY
  memory_calls_apart = usual;
#endif
  tier_engine_destroy(&engine);
  stateport_file_tier* const tier = open_folder(folder);
  CHECK(read_image(tier, STATEPORT_STATE, 6) == STATEPORT_TRANSFER_DONE);
  // The same bytes, put into a slot of the engine, are the state.
  stateport_spec* const spec = small_spec();
  const stateport_store_options one = {.size = sizeof one, .slots = 1};
  stateport_store* store = NULL;
  CHECK_OK(stateport_store_create(spec, &one, NULL, &store));
  for (size_t i = 0; i < small_tensors; ++i) {
    uint64_t offset = 0;
    uint64_t bytes = 0;
    CHECK_OK(stateport_file_tier_section(tier, STATEPORT_STATE, 0, i, &offset, &bytes));
    CHECK(bytes == tensor_bytes(i));
    write_slot(store, i, 0, found + offset, (size_t)bytes);
  }
  CHECK(holds_image(store, small_tensors, 0, 77));
  CHECK_OK(stateport_store_destroy(store));
  CHECK_OK(stateport_spec_destroy(spec));
  close_folder(tier);
}

void test_file_tier(void) {
  char folder[folder_bytes];
  make_folder(folder, sizeof folder);
  stateport_file_tier* tier = open_folder(folder);
  write_images(tier);
  read_images(tier);
  close_folder(tier);
  tier = open_folder(folder);
  stateport_file_tier_info info = {.size = sizeof info};
  CHECK_OK(stateport_file_tier_describe(tier, &info));
  CHECK(info.found_images == 2 && info.images == 2 && info.written_images == 0 && info.damaged_files == 0);
  read_images(tier);
  const stateport_image_key gone = key_of(STATEPORT_KV_BLOCK, 2);
  CHECK_OK(stateport_file_tier_remove(tier, &gone, 1));
  CHECK(read_image(tier, STATEPORT_KV_BLOCK, 2) == STATEPORT_TRANSFER_GONE);
  damage_files(folder);
  CHECK(read_image(tier, STATEPORT_STATE, 1) == STATEPORT_TRANSFER_DAMAGED);
  CHECK(read_image(tier, STATEPORT_STATE, 1) == STATEPORT_TRANSFER_GONE);
  close_folder(tier);
  read_what_a_mover_wrote(folder);
  remove_folder(folder);
}

// --- Misuse ----------------------------------------------------------------------------------------------------------

static void refuse(const stateport_file_tier_options* options, const char* text) {
  stateport_file_tier* tier = NULL;
  CHECK_REFUSED(stateport_file_tier_create(options, &tier), STATEPORT_INVALID_ARGUMENT, text);
  CHECK(tier == NULL);
}

static void refuse_options(const char* folder) {
  stateport_spec* state = small_spec();
  stateport_spec* const kv = kv_spec();
  const stateport_file_tier_options right = options_for(folder, &state, kv);
  stateport_file_tier_options wrong = right;
  wrong.folder = NULL;
  refuse(&wrong, "folder = null");
  wrong.folder = "/nowhere/at/all";
  refuse(&wrong, "/nowhere/at/all");
  // A text is cut where the room for it ends.
  char long_name[3000];
  memset(long_name, 'a', sizeof long_name);
  long_name[0] = '/';
  long_name[sizeof long_name - 1] = '\0';
  wrong.folder = long_name;
  refuse(&wrong, "folder = /aaa");
  CHECK(strlen(stateport_last_error()) == 1023);
  wrong = right;
  wrong.model_bytes = 0;
  refuse(&wrong, "model_bytes = 0");
  wrong = right;
  wrong.file_bytes = 4096;
  refuse(&wrong, "capacity_bytes = 4096");
  wrong = right;
  wrong.queue_bytes = 4096;
  refuse(&wrong, "queue_bytes = 4096");
  wrong = right;
  wrong.lanes = 100;
  refuse(&wrong, "lanes = 100");
  wrong = right;
  wrong.states = NULL;
  refuse(&wrong, "states = null");
  wrong = right;
  wrong.state_count = 0;
  wrong.kv = NULL;
  refuse(&wrong, "layouts");
  wrong = right;
  wrong.layer_end = 2;
  refuse(&wrong, "head_group");
  stateport_spec* const two[] = {state, state};
  wrong = right;
  wrong.states = two;
  wrong.state_count = 2;
  stateport_file_tier* tier = NULL;
  stateport_image_layout layout = {.size = sizeof layout};
  CHECK_OK(stateport_file_tier_create(&wrong, &tier));
  CHECK_OK(stateport_file_tier_layout(tier, STATEPORT_STATE, 1, &layout));
  CHECK(layout.image_bytes == state_bytes && layout.header_bytes == 4096);
  CHECK_REFUSED(stateport_file_tier_layout(tier, STATEPORT_STATE, 2, &layout), STATEPORT_INVALID_ARGUMENT, "group = 2");
  close_folder(tier);
  CHECK_OK(stateport_spec_destroy(state));
  CHECK_OK(stateport_spec_destroy(kv));
}

void test_file_tier_refusals(void) {
  char folder[folder_bytes];
  make_folder(folder, sizeof folder);
  refuse_options(folder);
  stateport_file_tier* const tier = open_folder(folder);
  stateport_image_key key = key_of(STATEPORT_STATE, 1);
  const void* const nothing = NULL;
  const void* const image = written;
  uint64_t number = 5;
  size_t count = 5;
  CHECK_REFUSED(stateport_file_tier_write(tier, 1, &key, &nothing, 1), STATEPORT_INVALID_ARGUMENT, "null");
  CHECK_REFUSED(stateport_file_tier_write(tier, 1, NULL, &image, 1), STATEPORT_INVALID_ARGUMENT, "keys = null");
  CHECK_REFUSED(stateport_file_tier_write(tier, 1, &key, NULL, 1), STATEPORT_INVALID_ARGUMENT, "images = null");
  CHECK_REFUSED(stateport_file_tier_write(tier, 1, &key, &image, 0), STATEPORT_INVALID_ARGUMENT, "images");
  CHECK_REFUSED(stateport_file_tier_read(tier, 1, &key, found, state_bytes - 1), STATEPORT_INVALID_ARGUMENT, "20479");
  CHECK_REFUSED(stateport_file_tier_read(tier, 1, NULL, found, state_bytes), STATEPORT_INVALID_ARGUMENT, "key = null");
  CHECK_REFUSED(stateport_file_tier_read(tier, 1, &key, NULL, state_bytes), STATEPORT_INVALID_ARGUMENT, "image = null");
  CHECK_REFUSED(stateport_file_tier_section(tier, STATEPORT_STATE, 0, small_tensors, &number, &number),
                STATEPORT_INVALID_ARGUMENT, "index = 4");
  CHECK_REFUSED(stateport_file_tier_section(tier, 2, 0, 0, &number, &number), STATEPORT_INVALID_ARGUMENT,
                "content = 2");
  key.group = 1;
  CHECK_REFUSED(stateport_file_tier_write(tier, 1, &key, &image, 1), STATEPORT_INVALID_ARGUMENT, "group = 1");
  key = key_of(STATEPORT_STATE, 1);
  key.tokens = -4;
  CHECK_REFUSED(stateport_file_tier_write(tier, 1, &key, &image, 1), STATEPORT_INVALID_ARGUMENT, "tokens = -4");
  CHECK_REFUSED(stateport_file_tier_lookup(tier, &key, 1, NULL), STATEPORT_INVALID_ARGUMENT, "held = null");
  CHECK_REFUSED(stateport_file_tier_poll(tier, NULL, 1, &count), STATEPORT_INVALID_ARGUMENT, "out = null");
  CHECK_REFUSED(stateport_file_tier_describe((stateport_file_tier*)&key, NULL), STATEPORT_INVALID_HANDLE,
                "must be the handle of a file tier");
  stateport_file_tier_info info = {.size = sizeof info};
  CHECK_OK(stateport_file_tier_describe(tier, &info));
  CHECK(number == 5 && count == 5 && info.images == 0 && info.write_queue_bytes == 0 && info.read_queue_bytes == 0);
  CHECK_OK(stateport_file_tier_poll(tier, NULL, 0, &count));
  CHECK(count == 0);
  close_folder(tier);
  remove_folder(folder);
}
