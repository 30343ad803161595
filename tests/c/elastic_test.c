// SPDX-License-Identifier: Apache-2.0
// Elastic memory: stores whose extents are mapped by hand, and by the mover of a cache.
#include "elastic_setup.h"

#include <string.h>

stateport_elastic_usage elastic_usage_of(stateport_elastic_memory* memory) {
  stateport_elastic_usage usage = {.size = sizeof usage};
  CHECK_OK(stateport_elastic_memory_usage(memory, &usage));
  CHECK(usage.mapped_bytes <= usage.held_bytes && usage.held_bytes <= usage.limit_bytes);
  return usage;
}

stateport_elastic_store_info elastic_info_of(stateport_store* store) {
  stateport_elastic_store_info info = {.size = sizeof info};
  CHECK_OK(stateport_elastic_store_describe(store, &info));
  return info;
}

stateport_elastic_memory* make_elastic_memory(int64_t granule_bytes, int64_t granules) {
  const stateport_elastic_options options = {.size = sizeof options,
                                             .limit_bytes = (uint64_t)(granule_bytes * granules),
                                             .granularity_bytes = (uint64_t)granule_bytes};
  stateport_elastic_memory* memory = NULL;
  CHECK_OK(stateport_elastic_memory_create(&options, &memory));
  return memory;
}

int64_t smallest_granule(void) {
  const stateport_elastic_options options = {.size = sizeof options, .limit_bytes = 1};
  stateport_elastic_memory* memory = NULL;
  CHECK_OK(stateport_elastic_memory_create(&options, &memory));
  const int64_t granule = (int64_t)elastic_usage_of(memory).granularity_bytes;
  CHECK_OK(stateport_elastic_memory_destroy(memory));
  return granule;
}

stateport_spec* spec_of_bytes(int64_t bytes) {
  const stateport_tensor_spec tensor = {
      .size = sizeof tensor, .kind = STATEPORT_RECURRENT, .type = STATEPORT_FP32, .shape = {bytes / 4, 1, 1}};
  stateport_spec* spec = NULL;
  CHECK_OK(stateport_spec_create(&tensor, 1, &spec));
  return spec;
}

stateport_store* make_elastic_store(stateport_elastic_memory* memory, stateport_spec* spec, int32_t slots) {
  const stateport_store_options options = {.size = sizeof options, .slots = slots, .layout = STATEPORT_SLOT_MAJOR};
  stateport_store* store = NULL;
  CHECK_OK(stateport_elastic_store_create(memory, spec, &options, NULL, &store));
  return store;
}

stateport_request_cache* make_elastic_cache(const elastic_setup* self, int64_t arena_granules) {
  const stateport_arena arena = {.size = sizeof arena,
                                 .bytes = arena_granules * self->granule_bytes,
                                 .kv_extent_count = 1,
                                 .kv_extent_bytes = self->granule_bytes,
                                 .states_extent_count = 1,
                                 .states_extent_bytes = self->granule_bytes};
  const stateport_slot_layout slots = {.size = sizeof slots,
                                       .layout_fingerprint = 3,
                                       .checkpoints = elastic_checkpoints,
                                       .separate_checkpoints = 1,
                                       .placement = STATEPORT_PLACE_LAST,
                                       .arena = &arena};
  const stateport_request_cache_options options = {.size = sizeof options,
                                                   .index = STATEPORT_INDEX_TREE,
                                                   .slots = &slots,
                                                   .max_requests = 1,
                                                   .max_request_tokens = 6 * elastic_block_tokens,
                                                   .block_size_tokens = elastic_block_tokens,
                                                   .kv_tokens = elastic_block_tokens * (elastic_blocks - 1)};
  stateport_request_cache* cache = NULL;
  CHECK_OK(stateport_request_cache_create(&options, &cache));
  return cache;
}

void make_elastic_setup(elastic_setup* self) {
  self->granule_bytes = smallest_granule();
  self->spec = spec_of_bytes(self->granule_bytes);
  self->memory = make_elastic_memory(self->granule_bytes, elastic_granules);
  self->kv = make_elastic_store(self->memory, self->spec, elastic_blocks);
  self->states = make_elastic_store(self->memory, self->spec, elastic_checkpoints);
  self->cache = make_elastic_cache(self, elastic_granules);
}

void end_elastic_setup(elastic_setup* self) {
  CHECK_OK(stateport_request_cache_destroy(self->cache));
  CHECK_OK(stateport_store_destroy(self->kv));
  CHECK_OK(stateport_store_destroy(self->states));
  CHECK_OK(stateport_elastic_memory_destroy(self->memory));
  CHECK_OK(stateport_spec_destroy(self->spec));
}

static void write_word(stateport_store* store, int32_t slot, int32_t word) {
  write_slot(store, 0, slot, &word, sizeof word);
}
static int32_t word_of(stateport_store* store, int32_t slot) {
  int32_t word = -1;
  read_slot(store, 0, slot, &word, sizeof word);
  return word;
}

static bool is_mapped(stateport_store* store, int32_t extent) {
  uint8_t mapped = 2;
  CHECK_OK(stateport_elastic_store_is_mapped(store, extent, &mapped));
  return mapped == 1;
}

/// Memory of two granules under two stores of three slots each.
static void test_extents_by_hand(void) {
  const int64_t granule = smallest_granule();
  stateport_spec* spec = spec_of_bytes(granule);
  stateport_elastic_memory* memory = make_elastic_memory(granule, 2);
  stateport_store* stores[] = {make_elastic_store(memory, spec, 3), make_elastic_store(memory, spec, 3)};
  CHECK_OK(stateport_elastic_memory_destroy(memory));  // the stores keep it
  const stateport_elastic_store_info info = elastic_info_of(stores[0]);
  CHECK(info.extent_count == 1 && info.extents == 3 && info.extent_bytes == granule);
  CHECK(info.fixed_bytes == 0 && info.mapped_extents == 0 && !is_mapped(stores[0], 2));

  CHECK_OK(stateport_elastic_store_map(stores[0], 2));
  CHECK_OK(stateport_elastic_store_map(stores[0], 0));
  CHECK(is_mapped(stores[0], 2) && is_mapped(stores[0], 0) && !is_mapped(stores[0], 1));
  CHECK(elastic_info_of(stores[0]).mapped_extents == 2);
  write_word(stores[0], 2, 7);
  const stateport_slot_copy copy = {2, 0, 0, 2};
  CHECK_OK(stateport_store_copy(stores[0], NULL, &copy, 1));
  CHECK(word_of(stores[0], 0) == 7);

  // The limit is that of both.
  CHECK_REFUSED(stateport_elastic_store_map(stores[1], 1), STATEPORT_OUT_OF_MEMORY, "elastic store");
  CHECK(!is_mapped(stores[1], 1));
  CHECK_OK(stateport_elastic_store_unmap(stores[0], 2));
  CHECK(!is_mapped(stores[0], 2) && word_of(stores[0], 0) == 7);
  CHECK_OK(stateport_elastic_store_map(stores[1], 1));
  write_word(stores[1], 1, 8);
  CHECK(word_of(stores[1], 1) == 8);
  for (int i = 0; i < 2; ++i) CHECK_OK(stateport_store_destroy(stores[i]));
  CHECK_OK(stateport_spec_destroy(spec));
}

typedef struct served {
  int64_t moves;
  int64_t reused_blocks;
} served;

/// What a mover of this cache counts, the cache counts, and memory is never above its limit.
static void check_counts(const elastic_setup* self) {
  stateport_arena_usage usage = {.size = sizeof usage};
  CHECK_OK(stateport_request_cache_arena_usage(self->cache, &usage));
  const stateport_elastic_usage memory = elastic_usage_of(self->memory);
  CHECK((int64_t)memory.mapped_bytes == usage.kv_bytes + usage.state_bytes);
  CHECK(elastic_info_of(self->kv).mapped_extents == usage.kv_bytes / self->granule_bytes);
  CHECK(elastic_info_of(self->states).mapped_extents == usage.state_bytes / self->granule_bytes);
}

/// Moves that the cache did not decide next are refused.
static void refuse_forged(stateport_memory_mover* mover, const stateport_memory_plan* plan) {
  if (plan->move_count == 0) return;
  stateport_memory_move forged = plan->moves[0];
  const stateport_memory_plan wrong = {.size = sizeof wrong, .moves = &forged, .move_count = 1};
  ++forged.id;
  CHECK_REFUSED(stateport_memory_mover_carry_out(mover, NULL, &wrong, 1, NULL), STATEPORT_INVALID_ARGUMENT,
                "must be the next move of the cache");
  --forged.id;
  forged.part = STATEPORT_PART_KV;
  forged.kind = STATEPORT_MOVE_UNMAP;
  forged.extent = 0;  // it has the block that no request gets
  CHECK_REFUSED(stateport_memory_mover_carry_out(mover, NULL, &wrong, 1, NULL), STATEPORT_INVALID_ARGUMENT,
                "must be that of a move under way");
}

/// Carries out a plan. Returns how many moves ended.
static int64_t carry_out(stateport_memory_mover* mover, const stateport_memory_plan* plan) {
  refuse_forged(mover, plan);
  size_t settled = 0;
  CHECK_OK(stateport_memory_mover_carry_out(mover, NULL, plan, 1, &settled));
  CHECK(settled == plan->move_count);
  if (plan->move_count > 0)
    CHECK_REFUSED(stateport_memory_mover_carry_out(mover, NULL, plan, 1, NULL), STATEPORT_INVALID_ARGUMENT, "moves.id");
  return (int64_t)settled;
}

/// Plans one row. Returns whether there is room; memory moves until then.
static void plan_with_room(const elastic_setup* self, stateport_memory_mover* mover, int64_t request, int32_t tokens,
                           stateport_pass_plan* plan, served* counts) {
  const stateport_pass_batch batch = {.size = sizeof batch, .request = &request, .tokens = &tokens, .rows = 1};
  for (int tries = 0; tries < 4; ++tries) {
    CHECK_OK(stateport_request_cache_plan(self->cache, &batch, plan));
    if (plan->rows_without_room == 0) return;
    const stateport_memory_plan memory = {sizeof memory, plan->kv_copies, plan->kv_copy_count, plan->moves,
                                          plan->move_count};
    counts->moves += carry_out(mover, &memory);
    CHECK_OK(stateport_request_cache_cancel(self->cache, plan->pass));
  }
  CHECK(plan->rows_without_room == 0);
}

/// A prompt of whole blocks and one token, all of them `name`: each block of KV holds that name.
static void serve(const elastic_setup* self, stateport_memory_mover* mover, int32_t name, int32_t prompt_blocks,
                  served* counts) {
  int32_t tokens[6 * elastic_block_tokens];
  const int32_t length = prompt_blocks * elastic_block_tokens + 1;
  for (int32_t i = 0; i < length; ++i) tokens[i] = name;
  const stateport_prompt prompt = {.size = sizeof prompt, .tokens = tokens, .count = (size_t)length};
  stateport_started_request started = {.size = sizeof started};
  size_t done = 0;
  CHECK_OK(stateport_request_cache_start(self->cache, &prompt, 1, &started, &done));
  stateport_group_plan group = {.size = sizeof group};
  stateport_pass_plan plan = {.size = sizeof plan, .groups = &group, .group_count = 1};
  plan_with_room(self, mover, started.request, (int32_t)(length - started.reused_tokens), &plan, counts);
  for (int32_t at = 0; at < length; at += elastic_block_tokens) {
    const int32_t block = plan.kv[0][at] / elastic_block_tokens;
    CHECK(is_mapped(self->kv, block));
    if (at < plan.start[0]) {
      CHECK(word_of(self->kv, block) == name);
      ++counts->reused_blocks;
    } else {
      write_word(self->kv, block, name);
    }
  }
  stateport_group_commit end = {.size = sizeof end};
  stateport_pass_commit commit = {.size = sizeof commit, .groups = &end, .group_count = 1};
  const int32_t sampled = 0;
  CHECK_OK(stateport_request_cache_commit(self->cache, plan.pass, &sampled, 1, NULL, 0, &commit));
  const stateport_memory_plan memory = {sizeof memory, commit.kv_copies, commit.kv_copy_count, commit.moves,
                                        commit.move_count};
  counts->moves += carry_out(mover, &memory);
  stateport_ended_requests ended = {.size = sizeof ended};
  CHECK_OK(stateport_request_cache_end(self->cache, &started.request, 1, STATEPORT_FINISHED, NULL, &ended));
  for (size_t i = 0; i < ended.copy_count; ++i) CHECK(is_mapped(self->states, ended.copies[i].dst_slot));
  check_counts(self);
}

static void test_memory_follows_the_prompts(void) {
  elastic_setup setup;
  make_elastic_setup(&setup);
  stateport_memory_mover* mover = NULL;
  CHECK_OK(stateport_memory_mover_create(setup.cache, setup.kv, setup.states, &mover));
  check_counts(&setup);
  served counts = {0, 0};
  int32_t kv_extents[2];
  for (int32_t round = 0; round < 2; ++round) {
    for (int32_t name = 0; name < 40; ++name) {
      serve(&setup, mover, 1000 * round + name, 5, &counts);
      serve(&setup, mover, 1000 * round + name, 5, &counts);
    }
    kv_extents[0] = elastic_info_of(setup.kv).mapped_extents;
    for (int32_t name = 0; name < 80; ++name) serve(&setup, mover, 1000 * round + 500 + name, 1, &counts);
    kv_extents[1] = elastic_info_of(setup.kv).mapped_extents;
    CHECK(kv_extents[0] > kv_extents[1]);
  }
  CHECK(counts.moves > 8 && counts.reused_blocks > 100);
  // The mover keeps what it was made of.
  end_elastic_setup(&setup);
  CHECK_OK(stateport_memory_mover_carry_out(mover, NULL, NULL, 0, NULL));
  CHECK_OK(stateport_memory_mover_destroy(mover));
}

void test_elastic_memory(void) {
  test_extents_by_hand();
  test_memory_follows_the_prompts();
}
