// SPDX-License-Identifier: Apache-2.0
// Images below the device: states and KV that were evicted come back, bit for bit.
#define _POSIX_C_SOURCE 200809L
#include "tier_engine.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

enum { prompts = 6, folder_bytes = 64, polls_max = 1000000 };

// --- Under a request cache -------------------------------------------------------------------------------------------

/// Events of one prompt's end: (content, medium) pairs that were stored or removed.
static int count_events(stateport_request_cache* cache, int32_t kind, int32_t content, int32_t medium) {
  static stateport_cache_event events[512];
  size_t count = 0;
  events[0].size = sizeof *events;
  CHECK_OK(stateport_request_cache_take_events(cache, events, 512, &count));
  CHECK(count < 512);
  int found = 0;
  for (size_t i = 0; i < count; ++i)
    found += events[i].kind == kind && events[i].content == content && events[i].medium == medium;
  return found;
}

/// More prompts than the device has checkpoints for, twice. The second time they come from the host.
static void serve_from_host(tier_engine* engine) {
  for (int32_t prompt = 0; prompt < prompts; ++prompt) {
    const stateport_started_request started = tier_engine_serve(engine, prompt);
    CHECK(started.reused_tokens == 0 && started.load_tokens == 0 && started.load_medium == STATEPORT_MEDIUM_DEVICE);
    CHECK(started.lost == STATEPORT_LOST_NEVER_STORED && started.lost_tokens == 0);
  }
  CHECK(count_events(engine->cache, STATEPORT_EVENT_STORED, STATEPORT_STATE, STATEPORT_MEDIUM_HOST) >= prompts - 4);
  int64_t loads = 0;
  for (int32_t prompt = 0; prompt < prompts; ++prompt) {
    const stateport_started_request started = tier_engine_serve(engine, prompt);
    CHECK(started.reused_tokens == tier_whole_tokens || started.load_tokens == tier_whole_tokens);
    CHECK((started.load_tokens > 0) == (started.load_medium == STATEPORT_MEDIUM_HOST));
    CHECK((started.load_tokens > 0) == (started.load_bytes > 0));
    loads += started.load_tokens > 0;
  }
  const stateport_tier_usage host = tier_engine_usage(engine, STATEPORT_MEDIUM_HOST);
  CHECK(loads >= prompts - 4 && engine->waits == loads);
  CHECK(host.loads == loads && host.hit_tokens == loads * tier_whole_tokens && host.lost_images == 0);
  CHECK(host.bytes_read > 0 && host.bytes_written > 0 && host.states > 0);
  CHECK((host.kv_blocks == 0) == engine->options.states_alone &&
        (engine->elsewhere > 0) == engine->options.states_alone);
}

/// The metrics of tiers name the loads from files.
static void check_text(stateport_state_tiers* tiers) {
  char text[20000];
  size_t bytes = 0;
  CHECK_OK(stateport_state_tiers_prometheus(tiers, "t", text, sizeof text, &bytes));
  CHECK(bytes == strlen(text) + 1);
  char line[100];
  snprintf(line, sizeof line, "t_transfer_seconds_count{tier=\"file\",direction=\"load\"} %d\n", 3 * prompts);
  CHECK(strstr(text, line) != NULL);
  char part[8];
  CHECK_OK(stateport_state_tiers_prometheus(tiers, "t", part, sizeof part, &bytes));
  CHECK(strlen(part) == sizeof part - 1 && bytes == strlen(text) + 1);
}

static void serve_from_files(const tier_engine_options* options, size_t images) {
  tier_engine engine;
  tier_engine_make(&engine, options);
  stateport_state_tiers_info info = {.size = sizeof info};
  CHECK_OK(stateport_state_tiers_describe(engine.tiers, &info));
  CHECK(info.found_images == images && info.file_images == images && info.host_images == 0);
  CHECK(info.damaged_files == 0 && info.foreign_images == 0 && info.in_flight == 0);
  stateport_attached_images attached = {.size = sizeof attached};
  CHECK_OK(stateport_state_tiers_attach(engine.tiers, NULL, engine.cache, &attached));
  CHECK(attached.attached == images && attached.removed == 0 && attached.skipped == 0);
  for (int32_t prompt = 0; prompt < prompts; ++prompt) {
    const stateport_started_request started = tier_engine_serve(&engine, prompt);
    CHECK(started.reused_tokens == 0 && started.load_tokens == tier_whole_tokens);
    CHECK(started.load_medium == STATEPORT_MEDIUM_FILE);
  }
  const stateport_tier_usage files = tier_engine_usage(&engine, STATEPORT_MEDIUM_FILE);
  CHECK(files.loads == prompts && files.hit_tokens == prompts * tier_whole_tokens && files.lost_images == 0);
  CHECK(engine.waits == prompts);
  stateport_cache_stats stats = {.size = sizeof stats};
  CHECK_OK(stateport_request_cache_stats(engine.cache, &stats));
  CHECK(stats.requests_hit == prompts && stats.hit_tokens == prompts * tier_whole_tokens);
  int64_t depths = 0;
  for (int bucket = 0; bucket < STATEPORT_TOKEN_BUCKETS; ++bucket) depths += stats.hit_depths[bucket];
  CHECK(depths == stats.requests && stats.loaded_tokens[STATEPORT_MEDIUM_FILE] == stats.hit_tokens);
  CHECK(stats.loaded_tokens[STATEPORT_MEDIUM_HOST] == 0);
  CHECK(files.ended_reads[STATEPORT_TRANSFER_DONE] == 3 * prompts && files.reads == 0 && files.read_bytes == 0);
  check_text(engine.tiers);
  CHECK_OK(stateport_state_tiers_describe(engine.tiers, &info));
  CHECK(info.read_images == 3 * prompts && info.read_bytes > 0);
  tier_engine_destroy(&engine);
}

/// A cache with room for two states and their KV, over a folder with one image of a part of a block. Images without
/// room are removed. The odd image stays, because the cache cannot use it.
static void attach_to_less_room(const tier_engine_options* options, size_t images) {
  tier_engine_options less = *options;
  less.file_bytes = 2 * (int64_t)image_bytes(small_spec) + 4 * (int64_t)image_bytes(kv_spec);
  less.by_hand = true;
  tier_engine engine;
  tier_engine_make(&engine, &less);
  const stateport_transfer odd = {.id = 1,
                                  .kind = STATEPORT_TRANSFER_STORE,
                                  .to = STATEPORT_MEDIUM_FILE,
                                  .image = {.prefix = {5, 5}, .tokens = 5, .content = STATEPORT_STATE}};
  CHECK_OK(stateport_state_tiers_execute(engine.tiers, NULL, &odd, 1));
  stateport_transfer_result result = {.status = STATEPORT_TRANSFER_FAILED};
  size_t count = 0;
  for (int polls = 0; polls < polls_max && count == 0; ++polls)
    CHECK_OK(stateport_state_tiers_poll(engine.tiers, NULL, &result, 1, &count));
  CHECK(result.id == 1 && result.status == STATEPORT_TRANSFER_DONE);
  stateport_attached_images reported = {.size = sizeof reported};
  CHECK_OK(stateport_state_tiers_attach(engine.tiers, NULL, engine.cache, &reported));
  CHECK(reported.attached > 0 && reported.removed > 0 && reported.skipped == 1 &&
        reported.attached + reported.removed == images);
  stateport_state_tiers_info info = {.size = sizeof info};
  CHECK_OK(stateport_state_tiers_describe(engine.tiers, &info));
  CHECK(info.file_images == reported.attached + 1);
  const stateport_tier_usage files = tier_engine_usage(&engine, STATEPORT_MEDIUM_FILE);
  CHECK((size_t)(files.states + files.kv_blocks) == reported.attached && files.bytes <= less.file_bytes);
  for (int32_t prompt = 0; prompt < prompts; ++prompt) tier_engine_serve(&engine, prompt);
  tier_engine_destroy(&engine);
}

/// Evicted prefixes are loaded from the host; after a restart, from files.
static void test_restart(int32_t kind, bool by_hand) {
  char folder[folder_bytes];
  make_folder(folder, sizeof folder);
  char images[folder_bytes + 8];
  snprintf(images, sizeof images, "%s/images", folder);
  const tier_engine_options options = {
      .combination = kind, .host_bytes = 1 << 20, .folder = images, .by_hand = by_hand};
  tier_engine engine;
  tier_engine_make(&engine, &options);
  const int before = check_failures;
  serve_from_host(&engine);
  tier_engine_drain(&engine);
  const stateport_tier_usage files = tier_engine_usage(&engine, STATEPORT_MEDIUM_FILE);
  CHECK(files.states == prompts && files.kv_blocks == 2 * prompts && files.refused_images == 0);
  tier_engine_destroy(&engine);
  serve_from_files(&options, 3 * prompts);
  attach_to_less_room(&options, 3 * prompts);
  if (check_failures != before) fprintf(stderr, "combination %d, by hand %d\n", (int)kind, (int)by_hand);
  remove_folder(images);
  remove_folder(folder);
}

/// The answers of end_transfers begin all transfers: of ends, of images that a host with little room moves to files.
static void test_transfers_that_follow(int32_t kind, bool write_through) {
  char folder[folder_bytes];
  make_folder(folder, sizeof folder);
  char images[folder_bytes + 8];
  snprintf(images, sizeof images, "%s/images", folder);
  const int64_t host_bytes = (int64_t)(2 * image_bytes(small_spec) + 3 * image_bytes(kv_spec));
  const tier_engine_options options = {
      .combination = kind, .host_bytes = host_bytes, .folder = images, .write_through = write_through};
  tier_engine engine;
  tier_engine_make(&engine, &options);
  int64_t loads = 0;
  for (int round = 0; round < 3; ++round) {
    for (int32_t prompt = 0; prompt < prompts; ++prompt) {
      loads += tier_engine_serve(&engine, prompt).load_tokens > 0;
      tier_engine_wait(&engine);
    }
  }
  const stateport_tier_usage host = tier_engine_usage(&engine, STATEPORT_MEDIUM_HOST);
  const stateport_tier_usage files = tier_engine_usage(&engine, STATEPORT_MEDIUM_FILE);
  CHECK(loads == 2 * prompts && engine.waits == loads && host.lost_images == 0 && files.lost_images == 0);
  CHECK(host.bytes <= options.host_bytes && files.loads > 0);
  tier_engine_destroy(&engine);
  remove_folder(images);
  remove_folder(folder);
}

/// States alone lie below the device: the engine loads their KV.
static void test_states_alone(int32_t kind) {
  const tier_engine_options options = {.combination = kind, .host_bytes = 1 << 20, .states_alone = true};
  tier_engine engine;
  tier_engine_make(&engine, &options);
  serve_from_host(&engine);
  tier_engine_destroy(&engine);
}

void test_state_tiers(void) {
  for (int32_t kind = 0; kind < combinations; ++kind) {
    test_restart(kind, false);
    test_restart(kind, true);
    test_transfers_that_follow(kind, false);
    test_transfers_that_follow(kind, true);
    test_states_alone(kind);
  }
}

#ifdef STATEPORT_TEST_MEMORY
static int64_t serve_without_memory(const tier_engine_options* options, int rounds) {
  tier_engine engine;
  tier_engine_make(&engine, options);
  stateport_attached_images attached = {.size = sizeof attached};
  CHECK_OK(stateport_state_tiers_attach(engine.tiers, NULL, engine.cache, &attached));
  CHECK((attached.attached > 0) == !options->write_through);
  int64_t loads = 0;
  for (int round = 0; round < rounds; ++round) {
    for (int32_t prompt = 0; prompt < prompts; ++prompt) {
      loads += tier_engine_serve(&engine, prompt).load_tokens > 0;
      if (options->write_through) tier_engine_wait(&engine);
    }
  }
  CHECK(engine.waits == loads);
  tier_engine_drain(&engine);
  tier_engine_destroy(&engine);
  return loads;
}

/// Some transfers fail; every completed load has the stored bytes. Every call can be made again. With write_through the
/// first transfers of a life begin at the end of a request.
void test_state_tiers_without_memory(void) {
  const int32_t usual = memory_calls_apart;
  enum { lives = 24 };
  for (int life = 0; life < lives; ++life) {
    char folder[folder_bytes];
    make_folder(folder, sizeof folder);
    char images[folder_bytes + 8];
    snprintf(images, sizeof images, "%s/images", folder);
    tier_engine_options options = {
        .combination = life % combinations, .host_bytes = 1 << 20, .folder = images, .write_through = true};
    memory_calls_apart = 2;
    CHECK(serve_without_memory(&options, 1) == 0);
    options.write_through = false;
    memory_calls_apart = 7;
    if (life < combinations) CHECK(serve_without_memory(&options, 6) > 0);
    remove_folder(images);
    remove_folder(folder);
  }
  memory_calls_apart = usual;
}
#endif

// --- Images of an engine's own ---------------------------------------------------------------------------------------

typedef struct world {
  stateport_store* states;
  stateport_store* kv;
  stateport_state_tiers* tiers;
} world;

/// Frames of host memory: each holds a state, or two blocks of KV.
enum { world_slots = 6, world_frames = 2, frame_bytes = 6 * 4096 };

static stateport_store* make_store(stateport_spec* (*make)(void), size_t tensors) {
  stateport_spec* const spec = make();
  const stateport_store_options options = {.size = sizeof options, .slots = world_slots};
  stateport_store* store = NULL;
  CHECK_OK(stateport_store_create(spec, &options, NULL, &store));
  for (int32_t slot = 0; slot < world_slots; ++slot) fill_image(store, tensors, slot, 0);
  CHECK_OK(stateport_spec_destroy(spec));
  return store;
}

static stateport_state_tiers_options world_options(world* self, const char* folder) {
  return (stateport_state_tiers_options){.size = sizeof(stateport_state_tiers_options),
                                         .states = &self->states,
                                         .state_count = 1,
                                         .kv = self->kv,
                                         .model = "a model",
                                         .model_bytes = 7,
                                         .host_bytes = world_frames * frame_bytes,
                                         .folder = folder,
                                         .file_bytes = 1 << 22,
                                         .staging_bytes = 1 << 17};
}

static world make_world(const char* folder) {
  world self = {make_store(small_spec, small_tensors), make_store(kv_spec, kv_tensors), NULL};
  const stateport_state_tiers_options options = world_options(&self, folder);
  CHECK_OK(stateport_state_tiers_create(&options, &self.tiers));
  return self;
}

static void destroy_world(world* self) {
  CHECK_OK(stateport_state_tiers_check(self->tiers));
  // The tiers work on after the caller has destroyed the stores that they were made of.
  CHECK_OK(stateport_store_destroy(self->states));
  CHECK_OK(stateport_store_destroy(self->kv));
  CHECK_OK(stateport_state_tiers_check(self->tiers));
  CHECK_OK(stateport_state_tiers_destroy(self->tiers));
}

static stateport_image_key key_of(int32_t content, uint64_t number) {
  return (stateport_image_key){.prefix = {number, number + 7}, .tokens = 4 * (int64_t)number, .content = content};
}
static stateport_slot_image image_of(int32_t content, uint64_t number, int32_t slot) {
  return (stateport_slot_image){.key = key_of(content, number), .slot = slot};
}

static size_t in_flight(const world* self) {
  stateport_state_tiers_info info = {.size = sizeof info};
  CHECK_OK(stateport_state_tiers_describe(self->tiers, &info));
  CHECK(info.host_frame_bytes == frame_bytes && info.host_bytes == world_frames * frame_bytes);
  return info.in_flight;
}

/// Waits for transfers [first, first + count) alone, whose statuses it returns.
static void wait_for(world* self, uint64_t first, size_t count, int32_t* status) {
  size_t answered = 0;
  for (size_t i = 0; i < count; ++i) status[i] = -1;
  for (int polls = 0; polls < polls_max && in_flight(self) > 0; ++polls) {
    stateport_transfer_result results[2];
    size_t reported = 0;
    CHECK_OK(stateport_state_tiers_poll(self->tiers, NULL, results, 2, &reported));
    for (size_t i = 0; i < reported; ++i) {
      const bool is_ours = results[i].id >= first && results[i].id < first + count && results[i].reserved == 0;
      CHECK(is_ours && status[results[i].id - first] == -1);
      if (is_ours) status[results[i].id - first] = results[i].status;
      ++answered;
    }
  }
  CHECK(answered == count && in_flight(self) == 0);
}

static int32_t where_is(world* self, int32_t content, uint64_t number) {
  const stateport_image_key key = key_of(content, number);
  int32_t medium = 77;
  CHECK_OK(stateport_state_tiers_lookup(self->tiers, &key, 1, &medium));
  return medium;
}

/// Puts to the host until it is full, and to files.
static void put_images(world* self) {
  for (int32_t slot = 0; slot < world_slots; ++slot)
    fill_image(self->states, small_tensors, slot, 100 + (uint64_t)slot);
  fill_image(self->kv, kv_tensors, 3, 203);
  const stateport_slot_image states[] = {image_of(STATEPORT_STATE, 1, 1), image_of(STATEPORT_STATE, 2, 2),
                                         image_of(STATEPORT_STATE, 4, 4)};
  uint64_t first = 0;
  int32_t status[3];
  CHECK_OK(stateport_state_tiers_put(self->tiers, NULL, states, 3, STATEPORT_MEDIUM_HOST, &first));
  CHECK(first == UINT64_C(1) << 63);
  wait_for(self, first, 3, status);
  CHECK(status[0] == STATEPORT_TRANSFER_DONE && status[1] == STATEPORT_TRANSFER_DONE);
  CHECK(status[2] == STATEPORT_TRANSFER_NO_ROOM);
  const stateport_slot_image low[] = {states[2], image_of(STATEPORT_KV_BLOCK, 3, 3)};
  CHECK_OK(stateport_state_tiers_put(self->tiers, NULL, low, 2, STATEPORT_MEDIUM_FILE, &first));
  CHECK(first == (UINT64_C(1) << 63) + 3);
  wait_for(self, first, 2, status);
  CHECK(status[0] == STATEPORT_TRANSFER_DONE && status[1] == STATEPORT_TRANSFER_DONE);
  CHECK(where_is(self, STATEPORT_STATE, 1) == STATEPORT_MEDIUM_HOST);
  CHECK(where_is(self, STATEPORT_STATE, 4) == STATEPORT_MEDIUM_FILE);
  CHECK(where_is(self, STATEPORT_KV_BLOCK, 3) == STATEPORT_MEDIUM_FILE);
  CHECK(where_is(self, STATEPORT_KV_BLOCK, 1) == STATEPORT_NONE);
}

/// Gets a state from the host, one from a file, one that is nowhere, and a block.
static void get_images(world* self, int32_t medium_of_1) {
  CHECK(where_is(self, STATEPORT_STATE, 1) == medium_of_1);
  for (int32_t slot = 0; slot < world_slots; ++slot) fill_image(self->states, small_tensors, slot, 0);
  const stateport_slot_image wanted[] = {image_of(STATEPORT_STATE, 1, 5), image_of(STATEPORT_STATE, 4, 0),
                                         image_of(STATEPORT_STATE, 9, 3), image_of(STATEPORT_KV_BLOCK, 3, 2)};
  uint64_t first = 0;
  int32_t status[4];
  CHECK_OK(stateport_state_tiers_get(self->tiers, NULL, wanted, 4, &first));
  wait_for(self, first, 4, status);
  CHECK(status[0] == STATEPORT_TRANSFER_DONE && status[1] == STATEPORT_TRANSFER_DONE);
  CHECK(status[2] == STATEPORT_TRANSFER_GONE && status[3] == STATEPORT_TRANSFER_DONE);
  CHECK(holds_image(self->states, small_tensors, 5, 101) && holds_image(self->states, small_tensors, 0, 104));
  CHECK(holds_image(self->kv, kv_tensors, 2, 203));
}

/// Two states into files, within limits that the options give.
static void put_two(const char* folder, stateport_state_tiers_options limits, int32_t first_wanted,
                    int32_t second_wanted) {
  world self = {make_store(small_spec, small_tensors), make_store(kv_spec, kv_tensors), NULL};
  stateport_state_tiers_options options = world_options(&self, folder);
  options.staging_bytes = limits.staging_bytes;
  options.free_floor_bytes = limits.free_floor_bytes;
  options.file_transfers_max = limits.file_transfers_max;
  CHECK_OK(stateport_state_tiers_create(&options, &self.tiers));
  const stateport_slot_image images[] = {image_of(STATEPORT_STATE, 1, 1), image_of(STATEPORT_STATE, 2, 2)};
  const stateport_image_key keys[] = {images[0].key, images[1].key};
  uint64_t first = 0;
  int32_t status[2];
  CHECK_OK(stateport_state_tiers_put(self.tiers, NULL, images, 2, STATEPORT_MEDIUM_FILE, &first));
  wait_for(&self, first, 2, status);
  CHECK(status[0] == first_wanted && status[1] == second_wanted);
  CHECK_OK(stateport_state_tiers_remove(self.tiers, NULL, keys, 2));
  destroy_world(&self);
}

void test_file_limits(void) {
  char folder[folder_bytes];
  make_folder(folder, sizeof folder);
  const stateport_state_tiers_options none = {.size = sizeof none};
  stateport_state_tiers_options limits = none;
  put_two(folder, limits, STATEPORT_TRANSFER_DONE, STATEPORT_TRANSFER_DONE);
  limits.staging_bytes = 1;
  put_two(folder, limits, STATEPORT_TRANSFER_DONE, STATEPORT_TRANSFER_NO_ROOM);
  limits = none;
  limits.file_transfers_max = 1;
  put_two(folder, limits, STATEPORT_TRANSFER_DONE, STATEPORT_TRANSFER_NO_ROOM);
  limits = none;
  limits.free_floor_bytes = UINT64_C(1) << 62;
  put_two(folder, limits, STATEPORT_TRANSFER_NO_ROOM, STATEPORT_TRANSFER_NO_ROOM);
  remove_folder(folder);
}

/// The only image file of a folder. It stays readable when its name is gone.
static FILE* open_image(const char* path) {
  DIR* const folder = opendir(path);
  CHECK(folder != NULL);
  FILE* file = NULL;
  for (const struct dirent* entry = readdir(folder); entry != NULL && file == NULL; entry = readdir(folder)) {
    const char* const end = strrchr(entry->d_name, '.');
    char name[600];
    snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
    if (end != NULL && strcmp(end, ".img") == 0) file = fopen(name, "rb");
  }
  closedir(folder);
  return file;
}

static size_t bytes_set(FILE* file) {
  size_t count = 0;
  rewind(file);
  for (int byte = fgetc(file); byte != EOF; byte = fgetc(file)) count += byte != 0;
  return count;
}

/// With scrub the bytes of a file are gone before the file is.
void test_scrubbed_files(void) {
  for (int32_t scrub = 0; scrub < 2; ++scrub) {
    char folder[folder_bytes];
    make_folder(folder, sizeof folder);
    world self = {make_store(small_spec, small_tensors), make_store(kv_spec, kv_tensors), NULL};
    stateport_state_tiers_options options = world_options(&self, folder);
    options.scrub = scrub;
    CHECK_OK(stateport_state_tiers_create(&options, &self.tiers));
    fill_image(self.states, small_tensors, 1, 101);
    const stateport_slot_image image = image_of(STATEPORT_STATE, 1, 1);
    uint64_t first = 0;
    int32_t status = -1;
    CHECK_OK(stateport_state_tiers_put(self.tiers, NULL, &image, 1, STATEPORT_MEDIUM_FILE, &first));
    wait_for(&self, first, 1, &status);
    CHECK(status == STATEPORT_TRANSFER_DONE);
    FILE* const file = open_image(folder);
    CHECK(file != NULL);
    if (file != NULL) {
      setvbuf(file, NULL, _IONBF, 0);
      CHECK(bytes_set(file) > 500);
      CHECK_OK(stateport_state_tiers_remove(self.tiers, NULL, &image.key, 1));
      destroy_world(&self);
      CHECK(scrub ? bytes_set(file) == 0 : bytes_set(file) > 500);
      fclose(file);
    }
    remove_folder(folder);
  }
}

static void check_keys(world* self, int32_t medium, const stateport_image_key* wanted, size_t count) {
  stateport_image_key keys[4];
  size_t reported = 0;
  CHECK_OK(stateport_state_tiers_keys(self->tiers, medium, keys, 4, &reported));
  CHECK(reported == count && (count == 0 || memcmp(keys, wanted, count * sizeof *keys) == 0));
  CHECK_OK(stateport_state_tiers_keys(self->tiers, medium, NULL, 0, &reported));
  CHECK(reported == count);
}

void test_images(void) {
  char folder[folder_bytes];
  make_folder(folder, sizeof folder);
  world self = make_world(folder);
  put_images(&self);
  get_images(&self, STATEPORT_MEDIUM_HOST);
  const stateport_image_key gone = key_of(STATEPORT_STATE, 2);
  CHECK_OK(stateport_state_tiers_remove(self.tiers, NULL, &gone, 1));
  CHECK_OK(stateport_state_tiers_remove(self.tiers, NULL, &gone, 1));
  CHECK(where_is(&self, STATEPORT_STATE, 2) == STATEPORT_NONE);
  const stateport_image_key high[] = {key_of(STATEPORT_STATE, 1)};
  check_keys(&self, STATEPORT_MEDIUM_HOST, high, 1);
  size_t left = 1;
  for (int polls = 0; polls < polls_max && left > 0; ++polls) {
    stateport_transfer_result result;
    size_t reported = 0;
    CHECK_OK(stateport_state_tiers_drain(self.tiers, NULL, &left));
    CHECK_OK(stateport_state_tiers_poll(self.tiers, NULL, &result, 1, &reported));
    CHECK(reported == 0 || result.status == STATEPORT_TRANSFER_DONE);
  }
  CHECK(left == 0);
  destroy_world(&self);

  self = make_world(folder);
  const stateport_image_key low[] = {key_of(STATEPORT_STATE, 1), key_of(STATEPORT_KV_BLOCK, 3),
                                     key_of(STATEPORT_STATE, 4)};
  check_keys(&self, STATEPORT_MEDIUM_FILE, low, 3);
  check_keys(&self, STATEPORT_MEDIUM_HOST, NULL, 0);
  get_images(&self, STATEPORT_MEDIUM_FILE);
  CHECK_OK(stateport_state_tiers_remove(self.tiers, NULL, low, 3));
  check_keys(&self, STATEPORT_MEDIUM_FILE, NULL, 0);
  destroy_world(&self);
  remove_folder(folder);
}
