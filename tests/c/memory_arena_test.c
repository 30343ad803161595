// SPDX-License-Identifier: Apache-2.0
// Memory that moves between KV and states, whose owner is the test: an array says which extents have memory.
#include "arena_setup.h"

#include <string.h>

typedef struct arena_world {
  stateport_request_cache* cache;
  bool is_tree;
  int32_t content[blocks + 1];  ///< by KV block
  int64_t kv_copies;
  int64_t reused;               ///< blocks that passes found
  bool mapped[2][extents_max];  ///< [stateport_memory_part, extent]
  int64_t refusals;             ///< maps that the system will refuse
  int64_t moves;
  int64_t plan_moves;  ///< of these, in plans
  int64_t late_moves;  ///< of these, made possible by others
} arena_world;

static int32_t extents_of(const arena_world* self, int32_t part) {
  stateport_request_cache_info info = {.size = sizeof info};
  CHECK_OK(stateport_request_cache_describe(self->cache, &info));
  return part == STATEPORT_PART_KV ? (info.kv_blocks + kv_count - 1) / kv_count
                                   : (checkpoints + states_count - 1) / states_count;
}

/// The extents that have memory are those that the cache may name, and its count of bytes is theirs.
static void check_mapped(const arena_world* self) {
  int64_t bytes[2] = {0, 0};
  for (int32_t part = STATEPORT_PART_KV; part <= STATEPORT_PART_STATES; ++part)
    for (int32_t extent = 0; extent < extents_of(self, part); ++extent) {
      uint8_t mapped = 2;
      CHECK_OK(stateport_request_cache_is_mapped(self->cache, part, extent, &mapped));
      CHECK(mapped == self->mapped[part][extent]);
      if (mapped != 0) bytes[part] += part == STATEPORT_PART_KV ? kv_bytes : states_bytes;
    }
  const stateport_arena_usage usage = usage_of(self->cache);
  CHECK(usage.kv_bytes == bytes[STATEPORT_PART_KV] && usage.state_bytes == bytes[STATEPORT_PART_STATES]);
  CHECK(usage.kv_bytes + usage.state_bytes <= arena_bytes);
  CHECK(usage.moves == self->moves);
}

static void make_world(arena_world* self, const arena_setup* setup) {
  memset(self, 0, sizeof *self);
  self->is_tree = setup->cache.options.index == STATEPORT_INDEX_TREE;
  CHECK_OK(stateport_request_cache_create(&setup->cache.options, &self->cache));
  for (int32_t part = STATEPORT_PART_KV; part <= STATEPORT_PART_STATES; ++part)
    for (int32_t extent = 0; extent < extents_of(self, part); ++extent) {
      uint8_t mapped = 2;
      CHECK_OK(stateport_request_cache_is_mapped(self->cache, part, extent, &mapped));
      self->mapped[part][extent] = mapped == 1;
    }
  check_mapped(self);
}

/// Moves are there until the next answer, whatever is settled. Then those that they made possible.
static void carry_out(arena_world* self, const stateport_slot_copy* copies, size_t copy_count,
                      const stateport_memory_move* moves, size_t count) {
  self->kv_copies += (int64_t)copy_count;
  for (size_t i = 0; i < copy_count; ++i) {
    CHECK(self->mapped[STATEPORT_PART_KV][copies[i].src_slot / kv_count]);
    CHECK(self->mapped[STATEPORT_PART_KV][copies[i].dst_slot / kv_count]);
    self->content[copies[i].dst_slot] = self->content[copies[i].src_slot];
  }
  for (size_t i = 0; i < count; ++i) {
    const stateport_memory_move move = moves[i];
    bool* const mapped = &self->mapped[move.part][move.extent];
    const bool maps = move.kind == STATEPORT_MOVE_MAP;
    CHECK(move.id == (uint64_t)++self->moves && move.reserved == 0);
    CHECK(*mapped != maps);
    const bool done = !maps || self->refusals == 0;
    if (!done) --self->refusals;
    if (done) *mapped = maps;
    CHECK_OK(stateport_request_cache_settle_move(self->cache, move.id, done ? 7 : 0));
    CHECK_REFUSED(stateport_request_cache_settle_move(self->cache, move.id, 1), STATEPORT_INVALID_ARGUMENT, "move = ");
  }
  stateport_memory_plan late = {.size = sizeof late};
  CHECK_OK(stateport_request_cache_take_memory(self->cache, &late));
  self->late_moves += (int64_t)late.move_count;
  if (late.move_count > 0) carry_out(self, late.kv_copies, late.kv_copy_count, late.moves, late.move_count);
  check_mapped(self);
}

/// The pass reads blocks of its own prompt, and writes the rest.
static void pass_over(arena_world* self, const stateport_pass_plan* plan, size_t row, int32_t name, int32_t tokens) {
  for (int64_t at = 0; at < plan->start[row] + tokens; at += block_tokens) {
    const int32_t block = self->is_tree ? plan->kv[row][at] / block_tokens : plan->kv[row][at / block_tokens];
    const int32_t wanted = name * 100 + (int32_t)at / block_tokens;
    CHECK(self->mapped[STATEPORT_PART_KV][block / kv_count]);
    if (at < plan->start[row]) {
      CHECK(self->content[block] == wanted);
      ++self->reused;
    }
    self->content[block] = wanted;
  }
}

/// Plans a pass over the rest of these prompts until each has room, and commits it. Names: from the first one on.
static void run(arena_world* self, const int64_t* requests, int32_t name, const int32_t* tokens, size_t rows) {
  const stateport_pass_batch batch = {.size = sizeof batch, .request = requests, .tokens = tokens, .rows = rows};
  stateport_pass_plan plan = {.size = sizeof plan};
  for (int tries = 0;; ++tries) {
    CHECK_OK(stateport_request_cache_plan(self->cache, &batch, &plan));
    CHECK((plan.move_count == 0 && plan.kv_copy_count == 0) || plan.rows_without_room > 0);
    self->plan_moves += (int64_t)plan.move_count;
    carry_out(self, plan.kv_copies, plan.kv_copy_count, plan.moves, plan.move_count);
    if (plan.rows_without_room == 0 || tries == 3) break;
    CHECK_OK(stateport_request_cache_cancel(self->cache, plan.pass));
  }
  CHECK(plan.rows_without_room == 0);
  for (size_t row = 0; row < rows; ++row) pass_over(self, &plan, row, name + (int32_t)row, tokens[row]);
  const int32_t none[] = {0, 0};
  stateport_group_commit group = {.size = sizeof group};
  stateport_pass_commit commit = {.size = sizeof commit, .groups = &group, .group_count = 1};
  CHECK_OK(stateport_request_cache_commit(self->cache, plan.pass, none, rows, NULL, 0, &commit));
  for (size_t i = 0; i < group.copy_count; ++i)
    CHECK(self->mapped[STATEPORT_PART_STATES][group.copies[i].dst_slot / states_count]);
  carry_out(self, commit.kv_copies, commit.kv_copy_count, commit.moves, commit.move_count);
}

static int32_t start_prompt(arena_world* self, int32_t name, int32_t count, int64_t* request) {
  int32_t tokens[request_tokens_max];
  for (int32_t at = 0; at < count; ++at) tokens[at] = name;
  const stateport_prompt prompt = {.size = sizeof prompt, .tokens = tokens, .count = (size_t)count};
  stateport_started_request started = {.size = sizeof started};
  size_t done = 0;
  CHECK_OK(stateport_request_cache_start(self->cache, &prompt, 1, &started, &done));
  *request = started.request;
  return count - (int32_t)started.reused_tokens;
}

static void finish(arena_world* self, int64_t request) {
  stateport_ended_requests ended = {.size = sizeof ended};
  CHECK_OK(stateport_request_cache_end(self->cache, &request, 1, STATEPORT_FINISHED, NULL, &ended));
  CHECK_OK(stateport_request_cache_check(self->cache));
}

static void serve(arena_world* self, int32_t name, int32_t count) {
  int64_t request = 0;
  const int32_t tokens = start_prompt(self, name, count, &request);
  run(self, &request, name, &tokens, 1);
  finish(self, request);
}

static void serve_many(arena_world* self, int32_t first, int32_t last, int32_t count) {
  for (int32_t name = first; name < last; ++name) serve(self, name, count);
}

/// To KV for long prompts, to states for short ones. A map that the system refuses changes nothing.
static void follow_content(int32_t combination) {
  arena_setup setup;
  make_arena_setup(&setup, combination);
  arena_world self;
  make_world(&self, &setup);
  const stateport_arena_usage before = usage_of(self.cache);
  CHECK(before.state_bytes == 13 * states_bytes && before.kv_bytes == 24 * kv_bytes);  // half of the arena each
  self.refusals = 2;
  serve_many(&self, 1, 60, 5 * block_tokens + 1);
  const int64_t kv_of_long = usage_of(self.cache).kv_bytes;
  CHECK(kv_of_long > before.kv_bytes);
  CHECK(self.refusals == 0 && usage_of(self.cache).refused_moves == 2);
  serve_many(&self, 100, 200, block_tokens + 1);
  CHECK(usage_of(self.cache).kv_bytes < kv_of_long);
  serve_many(&self, 180, 200, block_tokens + 1);
  CHECK(self.kv_copies > 0 && self.reused > 0 && self.late_moves > 0);
  CHECK_OK(stateport_request_cache_destroy(self.cache));
}

/// The share of states at the start. With all of the arena they leave KV for one request, and a second one waits for a
/// move.
static void share_at_start(int32_t combination) {
  arena_setup setup;
  make_arena_setup(&setup, combination);
  arena_world self;
  setup.arena.state_share = STATEPORT_NONE;
  make_world(&self, &setup);
  CHECK(usage_of(self.cache).kv_bytes > usage_of(self.cache).state_bytes);
  CHECK_OK(stateport_request_cache_destroy(self.cache));
  setup.arena.state_share = 1;
  make_world(&self, &setup);
  CHECK(usage_of(self.cache).kv_bytes < usage_of(self.cache).state_bytes / 4);
  int64_t requests[2];
  int32_t tokens[2];
  for (int32_t i = 0; i < 2; ++i) tokens[i] = start_prompt(&self, 1 + i, request_tokens_max, &requests[i]);
  run(&self, requests, 1, tokens, 2);
  CHECK(self.plan_moves > 0);
  for (int32_t i = 0; i < 2; ++i) finish(&self, requests[i]);
  CHECK_OK(stateport_request_cache_destroy(self.cache));
}

/// An insert without room answers nothing: its moves are taken. The moves of the one before are late.
static void insert_after_moves(int32_t combination) {
  arena_setup setup;
  make_arena_setup(&setup, combination);
  setup.arena.state_share = 1;
  arena_world self;
  make_world(&self, &setup);
  stateport_memory_move held[2 * extents_max];
  size_t held_count = 0;
  bool had_no_room = false;
  int64_t requests[2];
  for (int32_t i = 0; i < 2; ++i) {
    start_prompt(&self, 1 + i, request_tokens_max, &requests[i]);
    for (int tries = 0; tries < 4; ++tries) {
      stateport_pass_plan plan = {.size = sizeof plan};
      stateport_pass_commit commit = {.size = sizeof commit};
      stateport_status status;
      ANSWER(status, stateport_request_cache_insert(self.cache, requests[i], request_tokens_max, &plan, &commit));
      if (status == STATEPORT_OK) {
        CHECK(held_count == 0 && commit.kv_copy_count == 0 && commit.move_count <= 2 * extents_max);
        held_count = commit.move_count;
        memcpy(held, commit.moves, held_count * sizeof *held);
        break;
      }
      CHECK(status == STATEPORT_NO_CAPACITY && tries < 3);
      had_no_room = true;
      carry_out(&self, NULL, 0, held, held_count);
      held_count = 0;
      stateport_memory_plan memory = {.size = sizeof memory, .move_count = 9};
      CHECK_OK(stateport_request_cache_take_memory(self.cache, &memory));
      CHECK(memory.move_count == 0 && memory.kv_copy_count == 0);
    }
  }
  CHECK(had_no_room && self.late_moves > 0);
  carry_out(&self, NULL, 0, held, held_count);
  for (int32_t i = 0; i < 2; ++i) finish(&self, requests[i]);
  CHECK_OK(stateport_request_cache_destroy(self.cache));
}

void test_memory_arena(void) {
  for (int32_t kind = hash_slots; kind <= tree_slots; ++kind) {
    follow_content(kind);
    share_at_start(kind);
    insert_after_moves(kind);
  }
}
