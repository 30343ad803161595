// SPDX-License-Identifier: Apache-2.0
#define _POSIX_C_SOURCE 200809L
#include "tier_engine.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { image_tensor_bytes_max = recurrent_elements * 4, polls_max = 1000000 };

// --- Content of images -----------------------------------------------------------------------------------------------

static uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

stateport_spec* kv_spec(void) {
  stateport_tensor_spec tensors[kv_tensors];
  memset(tensors, 0, sizeof tensors);
  for (int i = 0; i < kv_tensors; ++i) {
    tensors[i].size = sizeof tensors[i];
    tensors[i].layer = i;
    tensors[i].kind = STATEPORT_RECURRENT;
    tensors[i].type = STATEPORT_FP32;
    tensors[i].shape[0] = tier_block_tokens;
    tensors[i].shape[1] = kv_elements / tier_block_tokens;
    tensors[i].shape[2] = 1;
  }
  stateport_spec* spec = NULL;
  CHECK_OK(stateport_spec_create(tensors, kv_tensors, &spec));
  return spec;
}

uint64_t image_bytes(stateport_spec* (*make)(void)) {
  stateport_spec* const spec = make();
  uint64_t bytes = 0;
  CHECK_OK(stateport_image_bytes(spec, &bytes));
  CHECK_OK(stateport_spec_destroy(spec));
  return bytes;
}

static size_t bytes_of(size_t tensors, size_t tensor) {
  return tensors == kv_tensors ? (size_t)kv_elements * 4 : tensor_bytes(tensor);
}

static void image_pattern(unsigned char* bytes, size_t count, size_t tensor, uint64_t seed) {
  for (size_t i = 0; i < count; ++i) bytes[i] = (unsigned char)mix(seed * 1000003u + tensor * 8191u + i);
}

void fill_image(stateport_store* store, size_t tensors, int32_t slot, uint64_t seed) {
  unsigned char bytes[image_tensor_bytes_max];
  for (size_t tensor = 0; tensor < tensors; ++tensor) {
    image_pattern(bytes, bytes_of(tensors, tensor), tensor, seed);
    write_slot(store, tensor, slot, bytes, bytes_of(tensors, tensor));
  }
}

bool holds_image(stateport_store* store, size_t tensors, int32_t slot, uint64_t seed) {
  unsigned char wanted[image_tensor_bytes_max];
  unsigned char found[image_tensor_bytes_max];
  for (size_t tensor = 0; tensor < tensors; ++tensor) {
    const size_t bytes = bytes_of(tensors, tensor);
    image_pattern(wanted, bytes, tensor, seed);
    read_slot(store, tensor, slot, found, bytes);
    if (memcmp(wanted, found, bytes) != 0) return false;
  }
  return true;
}

/// Seed of the state after `count` tokens and of the KV of the block that ends there.
static uint64_t seed_of(const int32_t* tokens, int64_t count) {
  uint64_t seed = 1;
  for (int64_t i = 0; i < count; ++i) seed = mix(seed * 31 + (uint64_t)tokens[i]);
  return seed;
}

// --- Life ------------------------------------------------------------------------------------------------------------

static stateport_store* make_store(stateport_spec* spec, int32_t slots, size_t tensors) {
  const stateport_store_options options = {.size = sizeof options, .slots = slots};
  stateport_store* store = NULL;
  CHECK_OK(stateport_store_create(spec, &options, NULL, &store));
  for (int32_t slot = 0; slot < slots; ++slot) fill_image(store, tensors, slot, 0);
  return store;
}

static uint64_t fingerprint_of(stateport_spec* spec) {
  stateport_spec_info info = {.size = sizeof info};
  CHECK_OK(stateport_spec_describe(spec, &info));
  return info.fingerprint;
}

static int64_t all_blocks(const uint64_t* prefixes, size_t count, void* context) {
  CHECK(prefixes != NULL && count > 0 && ((const tier_engine*)context)->options.states_alone);
  return (int64_t)count;
}

static size_t group_count(const tier_engine* self) {
  return self->options.groups == 0 ? 1 : (size_t)self->options.groups;
}

static void make_cache(tier_engine* self, uint64_t fingerprint) {
  const int64_t file_bytes = self->options.file_bytes == 0 ? 1 << 24 : self->options.file_bytes;
  const stateport_state_group group = {.size = sizeof group,
                                       .block_size_tokens = tier_block_tokens,
                                       .blocks = 4,
                                       .conv_window = conv_window,
                                       .layout_fingerprint = fingerprint};
  const stateport_state_group groups[] = {group, group};
  const stateport_tier_options tiers = {
      .size = sizeof tiers,
      .host_bytes = self->options.host_bytes,
      .file_bytes = self->options.folder == NULL ? 0 : file_bytes,
      .remote_bytes = self->options.remote_bytes,
      .write_through = self->options.write_through,
      .state_image_bytes = (int64_t)image_bytes(small_spec),
      .kv_image_bytes = self->options.states_alone ? 0 : (int64_t)image_bytes(kv_spec),
      .leading_blocks = self->options.states_alone ? all_blocks : NULL,
      .leading_blocks_context = self};
  cache_setup setup = {
      .options = {.max_requests = 1,
                  .max_request_tokens = tier_request_tokens_max,
                  .block_size_tokens = tier_block_tokens,
                  .kv_tokens = 2 * tier_request_tokens_max,
                  .events = 1,
                  .tiers = &tiers},
      .slots = {.layout_fingerprint = fingerprint, .checkpoints = 2, .scan_alignment_tokens = -1},
      .columns = {.groups = groups, .group_count = group_count(self)},
  };
  set_combination(&setup, self->options.combination);
  CHECK_OK(stateport_request_cache_create(&setup.options, &self->cache));
}

void tier_engine_make(tier_engine* self, const tier_engine_options* options) {
  memset(self, 0, sizeof *self);
  self->options = *options;
  stateport_spec* const state = small_spec();
  stateport_spec* const kv = kv_spec();
  make_cache(self, fingerprint_of(state));
  stateport_request_cache_info info = {.size = sizeof info};
  int32_t slots = 0;
  CHECK_OK(stateport_request_cache_describe(self->cache, &info));
  CHECK_OK(stateport_request_cache_state_slots(self->cache, 0, &slots));
  CHECK((size_t)info.groups == group_count(self));
  self->states = make_store(state, slots, small_tensors);
  self->kv = make_store(kv, info.kv_blocks, kv_tensors);
  const stateport_state_tiers_options tiers = {.size = sizeof tiers,
                                               .states = &self->states,
                                               .state_count = 1,
                                               .kv = options->states_alone ? NULL : self->kv,
                                               .model = "a model",
                                               .model_bytes = 7,
                                               .host_bytes = 2 * (uint64_t)options->host_bytes,
                                               .folder = options->folder,
                                               .file_bytes = options->folder == NULL ? 0 : 1 << 24,
                                               .staging_bytes = options->folder == NULL ? 0 : 1 << 18};
  CHECK_OK(stateport_state_tiers_create(&tiers, &self->tiers));
  CHECK_OK(stateport_spec_destroy(state));
  CHECK_OK(stateport_spec_destroy(kv));
}

void tier_engine_destroy(tier_engine* self) {
  CHECK_OK(stateport_request_cache_destroy(self->cache));
  CHECK_OK(stateport_store_destroy(self->states));
  CHECK_OK(stateport_store_destroy(self->kv));
  CHECK_OK(stateport_state_tiers_check(self->tiers));
  CHECK_OK(stateport_state_tiers_destroy(self->tiers));
}

// --- Transfers -------------------------------------------------------------------------------------------------------

static void begin_transfers(tier_engine* self, const stateport_transfer* transfers, size_t count) {
  if (self->options.by_hand)
    CHECK_OK(stateport_state_tiers_execute(self->tiers, NULL, transfers, count));
  else
    CHECK_OK(stateport_state_tiers_begin_transfers(self->tiers, NULL, self->cache, transfers, count));
  self->begun += (int64_t)count;
}

/// Returns the number of requests that are ready.
static int32_t settle(tier_engine* self, const stateport_transfer_result* results, size_t count) {
  stateport_settled_transfers settled = {.size = sizeof settled};
  CHECK_OK(stateport_request_cache_settle(self->cache, results, count, &settled));
  begin_transfers(self, settled.transfers, settled.transfer_count);
  return settled.ready_requests;
}

/// Carries out the loads that the mover leaves to the engine.
static void load_from_elsewhere(tier_engine* self) {
  stateport_transfer loads[2];
  size_t count = 0;
  CHECK_OK(stateport_state_tiers_take_loads(self->tiers, loads, 2, &count));
  for (size_t i = 0; i < count; ++i) {
    CHECK(loads[i].kind == STATEPORT_TRANSFER_LOAD && loads[i].from == STATEPORT_MEDIUM_ELSEWHERE);
    CHECK(loads[i].image.content == STATEPORT_KV_BLOCK && loads[i].request >= 0);
    fill_image(self->kv, kv_tensors, loads[i].place, seed_of(self->tokens, loads[i].image.tokens));
    const stateport_transfer_result result = {.id = loads[i].id, .status = STATEPORT_TRANSFER_DONE};
    self->waits += settle(self, &result, 1);
    ++self->elsewhere;
  }
}

static void end_transfers(tier_engine* self) {
  int32_t loaded = 0;
  if (self->options.by_hand) {
    stateport_transfer_result results[64];
    size_t count = 0;
    CHECK_OK(stateport_state_tiers_poll(self->tiers, NULL, results, 64, &count));
    loaded = settle(self, results, count);
  } else {
    CHECK_OK(stateport_state_tiers_end_transfers(self->tiers, NULL, self->cache, &loaded));
  }
  self->waits += loaded;
  load_from_elsewhere(self);
}

static size_t under_way(const tier_engine* self) {
  stateport_request_cache_info info = {.size = sizeof info};
  CHECK_OK(stateport_request_cache_describe(self->cache, &info));
  return info.transfers_under_way;
}

void tier_engine_wait(tier_engine* self) {
  for (int i = 0; i < polls_max && under_way(self) > 0; ++i) end_transfers(self);
  CHECK(under_way(self) == 0);
}

void tier_engine_drain(tier_engine* self) {
  int64_t before = -1;
  while (before != self->begun) {
    before = self->begun;
    stateport_transfer_plan drained = {.size = sizeof drained};
    CHECK_OK(stateport_request_cache_drain(self->cache, &drained));
    begin_transfers(self, drained.transfers, drained.count);
    tier_engine_wait(self);
  }
}

stateport_tier_usage tier_engine_usage(const tier_engine* self, int32_t medium) {
  stateport_tier_usage usage = {.size = sizeof usage};
  CHECK_OK(stateport_request_cache_tier_usage(self->cache, medium, &usage));
  return usage;
}

// --- Passes ----------------------------------------------------------------------------------------------------------

static int32_t block_of(const stateport_pass_plan* plan, int64_t block) {
  const int32_t index = plan->kv[0][block * tier_block_tokens / plan->kv_tokens_per_id];
  if (plan->kv_tokens_per_id == tier_block_tokens) return index;
  CHECK(index % tier_block_tokens == 0);
  return index / tier_block_tokens;
}

static void check_reads(const tier_engine* self, const stateport_pass_plan* plan, const int32_t* tokens) {
  const int64_t start = plan->start[0];
  const stateport_group_plan* const group = plan->groups;
  if (group->read_slot[0] == STATEPORT_NONE)
    CHECK(start == 0);
  else
    CHECK(holds_image(self->states, small_tensors, group->read_slot[0], seed_of(tokens, start)));
  for (int64_t block = 0; block < start / tier_block_tokens; ++block)
    CHECK(holds_image(self->kv, kv_tensors, block_of(plan, block), seed_of(tokens, (block + 1) * tier_block_tokens)));
}

static void forward(const tier_engine* self, const stateport_pass_plan* plan, const int32_t* tokens, int32_t count) {
  check_reads(self, plan, tokens);
  const int64_t start = plan->start[0];
  const stateport_group_plan* const group = plan->groups;
  for (int64_t block = start / tier_block_tokens; block < (start + count) / tier_block_tokens; ++block)
    fill_image(self->kv, kv_tensors, block_of(plan, block), seed_of(tokens, (block + 1) * tier_block_tokens));
  for (size_t i = 0; i < group->save_count; ++i) {
    CHECK(group->saves[i].in_scratch == 0);
    fill_image(self->states, small_tensors, group->saves[i].slot, seed_of(tokens, start + group->saves[i].offset));
  }
  fill_image(self->states, small_tensors, group->write_slot[0], seed_of(tokens, start + count));
}

/// One pass over some tokens of the only request. Returns where it began.
static int64_t run_pass(tier_engine* self, int64_t request, const int32_t* tokens, int32_t count, int32_t sampled) {
  stateport_group_plan group = {.size = sizeof group};
  stateport_pass_plan plan = {.size = sizeof plan, .groups = &group, .group_count = 1};
  const stateport_pass_batch batch = {.size = sizeof batch, .request = &request, .tokens = &count, .rows = 1};
  CHECK_OK(stateport_request_cache_plan(self->cache, &batch, &plan));
  CHECK(plan.ready && plan.rows_without_room == 0);
  begin_transfers(self, plan.transfers, plan.transfer_count);
  CHECK_OK(stateport_store_clear(self->states, NULL, group.clear, group.clear_count));
  CHECK_OK(stateport_store_copy(self->states, NULL, group.copies, group.copy_count));
  forward(self, &plan, tokens, count);
  const int64_t start = plan.start[0];
  stateport_group_commit after = {.size = sizeof after};
  stateport_pass_commit done = {.size = sizeof done, .groups = &after, .group_count = 1};
  CHECK_OK(stateport_request_cache_commit(self->cache, plan.pass, &sampled, 1, tokens, (size_t)sampled, &done));
  begin_transfers(self, done.transfers, done.transfer_count);
  CHECK(after.from_scratch_count == 0 && after.step_count == 0);
  CHECK_OK(stateport_store_copy(self->states, NULL, after.copies, after.copy_count));
  end_transfers(self);
  return start;
}

static void wait_for_load(tier_engine* self, int64_t request) {
  uint8_t loading = 1;
  for (int i = 0; i < polls_max && loading != 0; ++i) {
    end_transfers(self);
    CHECK_OK(stateport_request_cache_loading(self->cache, &request, 1, &loading));
  }
  CHECK(loading == 0);
}

stateport_started_request tier_engine_serve(tier_engine* self, int32_t number) {
  int32_t tokens[tier_prompt_tokens];
  for (int32_t i = 0; i < tier_prompt_tokens; ++i) tokens[i] = 100 * number + i;
  const stateport_prompt prompt = {.size = sizeof prompt, .tokens = tokens, .count = tier_prompt_tokens};
  stateport_started_request started = {.size = sizeof started};
  size_t one = 0;
  self->tokens = tokens;
  CHECK_OK(stateport_request_cache_start(self->cache, &prompt, 1, &started, &one));
  begin_transfers(self, started.transfers, started.transfer_count);
  wait_for_load(self, started.request);
  stateport_running_request running = {.size = sizeof running};
  CHECK_OK(stateport_request_cache_request(self->cache, started.request, &running));
  const int64_t begins = running.computed;
  CHECK(begins == 0 || begins == tier_whole_tokens);
#ifndef STATEPORT_TEST_MEMORY  // a load may fail
  CHECK(begins == (started.load_tokens > 0 ? started.load_tokens : started.reused_tokens));
#endif
  if (begins == 0) CHECK(run_pass(self, started.request, tokens, tier_whole_tokens, 0) == 0);
  CHECK(run_pass(self, started.request, tokens, 1, 1) == tier_whole_tokens);
  CHECK_OK(stateport_request_cache_end(self->cache, &started.request, 1, STATEPORT_FINISHED, NULL, NULL));
  end_transfers(self);
  CHECK_OK(stateport_request_cache_check(self->cache));
  CHECK_OK(stateport_state_tiers_check(self->tiers));
  return started;
}

// --- Folders ---------------------------------------------------------------------------------------------------------

void make_folder(char* path, size_t bytes) {
  const char* const parent = getenv("TMPDIR");
  const int wanted = snprintf(path, bytes, "%s/stateport-c-XXXXXX", parent == NULL ? "." : parent);
  CHECK(wanted > 0 && (size_t)wanted < bytes && mkdtemp(path) != NULL);
}

void remove_folder(const char* path) {
  DIR* const folder = opendir(path);
  CHECK(folder != NULL);
  if (folder == NULL) return;
  for (const struct dirent* entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
    char name[600];
    snprintf(name, sizeof name, "%s/%s", path, entry->d_name);
    if (entry->d_name[0] != '.' || strlen(entry->d_name) > 2) unlink(name);
  }
  closedir(folder);
  CHECK(rmdir(path) == 0);
}
